//===- Lowering.h - From storage kernels to the LLVM dialect ----*- C++ -*-===//
#ifndef KVCACHE_TEST_STORAGEKERNELS_LOWERING_H
#define KVCACHE_TEST_STORAGEKERNELS_LOWERING_H

#include "kvcache/Kernel/KernelSpec.h"

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"

inline mlir::LogicalResult lowerToLLVMDialect(mlir::ModuleOp module) {
  mlir::PassManager pm(module->getContext());
  pm.addPass(mlir::createSCFToControlFlowPass());
  pm.addPass(mlir::createConvertMathToLLVMPass());
  pm.addPass(mlir::createArithToLLVMConversionPass());
  pm.addPass(mlir::createConvertControlFlowToLLVMPass());
  pm.addPass(mlir::createReconcileUnrealizedCastsPass());
  if (mlir::failed(mlir::verify(module)))
    return mlir::failure();
  return pm.run(module);
}

namespace kvcache::test {
/// The kernels as PTX text, empty on failure.
std::string emitStorageKernels(KernelSpec spec, std::string_view targetName);
} // namespace kvcache::test

#endif // KVCACHE_TEST_STORAGEKERNELS_LOWERING_H
