//===- Attention.cpp - attention and merge_states as loops ----------------===//
//
// For every sequence, query row and head: all scores into a scratch vector, the
// maximum, the exponentials, then the weighted sum of values. Everything is
// f64, so that this is a reference to within the rounding of the results. A key
// that is not visible has score -inf; its value is never loaded.
//
//===----------------------------------------------------------------------===//
#include "Lowerings.h"
#include "kvcache/Conversion/KVCacheToReference/Queries.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>
#include <limits>

using namespace kvcache;
using namespace mlir;

static constexpr double kInf = std::numeric_limits<double>::infinity();

namespace {
/// One query row against one sequence.
struct RowContext {
  Value seq, row, head, kvHead;
  Value length, position; ///< tokens; position of the query
  Value positionsRow;     ///< list of explicit key positions, or null
};
} // namespace

static Value indexConstantOr(Emitter &e, std::optional<int64_t> v) {
  return v ? e.index(*v) : Value();
}

/// The kv head that query head `head` reads.
static Value kvHeadOf(Emitter &e, AttentionOp op, Value head) {
  auto map = op.getHeadMap();
  if (!map)
    return e.div(head, op.getQHeads() / op.getKvHeads());
  auto type =
      RankedTensorType::get(static_cast<int64_t>(map->size()), e.getI64Type());
  Value table = arith::ConstantOp::create(
      e, DenseElementsAttr::get(type, ArrayRef<int64_t>(*map)));
  return e.toIndex(e.extract(table, head));
}

/// The ALiBi slope of a head (f64), or null.
static Value slopeOf(Emitter &e, AttentionOp op, Value head) {
  if (op.getSlopes())
    return e.toFloat(e.extract(op.getSlopes(), head), e.getF64Type());
  if (!op.getAlibi())
    return {};
  SmallVector<float> slopes(op.getAlibi()->begin(), op.getAlibi()->end());
  if (slopes.empty())
    llvm::append_range(slopes, usualAlibiSlopes(op.getQHeads()));
  auto type = RankedTensorType::get(static_cast<int64_t>(slopes.size()),
                                    e.getF32Type());
  Value table = arith::ConstantOp::create(
      e, DenseElementsAttr::get(type, ArrayRef<float>(slopes)));
  return e.toFloat(e.extract(table, head), e.getF64Type());
}

/// Position of key `token`: its number, or what `positions` says.
static Value keyPosition(Emitter &e, AttentionOp op, Value seq, Value kvHead,
                         Value token) {
  Value positions = op.getPositions();
  if (!positions)
    return token;
  Value list = e.minS(kvHead, e.sub(e.dim(positions, 1), e.index(1)));
  return e.toIndex(e.extract(positions, {seq, list, token}));
}

/// Visibility by causal and window, ANDed into `visible`.
static Value positionVisible(Emitter &e, AttentionOp op, Value i, Value j) {
  Value visible = e.boolean(true);
  if (op.getCausal())
    visible = e.both(visible, e.le(j, i));
  if (WindowAttr window = op.getWindowAttr()) {
    if (Value left = indexConstantOr(e, window.getLeft()))
      visible = e.both(visible, e.le(e.sub(i, left), j));
    if (Value right = indexConstantOr(e, window.getRight()))
      visible = e.both(visible, e.le(j, e.add(i, right)));
  }
  return visible;
}

/// The entry of the mask, whose sizes may be 1 in all but the last dimension.
static Value maskAt(Emitter &e, AttentionOp op, const Queries &queries,
                    const RowContext &c, Value token) {
  Value mask = op.getMask();
  // (row, head, token), or (seq, head, query, token) in q's order.
  Values at = queries.at(c.seq, c.row, c.head);
  at.push_back(token);
  for (auto [i, v] : llvm::enumerate(at))
    v = e.minS(v, e.sub(e.dim(mask, i), e.index(1)));
  return e.extract(mask, at);
}

/// q . k in f64.
static Value dot(Emitter &e, AttentionOp op, const Queries &queries,
                 const RowContext &c, Source &source, Value token) {
  Values row = source.locate(e, c.seq, c.kvHead, token);
  Values at = queries.at(c.seq, c.row, c.head);
  return e.loop(e.index(0), e.index(op.getHeadDim()), e.f64(0),
                [&](Value channel, ValueRange sum) -> Values {
                  Values where = at;
                  where.push_back(channel);
                  Value x =
                      e.toFloat(e.extract(queries.q, where), e.getF64Type());
                  Value y = e.toFloat(source.load(e, row, false, channel),
                                      e.getF64Type());
                  return {e.addF(sum[0], e.mulF(x, y))};
                })[0];
}

/// The score of a key, -inf when it is not visible.
static Value score(Emitter &e, AttentionOp op, const Queries &queries,
                   const RowContext &c, Source &source, Value token) {
  Value j = keyPosition(e, op, c.seq, c.kvHead, token);
  Value visible = positionVisible(e, op, c.position, j);
  Value mask = op.getMask() ? maskAt(e, op, queries, c, token) : Value();
  if (mask && mask.getType().isInteger(1))
    visible = e.both(visible, mask);
  return e.when(visible, e.f64(-kInf), [&]() -> Values {
    double scale = op.getScale() ? op.getScale()->convertToDouble()
                                 : 1 / std::sqrt(double(op.getHeadDim()));
    Value s = e.mulF(dot(e, op, queries, c, source, token), e.f64(scale));
    if (op.getSoftcap()) {
      Value cap = e.f64(op.getSoftcap()->convertToDouble());
      s = e.mulF(cap, math::TanhOp::create(e, e.divF(s, cap)));
    }
    if (Value slope = slopeOf(e, op, c.head)) {
      Value distance = arith::SIToFPOp::create(
          e, e.getF64Type(),
          arith::IndexCastOp::create(e, e.getI64Type(), e.sub(j, c.position)));
      s = e.addF(s, e.mulF(slope, distance));
    }
    if (mask && !mask.getType().isInteger(1)) {
      // A sum of f32, as in the graphs that write -1e9 for "hidden": what the
      // sum rounds away decides rows that are hidden altogether.
      Value sum =
          e.addF(e.toFloat(s, e.getF32Type()), e.toFloat(mask, e.getF32Type()));
      s = e.toFloat(sum, e.getF64Type());
    }
    return {s};
  })[0];
}

/// acc[:] += weight * value row of `token`.
static Value addValue(Emitter &e, Source &source, const RowContext &c,
                      Value token, Value weight, Value acc, int64_t channels) {
  Values row = source.locate(e, c.seq, c.kvHead, token);
  return e.loop(
      e.index(0), e.index(channels), acc,
      [&](Value channel, ValueRange a) -> Values {
        Value v = e.toFloat(source.load(e, row, true, channel), e.getF64Type());
        Value sum = e.addF(e.extract(a[0], channel), e.mulF(weight, v));
        return {e.insert(sum, a[0], channel)};
      })[0];
}

/// What a row without a visible key becomes: (l, acc) for out = acc / l.
static Values emptyRow(Emitter &e, AttentionOp op, Source &source,
                       const RowContext &c, Value acc, int64_t channels) {
  if (op.getEmptyRows() == EmptyRows::NaN)
    return {e.f64(std::nan("")), acc};
  if (op.getEmptyRows() == EmptyRows::Zero)
    return {e.f64(1), acc};
  // The mean over all keys, those past the length included.
  Value all = source.capacity(e, c.seq);
  Value count = arith::SIToFPOp::create(
      e, e.getF64Type(), arith::IndexCastOp::create(e, e.getI64Type(), all));
  return {
      count,
      e.loop(e.index(0), all, acc, [&](Value token, ValueRange a) -> Values {
        return {addValue(e, source, c, token, e.f64(1), a[0], channels)};
      })[0]};
}

/// out and lse with the results of one row and head inserted.
static Values attendRow(Emitter &e, AttentionOp op, const Queries &queries,
                        const RowContext &c, Source &source, Value scratch,
                        ValueRange outs) {
  int64_t dv = op.getValueDim();
  Value sink;
  if (op.getSinkLogits())
    sink = e.toFloat(e.extract(op.getSinkLogits(), c.head), e.getF64Type());
  Values first =
      e.loop(e.index(0), c.length, {scratch, sink ? sink : e.f64(-kInf)},
             [&](Value token, ValueRange a) -> Values {
               Value s = score(e, op, queries, c, source, token);
               return {e.insert(s, a[0], token),
                       arith::MaximumFOp::create(e, a[1], s)};
             });
  Value scores = first[0], top = first[1];
  Value zeros = e.loop(e.index(0), e.index(dv),
                       e.empty(RankedTensorType::get({dv}, e.getF64Type()), {}),
                       [&](Value i, ValueRange a) -> Values {
                         return {e.insert(e.f64(0), a[0], i)};
                       })[0];
  Value isEmpty = e.cmp(arith::CmpFPredicate::OEQ, top, e.f64(-kInf));
  Values sums = e.branch(
      isEmpty,
      [&]() -> Values {
        Values v = emptyRow(e, op, source, c, zeros, dv);
        return {v[0], v[1], e.f64(-kInf)};
      },
      [&]() -> Values {
        Value l0 =
            sink ? Value(math::ExpOp::create(e, e.subF(sink, top))) : e.f64(0);
        Values v =
            e.loop(e.index(0), c.length, {l0, zeros},
                   [&](Value token, ValueRange a) -> Values {
                     Value s = e.extract(scores, token);
                     Value hidden =
                         e.cmp(arith::CmpFPredicate::OEQ, s, e.f64(-kInf));
                     return e.branch(
                         hidden, [&] { return Values(a); },
                         [&]() -> Values {
                           Value p = math::ExpOp::create(e, e.subF(s, top));
                           return {e.addF(a[0], p),
                                   addValue(e, source, c, token, p, a[1], dv)};
                         });
                   });
        return {v[0], v[1], e.addF(top, math::LogOp::create(e, v[0]))};
      });
  Values at = queries.at(c.seq, c.row, c.head);
  auto outType = cast<RankedTensorType>(op.getOut().getType());
  Value out =
      e.loop(e.index(0), e.index(dv), outs[0],
             [&](Value channel, ValueRange a) -> Values {
               Value x = e.divF(e.extract(sums[1], channel), sums[0]);
               Values where = at;
               where.push_back(channel);
               return {e.insert(
                   e.toFloat(x, cast<FloatType>(outType.getElementType())),
                   a[0], where)};
             })[0];
  return {out, e.insert(e.toFloat(sums[2], e.getF32Type()), outs[1], at)};
}

/// The first token that a row at position `i` may see when positions are token
/// numbers: entries of the page table before it are not looked at.
static Value firstVisible(Emitter &e, AttentionOp op, Value i) {
  WindowAttr window = op.getWindowAttr();
  if (!window || !window.getLeft() || op.getPositions())
    return e.index(0);
  return e.maxS(e.sub(i, e.index(*window.getLeft())), e.index(0));
}

Values kvcache::lowerAttention(Emitter &e, AttentionOp op, Source &source) {
  Queries queries(op);
  bool topLeft = op.getCausal() && *op.getCausal() == Causal::TopLeft;
  auto fill = [&](Value result, TypedAttr value) {
    auto type = cast<RankedTensorType>(result.getType());
    Values sizes = e.sizesOf(op.getQ());
    if (type.getRank() == queries.rank)
      sizes.back() = e.index(op.getValueDim());
    else
      sizes.pop_back();
    Value v = arith::ConstantOp::create(e, value);
    return e.loops(sizes, e.empty(type, sizes),
                   [&](ValueRange at, ValueRange a) -> Values {
                     return {e.insert(v, a[0], at)};
                   })[0];
  };
  // Rows that no sequence has (an uneven q_indptr) are empty rows.
  auto outElement =
      cast<RankedTensorType>(op.getOut().getType()).getElementType();
  Values outs = {fill(op.getOut(), e.getFloatAttr(outElement, 0.0)),
                 fill(op.getLse(), e.getF32FloatAttr(-kInf))};

  return e.loop(
      e.index(0), queries.fitting(e, source.sequences(e)), outs,
      [&](Value seq, ValueRange perSeq) -> Values {
        auto [begin, end] = queries.rows(e, seq);
        Value unchecked = source.length(e, seq);
        Value shift =
            topLeft ? e.sub(e.index(0), begin) : e.sub(unchecked, end);
        Value firstToken = firstVisible(e, op, e.add(begin, shift));
        Value length = source.checkedLength(e, seq, firstToken);
        Value scratch = tensor::EmptyOp::create(
            e, RankedTensorType::get({ShapedType::kDynamic}, e.getF64Type()),
            ValueRange{length});
        return e.loop(begin, end, perSeq, [&](Value row, ValueRange perRow) {
          Value token = e.add(row, shift);
          return e.loop(
              e.index(0), e.index(op.getQHeads()), perRow,
              [&](Value head, ValueRange a) {
                RowContext c;
                c.seq = seq;
                c.row = row;
                c.head = head;
                c.kvHead = kvHeadOf(e, op, head);
                c.length = length;
                c.position = token;
                // Queries of a cache are its newest tokens: a row before token
                // 0 sees nothing, whatever the masks say.
                if (op.hasCache())
                  c.length =
                      e.select(e.lt(token, e.index(0)), e.index(0), length);
                if (op.getPositions()) {
                  Value last = e.maxS(e.sub(length, e.index(1)), e.index(0));
                  Value at = e.maxS(e.minS(token, last), e.index(0));
                  Value any = e.lt(e.index(0), length);
                  c.position = e.when(any, token, [&]() -> Values {
                    return {keyPosition(e, op, seq, c.kvHead, at)};
                  })[0];
                }
                return attendRow(e, op, queries, c, source, scratch, a);
              });
        });
      });
}

Values kvcache::lowerMergeStates(Emitter &e, MergeStatesOp op) {
  auto outType = cast<RankedTensorType>(op.getOut().getType());
  auto f64 = e.getF64Type();
  Values sizes = e.sizesOf(op.getOuts()[0]);
  Values rows(sizes.begin(), sizes.end() - 1);
  Values init = {e.empty(outType, sizes),
                 e.empty(cast<RankedTensorType>(op.getLse().getType()), rows)};
  Value ok = e.boolean(true);
  for (auto [out, lse] : llvm::zip(op.getOuts(), op.getLses()))
    for (auto [i, size] : llvm::enumerate(rows)) {
      ok = checkSizes(e, ok, e.dim(out, i), size);
      ok = checkSizes(e, ok, e.dim(lse, i), size);
    }
  if (!rows.empty())
    rows[0] = e.select(ok, rows[0], e.index(0));
  return e.loops(rows, init, [&](ValueRange at, ValueRange a) -> Values {
    Values lses;
    Value top = e.f64(-kInf);
    for (Value lse : op.getLses()) {
      lses.push_back(e.toFloat(e.extract(lse, at), f64));
      top = arith::MaximumFOp::create(e, top, lses.back());
    }
    Value none = e.cmp(arith::CmpFPredicate::OEQ, top, e.f64(-kInf));
    Value base = e.select(none, e.f64(0), top), total = e.f64(0);
    Values weights;
    for (Value lse : lses) {
      weights.push_back(math::ExpOp::create(e, e.subF(lse, base)));
      total = e.addF(total, weights.back());
    }
    Value divisor = e.select(none, e.f64(1), total);
    Value out = e.loop(
        e.index(0), sizes.back(), a[0],
        [&](Value channel, ValueRange inner) -> Values {
          Values where(at);
          where.push_back(channel);
          Value sum = e.f64(0);
          for (auto [part, weight] : llvm::zip(op.getOuts(), weights)) {
            // A part without keys does not count, whatever it holds.
            Value counts = e.cmp(arith::CmpFPredicate::OGT, weight, e.f64(0));
            Value x = e.toFloat(e.extract(part, where), f64);
            sum = e.addF(sum, e.select(counts, e.mulF(weight, x), e.f64(0)));
          }
          return {e.insert(e.toFloat(e.divF(sum, divisor),
                                     cast<FloatType>(outType.getElementType())),
                           inner[0], where)};
        })[0];
    Value lse = e.addF(base, math::LogOp::create(e, total));
    return {out, e.insert(e.toFloat(lse, e.getF32Type()), a[1], at)};
  });
}
