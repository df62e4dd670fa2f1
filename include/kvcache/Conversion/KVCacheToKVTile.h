//===- KVCacheToKVTile.h - From specs to scheduled kernels ------*- C++ -*-===//
//
// Policy (which schedule) apart from mechanism (what the kernel is): one
// function chooses a `#kvtile.schedule` from a spec and a target description,
// one checks a schedule, one writes the kernel that obeys it.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOKVTILE_H
#define KVCACHE_CONVERSION_KVCACHETOKVTILE_H

#include "kvcache/Dialect/KVTile/IR/KVTile.h"
#include "kvcache/Target/TargetInfo.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {

/// The default schedule of a kernel on a target, or an error that names the
/// limit that nothing fits.
/// `tier` counts on x86-64 only.
mlir::FailureOr<tile::ScheduleAttr>
chooseSchedule(mlir::Location loc, const KernelSpec &spec,
               const TargetInfo &target, CpuTier tier = CpuTier::AVX512);

/// Fails with an error that names the limit if a schedule does not suit a
/// target.
mlir::LogicalResult verifySchedule(mlir::Location loc, const KernelSpec &spec,
                                   tile::ScheduleAttr schedule,
                                   const TargetInfo &target,
                                   CpuTier tier = CpuTier::AVX512);

/// The same for one GPU target.
mlir::FailureOr<tile::ScheduleAttr> chooseGpuSchedule(mlir::Location loc,
                                                      const KernelSpec &spec,
                                                      const TargetInfo &target);
mlir::LogicalResult verifyGpuSchedule(mlir::Location loc,
                                      const KernelSpec &spec,
                                      tile::ScheduleAttr schedule,
                                      const TargetInfo &target);
/// Static shared memory of one block of `attend` on a GPU, in bytes.
int64_t gpuSharedBytes(const KernelSpec &spec, tile::ScheduleAttr schedule);
/// Tensor-core products in the bodies of the sealed and the open page loop.
int64_t gpuProductsPerTile(const KernelSpec &spec, int64_t tileTokens,
                           int64_t qPack);

/// Heads per chunk so that all chunks of a group have about the same size.
int64_t evenChunk(int64_t group, int64_t most);

/// Register width of a tier.
int64_t vectorBitsOf(CpuTier tier);

/// Changes fields of a schedule as a user wrote them ("q_pack=4,warps=2").
mlir::FailureOr<tile::ScheduleAttr>
overrideSchedule(mlir::Location loc, tile::ScheduleAttr schedule,
                 llvm::StringRef overrides);

/// Bytes of one sealed record's keys and values within a tile, for
/// shared-memory estimates (codes, scales and zeros, unpadded).
int64_t sealedTileBytes(const KernelSpec &spec, int64_t tileTokens);

/// Appends a kernel named `attend` to `module`: online softmax in base 2 over
/// the pages of a split, masked by guarded exponents.
tile::KernelOp buildAttendKernel(mlir::ModuleOp module, const KernelSpec &spec,
                                 tile::ScheduleAttr schedule);

/// Fills in the body of a kernel that has a schedule and no body.
void expandAttend(tile::KernelOp kernel);

/// The default schedule of a kernel on arrays: few columns (`columns`: query
/// rows times the group, 0 if not known) are handled one by one, with vectors
/// along channels, more of them together, with vectors along the queries.
tile::ScheduleAttr chooseArraySchedule(tile::ArraysAttr spec, int64_t columns,
                                       CpuTier tier);

/// Fails with an error that names the limit if a schedule does not suit a
/// kernel on arrays.
mlir::LogicalResult verifyArraySchedule(mlir::Location loc,
                                        tile::ArraysAttr spec,
                                        tile::ScheduleAttr schedule,
                                        CpuTier tier);

/// Fills in the body of a kernel on arrays that has a schedule and no body.
void expandArrayAttend(tile::ArrayKernelOp kernel);

#define GEN_PASS_DECL
#include "kvcache/Conversion/KVTilePasses.h.inc"
#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/KVTilePasses.h.inc"

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOKVTILE_H
