// What the parts of the StableHLO lowering share.
//
// Each op is rewritten where it stands: a lowering function builds the new ops
// before it and returns the values that replace its results. Types are
// signless by then; ops whose meaning depends on the sign carry the unit
// attributes below.

#ifndef KVCACHE_LIB_CONVERSION_STABLEHLOTOLINALG_LOWERING_H
#define KVCACHE_LIB_CONVERSION_STABLEHLOTOLINALG_LOWERING_H

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace kvcache::stablehlo {
using namespace mlir;

/// Set on ops whose operands (results) were unsigned in the source.
inline constexpr llvm::StringLiteral kUnsignedIn = "kv.unsigned_in";
inline constexpr llvm::StringLiteral kUnsignedOut = "kv.unsigned_out";

using Values = SmallVector<Value>;

/// The scalar computation of an elementwise op on elements `args`; null when
/// `op` is not elementwise or its types are not handled.
Value emitScalar(ImplicitLocOpBuilder &b, Operation *op, ValueRange args,
                 Type resultElement);

/// True for ops that `emitScalar` handles.
bool isElementwise(Operation *op);

/// The region's computation on scalars, its 0-d tensors replaced by elements.
FailureOr<Values> inlineScalarRegion(ImplicitLocOpBuilder &b, Region &region,
                                     ValueRange args);

/// tensor.empty of `type`, dynamic sizes taken from `like`'s same dimensions.
Value emptyLike(ImplicitLocOpBuilder &b, RankedTensorType type, Value like);

/// A tensor of `type` filled with the scalar `value` (static shapes).
Value filled(ImplicitLocOpBuilder &b, RankedTensorType type, Value value);

/// The element of a 0-d tensor.
Value scalarOf(ImplicitLocOpBuilder &b, Value tensor);

/// The index constant.
Value index(ImplicitLocOpBuilder &b, int64_t value);

/// An integer element as index, clamped into [0, limit].
Value clampedIndex(ImplicitLocOpBuilder &b, Value element, Value limit,
                   bool isUnsigned);

/// linalg.generic with an identity output map over `type`; `body` yields one
/// element from the index and the inputs' elements.
Value elementwise(ImplicitLocOpBuilder &b, RankedTensorType type, Value init,
                  ValueRange inputs, ArrayRef<AffineMap> inputMaps,
                  function_ref<Value(ImplicitLocOpBuilder &, ValueRange)> body);

/// Lowers by family; failure without a diagnostic means "not mine".
FailureOr<Values> lowerShape(ImplicitLocOpBuilder &b, Operation *op);
FailureOr<Values> lowerIndexing(ImplicitLocOpBuilder &b, Operation *op);
FailureOr<Values> lowerReduction(ImplicitLocOpBuilder &b, Operation *op);
FailureOr<Values> lowerControl(ImplicitLocOpBuilder &b, Operation *op);
FailureOr<Values> lowerOrdering(ImplicitLocOpBuilder &b, Operation *op);

} // namespace kvcache::stablehlo

#endif // KVCACHE_LIB_CONVERSION_STABLEHLOTOLINALG_LOWERING_H
