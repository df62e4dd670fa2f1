//===- KVTileToNVVM.cpp - The pass ----------------------------------------===//
//
// Thin shell: plan, lower, erase, for every kernel of the module.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/KVTileToNVVM.h"
#include "Kernel.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

namespace kvcache {
#define GEN_PASS_DEF_KVTILETONVVMPASS
#include "kvcache/Conversion/KVTileToNVVMPasses.h.inc"
} // namespace kvcache

using namespace mlir;
using namespace kvcache;

LogicalResult kvcache::lowerKVTileToNVVM(ModuleOp module) {
  OpBuilder builder(module.getContext());
  for (auto kernel :
       llvm::make_early_inc_range(module.getOps<tile::KernelOp>())) {
    FailureOr<gpu::Plan> plan = gpu::makePlan(kernel);
    if (failed(plan))
      return failure();
    if (kernel.getBody().empty())
      return kernel.emitOpError("expected a body; run kvtile-expand-attend");
    if (failed(gpu::Kernel(*plan, kernel, builder).run()))
      return failure();
    kernel.erase();
  }
  return success();
}

namespace {
struct KVTileToNVVM : public kvcache::impl::KVTileToNVVMPassBase<KVTileToNVVM> {
  void runOnOperation() override {
    if (failed(lowerKVTileToNVVM(getOperation())))
      signalPassFailure();
  }
};
} // namespace
