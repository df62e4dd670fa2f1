//===- KVCacheToReference.h - The reference meaning -------------*- C++ -*-===//
//
// See Passes.td.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_H
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_H

#include "kvcache/Conversion/KVCacheToReference/Source.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

#include <functional>

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/KVCacheToReference/Passes.h.inc"

/// What to lower, and how to attend to a cache.
struct LoweringOptions {
  /// Leave ops that have to do with no cache.
  bool onlyCaches = false;
  /// Lowers attention to a cache to the values of out and lse; plain loops when
  /// not set.
  std::function<mlir::FailureOr<Values>(Emitter &, AttentionOp, Source &)>
      attention;
  /// Likewise for attention on tensors, which is then lowered with `onlyCaches`
  /// too; plain loops where it gives none.
  std::function<mlir::FailureOr<Values>(Emitter &, AttentionOp, Source &)>
      arrays;
  /// Likewise for changes of our own pages.
  std::function<mlir::FailureOr<CacheParts>(Emitter &, AppendOp, PagedSource &)>
      append;
  std::function<mlir::FailureOr<CacheParts>(Emitter &, SealOp, PagedSource &)>
      seal;
};

/// Lowers the kvcache ops of a module; fails with a diagnostic.
mlir::LogicalResult lowerKVCacheOps(mlir::ModuleOp module,
                                    const LoweringOptions &options);

#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/KVCacheToReference/Passes.h.inc"

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_H
