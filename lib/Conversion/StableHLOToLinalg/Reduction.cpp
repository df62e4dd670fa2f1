// Contractions and reductions as linalg.generic. Sums and products of f16 and
// bf16 are carried in f32 and rounded once.

#include "Lowering.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache::stablehlo;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

static Type accumulatorFor(OpBuilder &b, Type element) {
  if (isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 32)
    return b.getF32Type();
  return element;
}

static Value widen(ImplicitLocOpBuilder &b, Value x, Type type,
                   bool isUnsigned) {
  if (x.getType() == type)
    return x;
  if (isa<FloatType>(x.getType())) {
    if (x.getType().getIntOrFloatBitWidth() > type.getIntOrFloatBitWidth())
      return arith::TruncFOp::create(b, type, x);
    return arith::ExtFOp::create(b, type, x);
  }
  if (isUnsigned)
    return arith::ExtUIOp::create(b, type, x);
  return arith::ExtSIOp::create(b, type, x);
}

static Value rounded(ImplicitLocOpBuilder &b, Value value,
                     RankedTensorType type) {
  if (value.getType() == type)
    return value;
  return elementwise(b, type, emptyLike(b, type, value), value,
                     b.getMultiDimIdentityMap(type.getRank()),
                     [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
                       return arith::TruncFOp::create(in, type.getElementType(),
                                                      args[0]);
                     });
}

/// The loop dimension of each dimension of both operands: batch dimensions
/// first, then free ones of lhs, of rhs, then contracted ones.
static Value lowerDot(ImplicitLocOpBuilder &b, Operation *op, Value lhs,
                      Value rhs, ArrayRef<int64_t> lhsBatch,
                      ArrayRef<int64_t> rhsBatch, ArrayRef<int64_t> lhsContract,
                      ArrayRef<int64_t> rhsContract) {
  RankedTensorType type = typeOf(op->getResult(0)), l = typeOf(lhs),
                   r = typeOf(rhs);
  SmallVector<AffineExpr> lhsMap(l.getRank()), rhsMap(r.getRank()), outMap;
  Values sizes;
  int64_t loop = 0;
  auto parallel = [&](AffineExpr &slot, Value from, int64_t d) {
    slot = b.getAffineDimExpr(loop);
    if (type.isDynamicDim(loop))
      sizes.push_back(tensor::DimOp::create(b, from, d));
    outMap.push_back(b.getAffineDimExpr(loop++));
  };
  for (auto [i, j] : llvm::zip(lhsBatch, rhsBatch)) {
    rhsMap[j] = b.getAffineDimExpr(loop);
    parallel(lhsMap[i], lhs, i);
  }
  for (int64_t d = 0; d < l.getRank(); ++d)
    if (!lhsMap[d] && !llvm::is_contained(lhsContract, d))
      parallel(lhsMap[d], lhs, d);
  for (int64_t d = 0; d < r.getRank(); ++d)
    if (!rhsMap[d] && !llvm::is_contained(rhsContract, d))
      parallel(rhsMap[d], rhs, d);
  SmallVector<utils::IteratorType> loops(loop, utils::IteratorType::parallel);
  for (auto [i, j] : llvm::zip(lhsContract, rhsContract)) {
    lhsMap[i] = rhsMap[j] = b.getAffineDimExpr(loop++);
    loops.push_back(utils::IteratorType::reduction);
  }
  Type acc = accumulatorFor(b, type.getElementType());
  auto accType = RankedTensorType::get(type.getShape(), acc);
  Value zero = arith::ConstantOp::create(b, b.getZeroAttr(acc));
  Value init = tensor::EmptyOp::create(b, accType, sizes);
  init = linalg::FillOp::create(b, zero, init).getResult(0);
  auto map = [&](ArrayRef<AffineExpr> exprs) {
    return AffineMap::get(loop, 0, exprs, b.getContext());
  };
  bool isUnsigned = op->hasAttr(kUnsignedIn);
  auto generic = linalg::GenericOp::create(
      b, TypeRange(accType), ValueRange{lhs, rhs}, init,
      {map(lhsMap), map(rhsMap), map(outMap)}, loops,
      [&](OpBuilder &nested, Location loc, ValueRange args) {
        ImplicitLocOpBuilder in(loc, nested);
        Value x = widen(in, args[0], acc, isUnsigned);
        Value y = widen(in, args[1], acc, isUnsigned);
        Value sum;
        if (isa<FloatType>(acc))
          sum = arith::AddFOp::create(in, arith::MulFOp::create(in, x, y),
                                      args[2]);
        else
          sum = arith::AddIOp::create(in, arith::MulIOp::create(in, x, y),
                                      args[2]);
        linalg::YieldOp::create(in, sum);
      });
  return rounded(b, generic.getResult(0), type);
}

/// The region's only op when it is a plain combination of both arguments.
static Operation *plainCombiner(Region &region) {
  Block &block = region.front();
  if (block.getNumArguments() != 2 || block.getOperations().size() != 2)
    return nullptr;
  Operation *op = &block.front();
  bool both = op->getNumOperands() == 2 &&
              ((op->getOperand(0) == block.getArgument(0) &&
                op->getOperand(1) == block.getArgument(1)) ||
               (op->getOperand(1) == block.getArgument(0) &&
                op->getOperand(0) == block.getArgument(1)));
  return both && isa<AddOp, MulOp>(op) ? op : nullptr;
}

/// Initial values spread over the results' shapes.
static Value spreadInit(ImplicitLocOpBuilder &b, RankedTensorType type,
                        ArrayRef<Value> sizes, Value init, Type acc) {
  Value scalar = widen(b, scalarOf(b, init), acc, false);
  Value empty = tensor::EmptyOp::create(
      b, RankedTensorType::get(type.getShape(), acc), sizes);
  return linalg::FillOp::create(b, scalar, empty).getResult(0);
}

static FailureOr<Values> lowerReduce(ImplicitLocOpBuilder &b, ReduceOp op) {
  RankedTensorType in = typeOf(op.getInputs().front());
  SmallVector<int64_t> reduced = getInts(op.getDimensions());
  SmallVector<AffineExpr> kept;
  SmallVector<utils::IteratorType> loops;
  Values sizes;
  for (int64_t d = 0; d < in.getRank(); ++d) {
    bool isReduced = llvm::is_contained(reduced, d);
    loops.push_back(isReduced ? utils::IteratorType::reduction
                              : utils::IteratorType::parallel);
    if (isReduced)
      continue;
    kept.push_back(b.getAffineDimExpr(d));
    if (in.isDynamicDim(d))
      sizes.push_back(tensor::DimOp::create(b, op.getInputs().front(), d));
  }
  bool plain = plainCombiner(op.getBody());
  Values inits;
  SmallVector<AffineMap> maps(op.getInputs().size(),
                              b.getMultiDimIdentityMap(in.getRank()));
  for (auto [result, init] : llvm::zip(op.getResults(), op.getInitValues())) {
    Type element = typeOf(result).getElementType();
    Type acc = plain ? accumulatorFor(b, element) : element;
    inits.push_back(spreadInit(b, typeOf(result), sizes, init, acc));
    maps.push_back(AffineMap::get(in.getRank(), 0, kept, b.getContext()));
  }
  bool failedBody = false;
  unsigned count = inits.size();
  auto generic = linalg::GenericOp::create(
      b, ValueRange(inits).getTypes(), op.getInputs(), inits, maps, loops,
      [&](OpBuilder &nested, Location loc, ValueRange args) {
        ImplicitLocOpBuilder inner(loc, nested);
        // The accumulator comes first in the body, the element second.
        Values swapped(args.drop_front(count));
        for (Value x : args.take_front(count))
          swapped.push_back(
              plain ? widen(inner, x, swapped.front().getType(), false) : x);
        auto results = inlineScalarRegion(inner, op.getBody(), swapped);
        failedBody |= failed(results);
        linalg::YieldOp::create(inner, failedBody
                                           ? ValueRange(args.drop_front(count))
                                           : ValueRange(*results));
      });
  if (failedBody)
    return failure();
  Values results;
  for (auto [value, result] : llvm::zip(generic.getResults(), op.getResults()))
    results.push_back(rounded(b, value, typeOf(result)));
  return results;
}

static SmallVector<int64_t> orOnes(Attribute attr, int64_t rank) {
  return attr ? getInts(attr) : SmallVector<int64_t>(rank, 1);
}

/// The operand padded with the initial value, then read through windows.
static FailureOr<Values> lowerReduceWindow(ImplicitLocOpBuilder &b,
                                           ReduceWindowOp op) {
  if (op.getInputs().size() != 1)
    return failure();
  RankedTensorType in = typeOf(op.getInputs().front()),
                   out = typeOf(op.getResult(0));
  int64_t rank = in.getRank();
  SmallVector<int64_t> window = getInts(op.getWindowDimensions()),
                       stride = orOnes(op.getWindowStridesAttr(), rank),
                       base = orOnes(op.getBaseDilationsAttr(), rank),
                       dilation = orOnes(op.getWindowDilationsAttr(), rank);
  if (!in.hasStaticShape() || !out.hasStaticShape() ||
      static_cast<int64_t>(window.size()) != rank)
    return failure();
  SmallVector<int64_t> padding(2 * rank, 0), shape;
  if (auto attr = op.getPaddingAttr())
    padding = getInts(attr);
  SmallVector<OpFoldResult> offsets, sizes, strides;
  SmallVector<AffineExpr> exprs, windowExprs;
  for (int64_t d = 0; d < rank; ++d) {
    int64_t n = in.getDimSize(d), spread = n + (n - 1) * (base[d] - 1);
    if (padding[2 * d] < 0 || padding[2 * d + 1] < 0)
      return failure();
    shape.push_back(padding[2 * d] + spread + padding[2 * d + 1]);
    offsets.push_back(b.getIndexAttr(padding[2 * d]));
    sizes.push_back(b.getIndexAttr(n));
    strides.push_back(b.getIndexAttr(base[d]));
    exprs.push_back(b.getAffineDimExpr(d) * stride[d] +
                    b.getAffineDimExpr(rank + d) * dilation[d]);
    windowExprs.push_back(b.getAffineDimExpr(rank + d));
  }
  Value init = scalarOf(b, op.getInitValues().front());
  Value padded = tensor::InsertSliceOp::create(
      b, op.getInputs().front(),
      filled(b, RankedTensorType::get(shape, in.getElementType()), init),
      offsets, sizes, strides);
  Value windowShape = tensor::EmptyOp::create(b, window, in.getElementType());
  SmallVector<utils::IteratorType> loops(rank, utils::IteratorType::parallel);
  loops.append(rank, utils::IteratorType::reduction);
  auto map = [&](ArrayRef<AffineExpr> e) {
    return AffineMap::get(2 * rank, 0, e, b.getContext());
  };
  SmallVector<AffineExpr> outExprs;
  for (int64_t d = 0; d < rank; ++d)
    outExprs.push_back(b.getAffineDimExpr(d));
  bool failedBody = false;
  auto generic = linalg::GenericOp::create(
      b, TypeRange(out), ValueRange{padded, windowShape}, filled(b, out, init),
      {map(exprs), map(windowExprs), map(outExprs)}, loops,
      [&](OpBuilder &nested, Location loc, ValueRange args) {
        ImplicitLocOpBuilder inner(loc, nested);
        auto results =
            inlineScalarRegion(inner, op.getBody(), {args[2], args[0]});
        failedBody |= failed(results);
        linalg::YieldOp::create(inner, failedBody ? args[2] : results->front());
      });
  if (failedBody)
    return failure();
  return Values{generic.getResult(0)};
}

FailureOr<Values> kvcache::stablehlo::lowerReduction(ImplicitLocOpBuilder &b,
                                                     Operation *op) {
  if (auto dot = dyn_cast<DotGeneralOp>(op)) {
    DotDimensionNumbersAttr dims = dot.getDotDimensionNumbers();
    return Values{lowerDot(b, op, dot.getLhs(), dot.getRhs(),
                           dims.getLhsBatching(), dims.getRhsBatching(),
                           dims.getLhsContracting(), dims.getRhsContracting())};
  }
  if (auto dot = dyn_cast<DotOp>(op)) {
    int64_t rank = typeOf(dot.getLhs()).getRank();
    if (rank < 1 || typeOf(dot.getRhs()).getRank() < 1)
      return failure();
    return Values{
        lowerDot(b, op, dot.getLhs(), dot.getRhs(), {}, {}, {rank - 1}, {0})};
  }
  if (auto reduce = dyn_cast<ReduceOp>(op))
    return lowerReduce(b, reduce);
  if (auto window = dyn_cast<ReduceWindowOp>(op))
    return lowerReduceWindow(b, window);
  return failure();
}
