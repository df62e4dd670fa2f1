//===- Utils.h - From the dialect to kernel specs ---------------*- C++ -*-===//
//
// What later stages ask of kvcache ops.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_UTILS_UTILS_H
#define KVCACHE_DIALECT_KVCACHE_UTILS_UTILS_H

#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Kernel/KernelSpec.h"

namespace kvcache {

/// The spec of the kernel that computes `op`. Fails with a diagnostic on `op`
/// that names what a spec cannot say: keys and values that are no cache, sizes
/// that are not static, positions, masks, sink logits, a head map, causal
/// masks anchored top-left. An external layout is the cache type's, not the
/// spec's. Slopes, attribute or operand, are `alibi`.
mlir::FailureOr<KernelSpec> getKernelSpec(AttentionOp op);

/// The spec of a cache alone (for append, seal, read): as many query heads as
/// key/value heads.
mlir::FailureOr<KernelSpec> getCacheSpec(mlir::Operation *op, CacheType cache);

/// The slopes of `heads` query heads under `alibi` without explicit ones:
/// powers of two for a power-of-two head count, else those of the next lower
/// one followed by every other slope of the next higher one.
std::vector<float> usualAlibiSlopes(int64_t heads);

} // namespace kvcache

#endif // KVCACHE_DIALECT_KVCACHE_UTILS_UTILS_H
