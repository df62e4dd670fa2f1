//===- Pipelines.cpp - Named sequences of passes --------------------------===//
//
// Each step says why it is there.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Pipelines/Pipelines.h"
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;

namespace kvcache {

void buildFusePipeline(OpPassManager &pm) {
  // Keys and values must be seen to use the same table.
  pm.addPass(createCSEPass());
  pm.addPass(createFuseAttentionPass());
  // Slices and reshapes that became part of a map have no users left.
  pm.addPass(createCanonicalizerPass());
}

void registerPipelines() {
  PassPipelineRegistration<>(
      "kvcache-fuse",
      "attend to caches instead of gathered and decoded tensors",
      buildFusePipeline);
}

} // namespace kvcache
