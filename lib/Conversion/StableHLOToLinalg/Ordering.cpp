// sort, top_k and map, tm_tensor's scan and scatter and tosa.scatter, as loops.

#include "Lowering.h"

#include "mlir/Dialect/Tosa/IR/TosaOps.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::stablehlo;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

using LoopBody =
    function_ref<Values(ImplicitLocOpBuilder &, ValueRange, ValueRange)>;

/// A nest over `sizes` that carries tensors.
static Values loops(ImplicitLocOpBuilder &b, ArrayRef<int64_t> sizes,
                    ValueRange carried, LoopBody body) {
  Values lower, upper, step;
  for (int64_t n : sizes) {
    lower.push_back(index(b, 0));
    upper.push_back(index(b, n));
    step.push_back(index(b, 1));
  }
  scf::LoopNest nest = scf::buildLoopNest(
      b, b.getLoc(), lower, upper, step, carried,
      [&](OpBuilder &nested, Location loc, ValueRange at, ValueRange args) {
        ImplicitLocOpBuilder in(loc, nested);
        Values results = body(in, at, args);
        return scf::ValueVector(results.begin(), results.end());
      });
  return Values(nest.results.begin(), nest.results.end());
}

using Before = function_ref<Value(ImplicitLocOpBuilder &, ValueRange)>;

/// Exchanges neighbours `lower`, `lower + 1` along `dim` when the later comes
/// before the earlier. `before` takes (later, earlier) pairs, operand by
/// operand.
static Values exchange(ImplicitLocOpBuilder &b, Values at, int64_t dim,
                       Value lower, ValueRange tensors, Before before) {
  Values first = at, second = at, args, low, high;
  first[dim] = lower;
  second[dim] = arith::AddIOp::create(b, lower, index(b, 1));
  for (Value tensor : tensors) {
    low.push_back(tensor::ExtractOp::create(b, tensor, first));
    high.push_back(tensor::ExtractOp::create(b, tensor, second));
    args.append({high.back(), low.back()});
  }
  Value swap = before(b, args);
  Values results;
  for (auto [i, tensor] : llvm::enumerate(tensors)) {
    Value a = arith::SelectOp::create(b, swap, high[i], low[i]);
    Value c = arith::SelectOp::create(b, swap, low[i], high[i]);
    Value written = tensor::InsertOp::create(b, a, tensor, first);
    results.push_back(tensor::InsertOp::create(b, c, written, second));
  }
  return results;
}

/// A stable exchange sort of the first `count` places along `dim`.
static Values exchangeSort(ImplicitLocOpBuilder &b, ValueRange tensors,
                           int64_t dim, int64_t count, Before before) {
  RankedTensorType type = typeOf(tensors.front());
  int64_t n = type.getDimSize(dim);
  if (n < 2)
    return Values(tensors);
  // Outer loops over everything else, then pass, then position from the end.
  SmallVector<int64_t> sizes(type.getShape());
  sizes[dim] = 1;
  sizes.append({std::min(count, n - 1), n - 1});
  return loops(b, sizes, tensors,
               [&](ImplicitLocOpBuilder &in, ValueRange at, ValueRange args) {
                 Values place(at.begin(), at.begin() + type.getRank());
                 Value lower =
                     arith::SubIOp::create(in, index(in, n - 2), at.back());
                 return exchange(in, place, dim, lower, args, before);
               });
}

static FailureOr<Values> lowerSort(ImplicitLocOpBuilder &b, SortOp op) {
  RankedTensorType type = typeOf(op.getInputs().front());
  int64_t dim = op.getDimension() < 0 ? type.getRank() - 1 : op.getDimension();
  if (!type.hasStaticShape() || dim < 0 || dim >= type.getRank())
    return failure();
  bool failedBody = false;
  Values results = exchangeSort(
      b, op.getInputs(), dim, type.getDimSize(dim),
      [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
        auto before = inlineScalarRegion(in, op.getComparator(), args);
        failedBody |= failed(before);
        if (failed(before))
          return arith::ConstantOp::create(in, in.getBoolAttr(false));
        return before->front();
      });
  if (failedBody)
    return failure();
  return results;
}

static FailureOr<Values> lowerTopK(ImplicitLocOpBuilder &b, chlo::TopKOp op) {
  RankedTensorType type = typeOf(op.getOperand());
  int64_t dim = type.getRank() - 1;
  if (!type.hasStaticShape() || dim < 0)
    return failure();
  Type indexElement = typeOf(op.getIndices()).getElementType();
  auto positions = RankedTensorType::get(type.getShape(), indexElement);
  Value iota = elementwise(
      b, positions, tensor::EmptyOp::create(b, positions, ValueRange()), {}, {},
      [&](ImplicitLocOpBuilder &in, ValueRange) -> Value {
        return arith::IndexCastOp::create(in, indexElement,
                                          linalg::IndexOp::create(in, dim));
      });
  Values sorted =
      exchangeSort(b, {op.getOperand(), iota}, dim, op.getK(),
                   [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
                     if (isa<FloatType>(type.getElementType()))
                       return arith::CmpFOp::create(
                           in, arith::CmpFPredicate::OGT, args[0], args[1]);
                     return arith::CmpIOp::create(in, arith::CmpIPredicate::sgt,
                                                  args[0], args[1]);
                   });
  Values results;
  for (auto [tensor, result] : llvm::zip(sorted, op->getResults())) {
    SmallVector<OpFoldResult> offsets(type.getRank(), b.getIndexAttr(0)),
        strides(type.getRank(), b.getIndexAttr(1)), sizes;
    for (int64_t n : typeOf(result).getShape())
      sizes.push_back(b.getIndexAttr(n));
    results.push_back(tensor::ExtractSliceOp::create(b, typeOf(result), tensor,
                                                     offsets, sizes, strides));
  }
  return results;
}

static FailureOr<Values> lowerMap(ImplicitLocOpBuilder &b, MapOp op) {
  if (op->getNumResults() != 1 || op.getInputs().empty())
    return failure();
  RankedTensorType type = typeOf(op->getResult(0));
  SmallVector<AffineMap> maps(op.getInputs().size(),
                              b.getMultiDimIdentityMap(type.getRank()));
  bool failedBody = false;
  Value result = elementwise(
      b, type, emptyLike(b, type, op.getInputs().front()), op.getInputs(), maps,
      [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
        auto results = inlineScalarRegion(in, op.getComputation(), args);
        failedBody |= failed(results);
        return failed(results) ? args[0] : results->front();
      });
  if (failedBody)
    return failure();
  return Values{result};
}

/// Clones the ops of a tm_tensor body; returns what it yields.
static Values cloneBody(ImplicitLocOpBuilder &b, Region &region,
                        ValueRange args) {
  IRMapping map;
  map.map(region.front().getArguments(), args);
  for (Operation &op : region.front().without_terminator())
    b.clone(op, map);
  Values results;
  for (Value value : region.front().getTerminator()->getOperands())
    results.push_back(map.lookupOrDefault(value));
  return results;
}

/// outs are the scanned tensor and the accumulator's initial value.
static FailureOr<Values> lowerScan(ImplicitLocOpBuilder &b,
                                   tm_tensor::ScanOp op) {
  RankedTensorType type = typeOf(op.getInputs().front());
  if (!type.hasStaticShape() || op.getInputs().size() != 1 ||
      op.getOutputs().size() != 2)
    return failure();
  // The scanned dimension is the innermost loop so that the accumulator,
  // which lacks it, is carried along it.
  int64_t dim = op.getDimension();
  Value input = op.getInputs().front();
  return loops(b, type.getShape(), op.getOutputs(),
               [&](ImplicitLocOpBuilder &in, ValueRange at, ValueRange args) {
                 Values place;
                 for (auto [d, i] : llvm::enumerate(at))
                   if (static_cast<int64_t>(d) != dim)
                     place.push_back(i);
                 Value old = tensor::ExtractOp::create(in, args[1], place);
                 Value x = tensor::ExtractOp::create(in, input, at);
                 Value sum = cloneBody(in, op.getRegion(), {old, x}).front();
                 Value out = op.getInclusive() ? sum : old;
                 Values results{
                     tensor::InsertOp::create(in, out, args[0], at),
                     tensor::InsertOp::create(in, sum, args[1], place)};
                 return results;
               });
}

/// updates are [n, window..], indices [n, depth]; dimension_map says which
/// dimension each index component selects.
static FailureOr<Values> lowerTMScatter(ImplicitLocOpBuilder &b,
                                        tm_tensor::ScatterOp op) {
  if (op.getInputs().size() != 2 || op.getOutputs().size() != 1)
    return failure();
  Value updates = op.getInputs()[0], indices = op.getInputs()[1];
  RankedTensorType update = typeOf(updates),
                   type = typeOf(op.getOutputs().front());
  ArrayRef<int64_t> map = op.getDimensionMap();
  if (!update.hasStaticShape() || update.getRank() != type.getRank() + 1)
    return failure();
  return loops(
      b, update.getShape(), op.getOutputs(),
      [&](ImplicitLocOpBuilder &in, ValueRange at, ValueRange args) {
        Values target(at.begin() + 1, at.end());
        for (auto [k, d] : llvm::enumerate(map)) {
          Value start = tensor::ExtractOp::create(
              in, indices, ValueRange{at[0], index(in, k)});
          start = arith::IndexCastOp::create(in, in.getIndexType(), start);
          target[d] = arith::AddIOp::create(in, target[d], start);
        }
        Value x = tensor::ExtractOp::create(in, updates, at);
        Value old = tensor::ExtractOp::create(in, args[0], target);
        Value value = cloneBody(in, op.getRegion(), {x, old}).front();
        return Values{tensor::InsertOp::create(in, value, args[0], target)};
      });
}

/// tosa.scatter, which upstream leaves: out[n, indices[n, w], c] = in[n, w, c].
static FailureOr<Values> lowerTosaScatter(ImplicitLocOpBuilder &b,
                                          tosa::ScatterOp op) {
  RankedTensorType type = typeOf(op.getInput());
  if (!type.hasStaticShape())
    return failure();
  return loops(b, type.getShape(), op.getValuesIn(),
               [&](ImplicitLocOpBuilder &in, ValueRange at, ValueRange args) {
                 Value row = tensor::ExtractOp::create(
                     in, op.getIndices(), ValueRange{at[0], at[1]});
                 row = arith::IndexCastOp::create(in, in.getIndexType(), row);
                 Value x = tensor::ExtractOp::create(in, op.getInput(), at);
                 return Values{tensor::InsertOp::create(
                     in, x, args[0], ValueRange{at[0], row, at[2]})};
               });
}

FailureOr<Values> kvcache::stablehlo::lowerOrdering(ImplicitLocOpBuilder &b,
                                                    Operation *op) {
  if (auto sort = dyn_cast<SortOp>(op))
    return lowerSort(b, sort);
  if (auto top = dyn_cast<chlo::TopKOp>(op))
    return lowerTopK(b, top);
  if (auto map = dyn_cast<MapOp>(op))
    return lowerMap(b, map);
  if (auto scan = dyn_cast<tm_tensor::ScanOp>(op))
    return lowerScan(b, scan);
  if (auto scatter = dyn_cast<tm_tensor::ScatterOp>(op))
    return lowerTMScatter(b, scatter);
  if (auto scatter = dyn_cast<tosa::ScatterOp>(op))
    return lowerTosaScatter(b, scatter);
  return failure();
}
