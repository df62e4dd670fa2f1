//===- ExpandFloats.h - Expanding narrow floats -----------------*- C++ -*-===//
//
// fp8 and bf16 conversions as integer arithmetic; see Passes.td.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_EXPANDFLOATS_H
#define KVCACHE_CONVERSION_EXPANDFLOATS_H

#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/ExpandFloats/Passes.h.inc"

void populateExpandFloatsPatterns(mlir::RewritePatternSet &patterns);

/// f32 -> the nearest fp8 of `type` (f8E4M3FN or f8E5M2) as an i8 value; shaped
/// values are handled elementwise.
mlir::Value expandTruncToFp8(mlir::ImplicitLocOpBuilder &b, mlir::Value f32,
                             mlir::FloatType type);
/// fp8 bits (i8) -> f32.
mlir::Value expandExtFromFp8(mlir::ImplicitLocOpBuilder &b, mlir::Value bits,
                             mlir::FloatType type);
/// f32 -> bf16.
mlir::Value expandTruncToBF16(mlir::ImplicitLocOpBuilder &b, mlir::Value f32);

#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/ExpandFloats/Passes.h.inc"

} // namespace kvcache

#endif // KVCACHE_CONVERSION_EXPANDFLOATS_H
