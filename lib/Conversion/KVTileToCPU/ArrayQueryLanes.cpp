//===- ArrayQueryLanes.cpp - Kernels on arrays, queries in the lanes ------===//

#include "ArrayLowering.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

namespace {
class QueryLanes : public ArrayLowering {
public:
  explicit QueryLanes(ArrayKernelOp kernel);

private:
  void emitLoadQuery() override;
  void emitScore(ScoreOp op) override;
  Value emitReduce(ReduceOp op) override;
  void emitAccumulate(AccumulateOp op) override;

  Value placeOf(Value memory, At at) override {
    return b.at(memory, tokenColumn(at.t, at.n));
  }
  Value statisticOf(Value memory, At at) override {
    return b.load(b.fvec(at.w), b.at(memory, b.mul(at.n, 4)));
  }
  Value leafOf(Operation *op, At at) override;
  Value outPlace(Value c, Value column) override {
    return tokenColumn(c, column);
  }
  Value maskPlace(Value t, Value column) override {
    return tokenColumn(t, column);
  }
  int64_t accBytes() const override {
    return llvm::alignTo(tokens, block) * npad * 4;
  }
  int64_t outFloats() const override { return v * npad; }
  int64_t rowLanes() const override { return npad; }

  /// Byte of a row's (token's, channel's) column, rows of npad f32.
  Value tokenColumn(Value row, Value column) {
    return b.mul(b.add(b.mul(row, npad), column), 4);
  }
  /// Calls `body` with the first column of each panel.
  void forPanels(llvm::function_ref<void(Value column)> body);
  Values dotBlock(ArrayRef<Value> keys, Value column, Value c, int64_t channels,
                  Values acc);
  void accumulateBlock(Value p, Value alpha, Value column, Value c,
                       int64_t channels);
  void accumulateCareful(Value p, Value alpha);

  int64_t w;     ///< lanes
  int64_t panel; ///< vectors of columns that a product handles together
  int64_t block; ///< tokens (channels of values) likewise
};
} // namespace

QueryLanes::QueryLanes(ArrayKernelOp kernel)
    : ArrayLowering(kernel), w(b.lanes()) {
  int64_t vectors = llvm::divideCeil(n, w);
  if (b.vectorBits == 512) {
    // 24 sums beside the columns and an element: 29 of 32 registers.
    panel = vectors % 4 == 0 ? 4 : vectors <= 3 ? vectors : 1;
    block = panel == 4 ? 6 : panel == 3 ? 8 : 12;
  } else {
    // 12 sums: 15 of 16 registers.
    if (vectors > 1)
      vectors = llvm::alignTo(vectors, 2);
    panel = vectors % 2 == 0 ? 2 : 1;
    block = panel == 2 ? 6 : 12;
  }
  npad = vectors * w;
  key.held = value.held = b.getF32Type();
}

void QueryLanes::forPanels(llvm::function_ref<void(Value column)> body) {
  if (npad == panel * w)
    return body(b.i64(0));
  b.loop(b.i64(0), b.i64(npad), panel * w, body);
}

void QueryLanes::emitLoadQuery() {
  query = b.scratch(d * npad * 4);
  if (npad > n)
    zero(query, d * npad);
  int64_t bytes = bytesOf(spec.getQuery());
  forColumns(true, [&](Value column, Value head, Value row) {
    Value from = queryPlace(head, row);
    b.loop(b.i64(0), b.i64(d), 1, [&](Value c) {
      Value at = b.mul(b.mul(c, fields["q_channel"]), bytes);
      b.store(loadFloat(spec.getQuery(), b.at(from, at)),
              b.at(query, tokenColumn(c, column)));
    });
  });
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// acc[i][j] += key i's channel * queries' channel, for `channels` of them.
CpuBuilder::Values QueryLanes::dotBlock(ArrayRef<Value> keys, Value column,
                                        Value c, int64_t channels, Values acc) {
  for (int64_t k = 0; k < channels; ++k) {
    Value channel = b.add(c, k);
    Values q;
    for (int64_t j = 0; j < panel; ++j)
      q.push_back(b.load(
          b.fvec(w), b.at(query, tokenColumn(channel, b.add(column, j * w)))));
    for (auto [i, row] : llvm::enumerate(keys)) {
      Value x = b.loadSplat(b.at(row, b.mul(channel, 4)), w);
      for (int64_t j = 0; j < panel; ++j)
        acc[i * panel + j] = b.fma(x, q[j], acc[i * panel + j]);
    }
  }
  return acc;
}

void QueryLanes::emitScore(ScoreOp op) {
  Value scores = bufferFor(op.getResult(), op);
  constexpr int64_t unroll = 4;
  int64_t whole = d / unroll * unroll;
  b.loop(b.i64(0), count, block, [&](Value t) {
    // Past the tile the last row is repeated: its scores are not visible.
    Values keys;
    Value last = b.sub(count, b.i64(1));
    for (int64_t i = 0; i < block; ++i)
      keys.push_back(
          b.at(key.tile, b.mul(b.min(b.add(t, i), last), key.tileStride)));
    forPanels([&](Value column) {
      Values acc(block * panel, b.fsplat(w, 0.0));
      acc = b.loop(b.i64(0), b.i64(whole), unroll, acc,
                   [&](Value c, ValueRange carried) {
                     return dotBlock(keys, column, c, unroll, Values(carried));
                   });
      acc = dotBlock(keys, column, b.i64(whole), d - whole, acc);
      for (int64_t i = 0; i < block; ++i)
        for (int64_t j = 0; j < panel; ++j)
          b.store(acc[i * panel + j],
                  b.at(scores, tokenColumn(b.add(t, i), b.add(column, j * w))));
    });
  });
  accBuffers[op.getResult()] = scores;
}

/// out = out * alpha + p * values, for some channels and a panel of columns.
void QueryLanes::accumulateBlock(Value p, Value alpha, Value column, Value c,
                                 int64_t channels) {
  auto place = [&](int64_t i, int64_t j) {
    return b.at(out, tokenColumn(b.add(c, i), b.add(column, j * w)));
  };
  Values acc;
  for (int64_t i = 0; i < channels; ++i)
    for (int64_t j = 0; j < panel; ++j) {
      Value scale =
          b.load(b.fvec(w), b.at(alpha, b.mul(b.add(column, j * w), 4)));
      acc.push_back(b.fmul(b.load(b.fvec(w), place(i, j)), scale));
    }
  acc = b.loop(b.i64(0), count, 1, acc, [&](Value t, ValueRange carried) {
    Values sums(carried), weights;
    for (int64_t j = 0; j < panel; ++j)
      weights.push_back(
          b.load(b.fvec(w), b.at(p, tokenColumn(t, b.add(column, j * w)))));
    Value row = b.at(value.tile, b.mul(t, value.tileStride));
    for (int64_t i = 0; i < channels; ++i) {
      Value x = b.loadSplat(b.at(row, b.mul(b.add(c, i), 4)), w);
      for (int64_t j = 0; j < panel; ++j)
        sums[i * panel + j] = b.fma(x, weights[j], sums[i * panel + j]);
    }
    return sums;
  });
  for (int64_t i = 0; i < channels; ++i)
    for (int64_t j = 0; j < panel; ++j)
      b.store(acc[i * panel + j], place(i, j));
}

/// The same one by one; a weight of 0 leaves a sum as it is.
void QueryLanes::accumulateCareful(Value p, Value alpha) {
  b.loop(b.i64(0), b.i64(v), 1, [&](Value c) {
    b.loop(b.i64(0), b.i64(npad), w, [&](Value column) {
      Value place = b.at(out, tokenColumn(c, column));
      Value scale = b.load(b.fvec(w), b.at(alpha, b.mul(column, 4)));
      Value zero = b.fsplat(w, 0.0);
      // A scale of 0 forgets what was, which 0 * inf would not.
      Value none =
          arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, scale, zero);
      Value start =
          b.select(none, zero, b.fmul(b.load(b.fvec(w), place), scale));
      Values sum =
          b.loop(b.i64(0), count, 1, start, [&](Value t, ValueRange carried) {
            Value weight = b.load(b.fvec(w), b.at(p, tokenColumn(t, column)));
            Value at = b.add(b.mul(t, value.tileStride), b.mul(c, 4));
            Value x = b.loadSplat(b.at(value.tile, at), w);
            Value hidden = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ,
                                                 weight, zero);
            return Values{
                b.select(hidden, carried[0], b.fma(x, weight, carried[0]))};
          });
      b.store(sum[0], place);
    });
  });
}

void QueryLanes::emitAccumulate(AccumulateOp op) {
  Value p = accBuffers.lookup(op.getP());
  Value alpha = b.scratch(npad * 4);
  b.store(rows(op.getAlpha()), alpha);
  auto branch = scf::IfOp::create(b, careful, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(branch.thenBlock());
  accumulateCareful(p, alpha);
  b.setInsertionPointToStart(branch.elseBlock());
  int64_t whole = v / block * block;
  forPanels([&](Value column) {
    b.loop(b.i64(0), b.i64(whole), block,
           [&](Value c) { accumulateBlock(p, alpha, column, c, block); });
    if (whole < v)
      accumulateBlock(p, alpha, column, b.i64(whole), v - whole);
  });
}

//===----------------------------------------------------------------------===//
// Statistics
//===----------------------------------------------------------------------===//

Value QueryLanes::leafOf(Operation *op, At at) {
  Value token = b.splat(b.toI32(b.add(first, at.t)), at.w);
  auto columns = [&](Value memory) {
    return b.load(b.ivec(at.w), b.at(memory, b.mul(at.n, 4)));
  };
  if (isa<VisibleOp>(op))
    return arith::AndIOp::create(b, b.lessEqual(columns(low), token),
                                 b.lessEqual(token, columns(high)));
  if (isa<DistanceOp>(op))
    return b.toFloat(arith::SubIOp::create(b, token, columns(positions)));
  Value mask = b.load(b.fvec(at.w), placeOf(maskScratch, at));
  if (!spec.getMaskOperand().isInteger(1))
    return mask;
  return arith::CmpFOp::create(b, arith::CmpFPredicate::ONE, mask,
                               b.fsplat(at.w, 0.0));
}

Value QueryLanes::emitReduce(ReduceOp op) {
  Value x = op.getOperand();
  bool isMax = op.getKind() == ReduceKind::Max;
  prepareSlice(x);
  Value statistics = b.scratch(npad * 4);
  DenseMap<Value, Value> before = accBuffers;
  Value keep = keepFor(x, op);
  DenseMap<Value, Value> after = accBuffers;
  accBuffers = before;
  forPanels([&](Value column) {
    Values neutral(panel, b.fsplat(w, isMax ? -INFINITY : 0.0));
    Values result =
        b.loop(b.i64(0), count, 1, neutral, [&](Value t, ValueRange carried) {
          Values next;
          for (int64_t j = 0; j < panel; ++j) {
            Memo memo;
            At at{b.add(column, j * w), t, w};
            Value part = evaluate(x, at, memo);
            if (keep)
              b.store(part, placeOf(keep, at));
            next.push_back(isMax ? b.fmax(carried[j], part)
                                 : b.fadd(carried[j], part));
          }
          return next;
        });
    for (int64_t j = 0; j < panel; ++j)
      b.store(result[j], b.at(statistics, b.mul(b.add(column, j * w), 4)));
  });
  accBuffers = after;
  if (keep)
    accBuffers[x] = keep;
  return b.load(b.fvec(npad), statistics);
}

std::unique_ptr<ArrayLowering> kvcache::createQueryLanes(ArrayKernelOp kernel) {
  return std::make_unique<QueryLanes>(kernel);
}
