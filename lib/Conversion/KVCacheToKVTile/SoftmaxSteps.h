//===- SoftmaxSteps.h - Pieces of online softmax ----------------*- C++ -*-===//
//
// What the kernels on caches and on arrays have in common.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVCACHETOKVTILE_SOFTMAXSTEPS_H
#define KVCACHE_LIB_CONVERSION_KVCACHETOKVTILE_SOFTMAXSTEPS_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <optional>

namespace kvcache {

/// A constant, all `x`.
mlir::Value splatOf(mlir::ImplicitLocOpBuilder &b, mlir::RankedTensorType type,
                    double x);

/// `unit` * softcap(scale * score).
mlir::Value cappedScores(mlir::ImplicitLocOpBuilder &b, mlir::Value score,
                         double scale, std::optional<double> softcap,
                         double unit);

/// The maximum, or 0 where it is -inf: differences to it are never NaN.
mlir::Value guardedMaximum(mlir::ImplicitLocOpBuilder &b, mlir::Value max);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_KVCACHETOKVTILE_SOFTMAXSTEPS_H
