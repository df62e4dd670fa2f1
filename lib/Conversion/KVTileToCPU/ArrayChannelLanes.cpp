//===- ArrayChannelLanes.cpp - Kernels on arrays, few columns -------------===//
//
// Decoding: every key and value is loaded once, converted in registers, and
// meets each column's query or probability.
//
//===----------------------------------------------------------------------===//

#include "ArrayLowering.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

namespace {
class ChannelLanes : public ArrayLowering {
public:
  explicit ChannelLanes(ArrayKernelOp kernel)
      : ArrayLowering(kernel), w(b.lanes()), dpad(llvm::alignTo(d, 16)),
        vpad(llvm::alignTo(v, 16)),
        block(std::clamp<int64_t>(16 / n, 1, std::min<int64_t>(w, 8))) {
    npad = llvm::PowerOf2Ceil(n);
  }

private:
  void emitLoadQuery() override;
  void emitScore(ScoreOp op) override;
  Value emitReduce(ReduceOp op) override;
  void emitAccumulate(AccumulateOp op) override;

  Value placeOf(Value memory, At at) override {
    return b.at(memory, columnToken(at.n, at.t));
  }
  Value statisticOf(Value memory, At at) override {
    return b.loadSplat(b.at(memory, b.mul(at.n, 4)), at.w);
  }
  Value leafOf(Operation *op, At at) override;
  Value outPlace(Value c, Value column) override {
    return b.mul(b.add(b.mul(column, vpad), c), 4);
  }
  Value maskPlace(Value t, Value column) override {
    return columnToken(column, t);
  }
  // Sums of few tokens are stored as whole registers.
  int64_t accBytes() const override { return n * (tokens + w) * 4; }
  int64_t outFloats() const override { return n * vpad; }
  int64_t rowLanes() const override { return npad; }

  Value columnToken(Value column, Value t) {
    return b.mul(b.add(b.mul(column, tokens + w), t), 4);
  }
  Value loadBlock(const Side &side, Value row, Value c, int64_t width);
  Values dot(ArrayRef<Value> keys, Value c, int64_t width, Values acc);
  void prefetch(const Side &side, Value row, Value c);
  void accumulateBlock(Value p, Value alpha, Value c, ArrayRef<int64_t> widths,
                       bool careful);
  void accumulateAll(Value p, Value alpha, bool careful);

  int64_t w, dpad, vpad;
  int64_t block; ///< tokens whose scores are computed together
};
} // namespace

void ChannelLanes::emitLoadQuery() {
  query = b.scratch(n * dpad * 4);
  zero(query, n * dpad);
  int64_t bytes = bytesOf(spec.getQuery());
  forColumns(true, [&](Value column, Value head, Value row) {
    Value from = queryPlace(head, row);
    b.loop(b.i64(0), b.i64(d), 1, [&](Value c) {
      Value at = b.mul(b.mul(c, fields["q_channel"]), bytes);
      Value place = b.mul(b.add(b.mul(column, dpad), c), 4);
      b.store(loadFloat(spec.getQuery(), b.at(from, at)), b.at(query, place));
    });
  });
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// `width` channels of a row as a whole register.
Value ChannelLanes::loadBlock(const Side &side, Value row, Value c,
                              int64_t width) {
  Value place = b.at(row, b.mul(c, bytesOf(side.held)));
  return b.widen(b.loadFloats(side.held, place, width), w);
}

/// acc[i][column] += the products of some channels.
CpuBuilder::Values ChannelLanes::dot(ArrayRef<Value> keys, Value c,
                                     int64_t width, Values acc) {
  Values q;
  for (int64_t column = 0; column < n; ++column)
    q.push_back(
        b.load(b.fvec(w), b.at(query, b.mul(b.add(c, column * dpad), 4))));
  for (auto [i, row] : llvm::enumerate(keys)) {
    Value x = loadBlock(key, row, c, width);
    for (int64_t column = 0; column < n; ++column)
      acc[i * n + column] = b.fma(x, q[column], acc[i * n + column]);
  }
  return acc;
}

/// Prefetches what is `prefetch_bytes` after a row's channel in the order of
/// use: so many whole rows on.
void ChannelLanes::prefetch(const Side &side, Value row, Value c) {
  int64_t bytes = bytesOf(side.held);
  int64_t rows = schedule.getPrefetchBytes() / (side.channels * bytes);
  if (rows)
    b.prefetch(b.at(row, b.add(b.mul(side.tileStride, rows), b.mul(c, bytes))));
}

void ChannelLanes::emitScore(ScoreOp op) {
  Value scores = bufferFor(op.getResult(), op);
  // A cache line at a time.
  int64_t step = std::max(w, 64 / bytesOf(key.held)), whole = d / step * step;
  b.loop(b.i64(0), count, block, [&](Value t) {
    // Past the tile the last row is repeated: its scores are not visible.
    Values keys;
    Value last = b.sub(count, b.i64(1));
    for (int64_t i = 0; i < block; ++i)
      keys.push_back(
          b.at(key.tile, b.mul(b.min(b.add(t, i), last), key.tileStride)));
    Values acc(block * n, b.fsplat(w, 0.0));
    acc = b.loop(b.i64(0), b.i64(whole), step, acc,
                 [&](Value c, ValueRange carried) {
                   for (Value row : keys)
                     prefetch(key, row, c);
                   Values next(carried);
                   for (int64_t at = 0; at < step; at += w)
                     next = dot(keys, b.add(c, at), w, next);
                   return next;
                 });
    for (int64_t at = whole; at < d; at += w)
      acc = dot(keys, b.i64(at), std::min(w, d - at), acc);
    for (int64_t column = 0; column < n; ++column) {
      Values sums;
      for (int64_t i = 0; i < block; ++i)
        sums.push_back(acc[i * n + column]);
      b.store(b.reduceEach(sums), b.at(scores, columnToken(b.i64(column), t)));
    }
  });
  accBuffers[op.getResult()] = scores;
}

/// out = out * alpha + p * values for some vectors of channels. With care a
/// weight of 0 leaves a sum as it is, and a scale of 0 forgets it.
void ChannelLanes::accumulateBlock(Value p, Value alpha, Value c,
                                   ArrayRef<int64_t> widths, bool careful) {
  int64_t vectors = static_cast<int64_t>(widths.size());
  Value zero = b.fsplat(w, 0.0);
  auto isZero = [&](Value x) -> Value {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, x, zero);
  };
  auto place = [&](int64_t column, int64_t j) {
    return b.at(out, outPlace(b.add(c, j * w), b.i64(column)));
  };
  Values acc;
  for (int64_t column = 0; column < n; ++column)
    for (int64_t j = 0; j < vectors; ++j) {
      Value scale = b.loadSplat(b.at(alpha, column * 4), w);
      Value old = b.fmul(b.load(b.fvec(w), place(column, j)), scale);
      acc.push_back(careful ? b.select(isZero(scale), zero, old) : old);
    }
  acc = b.loop(b.i64(0), count, 1, acc, [&](Value t, ValueRange carried) {
    Values sums(carried), x;
    Value row = b.at(value.tile, b.mul(t, value.tileStride));
    int64_t line = std::max<int64_t>(64 / bytesOf(value.held) / w, 1);
    for (int64_t j = 0; j < vectors; ++j) {
      if (j % line == 0)
        prefetch(value, row, b.add(c, j * w));
      x.push_back(loadBlock(value, row, b.add(c, j * w), widths[j]));
    }
    for (int64_t column = 0; column < n; ++column) {
      Value weight = b.loadSplat(b.at(p, columnToken(b.i64(column), t)), w);
      for (int64_t j = 0; j < vectors; ++j) {
        Value &sum = sums[column * vectors + j];
        Value next = b.fma(x[j], weight, sum);
        sum = careful ? b.select(isZero(weight), sum, next) : next;
      }
    }
    return sums;
  });
  for (int64_t column = 0; column < n; ++column)
    for (int64_t j = 0; j < vectors; ++j)
      b.store(acc[column * vectors + j], place(column, j));
}

void ChannelLanes::accumulateAll(Value p, Value alpha, bool careful) {
  int64_t together = std::clamp<int64_t>(b.accumulators() / n, 1, 8);
  SmallVector<int64_t> widths(together, w);
  int64_t step = together * w, whole = v / step * step;
  b.loop(b.i64(0), b.i64(whole), step,
         [&](Value c) { accumulateBlock(p, alpha, c, widths, careful); });
  widths.clear();
  for (int64_t c = whole; c < v; c += w)
    widths.push_back(std::min(w, v - c));
  if (!widths.empty())
    accumulateBlock(p, alpha, b.i64(whole), widths, careful);
}

void ChannelLanes::emitAccumulate(AccumulateOp op) {
  Value p = accBuffers.lookup(op.getP());
  Value alpha = b.scratch(npad * 4);
  b.store(rows(op.getAlpha()), alpha);
  auto branch = scf::IfOp::create(b, careful, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(branch.thenBlock());
  accumulateAll(p, alpha, true);
  b.setInsertionPointToStart(branch.elseBlock());
  accumulateAll(p, alpha, false);
}

//===----------------------------------------------------------------------===//
// Statistics
//===----------------------------------------------------------------------===//

Value ChannelLanes::leafOf(Operation *op, At at) {
  Value token =
      b.iadd(b.iota(at.w), b.splat(b.toI32(b.add(first, at.t)), at.w));
  auto column = [&](Value memory) {
    return b.splat(b.load(b.getI32Type(), b.at(memory, b.mul(at.n, 4))), at.w);
  };
  if (isa<VisibleOp>(op))
    return arith::AndIOp::create(b, b.lessEqual(column(low), token),
                                 b.lessEqual(token, column(high)));
  if (isa<DistanceOp>(op))
    return b.toFloat(arith::SubIOp::create(b, token, column(positions)));
  Value mask = b.load(b.fvec(at.w), placeOf(maskScratch, at));
  if (!spec.getMaskOperand().isInteger(1))
    return mask;
  return arith::CmpFOp::create(b, arith::CmpFPredicate::ONE, mask,
                               b.fsplat(at.w, 0.0));
}

Value ChannelLanes::emitReduce(ReduceOp op) {
  Value x = op.getOperand();
  bool isMax = op.getKind() == ReduceKind::Max;
  prepareSlice(x);
  Value statistics = b.scratch(npad * 4);
  double neutral = isMax ? -INFINITY : 0.0;
  b.store(b.fsplat(npad, neutral), statistics);
  DenseMap<Value, Value> before = accBuffers;
  Value keep = keepFor(x, op);
  DenseMap<Value, Value> after = accBuffers;
  accBuffers = before;
  b.loop(b.i64(0), b.i64(n), 1, [&](Value column) {
    Values sum = b.loop(b.i64(0), count, w, b.fsplat(w, neutral),
                        [&](Value t, ValueRange carried) {
                          Memo memo;
                          At at{column, t, w};
                          Value part = evaluate(x, at, memo);
                          if (keep)
                            b.store(part, placeOf(keep, at));
                          return Values{isMax ? b.fmax(carried[0], part)
                                              : b.fadd(carried[0], part)};
                        });
    b.store(b.reduce(sum[0], isMax), b.at(statistics, b.mul(column, 4)));
  });
  accBuffers = after;
  if (keep)
    accBuffers[x] = keep;
  return b.load(b.fvec(npad), statistics);
}

std::unique_ptr<ArrayLowering>
kvcache::createChannelLanes(ArrayKernelOp kernel) {
  return std::make_unique<ChannelLanes>(kernel);
}
