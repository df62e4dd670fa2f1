// Dynamic slices, gather and scatter. Start indices are clamped so that slices
// lie inside; updates that do not are dropped, as the specification says.

#include "Lowering.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache::stablehlo;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

static Value toIndex(ImplicitLocOpBuilder &b, Value element, bool isUnsigned) {
  if (element.getType().isIndex())
    return element;
  if (isUnsigned)
    return arith::IndexCastUIOp::create(b, b.getIndexType(), element);
  return arith::IndexCastOp::create(b, b.getIndexType(), element);
}

Value kvcache::stablehlo::clampedIndex(ImplicitLocOpBuilder &b, Value element,
                                       Value limit, bool isUnsigned) {
  Value i = toIndex(b, element, isUnsigned);
  i = arith::MaxSIOp::create(b, i, index(b, 0));
  return arith::MinSIOp::create(b, i, limit);
}

/// Clamped starts of a slice of `sizes` in `operand`.
static SmallVector<OpFoldResult> clampedStarts(ImplicitLocOpBuilder &b,
                                               Operation *op, Value operand,
                                               ValueRange starts,
                                               ArrayRef<int64_t> sizes) {
  SmallVector<OpFoldResult> offsets;
  for (auto [d, start] : llvm::enumerate(starts)) {
    int64_t n = typeOf(operand).getDimSize(d);
    if (n == sizes[d]) {
      offsets.push_back(b.getIndexAttr(0));
      continue;
    }
    offsets.push_back(clampedIndex(b, scalarOf(b, start),
                                   index(b, n - sizes[d]),
                                   op->hasAttr(kUnsignedIn)));
  }
  return offsets;
}

static SmallVector<OpFoldResult> attrs(ImplicitLocOpBuilder &b,
                                       ArrayRef<int64_t> ints) {
  SmallVector<OpFoldResult> result;
  for (int64_t i : ints)
    result.push_back(b.getIndexAttr(i));
  return result;
}

static Value lowerDynamicSlice(ImplicitLocOpBuilder &b, DynamicSliceOp op) {
  SmallVector<int64_t> sizes = getInts(op.getSliceSizes());
  if (!typeOf(op.getOperand()).hasStaticShape())
    return {};
  auto offsets =
      clampedStarts(b, op, op.getOperand(), op.getStartIndices(), sizes);
  return tensor::ExtractSliceOp::create(
      b, typeOf(op.getResult()), op.getOperand(), offsets, attrs(b, sizes),
      attrs(b, SmallVector<int64_t>(sizes.size(), 1)));
}

static Value lowerDynamicUpdateSlice(ImplicitLocOpBuilder &b,
                                     DynamicUpdateSliceOp op) {
  RankedTensorType update = typeOf(op.getUpdate());
  if (!typeOf(op.getOperand()).hasStaticShape() || !update.hasStaticShape())
    return {};
  auto offsets = clampedStarts(b, op, op.getOperand(), op.getStartIndices(),
                               update.getShape());
  return tensor::InsertSliceOp::create(
      b, op.getUpdate(), op.getOperand(), offsets, attrs(b, update.getShape()),
      attrs(b, SmallVector<int64_t>(update.getRank(), 1)));
}

/// Reads component `k` of the index vector at `batch`.
static Value readIndex(ImplicitLocOpBuilder &b, Value indices,
                       ArrayRef<Value> batch, int64_t vectorDim, int64_t k) {
  Values at(batch.begin(), batch.end());
  if (vectorDim < typeOf(indices).getRank())
    at.insert(at.begin() + vectorDim, index(b, k));
  return tensor::ExtractOp::create(b, indices, at);
}

/// The dimensions of [0, rank) that are not in `a` nor in `c`.
static SmallVector<int64_t> others(int64_t rank, ArrayRef<int64_t> a,
                                   ArrayRef<int64_t> c = {}) {
  SmallVector<int64_t> result;
  for (int64_t d = 0; d < rank; ++d)
    if (!llvm::is_contained(a, d) && !llvm::is_contained(c, d))
      result.push_back(d);
  return result;
}

/// Where start_indices are indexed by batching dimension `dim`: the position
/// of that dimension among the batch coordinates.
static int64_t batchPosition(int64_t dim, int64_t vectorDim) {
  return dim < vectorDim ? dim : dim - 1;
}

static Value lowerGather(ImplicitLocOpBuilder &b, GatherOp op) {
  GatherDimensionNumbersAttr dims = op.getDimensionNumbers();
  RankedTensorType type = typeOf(op.getResult()), in = typeOf(op.getOperand());
  Value operand = op.getOperand(), indices = op.getStartIndices();
  if (!type.hasStaticShape() || !in.hasStaticShape())
    return {};
  SmallVector<int64_t> sizes = getInts(op.getSliceSizes());
  SmallVector<int64_t> batchDims = others(type.getRank(), dims.getOffsetDims());
  SmallVector<int64_t> windowDims =
      others(in.getRank(), dims.getCollapsedSliceDims(),
             dims.getOperandBatchingDims());
  bool isUnsigned = op->hasAttr(kUnsignedIn);
  return elementwise(
      b, type, tensor::EmptyOp::create(b, type, ValueRange()), {}, {},
      [&](ImplicitLocOpBuilder &inner, ValueRange) {
        Values batch, at(in.getRank());
        for (int64_t d : batchDims)
          batch.push_back(linalg::IndexOp::create(inner, d));
        for (auto [k, d] : llvm::enumerate(dims.getStartIndexMap()))
          at[d] = clampedIndex(
              inner,
              readIndex(inner, indices, batch, dims.getIndexVectorDim(), k),
              index(inner, in.getDimSize(d) - sizes[d]), isUnsigned);
        for (auto [d, i] : llvm::zip(dims.getOperandBatchingDims(),
                                     dims.getStartIndicesBatchingDims()))
          at[d] = batch[batchPosition(i, dims.getIndexVectorDim())];
        for (auto [d, o] : llvm::zip(windowDims, dims.getOffsetDims())) {
          Value offset = linalg::IndexOp::create(inner, o);
          at[d] = at[d] ? arith::AddIOp::create(inner, at[d], offset) : offset;
        }
        for (Value &i : at)
          if (!i)
            i = index(inner, 0);
        return tensor::ExtractOp::create(inner, operand, at).getResult();
      });
}

/// Operand coordinates of the update at `at`, and whether they are inside.
static std::pair<Values, Value> scatterTarget(ImplicitLocOpBuilder &b,
                                              ScatterOp op, ValueRange at) {
  ScatterDimensionNumbersAttr dims = op.getScatterDimensionNumbers();
  RankedTensorType in = typeOf(op.getInputs().front());
  Value indices = op.getScatterIndices();
  Values batch, target(in.getRank());
  for (int64_t d : others(at.size(), dims.getUpdateWindowDims()))
    batch.push_back(at[d]);
  Value inside = arith::ConstantOp::create(b, b.getBoolAttr(true));
  for (auto [k, d] : llvm::enumerate(dims.getScatterDimsToOperandDims()))
    target[d] =
        toIndex(b, readIndex(b, indices, batch, dims.getIndexVectorDim(), k),
                op->hasAttr(kUnsignedIn));
  for (auto [d, i] : llvm::zip(dims.getInputBatchingDims(),
                               dims.getScatterIndicesBatchingDims()))
    target[d] = batch[batchPosition(i, dims.getIndexVectorDim())];
  // A window is applied only when all of it lies inside.
  RankedTensorType update = typeOf(op.getUpdates().front());
  SmallVector<int64_t> windowSize(in.getRank(), 1);
  SmallVector<int64_t> windowDims = others(
      in.getRank(), dims.getInsertedWindowDims(), dims.getInputBatchingDims());
  for (auto [d, u] : llvm::zip(windowDims, dims.getUpdateWindowDims()))
    windowSize[d] = update.getDimSize(u);
  for (auto [d, start] : llvm::enumerate(target)) {
    if (!start) {
      start = index(b, 0);
      continue;
    }
    Value last = index(b, in.getDimSize(d) - windowSize[d]);
    Value low =
        arith::CmpIOp::create(b, arith::CmpIPredicate::sge, start, index(b, 0));
    Value high =
        arith::CmpIOp::create(b, arith::CmpIPredicate::sle, start, last);
    inside =
        arith::AndIOp::create(b, inside, arith::AndIOp::create(b, low, high));
  }
  for (auto [d, u] : llvm::zip(windowDims, dims.getUpdateWindowDims()))
    target[d] = arith::AddIOp::create(b, target[d], at[u]);
  return {target, inside};
}

/// A loop over the updates in order; one that is outside keeps the tensors.
static FailureOr<Values> lowerScatter(ImplicitLocOpBuilder &b, ScatterOp op) {
  RankedTensorType update = typeOf(op.getUpdates().front());
  if (!update.hasStaticShape() ||
      !typeOf(op.getInputs().front()).hasStaticShape())
    return failure();
  Values lower, upper, step;
  for (int64_t n : update.getShape()) {
    lower.push_back(index(b, 0));
    upper.push_back(index(b, n));
    step.push_back(index(b, 1));
  }
  bool failedBody = false;
  auto body = [&](OpBuilder &nested, Location loc, ValueRange at,
                  ValueRange carried) -> scf::ValueVector {
    ImplicitLocOpBuilder in(loc, nested);
    auto [target, inside] = scatterTarget(in, op, at);
    auto choice = scf::IfOp::create(in, carried.getTypes(), inside, true);
    ImplicitLocOpBuilder then(loc, choice.getThenBodyBuilder());
    Values args;
    for (Value tensor : carried)
      args.push_back(tensor::ExtractOp::create(then, tensor, target));
    for (Value tensor : op.getUpdates())
      args.push_back(tensor::ExtractOp::create(then, tensor, at));
    auto elements = inlineScalarRegion(then, op.getUpdateComputation(), args);
    failedBody |= failed(elements);
    Values written;
    for (auto [i, tensor] : llvm::enumerate(carried))
      written.push_back(tensor::InsertOp::create(
          then, failedBody ? args[i] : (*elements)[i], tensor, target));
    scf::YieldOp::create(then, written);
    OpBuilder otherwise = choice.getElseBodyBuilder();
    scf::YieldOp::create(otherwise, loc, carried);
    return scf::ValueVector(choice.getResults().begin(),
                            choice.getResults().end());
  };
  scf::LoopNest nest = scf::buildLoopNest(b, b.getLoc(), lower, upper, step,
                                          op.getInputs(), body);
  if (failedBody)
    return failure();
  return Values(nest.results.begin(), nest.results.end());
}

FailureOr<Values> kvcache::stablehlo::lowerIndexing(ImplicitLocOpBuilder &b,
                                                    Operation *op) {
  if (auto scatter = dyn_cast<ScatterOp>(op))
    return lowerScatter(b, scatter);
  Value result =
      TypeSwitch<Operation *, Value>(op)
          .Case([&](DynamicSliceOp o) { return lowerDynamicSlice(b, o); })
          .Case([&](DynamicUpdateSliceOp o) {
            return lowerDynamicUpdateSlice(b, o);
          })
          .Case([&](GatherOp o) { return lowerGather(b, o); })
          .Default(Value());
  if (!result)
    return failure();
  return Values{result};
}
