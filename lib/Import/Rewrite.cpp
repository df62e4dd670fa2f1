// Building kvcache.attention from a planned match. Operands are brought to
// [batch, head, token, channel] in f32 by one copy each, which vanishes where
// the graph has them so; the result goes back to the root's layout.

#include "Rewrite.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

Value kvcache::import::reshape(ImplicitLocOpBuilder &b, Value tensor,
                               ArrayRef<int64_t> shape) {
  auto type = cast<RankedTensorType>(tensor.getType());
  if (type.getShape() == shape)
    return tensor;
  auto whole = [](int64_t rank) {
    SmallVector<ReassociationIndices> groups;
    if (rank > 0) {
      groups.emplace_back();
      for (int64_t d = 0; d < rank; ++d)
        groups.back().push_back(d);
    }
    return groups;
  };
  int64_t n = type.getNumElements();
  auto flat = RankedTensorType::get({n}, type.getElementType());
  auto target = RankedTensorType::get(shape, type.getElementType());
  if (type.getRank() == 0)
    return tensor::ExpandShapeOp::create(b, target, tensor,
                                         SmallVector<ReassociationIndices>{});
  if (type.getRank() > 1)
    tensor =
        tensor::CollapseShapeOp::create(b, flat, tensor, whole(type.getRank()));
  if (shape.size() == 1)
    return tensor;
  if (shape.empty())
    return tensor::CollapseShapeOp::create(b, target, tensor,
                                           SmallVector<ReassociationIndices>{});
  return tensor::ExpandShapeOp::create(b, target, tensor, whole(shape.size()));
}

Value kvcache::import::toFloat(ImplicitLocOpBuilder &b, Value x) {
  Type f32 = b.getF32Type();
  if (x.getType() == f32)
    return x;
  if (x.getType().getIntOrFloatBitWidth() > 32)
    return arith::TruncFOp::create(b, f32, x);
  return arith::ExtFOp::create(b, f32, x);
}

namespace {
/// Repeats scalar expressions inside a new body. Tensors that they read become
/// inputs of the new generic.
struct BodyCloner {
  Space &space;
  Reader &read;
  ArrayRef<VarId> loops;
  ImplicitLocOpBuilder &builder;
  MLIRContext *context;
  SmallVector<Value> inputs{}, sources{};
  SmallVector<AffineMap> maps{}, sourceMaps{};

  AffineExpr expr(const Idx &idx) {
    Idx flat = space.resolve(idx);
    AffineExpr result = getAffineConstantExpr(flat.offset, context);
    for (const Term &term : flat.terms) {
      auto at = llvm::find(loops, term.var) - loops.begin();
      result = result + getAffineDimExpr(at, context) * term.stride;
    }
    return result;
  }

  AffineMap mapOf(const Cursor &cursor) {
    SmallVector<AffineExpr> exprs;
    for (const Idx &idx : cursor.at)
      exprs.push_back(expr(idx));
    return AffineMap::get(loops.size(), 0, exprs, context);
  }

  unsigned input(const Cursor &cursor) {
    AffineMap map = mapOf(cursor);
    for (auto [i, value] : llvm::enumerate(sources))
      if (value == cursor.value && sourceMaps[i] == map)
        return i;
    sources.push_back(cursor.value);
    sourceMaps.push_back(map);
    Cursor part = cut(cursor);
    inputs.push_back(part.value);
    maps.push_back(mapOf(part));
    return inputs.size() - 1;
  }

  /// Only the part that is read: loops must cover an input exactly.
  Cursor cut(Cursor cursor) {
    auto type = cast<RankedTensorType>(cursor.value.getType());
    SmallVector<OpFoldResult> offsets, sizes, strides;
    bool whole = true;
    for (auto [d, idx] : llvm::enumerate(cursor.at)) {
      auto [low, high] = space.range(idx);
      whole &= low == 0 && high + 1 == type.getDimSize(d);
      offsets.push_back(builder.getIndexAttr(low));
      sizes.push_back(builder.getIndexAttr(high - low + 1));
      strides.push_back(builder.getIndexAttr(1));
      idx.offset -= low;
    }
    if (!whole)
      cursor.value = tensor::ExtractSliceOp::create(builder, cursor.value,
                                                    offsets, sizes, strides);
    return cursor;
  }

  void findInputs(Cursor cursor) {
    cursor = read.peel(cursor);
    if (cursor.isTensor()) {
      input(cursor);
      return;
    }
    if (Operation *op = bodyOp(cursor); op && !isa<linalg::IndexOp>(op))
      for (Value operand : op->getOperands())
        findInputs(Cursor{operand, {}, cursor.frame});
  }

  /// The op when the scalar is computed inside its frame's body.
  static Operation *bodyOp(const Cursor &cursor) {
    Operation *op = cursor.value.getDefiningOp();
    if (!op || !cursor.frame)
      return nullptr;
    linalg::GenericOp generic = cursor.frame->op;
    return op->getBlock() == generic.getBody() ? op : nullptr;
  }

  Value emit(ImplicitLocOpBuilder &b, Cursor cursor, ValueRange args) {
    cursor = read.peel(cursor);
    if (cursor.isTensor())
      return args[input(cursor)];
    Operation *op = bodyOp(cursor);
    if (!op)
      return cursor.value;
    if (auto index = dyn_cast<linalg::IndexOp>(op)) {
      Idx flat = space.resolve(cursor.frame->loops[index.getDim()]);
      Value sum = arith::ConstantIndexOp::create(b, flat.offset);
      for (const Term &term : flat.terms) {
        auto at = llvm::find(loops, term.var) - loops.begin();
        Value i = linalg::IndexOp::create(b, at);
        Value stride = arith::ConstantIndexOp::create(b, term.stride);
        sum =
            arith::AddIOp::create(b, sum, arith::MulIOp::create(b, i, stride));
      }
      return sum;
    }
    IRMapping map;
    for (Value operand : op->getOperands())
      map.map(operand, emit(b, Cursor{operand, {}, cursor.frame}, args));
    return b.clone(*op, map)->getResult(0);
  }
};
} // namespace

Value Rewriter::gather(
    ImplicitLocOpBuilder &b, ArrayRef<VarId> loops, ArrayRef<Cursor> sources,
    Type element,
    llvm::function_ref<Value(ImplicitLocOpBuilder &, ValueRange)> body) {
  SmallVector<int64_t> shape;
  for (VarId d : loops)
    shape.push_back(space.extent(d));
  auto type = RankedTensorType::get(shape, element);
  BodyCloner cloner{space, read, loops, b, b.getContext()};
  for (const Cursor &source : sources)
    cloner.findInputs(source);
  SmallVector<AffineMap> maps = cloner.maps;
  maps.push_back(b.getMultiDimIdentityMap(loops.size()));
  SmallVector<utils::IteratorType> iterators(loops.size(),
                                             utils::IteratorType::parallel);
  Value init = tensor::EmptyOp::create(b, type, ValueRange());
  return linalg::GenericOp::create(
             b, TypeRange(type), cloner.inputs, init, maps, iterators,
             [&](OpBuilder &nested, Location loc, ValueRange args) {
               ImplicitLocOpBuilder inner(loc, nested);
               SmallVector<Value> scalars;
               for (const Cursor &source : sources)
                 scalars.push_back(cloner.emit(inner, source, args));
               linalg::YieldOp::create(inner, body(inner, scalars));
             })
      .getResult(0);
}

/// The source over `dims`, each the product of its digits.
Value Rewriter::operand(ImplicitLocOpBuilder &b, Cursor source,
                        ArrayRef<Digits> dims, ArrayRef<ScoreFactor> factors,
                        double scale) {
  Digits loops;
  SmallVector<int64_t> shape;
  for (const Digits &dim : dims) {
    llvm::append_range(loops, dim);
    shape.push_back(product(dim));
  }
  Cursor at = read.peel(source);
  if (factors.empty() && scale == 1 && at.isTensor() &&
      cast<RankedTensorType>(at.value.getType()).getElementType().isF32()) {
    // Already in this order: only the shape differs.
    Idx linear;
    auto type = cast<RankedTensorType>(at.value.getType());
    for (auto [idx, size] : llvm::zip(at.at, type.getShape()))
      linear = space.add(space.affine(linear, size), idx);
    Idx wanted;
    for (VarId d : loops)
      wanted =
          space.add(space.affine(wanted, space.extent(d)), Idx{{{d, 1}}, 0});
    if (type.hasStaticShape() && type.getNumElements() == product(loops) &&
        space.equal(linear, wanted))
      return reshape(b, at.value, shape);
  }
  SmallVector<Cursor> sources{source};
  for (const ScoreFactor &factor : factors)
    sources.push_back(factor.value);
  Value copy = gather(
      b, loops, sources, b.getF32Type(),
      [&](ImplicitLocOpBuilder &in, ValueRange args) {
        Value x = toFloat(in, args[0]);
        for (auto [factor, arg] : llvm::zip(factors, args.drop_front())) {
          Value y = toFloat(in, arg);
          x = factor.inverse ? arith::DivFOp::create(in, x, y).getResult()
                             : arith::MulFOp::create(in, x, y).getResult();
        }
        if (scale != 1)
          x = arith::MulFOp::create(
              in, x, arith::ConstantOp::create(in, in.getF32FloatAttr(scale)));
        return x;
      });
  return reshape(b, copy, shape);
}

/// Two tensors one behind the other along the channels.
static Value joinChannels(ImplicitLocOpBuilder &b, Value x, Value y) {
  return tensor::ConcatOp::create(b, 3, ValueRange{x, y});
}

Value Rewriter::queries(ImplicitLocOpBuilder &b) {
  Digits heads = kv;
  llvm::append_range(heads, group);
  Value q = operand(b, m.dot.q, {batch, heads, query, depth}, m.dot.factors);
  if (!m.second)
    return q;
  return joinChannels(b, q,
                      operand(b, m.second->q, {batch, heads, query, depth2},
                              m.second->factors,
                              m.second->scale / m.dot.scale));
}

Value Rewriter::keys(ImplicitLocOpBuilder &b) {
  if (cached)
    return cachedOperand(b, keySide, depth);
  Value k = operand(b, m.dot.k, {batch, kv, key, depth});
  if (!m.second)
    return k;
  return joinChannels(b, k, operand(b, m.second->k, {batch, kv, key, depth2}));
}

/// Rows whose probabilities the graph replaces by zeros for being NaN.
Value Rewriter::withoutNaNs(ImplicitLocOpBuilder &b, Value out, Value lse) {
  if (!m.zeroNaNs)
    return out;
  auto type = cast<RankedTensorType>(out.getType());
  AffineMap whole = b.getMultiDimIdentityMap(4);
  Value empty = tensor::EmptyOp::create(b, type, ValueRange());
  return linalg::GenericOp::create(
             b, TypeRange(type), ValueRange{out, lse}, empty,
             ArrayRef{whole, whole.dropResult(3), whole},
             SmallVector<utils::IteratorType>(4, utils::IteratorType::parallel),
             [](OpBuilder &nested, Location loc, ValueRange args) {
               Value isNaN = arith::CmpFOp::create(
                   nested, loc, arith::CmpFPredicate::UNO, args[1], args[1]);
               Value zero = arith::ConstantOp::create(
                   nested, loc, nested.getF32FloatAttr(0));
               Value x =
                   arith::SelectOp::create(nested, loc, isNaN, zero, args[0]);
               linalg::YieldOp::create(nested, loc, x);
             })
      .getResult(0);
}

Value Rewriter::visibleConstant(ImplicitLocOpBuilder &b) {
  SmallVector<bool> bits(visible.begin(), visible.end());
  Digits loops = query;
  llvm::append_range(loops, key);
  SmallVector<int64_t> shape;
  for (VarId d : loops)
    shape.push_back(space.extent(d));
  auto type = RankedTensorType::get(shape, b.getI1Type());
  return arith::ConstantOp::create(b, DenseElementsAttr::get(type, bits));
}

/// `absorbing` of numbers known at run time.
static Value absorb(ImplicitLocOpBuilder &b, Value bias, Type sumType) {
  auto limit = absorbingLimit(sumType);
  if (!limit)
    return bias;
  auto number = [&](double value) -> Value {
    return arith::ConstantOp::create(b, b.getF32FloatAttr(value));
  };
  Value isLow =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, bias, number(*limit));
  Value isFinite = arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, bias,
                                         number(kLowestFloat));
  Value lower = arith::MaximumFOp::create(
      b, arith::MulFOp::create(b, bias, number(kAbsorbingFactor)),
      number(kLowestFloat));
  return arith::SelectOp::create(b, arith::AndIOp::create(b, isLow, isFinite),
                                 lower, bias);
}

/// Masks and biases together: a boolean while there are only masks.
Value Rewriter::maskOperand(ImplicitLocOpBuilder &b) {
  if (dynamicMasks.empty() && biases.empty() && !staticMask)
    return {};
  Digits used = maskDigits;
  SmallVector<Cursor> sources;
  for (const MaskTerm &mask : dynamicMasks)
    sources.push_back(mask.condition);
  for (const BiasTerm &bias : biases)
    sources.push_back(bias.value);
  if (staticMask) {
    Cursor constant{visibleConstant(b), {}, nullptr};
    Digits loops = query;
    llvm::append_range(loops, key);
    for (VarId d : loops) {
      constant.at.push_back(Idx{{{d, 1}}, 0});
      used.push_back(d);
    }
    sources.push_back(constant);
  }
  auto whole = [&](ArrayRef<VarId> a, ArrayRef<VarId> c) {
    bool any = false;
    for (ArrayRef<VarId> digits : {a, c})
      for (VarId d : digits)
        any |= llvm::is_contained(used, d);
    Digits dim;
    if (any) {
      llvm::append_range(dim, a);
      llvm::append_range(dim, c);
    }
    return dim;
  };
  Digits loops;
  SmallVector<int64_t> shape;
  for (const Digits &dim :
       {whole(batch, {}), whole(kv, group), whole(query, {}), key}) {
    llvm::append_range(loops, dim);
    shape.push_back(product(dim));
  }
  Type element = biases.empty() ? Type(b.getI1Type()) : b.getF32Type();
  Value mask = gather(
      b, loops, sources, element,
      [&](ImplicitLocOpBuilder &in, ValueRange args) {
        Value yes = arith::ConstantOp::create(in, in.getBoolAttr(true));
        Value seen, sum;
        auto both = [&](Value x) {
          seen = seen ? arith::AndIOp::create(in, seen, x).getResult() : x;
        };
        unsigned next = 0;
        for (const MaskTerm &term : dynamicMasks) {
          Value x = args[next++];
          both(term.visibleWhen
                   ? x
                   : arith::XOrIOp::create(in, x, yes).getResult());
        }
        for (const BiasTerm &term : biases) {
          Value x = toFloat(in, args[next++]);
          if (term.factor != 1)
            x = arith::MulFOp::create(
                in, x,
                arith::ConstantOp::create(in, in.getF32FloatAttr(term.factor)));
          x = absorb(in, x, term.sumType);
          sum = sum ? arith::AddFOp::create(in, sum, x).getResult() : x;
        }
        if (staticMask)
          both(args[next++]);
        if (!sum)
          return seen;
        if (!seen)
          return sum;
        Value low = arith::ConstantOp::create(
            in, in.getF32FloatAttr(hiddenFill.value_or(
                    -std::numeric_limits<double>::infinity())));
        if (fillAdds)
          low = arith::AddFOp::create(in, sum, low);
        return arith::SelectOp::create(in, seen, sum, low).getResult();
      });
  return reshape(b, mask, shape);
}

Value Rewriter::sinkOperand(ImplicitLocOpBuilder &b) {
  if (!m.sink)
    return {};
  Digits heads = kv;
  llvm::append_range(heads, group);
  return operand(b, m.sink, heads);
}

/// The attention's result in the root's type.
Value Rewriter::scatterBack(ImplicitLocOpBuilder &b, Value out) {
  Cursor source{nullptr, {}, nullptr};
  SmallVector<int64_t> shape;
  for (const Digits *dim : {&batch, &kv, &group, &query, &value})
    for (VarId d : *dim) {
      shape.push_back(space.extent(d));
      source.at.push_back(Idx{{{d, 1}}, 0});
    }
  source.value = reshape(b, out, shape);
  auto type = cast<RankedTensorType>(m.root.getType());
  Digits loops;
  for (const Idx &idx : m.rootAt)
    for (const Term &term : space.resolve(idx).terms)
      loops.push_back(term.var);
  Type element = type.getElementType();
  Value back = gather(b, loops, source, element,
                      [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
                        if (element.isF32())
                          return args[0];
                        if (element.isF64())
                          return arith::ExtFOp::create(in, element, args[0]);
                        return arith::TruncFOp::create(in, element, args[0]);
                      });
  return reshape(b, back, type.getShape());
}

Value Rewriter::build() {
  Operation *root = m.root.getDefiningOp();
  ImplicitLocOpBuilder b(root->getLoc(), root);
  Digits heads = kv;
  llvm::append_range(heads, group);
  Value q = queries(b);
  Value k = keys(b);
  Value v = cached ? cachedOperand(b, valueSide, value)
                   : operand(b, m.v, {batch, kv, key, value});
  Value mask = maskOperand(b);
  Value sinks = sinkOperand(b);
  CausalAttr causal;
  if (causalTopLeft || causalBottomRight)
    causal = CausalAttr::get(
        b.getContext(), causalTopLeft ? Causal::TopLeft : Causal::BottomRight);
  WindowAttr window;
  if (left || right)
    window = WindowAttr::get(b.getContext(), left, right);
  FloatAttr softcap;
  if (m.softcap != 0)
    softcap = b.getF64FloatAttr(m.softcap);
  SmallVector<int64_t> outShape{product(batch), product(heads), product(query),
                                product(value)};
  auto out = RankedTensorType::get(outShape, b.getF32Type());
  auto lse =
      RankedTensorType::get(ArrayRef(outShape).drop_back(), b.getF32Type());
  auto attention = AttentionOp::create(
      b, out, lse, q, ValueRange{k, v}, lengthOperand(b), Value(), Value(),
      mask, Value(), sinks, b.getF64FloatAttr(m.dot.scale), causal, window,
      softcap,
      slopes.empty() ? DenseF32ArrayAttr()
                     : DenseF32ArrayAttr::get(b.getContext(), slopes),
      DenseI64ArrayAttr(), EmptyRowsAttr::get(b.getContext(), emptyRows));
  Value attended = withoutNaNs(b, attention.getOut(), attention.getLse());
  if (cached)
    attended = validRows(b, attended);
  Value result = scatterBack(b, attended);
  m.root.replaceAllUsesWith(result);
  return result;
}
