//===- CpuPipelines.cpp - From kvcache to code of this machine ------------===//
#include "kvcache/Pipelines/CpuPipelines.h"
#include "kvcache/Conversion/ExpandFloats/ExpandFloats.h"
#include "kvcache/Conversion/KVCacheToReference/KVCacheToReference.h"
#include "kvcache/Conversion/Materialize/Materialize.h"
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "kvcache/Import/Import.h"
#include "kvcache/Pipelines/Pipelines.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/Bufferization/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/Passes.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;

void kvcache::buildLowerToLLVMPipeline(OpPassManager &pm,
                                       bool resultsAsArguments) {
  // Arithmetic on whole tensors becomes linalg, which bufferises.
  pm.addNestedPass<func::FuncOp>(createConvertElementwiseToLinalgPass());
  bufferization::OneShotBufferizePassOptions bufferize;
  bufferize.bufferizeFunctionBoundaries = true;
  // Imported loops carry tensors of which each step makes new ones.
  bufferize.allowReturnAllocsFromLoops = true;
  bufferize.functionBoundaryTypeConversion =
      bufferization::LayoutMapOption::IdentityLayoutMap;
  bufferize.bufferAlignment = 128; // what kernels expect of pools
  pm.addPass(bufferization::createOneShotBufferizePass(bufferize));
  pm.addPass(createCanonicalizerPass());
  if (resultsAsArguments) {
    bufferization::BufferResultsToOutParamsPassOptions out;
    // A result that was allocated is computed in the caller's buffer instead.
    out.hoistStaticAllocs = true;
    out.modifyPublicFunctions = true;
    pm.addPass(bufferization::createBufferResultsToOutParamsPass(out));
  }
  pm.addPass(createExpandCopiesPass());
  pm.addNestedPass<func::FuncOp>(createConvertLinalgToLoopsPass());
  pm.addPass(memref::createExpandStridedMetadataPass());
  pm.addPass(createLowerAffinePass());
  // Arithmetic in floats that no CPU has becomes f32 between conversions, and
  // the conversions become integer code.
  math::MathExtendToSupportedTypesOptions math;
  math.extraTypeStrs = {};
  math.targetTypeStr = "f32";
  pm.addNestedPass<func::FuncOp>(math::createMathExtendToSupportedTypes(math));
  arith::ArithEmulateUnsupportedFloatsOptions emulate;
  emulate.sourceTypeStrs = {"bf16", "f8E4M3FN", "f8E5M2"};
  emulate.targetTypeStr = "f32";
  pm.addPass(arith::createArithEmulateUnsupportedFloats(emulate));
  pm.addPass(createKVCacheExpandFloatsPass());
  pm.addPass(arith::createArithExpandOpsPass());
  pm.addPass(createCSEPass());
  pm.addPass(createSCFToControlFlowPass());
  // libm has what LLVM has no intrinsic for (tanh, erf).
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createConvertMathToLibmPass());
  pm.addPass(createConvertVectorToLLVMPass());
  pm.addPass(createConvertIndexToLLVMPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createUBToLLVMConversionPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  pm.addPass(createBFloatAsBitsPass());
}

void kvcache::buildToReferencePipeline(OpPassManager &pm) {
  // Before anything changes: messages should point at what was written.
  pm.addPass(createVerifyLinearPass());
  // A cache is followed within one function only: callees are inlined, and
  // what is left of them has no users.
  pm.addPass(createInlinerPass());
  pm.addPass(createSymbolDCEPass());
  pm.addPass(createKVCacheLowerToReferencePass());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
}

void kvcache::buildToCpuPipeline(OpPassManager &pm, bool resultsAsArguments,
                                 bool onlyMissed) {
  // Caches are changed in place: nobody may still look at the old one.
  pm.addPass(createVerifyLinearPass());
  // Fusion looks within one function, as the lowering of caches does.
  pm.addPass(createInlinerPass());
  pm.addPass(createSymbolDCEPass());
  buildFusePipeline(pm, onlyMissed);
  pm.addPass(createKVCacheMaterializePass());
  // What has to do with no cache: quantize, attention on plain tensors, ...
  buildToReferencePipeline(pm);
  buildLowerToLLVMPipeline(pm, resultsAsArguments);
}

void kvcache::buildRunOnCpuPipeline(OpPassManager &pm, bool fuse) {
  // Graphs of frameworks; files of kvcache ops pass through unchanged.
  import::ImportPassOptions import;
  import.fuse = fuse;
  pm.addPass(import::createImportPass(import));
  if (fuse)
    return buildToCpuPipeline(pm, /*resultsAsArguments=*/false,
                              /*onlyMissed=*/true); // import has its own
  buildToReferencePipeline(pm);
  buildLowerToLLVMPipeline(pm);
}

void kvcache::buildRunOnDevicePipeline(OpPassManager &pm, StringRef target,
                                       DeviceKernels kernels) {
  import::ImportPassOptions import;
  import.fuse = true;
  pm.addPass(import::createImportPass(import));
  pm.addPass(createVerifyLinearPass());
  pm.addPass(createInlinerPass());
  pm.addPass(createSymbolDCEPass());
  AssignLayoutPassOptions layout;
  layout.target = target.str();
  pm.addPass(createAssignLayoutPass(layout));
  buildFusePipeline(pm);
  pm.addPass(createMaterializeOnDevicePass(std::move(kernels)));
  buildToReferencePipeline(pm);
  buildLowerToLLVMPipeline(pm);
}

void kvcache::registerCpuPipelines() {
  PassPipelineRegistration<>("kvcache-to-reference",
                             "lower every kvcache op to plain loops",
                             buildToReferencePipeline);
  PassPipelineRegistration<>(
      "kvcache-to-cpu",
      "fuse, generate kernels for this machine and lower to the LLVM dialect",
      [](OpPassManager &pm) { buildToCpuPipeline(pm); });
  PassPipelineRegistration<>(
      "kvcache-lower-to-llvm",
      "bufferise tensor code and lower it to the LLVM dialect",
      [](OpPassManager &pm) { buildLowerToLLVMPipeline(pm); });
}
