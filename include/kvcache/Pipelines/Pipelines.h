//===- Pipelines.h - Named sequences of passes ------------------*- C++ -*-===//
//
// The only place that orders passes. Each pipeline is a function that tools and
// libraries call, and a flag of kv-opt.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_PIPELINES_PIPELINES_H
#define KVCACHE_PIPELINES_PIPELINES_H

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"

namespace kvcache {

/// `--kvcache-fuse`: attention on decoded tensors becomes attention on a cache.
void buildFusePipeline(mlir::OpPassManager &pm, bool onlyMissed = false);

struct ToPTXOptions : mlir::PassPipelineOptions<ToPTXOptions> {
  Option<std::string> target{*this, "target", llvm::cl::desc("PTX target"),
                             llvm::cl::init("sm_80")};
  Option<std::string> schedule{
      *this, "schedule", llvm::cl::desc("Fields to override, KEY=V;KEY=V"),
      llvm::cl::init("")};
};

/// `--kvcache-to-ptx="target=sm_80"`: kernels become `nvvm` code that the NVPTX
/// backend turns into PTX (kv-compile does both).
void buildToPTXPipeline(mlir::OpPassManager &pm, const ToPTXOptions &options);

/// Registers every pipeline (once a process).
void registerPipelines();

} // namespace kvcache

#endif // KVCACHE_PIPELINES_PIPELINES_H
