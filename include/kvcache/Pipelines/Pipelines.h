//===- Pipelines.h - Named sequences of passes ------------------*- C++ -*-===//
//
// The only place that orders passes. Each pipeline is a function that tools and
// libraries call, and a flag of kv-opt.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_PIPELINES_PIPELINES_H
#define KVCACHE_PIPELINES_PIPELINES_H

#include "mlir/Pass/PassManager.h"

namespace kvcache {

/// `--kvcache-fuse`: attention on decoded tensors becomes attention on a cache.
void buildFusePipeline(mlir::OpPassManager &pm);

/// Registers every pipeline (once a process).
void registerPipelines();

} // namespace kvcache

#endif // KVCACHE_PIPELINES_PIPELINES_H
