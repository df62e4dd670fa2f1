//===- Elementwise.cpp - Statistics and elementwise ops -------------------===//
//
// Ops on `rows` tensors become vectors at once. Ops on `acc` tensors wait until
// a reduction or an accumulation needs them and are evaluated inside its loop;
// a tensor that a later op needs too is kept in memory on the way, in place of
// one that is no longer needed.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

//===----------------------------------------------------------------------===//
// Single ops on vectors
//===----------------------------------------------------------------------===//

Value AttendLowering::apply(Operation *op, ArrayRef<Value> x) {
  return TypeSwitch<Operation *, Value>(op)
      .Case<arith::AddFOp>([&](auto) { return b.fadd(x[0], x[1]); })
      .Case<arith::SubFOp>([&](auto) { return b.fsub(x[0], x[1]); })
      .Case<arith::MulFOp>([&](auto) { return b.fmul(x[0], x[1]); })
      .Case<arith::DivFOp>([&](auto) { return b.fdiv(x[0], x[1]); })
      .Case<arith::MaximumFOp>([&](auto) { return b.fmax(x[0], x[1]); })
      .Case<arith::SelectOp>([&](auto) { return b.select(x[0], x[1], x[2]); })
      .Case<math::Exp2Op>([&](auto) { return b.exp2(x[0]); })
      .Case<math::AbsFOp>(
          [&](auto) -> Value { return math::AbsFOp::create(b, x[0]); })
      .Case<math::CopySignOp>([&](auto) -> Value {
        return math::CopySignOp::create(b, x[0], x[1]);
      })
      .Case<arith::CmpFOp>([&](arith::CmpFOp cmp) -> Value {
        return arith::CmpFOp::create(b, cmp.getPredicate(), x[0], x[1]);
      })
      .Default([](Operation *) { return Value(); });
}

static bool isSupportedElementwise(Operation *op) {
  return isa<arith::AddFOp, arith::SubFOp, arith::MulFOp, arith::DivFOp,
             arith::MaximumFOp, arith::SelectOp, arith::CmpFOp, math::Exp2Op,
             math::AbsFOp, math::CopySignOp>(op);
}

/// The value of a splat constant.
static std::optional<double> splatValue(Value v) {
  auto constant = v.getDefiningOp<arith::ConstantOp>();
  if (!constant)
    return std::nullopt;
  auto dense = dyn_cast<SplatElementsAttr>(constant.getValue());
  if (!dense || !isa<FloatType>(dense.getElementType()))
    return std::nullopt;
  return dense.getSplatValue<APFloat>().convertToFloat();
}

Value AttendLowering::rows(Value v) {
  if (std::optional<double> x = splatValue(v))
    return b.fsplat(npad, *x);
  return rowValues.lookup(v);
}

LogicalResult AttendLowering::emitOp(Operation *op) {
  if (op->getNumResults() == 1 && isSupportedElementwise(op)) {
    if (!hasLayout(op->getResult(0).getType(), LayoutKind::Rows))
      return success(); // evaluated where it is used
    Values operands;
    for (Value operand : op->getOperands())
      operands.push_back(rows(operand));
    rowValues[op->getResult(0)] = apply(op, operands);
    return success();
  }
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

/// w elements of column `head` of an acc tensor, from token t.
Value AttendLowering::evaluate(Value x, Value head, Value t, int64_t w,
                               Memo &memo) {
  if (Value known = memo.lookup(x))
    return known;
  Value result;
  Operation *op = x.getDefiningOp();
  if (Value memory = accBuffers.lookup(x)) {
    Value place = b.mul(b.add(b.mul(head, tokens), t), 4);
    result = b.load(b.fvec(w), b.at(memory, place));
  } else if (std::optional<double> number = splatValue(x)) {
    result = b.fsplat(w, *number);
  } else if (auto broadcast = dyn_cast<BroadcastOp>(op)) {
    Value memory = rowMemory.lookup(broadcast.getOperand());
    result = b.loadSplat(b.at(memory, b.mul(head, 4)), w);
  } else if (isa<VisibleOp>(op)) {
    result = visible(t, w);
  } else if (isa<DistanceOp>(op)) {
    Value first = b.toI32(b.add(b.sub(tile.first, position), t));
    result = b.toFloat(b.iadd(b.iota(w), b.splat(first, w)));
  } else {
    Values operands;
    for (Value operand : op->getOperands())
      operands.push_back(evaluate(operand, head, t, w, memo));
    result = apply(op, operands);
  }
  return memo[x] = result;
}

/// Stores the statistics that evaluating `x` will repeat.
void AttendLowering::prepareSlice(Value x) {
  Operation *op = x.getDefiningOp();
  if (!op || accBuffers.contains(x))
    return;
  if (auto broadcast = dyn_cast<BroadcastOp>(op)) {
    Value statistic = broadcast.getOperand();
    if (rowMemory.contains(statistic))
      return;
    Value memory = b.scratch(npad * 4);
    b.store(rows(statistic), memory);
    rowMemory[statistic] = memory;
    return;
  }
  if (isSupportedElementwise(op))
    for (Value operand : op->getOperands())
      prepareSlice(operand);
}

/// True if ops after `at` read `x`, other than through `stop`, which is kept.
bool AttendLowering::isNeededAfter(Value x, Operation *at, Value stop) const {
  for (Operation *user : x.getUsers()) {
    if (user == at || user->getBlock() != at->getBlock())
      continue;
    if (at->isBeforeInBlock(user))
      return true;
    if (!isSupportedElementwise(user) || user->getResult(0) == stop ||
        accBuffers.contains(user->getResult(0)))
      continue;
    if (isNeededAfter(user->getResult(0), at, stop))
      return true;
  }
  return false;
}

/// Memory for `x`, computed at op `at`; in place of what is not needed later.
Value AttendLowering::bufferFor(Value x, Operation *at) {
  auto take = [&](Buffer &buffer) {
    if (buffer.holds)
      accBuffers.erase(buffer.holds);
    buffer.holds = x;
    return buffer.memory;
  };
  // `x` itself enters accBuffers once it is computed.
  for (Buffer &buffer : buffers)
    if (!buffer.holds || !isNeededAfter(buffer.holds, at, x))
      return take(buffer);
  buffers.push_back({b.scratch(n * tokens * 4), {}});
  return take(buffers.back());
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
      Value place = b.mul(b.add(b.mul(head, tokens), t), 4);
      b.store(evaluate(x, head, t, w, memo), b.at(memory, place));
    });
  });
  return accBuffers[x] = memory;
}

Value AttendLowering::emitReduce(ReduceOp op) {
  Value x = op.getOperand();
  bool isMax = op.getKind() == ReduceKind::Max;
  int64_t w = keyLanes();
  prepareSlice(x);
  Value keep, statistics = b.scratch(npad * 4);
  double neutral = isMax ? -INFINITY : 0.0;
  b.store(b.fsplat(npad, neutral), statistics);
  // In place of the operands' memory: each element is read before it is
  // written, and what is overwritten is not needed later.
  llvm::DenseMap<Value, Value> before = accBuffers;
  if (!accBuffers.contains(x) && !x.hasOneUse())
    keep = bufferFor(x, op);
  llvm::DenseMap<Value, Value> after = accBuffers;
  accBuffers = before;
  b.loop(b.i64(0), b.i64(n), 1, [&](Value head) {
    Values sum = b.loop(b.i64(0), tokenLimit(), w, Values{b.fsplat(w, neutral)},
                        [&](Value t, ValueRange carried) {
                          Memo memo;
                          Value part = evaluate(x, head, t, w, memo);
                          if (keep) {
                            Value place =
                                b.mul(b.add(b.mul(head, tokens), t), 4);
                            b.store(part, b.at(keep, place));
                          }
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
