//===- Passes.h - Passes of the kvcache dialect -----------------*- C++ -*-===//
//
// Pass factories and registration, and the transforms as functions.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_TRANSFORMS_PASSES_H
#define KVCACHE_DIALECT_KVCACHE_TRANSFORMS_PASSES_H

#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Target/TargetInfo.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

/// Makes `op` attend to a cache instead of decoded tensors, if it can: true
/// when it did, else `reason` says why not (and nothing changed).
bool fuseAttention(AttentionOp op, std::string &reason);

/// Brings queries of rank 4 on a cache to rows: true when it did, else `reason`
/// says why not if `op` has such queries.
bool flattenQueries(AttentionOp op, std::string &reason);

/// Gives every unassigned cache type below `root` the image of `target`.
mlir::LogicalResult assignLayout(mlir::Operation *root,
                                 const TargetInfo &target);

/// Fails with a diagnostic on each op below `root` that `target` cannot
/// compile.
mlir::LogicalResult verifyTargetLegal(mlir::Operation *root,
                                      const TargetInfo &target);

/// Fails with a diagnostic on each use of a cache below `root` that can run
/// after the cache was replaced.
mlir::LogicalResult verifyLinear(mlir::Operation *root);

} // namespace kvcache

#endif // KVCACHE_DIALECT_KVCACHE_TRANSFORMS_PASSES_H
