//===- KVTileToCPU.h - Kernels as serial vector code ------------*- C++ -*-===//
//
// Lowers `kvtile.kernel` to the CPU entry points `attend` and `merge` of
// kvcache/ABI/KernelABI.h.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVTILETOCPU_H
#define KVCACHE_CONVERSION_KVTILETOCPU_H

#include "kvcache/Dialect/KVTile/IR/KVTile.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

namespace kvcache {

/// Replaces a kernel by the functions `NAME` and `merge`, in the dialects func,
/// scf, arith, math, vector and llvm. Refuses what is not scheduled for CPUs.
mlir::LogicalResult lowerKernelToCpu(tile::KernelOp kernel);

/// Replaces a kernel on arrays by the function `NAME` (ABI/ArrayKernelABI.h)
/// and that of one of its work items, likewise.
mlir::LogicalResult lowerArrayKernelToCpu(tile::ArrayKernelOp kernel);

/// Attributes of a kernel on arrays whose keys or values are not plain arrays:
/// symbols of functions (source pointer, sequence, kv head, first token,
/// tokens, destination pointer) that write so many rows of f32, each padded to
/// a multiple of 16 channels.
inline constexpr char kKeyRows[] = "kvtile.key_rows";
inline constexpr char kValueRows[] = "kvtile.value_rows";

/// From there (and from anything else in those dialects) to the LLVM dialect.
void buildCpuToLLVMPipeline(mlir::OpPassManager &passes);

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVTILETOCPU_H
