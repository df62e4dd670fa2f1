// Verifiers: the relations between attributes and shapes on which lowering
// relies. Dynamic sizes agree with anything.

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"

using namespace mlir;
using namespace kvcache::stablehlo;

static ShapedType shaped(Value value) {
  return cast<ShapedType>(value.getType());
}

static bool sizesAgree(int64_t a, int64_t b) {
  return a == b || ShapedType::isDynamic(a) || ShapedType::isDynamic(b);
}

/// Every operand and the result must have a rank.
static LogicalResult verifyRanked(Operation *op) {
  for (Type type :
       llvm::concat<const Type>(op->getOperandTypes(), op->getResultTypes()))
    if (!isa<RankedTensorType>(type))
      return op->emitOpError("expected ranked tensors, got ") << type;
  return success();
}

/// `value`'s shape must be `expected`.
static LogicalResult verifyShape(Operation *op, Value value,
                                 ArrayRef<int64_t> expected) {
  ArrayRef<int64_t> got = shaped(value).getShape();
  if (got.size() == expected.size() &&
      llvm::all_of(llvm::zip(got, expected), [](auto pair) {
        return sizesAgree(std::get<0>(pair), std::get<1>(pair));
      }))
    return success();
  InFlightDiagnostic diag = op->emitOpError("expected shape [");
  llvm::interleaveComma(expected, diag);
  return diag << "], got " << value.getType();
}

/// Each of `dims` is in [0, rank), none twice.
static LogicalResult verifyDims(Operation *op, StringRef what,
                                ArrayRef<int64_t> dims, int64_t rank) {
  llvm::SmallDenseSet<int64_t> seen;
  for (int64_t dim : dims)
    if (dim < 0 || dim >= rank || !seen.insert(dim).second)
      return op->emitOpError("expected ")
             << what << " to be distinct and in [0, " << rank << "), got "
             << dim;
  return success();
}

static LogicalResult verifyCount(Operation *op, StringRef what, size_t got,
                                 int64_t expected) {
  if (static_cast<int64_t>(got) == expected)
    return success();
  return op->emitOpError("expected ")
         << expected << " entries in " << what << ", got " << got;
}

LogicalResult SelectOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  if (!shaped(getPred()).getElementType().isInteger(1))
    return emitOpError("expected an i1 predicate, got ") << getPred().getType();
  if (shaped(getPred()).getRank() != 0 &&
      failed(verifyShape(*this, getPred(), shaped(getResult()).getShape())))
    return failure();
  for (Value value : {getOnTrue(), getOnFalse()})
    if (failed(verifyShape(*this, value, shaped(getResult()).getShape())))
      return failure();
  return success();
}

LogicalResult ClampOp::verify() {
  if (failed(verifyRanked(*this)) ||
      failed(verifyShape(*this, getOperand(), shaped(getResult()).getShape())))
    return failure();
  for (Value limit : {getMin(), getMax()})
    if (shaped(limit).getRank() != 0 &&
        failed(verifyShape(*this, limit, shaped(getResult()).getShape())))
      return failure();
  return success();
}

LogicalResult IotaOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  return verifyDims(*this, "iota_dimension",
                    {static_cast<int64_t>(getIotaDimension())},
                    shaped(getOutput()).getRank());
}

LogicalResult BroadcastInDimOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  SmallVector<int64_t> dims = getInts(getBroadcastDimensions());
  ShapedType in = shaped(getOperand()), out = shaped(getResult());
  if (failed(verifyCount(*this, "broadcast_dimensions", dims.size(),
                         in.getRank())) ||
      failed(verifyDims(*this, "broadcast_dimensions", dims, out.getRank())))
    return failure();
  for (auto [size, dim] : llvm::zip(in.getShape(), dims))
    if (size != 1 && !sizesAgree(size, out.getDimSize(dim)))
      return emitOpError("expected operand size 1 or ")
             << out.getDimSize(dim) << " for result dimension " << dim
             << ", got " << size;
  return success();
}

LogicalResult ReshapeOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  ShapedType in = shaped(getOperand()), out = shaped(getResult());
  if (in.hasStaticShape() && out.hasStaticShape() &&
      in.getNumElements() != out.getNumElements())
    return emitOpError("expected as many elements in ")
           << out << " as in " << in;
  return success();
}

LogicalResult TransposeOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  SmallVector<int64_t> perm = getInts(getPermutation());
  ShapedType in = shaped(getOperand());
  if (failed(verifyCount(*this, "permutation", perm.size(), in.getRank())) ||
      failed(verifyDims(*this, "permutation", perm, in.getRank())))
    return failure();
  SmallVector<int64_t> expected;
  for (int64_t dim : perm)
    expected.push_back(in.getDimSize(dim));
  return verifyShape(*this, getResult(), expected);
}

LogicalResult SliceOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  ShapedType in = shaped(getOperand());
  SmallVector<int64_t> start = getInts(getStartIndices()),
                       limit = getInts(getLimitIndices()),
                       stride = getInts(getStrides()), expected;
  if (failed(verifyCount(*this, "start_indices", start.size(), in.getRank())) ||
      failed(verifyCount(*this, "limit_indices", limit.size(), in.getRank())) ||
      failed(verifyCount(*this, "strides", stride.size(), in.getRank())))
    return failure();
  for (auto [s, l, t, size] : llvm::zip(start, limit, stride, in.getShape())) {
    if (s < 0 || t < 1 || l < s || (!ShapedType::isDynamic(size) && l > size))
      return emitOpError("expected 0 <= start <= limit <= ")
             << size << " and stride >= 1, got " << s << ":" << l << ":" << t;
    expected.push_back((l - s + t - 1) / t);
  }
  return verifyShape(*this, getResult(), expected);
}

/// Scalar start indices, one per dimension.
static LogicalResult verifyStarts(Operation *op, OperandRange starts,
                                  int64_t rank) {
  if (failed(verifyCount(op, "start_indices", starts.size(), rank)))
    return failure();
  for (Value start : starts)
    if (shaped(start).getRank() != 0 ||
        !isa<IntegerType>(shaped(start).getElementType()))
      return op->emitOpError("expected scalar integer start indices, got ")
             << start.getType();
  return success();
}

LogicalResult DynamicSliceOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  ShapedType in = shaped(getOperand());
  SmallVector<int64_t> sizes = getInts(getSliceSizes());
  if (failed(verifyStarts(*this, getStartIndices(), in.getRank())) ||
      failed(verifyCount(*this, "slice_sizes", sizes.size(), in.getRank())))
    return failure();
  for (auto [size, of] : llvm::zip(sizes, in.getShape()))
    if (size < 0 || (!ShapedType::isDynamic(of) && size > of))
      return emitOpError("expected a slice size in [0, ")
             << of << "], got " << size;
  return verifyShape(*this, getResult(), sizes);
}

LogicalResult DynamicUpdateSliceOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  ShapedType in = shaped(getOperand()), update = shaped(getUpdate());
  if (failed(verifyStarts(*this, getStartIndices(), in.getRank())))
    return failure();
  if (update.getRank() != in.getRank())
    return emitOpError("expected an update of rank ")
           << in.getRank() << ", got " << update;
  for (auto [size, of] : llvm::zip(update.getShape(), in.getShape()))
    if (!ShapedType::isDynamic(size) && !ShapedType::isDynamic(of) && size > of)
      return emitOpError("expected an update no larger than ")
             << in << ", got " << update;
  return verifyShape(*this, getResult(), in.getShape());
}

LogicalResult ConcatenateOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  if (getInputs().empty())
    return emitOpError("expected at least one operand");
  ShapedType out = shaped(getResult());
  int64_t dim = getDimension(), sum = 0;
  if (failed(verifyDims(*this, "dimension", {dim}, out.getRank())))
    return failure();
  for (Value input : getInputs()) {
    SmallVector<int64_t> expected(out.getShape());
    if (shaped(input).getRank() == out.getRank())
      expected[dim] = shaped(input).getDimSize(dim);
    if (failed(verifyShape(*this, input, expected)))
      return failure();
    sum = ShapedType::isDynamic(expected[dim]) || ShapedType::isDynamic(sum)
              ? ShapedType::kDynamic
              : sum + expected[dim];
  }
  if (!sizesAgree(sum, out.getDimSize(dim)))
    return emitOpError("expected size ")
           << sum << " in dimension " << dim << ", got " << out;
  return success();
}

LogicalResult PadOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  ShapedType in = shaped(getOperand());
  SmallVector<int64_t> low = getInts(getEdgePaddingLow()),
                       high = getInts(getEdgePaddingHigh()),
                       interior = getInts(getInteriorPadding()), expected;
  if (failed(verifyCount(*this, "low", low.size(), in.getRank())) ||
      failed(verifyCount(*this, "high", high.size(), in.getRank())) ||
      failed(verifyCount(*this, "interior", interior.size(), in.getRank())))
    return failure();
  for (auto [l, h, i, size] : llvm::zip(low, high, interior, in.getShape())) {
    if (i < 0)
      return emitOpError("expected interior padding >= 0, got ") << i;
    expected.push_back(ShapedType::isDynamic(size)
                           ? ShapedType::kDynamic
                           : size + l + h + std::max<int64_t>(size - 1, 0) * i);
  }
  return verifyShape(*this, getResult(), expected);
}

LogicalResult GatherOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  GatherDimensionNumbersAttr dims = getDimensionNumbers();
  ShapedType in = shaped(getOperand()), indices = shaped(getStartIndices());
  SmallVector<int64_t> sizes = getInts(getSliceSizes());
  int64_t outRank = shaped(getResult()).getRank();
  if (failed(verifyCount(*this, "slice_sizes", sizes.size(), in.getRank())) ||
      failed(verifyDims(*this, "offset_dims", dims.getOffsetDims(), outRank)) ||
      failed(verifyDims(*this, "collapsed_slice_dims",
                        dims.getCollapsedSliceDims(), in.getRank())) ||
      failed(verifyDims(*this, "operand_batching_dims",
                        dims.getOperandBatchingDims(), in.getRank())) ||
      failed(verifyDims(*this, "start_indices_batching_dims",
                        dims.getStartIndicesBatchingDims(),
                        indices.getRank())) ||
      failed(verifyDims(*this, "start_index_map", dims.getStartIndexMap(),
                        in.getRank())) ||
      failed(verifyCount(*this, "start_indices_batching_dims",
                         dims.getStartIndicesBatchingDims().size(),
                         dims.getOperandBatchingDims().size())))
    return failure();
  int64_t vectorDim = dims.getIndexVectorDim();
  if (vectorDim < 0 || vectorDim > indices.getRank())
    return emitOpError("expected index_vector_dim in [0, ")
           << indices.getRank() << "], got " << vectorDim;
  int64_t batchRank =
      indices.getRank() - (vectorDim < indices.getRank() ? 1 : 0);
  int64_t offsets = in.getRank() - dims.getCollapsedSliceDims().size() -
                    dims.getOperandBatchingDims().size();
  if (failed(verifyCount(*this, "offset_dims", dims.getOffsetDims().size(),
                         offsets)))
    return failure();
  if (outRank != batchRank + offsets)
    return emitOpError("expected a result of rank ")
           << batchRank + offsets << ", got " << outRank;
  for (auto [size, of] : llvm::zip(sizes, in.getShape()))
    if (size < 0 || (!ShapedType::isDynamic(of) && size > of))
      return emitOpError("expected a slice size in [0, ")
             << of << "], got " << size;
  return success();
}

LogicalResult ScatterOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  if (getInputs().empty())
    return emitOpError("expected at least one operand");
  ScatterDimensionNumbersAttr dims = getScatterDimensionNumbers();
  int64_t rank = shaped(getInputs().front()).getRank(),
          updateRank = shaped(getUpdates().front()).getRank(),
          indexRank = shaped(getScatterIndices()).getRank();
  if (failed(verifyDims(*this, "update_window_dims", dims.getUpdateWindowDims(),
                        updateRank)) ||
      failed(verifyDims(*this, "inserted_window_dims",
                        dims.getInsertedWindowDims(), rank)) ||
      failed(verifyDims(*this, "input_batching_dims",
                        dims.getInputBatchingDims(), rank)) ||
      failed(verifyDims(*this, "scatter_indices_batching_dims",
                        dims.getScatterIndicesBatchingDims(), indexRank)) ||
      failed(verifyDims(*this, "scatter_dims_to_operand_dims",
                        dims.getScatterDimsToOperandDims(), rank)) ||
      failed(verifyCount(*this, "scatter_indices_batching_dims",
                         dims.getScatterIndicesBatchingDims().size(),
                         dims.getInputBatchingDims().size())))
    return failure();
  int64_t vectorDim = dims.getIndexVectorDim();
  if (vectorDim < 0 || vectorDim > indexRank)
    return emitOpError("expected index_vector_dim in [0, ")
           << indexRank << "], got " << vectorDim;
  return verifyCount(*this, "update_window_dims",
                     dims.getUpdateWindowDims().size(),
                     rank - dims.getInsertedWindowDims().size() -
                         dims.getInputBatchingDims().size());
}

LogicalResult DotGeneralOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  DotDimensionNumbersAttr dims = getDotDimensionNumbers();
  ShapedType lhs = shaped(getLhs()), rhs = shaped(getRhs());
  SmallVector<int64_t> lhsDims(dims.getLhsBatching()),
      rhsDims(dims.getRhsBatching()), expected;
  llvm::append_range(lhsDims, dims.getLhsContracting());
  llvm::append_range(rhsDims, dims.getRhsContracting());
  if (dims.getLhsBatching().size() != dims.getRhsBatching().size() ||
      lhsDims.size() != rhsDims.size())
    return emitOpError("expected as many dimensions of lhs as of rhs");
  if (failed(verifyDims(*this, "lhs dimensions", lhsDims, lhs.getRank())) ||
      failed(verifyDims(*this, "rhs dimensions", rhsDims, rhs.getRank())))
    return failure();
  for (auto [a, b] : llvm::zip(lhsDims, rhsDims))
    if (!sizesAgree(lhs.getDimSize(a), rhs.getDimSize(b)))
      return emitOpError("expected equal sizes, got ")
             << lhs.getDimSize(a) << " (lhs dimension " << a << ") and "
             << rhs.getDimSize(b) << " (rhs dimension " << b << ")";
  for (int64_t dim : dims.getLhsBatching())
    expected.push_back(lhs.getDimSize(dim));
  for (int64_t dim = 0; dim < lhs.getRank(); ++dim)
    if (!llvm::is_contained(lhsDims, dim))
      expected.push_back(lhs.getDimSize(dim));
  for (int64_t dim = 0; dim < rhs.getRank(); ++dim)
    if (!llvm::is_contained(rhsDims, dim))
      expected.push_back(rhs.getDimSize(dim));
  return verifyShape(*this, getResult(), expected);
}

LogicalResult ReduceOp::verify() {
  if (failed(verifyRanked(*this)))
    return failure();
  if (getInputs().empty())
    return emitOpError("expected at least one operand");
  ShapedType in = shaped(getInputs().front());
  SmallVector<int64_t> dims = getInts(getDimensions()), expected;
  if (failed(verifyDims(*this, "dimensions", dims, in.getRank())))
    return failure();
  for (int64_t dim = 0; dim < in.getRank(); ++dim)
    if (!llvm::is_contained(dims, dim))
      expected.push_back(in.getDimSize(dim));
  if (getNumResults() != getInputs().size() ||
      getBody().getNumArguments() != 2 * getInputs().size())
    return emitOpError("expected ")
           << getInputs().size() << " results and twice as many body arguments";
  for (Value result : getResults())
    if (failed(verifyShape(*this, result, expected)))
      return failure();
  return success();
}

LogicalResult WhileOp::verify() {
  for (Region *region : {&getCond(), &getBody()})
    if (region->getArgumentTypes() != getOperand().getTypes())
      return emitOpError("expected region arguments of the operands' types");
  if (getResultTypes() != getOperand().getTypes())
    return emitOpError("expected results of the operands' types");
  if (getBody().front().empty() ||
      getBody().front().getTerminator()->getOperandTypes() != getResultTypes())
    return emitOpError("expected the body to return the operands' types");
  Operation *end =
      getCond().front().empty() ? nullptr : getCond().front().getTerminator();
  auto type = end && end->getNumOperands() == 1
                  ? dyn_cast<RankedTensorType>(end->getOperand(0).getType())
                  : RankedTensorType();
  if (!type || type.getRank() != 0 || !type.getElementType().isInteger(1))
    return emitOpError("expected the condition to return tensor<i1>");
  return success();
}
