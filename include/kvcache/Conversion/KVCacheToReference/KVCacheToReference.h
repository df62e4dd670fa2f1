//===- KVCacheToReference.h - The reference meaning -------------*- C++ -*-===//
//
// See Passes.td.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_H
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/KVCacheToReference/Passes.h.inc"

/// Lowers all kvcache ops of a module; fails with a diagnostic.
mlir::LogicalResult lowerToReference(mlir::ModuleOp module);

#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/KVCacheToReference/Passes.h.inc"

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_H
