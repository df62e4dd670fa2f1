//===- OutlineKernels.h - From attention ops to kernels ---------*- C++ -*-===//
//
// The step from the dialect of meaning to that of schedules.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_OUTLINEKERNELS_OUTLINEKERNELS_H
#define KVCACHE_CONVERSION_OUTLINEKERNELS_OUTLINEKERNELS_H

#include "kvcache/Dialect/KVTile/IR/KVTile.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/OutlineKernels/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/OutlineKernels/Passes.h.inc"

/// Replaces the functions of `module` by one kernel per distinct spec of their
/// attentions. Fails with a diagnostic if there are kvcache ops and none is an
/// attention that has a spec.
mlir::LogicalResult outlineKernels(mlir::ModuleOp module);

} // namespace kvcache

#endif // KVCACHE_CONVERSION_OUTLINEKERNELS_OUTLINEKERNELS_H
