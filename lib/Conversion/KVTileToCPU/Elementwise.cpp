//===- Elementwise.cpp - Statistics and elementwise ops -------------------===//
//
// See TileEvaluator.h; the lanes run along tokens.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

LogicalResult AttendLowering::emitOp(Operation *op) {
  if (op->getNumResults() == 1 && isElementwise(op))
    return emitElementwise(op), success();
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case<BroadcastOp, VisibleOp, DistanceOp, YieldOp, ReturnOp>(
          [](auto) { return success(); })
      .Case<arith::ConstantOp>(
          [&](arith::ConstantOp constant) -> LogicalResult {
            if (!splatValue(constant.getResult()))
              return op->emitOpError("expected a splat of f32");
            return success();
          })
      .Case<LoadQueryOp>([&](auto o) { return emitLoadQuery(o), success(); })
      .Case<LoadSlopesOp>([&](auto o) { return emitLoadSlopes(o), success(); })
      .Case<PageLoopOp>([&](auto o) { return emitPageLoop(o); })
      .Case<ScoreOp>([&](auto o) { return emitScore(o), success(); })
      .Case<ReduceOp>([&](ReduceOp o) {
        rowValues[o.getResult()] = emitReduce(o);
        return success();
      })
      .Case<AccumulateOp>([&](auto o) { return emitAccumulate(o), success(); })
      .Case<StorePartialOp>(
          [&](auto o) { return emitStorePartial(o), success(); })
      .Default([](Operation *other) {
        return other->emitOpError("has no lowering to CPUs");
      });
}

//===----------------------------------------------------------------------===//
// Ops on tiles
//===----------------------------------------------------------------------===//

Value AttendLowering::visible(Value t, int64_t w) {
  Value token = b.iadd(b.iota(w), b.splat(b.toI32(t), w));
  Value above = b.lessEqual(b.splat(tile.low, w), token);
  Value below = b.lessEqual(token, b.splat(tile.high, w));
  return arith::AndIOp::create(b, above, below);
}

Value AttendLowering::placeOf(Value memory, At at) {
  return b.at(memory, b.mul(b.add(b.mul(at.n, tokens), at.t), 4));
}

Value AttendLowering::statisticOf(Value memory, At at) {
  return b.loadSplat(b.at(memory, b.mul(at.n, 4)), at.w);
}

Value AttendLowering::leafOf(Operation *op, At at) {
  if (isa<VisibleOp>(op))
    return visible(at.t, at.w);
  Value first = b.toI32(b.add(b.sub(tile.first, position), at.t));
  return b.toFloat(b.iadd(b.iota(at.w), b.splat(first, at.w)));
}

Value AttendLowering::tokenLimit() {
  return tile.pageClass == PageClass::Open ? tile.count : b.i64(tokens);
}

Value AttendLowering::materialize(Value x, Operation *at) {
  if (Value memory = accBuffers.lookup(x))
    return memory;
  prepareSlice(x);
  buffers.push_back({b.scratch(n * tokens * 4), x});
  Value memory = buffers.back().memory;
  int64_t w = keyLanes();
  b.loop(b.i64(0), b.i64(n), 1, [&](Value head) {
    b.loop(b.i64(0), tokenLimit(), w, [&](Value t) {
      Memo memo;
      At at{head, t, w};
      b.store(evaluate(x, at, memo), placeOf(memory, at));
    });
  });
  return accBuffers[x] = memory;
}

Value AttendLowering::emitReduce(ReduceOp op) {
  Value x = op.getOperand();
  bool isMax = op.getKind() == ReduceKind::Max;
  int64_t w = keyLanes();
  prepareSlice(x);
  Value statistics = b.scratch(npad * 4);
  double neutral = isMax ? -INFINITY : 0.0;
  b.store(b.fsplat(npad, neutral), statistics);
  llvm::DenseMap<Value, Value> before = accBuffers;
  Value keep = keepFor(x, op);
  llvm::DenseMap<Value, Value> after = accBuffers;
  accBuffers = before;
  b.loop(b.i64(0), b.i64(n), 1, [&](Value head) {
    Values sum = b.loop(b.i64(0), tokenLimit(), w, Values{b.fsplat(w, neutral)},
                        [&](Value t, ValueRange carried) {
                          Memo memo;
                          At at{head, t, w};
                          Value part = evaluate(x, at, memo);
                          if (keep)
                            b.store(part, placeOf(keep, at));
                          return Values{isMax ? b.fmax(carried[0], part)
                                              : b.fadd(carried[0], part)};
                        });
    b.store(b.reduce(sum[0], isMax), b.at(statistics, b.mul(head, 4)));
  });
  accBuffers = after;
  if (keep)
    accBuffers[x] = keep;
  return b.load(b.fvec(npad), statistics);
}
