//===- ExternalAttend.cpp - Attention on caches that others lay out -------===//
//
// Online softmax over the tokens that a row sees. A token's key and value are
// decoded once, through the layout's maps, into two rows of f32 that serve all
// query heads of their kv head; nothing grows with the length. Visibility is a
// range of tokens, so that no masked token is ever looked at.
//
//===----------------------------------------------------------------------===//
#include "CallKernel.h"
#include "kvcache/Conversion/KVCacheToReference/Queries.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include <limits>

using namespace kvcache;
using namespace mlir;

namespace {
class ExternalAttend {
public:
  ExternalAttend(Emitter &e, AttentionOp op, Source &source,
                 const KernelSpec &spec)
      : e(e), op(op), source(source), spec(spec), f32Type(e.getF32Type()),
        queryRows(op) {}

  Values run();

private:
  Value filled(ArrayRef<int64_t> shape, float value);
  Values sequence(Value seq, ValueRange outs);
  Values kvHead(Value seq, Value row, Value head, Value lo, Value hi, Value i,
                ValueRange outs);
  Value queries(Value seq, Value row, Value head);
  Value decode(ValueRange located, bool isValue);
  Value score(Value q, Value k, Value g, Value head, Value distance);
  Values token(Value q, Value seq, Value head, Value i, Value j,
               ValueRange state);
  Value headOf(Value head, Value g) {
    return e.add(e.mul(head, e.index(spec.group())), g);
  }

  Emitter &e;
  AttentionOp op;
  Source &source;
  const KernelSpec &spec;
  FloatType f32Type;
  Queries queryRows;
  Value slopes;
};
} // namespace

/// A small f32 tensor, all `value`.
Value ExternalAttend::filled(ArrayRef<int64_t> shape, float value) {
  Values sizes;
  for (int64_t s : shape)
    sizes.push_back(e.index(s));
  Value v = e.f32(value);
  return e.loops(sizes, e.empty(RankedTensorType::get(shape, f32Type), sizes),
                 [&](ValueRange where, ValueRange a) -> Values {
                   return {e.insert(v, a[0], where)};
                 })[0];
}

/// The queries of a kv head's group, f32 [group, d].
Value ExternalAttend::queries(Value seq, Value row, Value head) {
  Values sizes = {e.index(spec.group()), e.index(spec.headDim)};
  auto type = RankedTensorType::get({spec.group(), spec.headDim}, f32Type);
  return e.loops(sizes, e.empty(type, sizes),
                 [&](ValueRange where, ValueRange a) -> Values {
                   Values from = queryRows.at(seq, row, headOf(head, where[0]));
                   from.push_back(where[1]);
                   Value x = e.toFloat(e.extract(op.getQ(), from), f32Type);
                   return {e.insert(x, a[0], where)};
                 })[0];
}

/// A token's key or value as f32.
Value ExternalAttend::decode(ValueRange located, bool isValue) {
  int64_t n = isValue ? spec.valueDim : spec.headDim;
  return e.loop(
      e.index(0), e.index(n), e.empty(RankedTensorType::get({n}, f32Type), {}),
      [&](Value c, ValueRange a) -> Values {
        return {e.insert(source.load(e, located, isValue, c), a[0], c)};
      })[0];
}

/// The score of one head of the group.
Value ExternalAttend::score(Value q, Value k, Value g, Value head,
                            Value distance) {
  // The order of this sum is free: it becomes vector code.
  Value s = e.loop(e.index(0), e.index(spec.headDim), e.f32(0),
                   [&](Value c, ValueRange a) -> Values {
                     Value term = e.mulF(e.extract(q, {g, c}), e.extract(k, c));
                     return {arith::AddFOp::create(
                         e, a[0], term, arith::FastMathFlags::reassoc)};
                   })[0];
  s = e.mulF(s, e.f32(static_cast<float>(spec.softmaxScale())));
  if (spec.softcap) {
    Value cap = e.f32(static_cast<float>(*spec.softcap));
    s = e.mulF(cap, math::TanhOp::create(e, e.divF(s, cap)));
  }
  if (slopes)
    s = e.addF(s, e.mulF(e.extract(slopes, headOf(head, g)), distance));
  return s;
}

/// One token into the state: m [group], l [group], acc [group, dv].
Values ExternalAttend::token(Value q, Value seq, Value head, Value i, Value j,
                             ValueRange state) {
  Values located = source.locate(e, seq, head, j);
  Value k = decode(located, false), v = decode(located, true);
  Value distance = arith::SIToFPOp::create(
      e, f32Type, arith::IndexCastOp::create(e, e.getI32Type(), e.sub(j, i)));
  Value negInf = e.f32(-std::numeric_limits<float>::infinity());
  return e.loop(
      e.index(0), e.index(spec.group()), state,
      [&](Value g, ValueRange a) -> Values {
        Value s = score(q, k, g, head, distance), m = e.extract(a[0], g);
        Value top = arith::MaximumFOp::create(e, m, s);
        // A score of -inf hides its token, like a mask.
        Value hidden = e.cmp(arith::CmpFPredicate::OEQ, s, negInf);
        return e.branch(
            hidden, [&] { return Values(a); },
            [&]() -> Values {
              Value scale = math::ExpOp::create(e, e.subF(m, top));
              Value p = math::ExpOp::create(e, e.subF(s, top));
              Value l = e.addF(e.mulF(e.extract(a[1], g), scale), p);
              Value acc =
                  e.loop(e.index(0), e.index(spec.valueDim), a[2],
                         [&](Value c, ValueRange o) -> Values {
                           Value old = e.mulF(e.extract(o[0], {g, c}), scale);
                           Value sum = e.addF(old, e.mulF(p, e.extract(v, c)));
                           return {e.insert(sum, o[0], {g, c})};
                         })[0];
              return {e.insert(top, a[0], g), e.insert(l, a[1], g), acc};
            });
      });
}

Values ExternalAttend::kvHead(Value seq, Value row, Value head, Value lo,
                              Value hi, Value i, ValueRange outs) {
  int64_t group = spec.group();
  auto element = cast<FloatType>(
      cast<RankedTensorType>(op.getOut().getType()).getElementType());
  Value q = queries(seq, row, head);
  Values state = {filled({group}, -std::numeric_limits<float>::infinity()),
                  filled({group}, 0), filled({group, spec.valueDim}, 0)};
  state = e.loop(lo, hi, state, [&](Value j, ValueRange a) {
    return token(q, seq, head, i, j, a);
  });
  return e.loop(
      e.index(0), e.index(group), outs, [&](Value g, ValueRange a) -> Values {
        Value l = e.extract(state[1], g);
        Value none = e.cmp(arith::CmpFPredicate::OEQ, l, e.f32(0));
        Value divisor = e.select(none, e.f32(1), l);
        Values where = queryRows.at(seq, row, headOf(head, g));
        Value out = e.loop(e.index(0), e.index(spec.valueDim), a[0],
                           [&](Value c, ValueRange o) -> Values {
                             Values to = where;
                             to.push_back(c);
                             Value x =
                                 e.divF(e.extract(state[2], {g, c}), divisor);
                             return {e.insert(e.toFloat(x, element), o[0], to)};
                           })[0];
        Value lse =
            e.addF(e.extract(state[0], g), math::LogOp::create(e, divisor));
        return {out, e.insert(lse, a[1], where)};
      });
}

Values ExternalAttend::sequence(Value seq, ValueRange outs) {
  auto [begin, end] = queryRows.rows(e, seq);
  Value zero = e.index(0), one = e.index(1);
  auto first = [&](Value i) {
    return spec.windowLeft ? e.maxS(e.sub(i, e.index(*spec.windowLeft)), zero)
                           : zero;
  };
  Value oldest = e.add(e.sub(source.length(e, seq), end), begin);
  Value length = source.checkedLength(e, seq, first(oldest));
  return e.loop(begin, end, outs, [&](Value row, ValueRange perRow) {
    Value i = e.add(e.sub(length, end), row), hi = length;
    if (spec.causal)
      hi = e.minS(hi, e.add(i, one));
    if (spec.windowRight)
      hi = e.minS(hi, e.add(i, e.index(*spec.windowRight + 1)));
    // Rows before token 0 see nothing.
    hi = e.select(e.lt(i, zero), zero, hi);
    return e.loop(zero, e.index(spec.kvHeads), perRow,
                  [&](Value head, ValueRange a) {
                    return kvHead(seq, row, head, first(i), hi, i, a);
                  });
  });
}

Values ExternalAttend::run() {
  if (op.getSlopes()) {
    slopes = op.getSlopes();
  } else if (spec.alibi) {
    SmallVector<float> values(op.getAlibi()->begin(), op.getAlibi()->end());
    if (values.empty())
      llvm::append_range(values, usualAlibiSlopes(spec.qHeads));
    auto type =
        RankedTensorType::get({static_cast<int64_t>(values.size())}, f32Type);
    slopes = arith::ConstantOp::create(
        e, DenseElementsAttr::get(type, ArrayRef<float>(values)));
  }
  Values sizes = e.sizesOf(op.getQ());
  auto start = [&](Value result, Value last, TypedAttr value) {
    Values to(sizes.begin(), sizes.end() - 1);
    if (last)
      to.push_back(last);
    Value v = arith::ConstantOp::create(e, value);
    auto type = cast<RankedTensorType>(result.getType());
    return e.loops(to, e.empty(type, to),
                   [&](ValueRange where, ValueRange a) -> Values {
                     return {e.insert(v, a[0], where)};
                   })[0];
  };
  Type element = cast<RankedTensorType>(op.getOut().getType()).getElementType();
  Values outs = {
      start(op.getOut(), e.index(spec.valueDim), e.getFloatAttr(element, 0.0)),
      start(op.getLse(), Value(),
            e.getF32FloatAttr(-std::numeric_limits<float>::infinity()))};
  return e.loop(e.index(0), queryRows.fitting(e, source.sequences(e)), outs,
                [&](Value seq, ValueRange a) { return sequence(seq, a); });
}

Values kvcache::attendExternal(Emitter &e, AttentionOp op, Source &source,
                               const KernelSpec &spec) {
  return ExternalAttend(e, op, source, spec).run();
}
