//===- Pipelines.cpp - Named sequences of passes --------------------------===//
//
// Each step says why it is there.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Pipelines/Pipelines.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"
#include "kvcache/Conversion/KVTileToNVVM.h"
#include "kvcache/Conversion/OutlineKernels/OutlineKernels.h"
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;

namespace kvcache {

void buildFusePipeline(OpPassManager &pm, bool onlyMissed) {
  // Keys and values must be seen to use the same table.
  pm.addPass(createCSEPass());
  FuseAttentionPassOptions fuse;
  fuse.onlyMissed = onlyMissed;
  pm.addPass(createFuseAttentionPass(fuse));
  // Kernels take queries as rows, graphs often do not.
  pm.addPass(createFlattenQueriesPass());
  // Slices and reshapes that became part of a map have no users left.
  pm.addPass(createCanonicalizerPass());
}

void buildToPTXPipeline(OpPassManager &pm, const ToPTXOptions &options) {
  pm.addPass(createVerifyLinearPass());
  buildFusePipeline(pm);
  // No later stage aborts or takes another path.
  VerifyTargetLegalPassOptions legal;
  legal.target = options.target;
  pm.addPass(createVerifyTargetLegalPass(legal));
  pm.addPass(createOutlineKernelsPass());
  KVTileChooseSchedulePassOptions choose;
  choose.target = options.target;
  choose.overrides = options.schedule;
  pm.addPass(createKVTileChooseSchedulePass(choose));
  // Also pinned schedules must suit the target.
  KVTileVerifySchedulePassOptions verify;
  verify.target = options.target;
  pm.addPass(createKVTileVerifySchedulePass(verify));
  pm.addPass(createKVTileExpandAttendPass());
  pm.addPass(createKVTileToNVVMPass());
}

void registerPipelines() {
  PassPipelineRegistration<>(
      "kvcache-fuse",
      "attend to caches instead of gathered and decoded tensors",
      [](OpPassManager &pm) { buildFusePipeline(pm); });
  PassPipelineRegistration<ToPTXOptions>(
      "kvcache-to-ptx", "lower kernels to nvvm for a PTX target",
      buildToPTXPipeline);
}

} // namespace kvcache
