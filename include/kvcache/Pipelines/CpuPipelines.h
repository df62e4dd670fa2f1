//===- CpuPipelines.h - From kvcache to code of this machine ----*- C++ -*-===//
//
// The order of passes of the CPU targets.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_PIPELINES_CPUPIPELINES_H
#define KVCACHE_PIPELINES_CPUPIPELINES_H

#include "kvcache/Conversion/Materialize/Materialize.h"
#include <memory>

namespace mlir {
class OpPassManager;
class Pass;
} // namespace mlir

namespace kvcache {

/// Every kvcache op to plain loops (`--kvcache-to-reference`).
void buildToReferencePipeline(mlir::OpPassManager &pm);

/// From tensors and loops to the LLVM dialect: bufferises functions included;
/// tensor arguments and results become memrefs with identity layout
/// (`--kvcache-lower-to-llvm`). With `resultsAsArguments` results become
/// further arguments, buffers that the caller gives.
void buildLowerToLLVMPipeline(mlir::OpPassManager &pm,
                              bool resultsAsArguments = false);

/// Fused kernels for this machine, to the LLVM dialect (`--kvcache-to-cpu`).
/// With `onlyMissed` no remark is made on attention that has no cache behind
/// it.
void buildToCpuPipeline(mlir::OpPassManager &pm,
                        bool resultsAsArguments = false,
                        bool onlyMissed = false);

/// What kv-run does: the reference, or the fused kernels, to the LLVM dialect.
void buildRunOnCpuPipeline(mlir::OpPassManager &pm, bool fuse);

/// The same with attention on caches run by a device: caches get the page image
/// of `target`, see createMaterializeOnDevicePass.
void buildRunOnDevicePipeline(mlir::OpPassManager &pm, llvm::StringRef target,
                              DeviceKernels kernels);

/// Registers the pipelines under their names.
void registerCpuPipelines();

/// Turns memref.copy into linalg.copy.
std::unique_ptr<mlir::Pass> createExpandCopiesPass();

/// Turns bf16 values that are only moved into i16.
std::unique_ptr<mlir::Pass> createBFloatAsBitsPass();

} // namespace kvcache

#endif // KVCACHE_PIPELINES_CPUPIPELINES_H
