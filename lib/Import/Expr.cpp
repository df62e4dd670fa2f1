// Reading tensors as scalar expressions. See Expr.h.

#include "Expr.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;
using namespace kvcache::import;

static ArrayRef<int64_t> shapeOf(Value tensor) {
  return cast<RankedTensorType>(tensor.getType()).getShape();
}

static Block *bodyOf(const Frame &frame) {
  linalg::GenericOp op = frame.op;
  return op.getBody();
}

Cursor Reader::fresh(Value tensor) {
  Cursor cursor{tensor, {}, nullptr};
  for (int64_t size : shapeOf(tensor))
    cursor.at.push_back(space.newIdx(size));
  return cursor;
}

/// The value of an affine expression at loop positions.
static std::optional<Idx> applyExpr(const Space &space, AffineExpr expr,
                                    ArrayRef<Idx> loops) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr))
    return loops[dim.getPosition()];
  if (auto constant = dyn_cast<AffineConstantExpr>(expr))
    return Idx::constant(constant.getValue());
  auto binary = dyn_cast<AffineBinaryOpExpr>(expr);
  if (!binary)
    return std::nullopt;
  auto lhs = applyExpr(space, binary.getLHS(), loops);
  auto rhs = applyExpr(space, binary.getRHS(), loops);
  if (!lhs || !rhs)
    return std::nullopt;
  if (expr.getKind() == AffineExprKind::Add)
    return space.add(*lhs, *rhs);
  if (expr.getKind() == AffineExprKind::Mul && rhs->terms.empty())
    return space.affine(*lhs, rhs->offset);
  return std::nullopt;
}

static std::optional<Idxs> applyMap(const Space &space, AffineMap map,
                                    ArrayRef<Idx> loops) {
  Idxs result;
  for (AffineExpr expr : map.getResults()) {
    auto idx = applyExpr(space, expr, loops);
    if (!idx)
      return std::nullopt;
    result.push_back(*idx);
  }
  return result;
}

/// Loop positions from a position in the output; loops that the output map does
/// not name stay empty and are marked.
static std::optional<Idxs> loopsOf(linalg::GenericOp op, unsigned result,
                                   ArrayRef<Idx> at,
                                   SmallVectorImpl<bool> &known) {
  AffineMap map = op.getIndexingMapMatchingResult(op->getResult(result));
  Idxs loops(map.getNumDims());
  known.assign(map.getNumDims(), false);
  for (auto [expr, idx] : llvm::zip(map.getResults(), at)) {
    if (isa<AffineConstantExpr>(expr))
      continue;
    auto dim = dyn_cast<AffineDimExpr>(expr);
    if (!dim || known[dim.getPosition()])
      return std::nullopt;
    loops[dim.getPosition()] = idx;
    known[dim.getPosition()] = true;
  }
  return loops;
}

/// The scalar that a fully parallel generic yields, as a cursor in its body.
static std::optional<Cursor> bodyCursor(const Cursor &cursor,
                                        linalg::GenericOp op) {
  unsigned result = cast<OpResult>(cursor.value).getResultNumber();
  SmallVector<bool> known;
  auto loops = loopsOf(op, result, cursor.at, known);
  if (!loops || !llvm::all_of(known, [](bool k) { return k; }))
    return std::nullopt;
  Value yielded = op.getBody()->getTerminator()->getOperand(result);
  return Cursor{
      yielded, {}, std::make_shared<const Frame>(Frame{op, std::move(*loops)})};
}

/// Reading a reshape: dimensions that were one are joined, and the other way
/// round positions are divided.
static std::optional<Idxs> throughExpand(Space &space, ArrayRef<Idx> at,
                                         tensor::ExpandShapeOp expand) {
  Idxs result;
  ArrayRef<int64_t> shape = shapeOf(expand.getResult());
  for (const ReassociationIndices &group : expand.getReassociationIndices()) {
    Idx idx;
    for (int64_t d : group) {
      if (ShapedType::isDynamic(shape[d]) && group.size() > 1)
        return std::nullopt;
      idx = group.size() == 1 ? at[d]
                              : space.add(space.affine(idx, shape[d]), at[d]);
    }
    result.push_back(idx);
  }
  return result;
}

static std::optional<Idxs> throughCollapse(Space &space, ArrayRef<Idx> at,
                                           tensor::CollapseShapeOp collapse) {
  Idxs result;
  ArrayRef<int64_t> shape = shapeOf(collapse.getSrc());
  if (at.empty())
    return Idxs(shape.size());
  for (auto [group, idx] : llvm::zip(collapse.getReassociationIndices(), at)) {
    SmallVector<int64_t> sizes;
    for (int64_t d : group)
      sizes.push_back(shape[d]);
    if (llvm::is_contained(sizes, ShapedType::kDynamic))
      return std::nullopt;
    auto parts = space.delinearize(idx, sizes);
    if (!parts)
      return std::nullopt;
    llvm::append_range(result, *parts);
  }
  return result;
}

static std::optional<Idxs> throughSlice(Space &space, ArrayRef<Idx> at,
                                        tensor::ExtractSliceOp slice) {
  llvm::SmallBitVector dropped = slice.getDroppedDims();
  Idxs result;
  unsigned next = 0;
  for (int64_t d = 0; d < slice.getSourceType().getRank(); ++d) {
    if (slice.isDynamicOffset(d) || slice.isDynamicStride(d))
      return std::nullopt;
    Idx idx = dropped[d] ? Idx() : at[next++];
    result.push_back(
        space.affine(idx, slice.getStaticStride(d), slice.getStaticOffset(d)));
  }
  return result;
}

/// TOSA's concatenations: inside the part written, or clear of it.
static bool throughInsert(Space &space, Cursor &cursor,
                          tensor::InsertSliceOp insert) {
  int64_t rank = insert.getDestType().getRank();
  if (insert.getSourceType().getRank() != rank)
    return false;
  Idxs at;
  bool inside = true;
  for (int64_t d = 0; d < rank; ++d) {
    if (insert.isDynamicOffset(d) || insert.isDynamicSize(d) ||
        insert.isDynamicStride(d) || insert.getStaticStride(d) != 1)
      return false;
    int64_t begin = insert.getStaticOffset(d),
            end = begin + insert.getStaticSize(d);
    auto [low, high] = space.range(cursor.at[d]);
    if (high < begin || low >= end) {
      cursor.value = insert.getDest();
      return true;
    }
    inside &= low >= begin && high < end;
    at.push_back(space.affine(cursor.at[d], 1, -begin));
  }
  if (inside)
    cursor = Cursor{insert.getSource(), at, nullptr};
  return inside;
}

static bool throughConcat(Space &space, Cursor &cursor,
                          tensor::ConcatOp concat) {
  int64_t begin = 0, dim = concat.getDim();
  auto [low, high] = space.range(cursor.at[dim]);
  for (Value input : concat.getInputs()) {
    int64_t size = shapeOf(input)[dim];
    if (ShapedType::isDynamic(size))
      return false;
    if (low >= begin && high < begin + size) {
      cursor.at[dim].offset -= begin;
      cursor.value = input;
      return true;
    }
    begin += size;
  }
  return false;
}

/// One move from a tensor to the tensor it takes the element from.
bool Reader::stepTensor(Cursor &cursor) {
  Operation *op = cursor.value.getDefiningOp();
  if (!op)
    return false;
  auto go = [&](Value source, std::optional<Idxs> at) {
    if (at)
      cursor = Cursor{source, std::move(*at), nullptr};
    return at.has_value();
  };
  if (auto generic = dyn_cast<linalg::GenericOp>(op)) {
    auto body = bodyCursor(cursor, generic);
    if (!body)
      return false;
    // A gather moves elements too, where its indices are understood.
    bool gathers = indices && body->value.getDefiningOp<tensor::ExtractOp>();
    if (gathers ? !stepScalar(*body) : !isa<BlockArgument>(body->value))
      return false;
    cursor = *body;
    return true;
  }
  if (auto transpose = dyn_cast<linalg::TransposeOp>(op)) {
    Idxs at(cursor.at.size());
    for (auto [to, from] : llvm::enumerate(transpose.getPermutation()))
      at[from] = cursor.at[to];
    return go(transpose.getInput(), at);
  }
  if (auto broadcast = dyn_cast<linalg::BroadcastOp>(op)) {
    Idxs at;
    for (auto [d, idx] : llvm::enumerate(cursor.at))
      if (!llvm::is_contained(broadcast.getDimensions(),
                              static_cast<int64_t>(d)))
        at.push_back(idx);
    return go(broadcast.getInput(), at);
  }
  if (auto cast = dyn_cast<tensor::CastOp>(op))
    return go(cast.getSource(), cursor.at);
  if (auto expand = dyn_cast<tensor::ExpandShapeOp>(op))
    return go(expand.getSrc(), throughExpand(space, cursor.at, expand));
  if (auto collapse = dyn_cast<tensor::CollapseShapeOp>(op))
    return go(collapse.getSrc(), throughCollapse(space, cursor.at, collapse));
  if (auto slice = dyn_cast<tensor::ExtractSliceOp>(op))
    return go(slice.getSource(), throughSlice(space, cursor.at, slice));
  if (auto insert = dyn_cast<tensor::InsertSliceOp>(op))
    return throughInsert(space, cursor, insert);
  if (auto concat = dyn_cast<tensor::ConcatOp>(op))
    return throughConcat(space, cursor, concat);
  return false;
}

/// An index-typed scalar as an index expression.
std::optional<Idx> Reader::indexScalar(Cursor cursor) {
  IntegerAttr attr;
  if (matchPattern(cursor.value, m_Constant(&attr)))
    return Idx::constant(attr.getInt());
  Operation *op = cursor.value.getDefiningOp();
  if (!op || !cursor.frame || op->getBlock() != bodyOf(*cursor.frame))
    return std::nullopt;
  if (auto i = dyn_cast<linalg::IndexOp>(op))
    return cursor.frame->loops[i.getDim()];
  auto operand = [&](unsigned i) {
    return indexScalar(Cursor{op->getOperand(i), {}, cursor.frame});
  };
  if (isa<arith::AddIOp, arith::SubIOp, arith::MulIOp>(op)) {
    auto a = operand(0), b = operand(1);
    if (!a || !b)
      return std::nullopt;
    if (isa<arith::AddIOp>(op))
      return space.add(*a, *b);
    if (isa<arith::SubIOp>(op))
      return space.add(*a, space.affine(*b, -1));
    if (b->terms.empty())
      return space.affine(*a, b->offset);
    if (a->terms.empty())
      return space.affine(*b, a->offset);
  }
  return std::nullopt;
}

/// One move from a scalar in a body.
bool Reader::stepScalar(Cursor &cursor) {
  if (auto arg = dyn_cast<BlockArgument>(cursor.value)) {
    if (!cursor.frame || arg.getOwner() != bodyOf(*cursor.frame))
      return false;
    linalg::GenericOp op = cursor.frame->op;
    OpOperand &operand = op->getOpOperand(arg.getArgNumber());
    if (!isa<RankedTensorType>(operand.get().getType())) {
      cursor = Cursor{operand.get(), {}, nullptr};
      return true;
    }
    auto at = applyMap(space, op.getMatchingIndexingMap(&operand),
                       cursor.frame->loops);
    if (!at)
      return false;
    cursor = Cursor{operand.get(), *at, nullptr};
    return true;
  }
  auto extract = cursor.value.getDefiningOp<tensor::ExtractOp>();
  if (!extract)
    return false;
  Idxs at;
  ArrayRef<int64_t> shape = shapeOf(extract.getTensor());
  for (auto [index, size] : llvm::zip(extract.getIndices(), shape)) {
    Cursor scalar{index, {}, cursor.frame};
    auto idx = indexScalar(scalar);
    if (!idx && indices)
      idx = indices->position(*this, scalar, size);
    if (!idx)
      return false;
    at.push_back(*idx);
  }
  cursor = Cursor{extract.getTensor(), at, nullptr};
  return true;
}

Cursor Reader::peel(Cursor cursor) {
  while (cursor.isTensor() ? stepTensor(cursor) : stepScalar(cursor))
    ;
  return cursor;
}

/// The combiner of a reduction and the operand that is not the accumulator.
static Operation *combinerOf(linalg::GenericOp op, unsigned result,
                             Value &element) {
  Value yielded = op.getBody()->getTerminator()->getOperand(result);
  Operation *combiner = yielded.getDefiningOp();
  BlockArgument acc = op.getRegionOutputArgs()[result];
  if (!combiner || combiner->getNumOperands() != 2 ||
      combiner->getBlock() != op.getBody())
    return nullptr;
  if (combiner->getOperand(0) == acc)
    element = combiner->getOperand(1);
  else if (combiner->getOperand(1) == acc)
    element = combiner->getOperand(0);
  else
    return nullptr;
  return combiner;
}

Node Reader::resolveGeneric(const Cursor &cursor, linalg::GenericOp op) {
  Node node;
  node.cursor = cursor;
  unsigned result = cast<OpResult>(cursor.value).getResultNumber();
  if (auto body = bodyCursor(cursor, op))
    return resolveScalar(*body);
  SmallVector<bool> known;
  auto loops = loopsOf(op, result, cursor.at, known);
  Value element;
  Operation *combiner = combinerOf(op, result, element);
  if (!loops || !combiner)
    return node;
  SmallVector<int64_t> ranges = op.getStaticLoopRanges();
  for (auto [d, isKnown] : llvm::enumerate(known)) {
    if (isKnown || ranges[d] == 1)
      continue;
    if (ShapedType::isDynamic(ranges[d]))
      return node;
    node.reduced.push_back(d);
    node.sizes.push_back(ranges[d]);
  }
  node.kind = Kind::Reduce;
  node.op = combiner;
  node.loops = *loops;
  node.result = result;
  return node;
}

Cursor Reader::element(const Node &reduce, ArrayRef<Idx> at) {
  auto op = reduce.cursor.value.getDefiningOp<linalg::GenericOp>();
  Value element;
  combinerOf(op, reduce.result, element);
  Frame frame{op, reduce.loops};
  for (auto [d, idx] : llvm::zip(reduce.reduced, at))
    frame.loops[d] = idx;
  return Cursor{element, {}, std::make_shared<const Frame>(std::move(frame))};
}

Cursor Reader::initial(const Node &reduce) {
  auto op = reduce.cursor.value.getDefiningOp<linalg::GenericOp>();
  return Cursor{op.getDpsInits()[reduce.result], reduce.cursor.at, nullptr};
}

Node Reader::resolveScalar(const Cursor &start) {
  Cursor cursor = peel(start);
  if (cursor.isTensor())
    return resolve(cursor);
  Node node;
  node.cursor = cursor;
  Operation *op = cursor.value.getDefiningOp();
  if (!op)
    return node;
  if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    node.kind = Kind::Constant;
    node.constant = constant.getValue();
    return node;
  }
  if (auto index = dyn_cast<linalg::IndexOp>(op)) {
    if (!cursor.frame)
      return node;
    node.kind = Kind::Position;
    node.position = cursor.frame->loops[index.getDim()];
    return node;
  }
  if (!isa<arith::ArithDialect, math::MathDialect>(op->getDialect()) ||
      op->getNumResults() != 1)
    return node;
  node.kind = Kind::Op;
  node.op = op;
  for (Value operand : op->getOperands())
    node.operands.push_back(Cursor{operand, {}, cursor.frame});
  return node;
}

Node Reader::resolve(Cursor cursor) {
  cursor = peel(cursor);
  if (!cursor.isTensor())
    return resolveScalar(cursor);
  Node node;
  node.cursor = cursor;
  Operation *op = cursor.value.getDefiningOp();
  if (!op)
    return node;
  if (auto generic = dyn_cast<linalg::GenericOp>(op))
    return resolveGeneric(cursor, generic);
  if (auto fill = dyn_cast<linalg::FillOp>(op))
    return resolveScalar(Cursor{fill.getInputs().front(), {}, nullptr});
  if (auto splat = dyn_cast<tensor::SplatOp>(op))
    return resolveScalar(Cursor{splat.getInput(), {}, nullptr});
  if (auto elements = dyn_cast<tensor::FromElementsOp>(op);
      elements && elements.getElements().size() == 1)
    return resolveScalar(Cursor{elements.getElements().front(), {}, nullptr});
  if (isa<tensor::ConcatOp>(op)) {
    node.kind = Kind::Concat;
    return node;
  }
  DenseElementsAttr dense;
  if (matchPattern(cursor.value, m_Constant(&dense))) {
    node.kind = Kind::Constant;
    if (dense.isSplat())
      node.constant = dense.getSplatValue<Attribute>();
    else
      node.constant = dense;
  }
  return node;
}

Node Reader::resolveNumber(Cursor cursor) {
  Node node = resolve(cursor);
  while (node.kind == Kind::Op && isa<arith::ExtFOp, arith::TruncFOp>(node.op))
    node = resolve(node.operands[0]);
  return node;
}

static std::optional<double> toDouble(Attribute attr) {
  if (auto value = dyn_cast_if_present<FloatAttr>(attr)) {
    llvm::APFloat number = value.getValue();
    bool loses;
    number.convert(llvm::APFloat::IEEEdouble(),
                   llvm::APFloat::rmNearestTiesToEven, &loses);
    return number.convertToDouble();
  }
  if (auto value = dyn_cast_if_present<IntegerAttr>(attr))
    return value.getType().isInteger(1)
               ? static_cast<double>(value.getValue().getZExtValue())
               : static_cast<double>(value.getInt());
  return std::nullopt;
}

/// a op b on numbers, for constants that graphs compute.
static std::optional<double> fold(Operation *op, ArrayRef<double> x) {
  if (isa<arith::ExtFOp, arith::TruncFOp, arith::SIToFPOp, arith::UIToFPOp,
          arith::ExtSIOp, arith::ExtUIOp, arith::FPToSIOp, arith::FPToUIOp,
          arith::IndexCastOp>(op))
    return x[0];
  if (isa<arith::MulFOp, arith::MulIOp>(op))
    return x[0] * x[1];
  if (isa<arith::DivFOp>(op))
    return x[0] / x[1];
  if (isa<arith::AddFOp, arith::AddIOp>(op))
    return x[0] + x[1];
  if (isa<arith::SubFOp, arith::SubIOp>(op))
    return x[0] - x[1];
  if (isa<arith::NegFOp>(op))
    return -x[0];
  if (isa<math::SqrtOp>(op))
    return std::sqrt(x[0]);
  if (isa<math::RsqrtOp>(op))
    return 1.0 / std::sqrt(x[0]);
  if (isa<math::PowFOp>(op))
    return std::pow(x[0], x[1]);
  return std::nullopt;
}

std::optional<double> Reader::number(Cursor cursor) {
  Node node = resolve(cursor);
  if (node.kind == Kind::Constant && !isa<DenseElementsAttr>(node.constant))
    return toDouble(node.constant);
  if (node.kind != Kind::Op || node.operands.size() > 2)
    return std::nullopt;
  SmallVector<double, 2> values;
  for (const Cursor &operand : node.operands) {
    auto value = number(operand);
    if (!value)
      return std::nullopt;
    values.push_back(*value);
  }
  auto folded = fold(node.op, values);
  // What the graph computes in f32 or less is that number, not the exact one.
  if (folded && node.op->getResult(0).getType().isF32())
    return static_cast<float>(*folded);
  return folded;
}

bool Reader::same(Cursor a, Cursor b) {
  // Equal expressions are found fast; different ones must not take forever.
  unsigned budget = 2000;
  return sameWithin(a, b, budget);
}

bool Reader::sameWithin(Cursor a, Cursor b, unsigned &budget) {
  if (budget == 0)
    return false;
  --budget;
  a = peel(a);
  b = peel(b);
  if (a.value == b.value) {
    if (a.isTensor() && space.equal(a.at, b.at))
      return true;
    if (!a.isTensor() && (!a.frame || !b.frame))
      return a.frame == b.frame;
    if (!a.isTensor() && space.equal(a.frame->loops, b.frame->loops))
      return true;
  }
  Node x = resolve(a), y = resolve(b);
  if (x.kind != y.kind)
    return false;
  switch (x.kind) {
  case Kind::Leaf:
  case Kind::Concat:
    return x.cursor.value == y.cursor.value && x.cursor.isTensor() &&
           space.equal(x.cursor.at, y.cursor.at);
  case Kind::Constant:
    return x.constant == y.constant && !isa<DenseElementsAttr>(x.constant);
  case Kind::Position:
    return space.equal(x.position, y.position);
  case Kind::Op: {
    if (x.op->getName() != y.op->getName() ||
        x.op->getResult(0).getType() != y.op->getResult(0).getType() ||
        x.op->getDiscardableAttrDictionary() !=
            y.op->getDiscardableAttrDictionary() ||
        x.op->getPropertiesAsAttribute() != y.op->getPropertiesAsAttribute() ||
        x.operands.size() != y.operands.size())
      return false;
    auto all = [&](ArrayRef<Cursor> p, ArrayRef<Cursor> q) {
      return llvm::all_of(llvm::zip(p, q), [&](auto pair) {
        return sameWithin(std::get<0>(pair), std::get<1>(pair), budget);
      });
    };
    if (all(x.operands, y.operands))
      return true;
    return x.op->hasTrait<OpTrait::IsCommutative>() && x.operands.size() == 2 &&
           all(x.operands, {y.operands[1], y.operands[0]});
  }
  case Kind::Reduce: {
    if (x.op->getName() != y.op->getName() || x.sizes != y.sizes)
      return false;
    Idxs at;
    for (int64_t size : x.sizes)
      at.push_back(space.newIdx(size));
    return sameWithin(element(x, at), element(y, at), budget) &&
           sameWithin(initial(x), initial(y), budget);
  }
  }
  return false;
}

bool Reader::dependence(Cursor cursor, SmallVectorImpl<VarId> &digits) {
  Node node = resolve(cursor);
  switch (node.kind) {
  case Kind::Constant:
    if (isa<DenseElementsAttr>(node.constant))
      for (const Idx &idx : node.cursor.at)
        space.collectDigits(idx, digits);
    return true;
  case Kind::Position:
    space.collectDigits(node.position, digits);
    return true;
  case Kind::Op: {
    bool isStatic = true;
    for (const Cursor &operand : node.operands)
      isStatic &= dependence(operand, digits);
    return isStatic;
  }
  case Kind::Leaf:
  case Kind::Reduce:
  case Kind::Concat:
    if (node.cursor.isTensor())
      for (const Idx &idx : node.cursor.at)
        space.collectDigits(idx, digits);
    else if (node.cursor.frame)
      for (const Idx &idx : node.cursor.frame->loops)
        space.collectDigits(idx, digits);
    return false;
  }
  return false;
}
