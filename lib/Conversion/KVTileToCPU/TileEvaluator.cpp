//===- TileEvaluator.cpp - Elementwise ops on tiles, when needed ----------===//

#include "TileEvaluator.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

//===----------------------------------------------------------------------===//
// Single ops on vectors
//===----------------------------------------------------------------------===//

Value TileEvaluator::apply(Operation *op, ArrayRef<Value> x) {
  return TypeSwitch<Operation *, Value>(op)
      .Case<arith::AddFOp>([&](auto) { return b.fadd(x[0], x[1]); })
      .Case<arith::SubFOp>([&](auto) { return b.fsub(x[0], x[1]); })
      .Case<arith::MulFOp>([&](auto) { return b.fmul(x[0], x[1]); })
      .Case<arith::DivFOp>([&](auto) { return b.fdiv(x[0], x[1]); })
      .Case<arith::MaximumFOp>([&](auto) { return b.fmax(x[0], x[1]); })
      .Case<arith::AndIOp>(
          [&](auto) -> Value { return arith::AndIOp::create(b, x[0], x[1]); })
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

bool TileEvaluator::isElementwise(Operation *op) {
  return isa<arith::AddFOp, arith::SubFOp, arith::MulFOp, arith::DivFOp,
             arith::MaximumFOp, arith::AndIOp, arith::SelectOp, arith::CmpFOp,
             math::Exp2Op, math::AbsFOp, math::CopySignOp>(op);
}

std::optional<double> TileEvaluator::splatValue(Value v) {
  auto constant = v.getDefiningOp<arith::ConstantOp>();
  if (!constant)
    return std::nullopt;
  auto dense = dyn_cast<SplatElementsAttr>(constant.getValue());
  if (!dense || !isa<FloatType>(dense.getElementType()))
    return std::nullopt;
  return dense.getSplatValue<APFloat>().convertToFloat();
}

Value TileEvaluator::rows(Value v) {
  if (std::optional<double> x = splatValue(v))
    return b.fsplat(rowLanes(), *x);
  return rowValues.lookup(v);
}

void TileEvaluator::emitElementwise(Operation *op) {
  if (!hasLayout(op->getResult(0).getType(), LayoutKind::Rows))
    return; // evaluated where it is used
  Values operands;
  for (Value operand : op->getOperands())
    operands.push_back(rows(operand));
  rowValues[op->getResult(0)] = apply(op, operands);
}

//===----------------------------------------------------------------------===//
// Tiles
//===----------------------------------------------------------------------===//

Value TileEvaluator::evaluate(Value x, At at, Memo &memo) {
  if (Value known = memo.lookup(x))
    return known;
  Value result;
  Operation *op = x.getDefiningOp();
  if (Value memory = accBuffers.lookup(x)) {
    result = b.load(b.fvec(at.w), placeOf(memory, at));
  } else if (std::optional<double> number = splatValue(x)) {
    result = b.fsplat(at.w, *number);
  } else if (auto broadcast = dyn_cast<BroadcastOp>(op)) {
    result = statisticOf(rowMemory.lookup(broadcast.getOperand()), at);
  } else if (isElementwise(op)) {
    Values operands;
    for (Value operand : op->getOperands())
      operands.push_back(evaluate(operand, at, memo));
    result = apply(op, operands);
  } else {
    result = leafOf(op, at);
  }
  return memo[x] = result;
}

void TileEvaluator::prepareSlice(Value x) {
  Operation *op = x.getDefiningOp();
  if (!op || accBuffers.contains(x))
    return;
  if (auto broadcast = dyn_cast<BroadcastOp>(op)) {
    Value statistic = broadcast.getOperand();
    if (rowMemory.contains(statistic))
      return;
    Value memory = b.scratch(rowLanes() * 4);
    b.store(rows(statistic), memory);
    rowMemory[statistic] = memory;
    return;
  }
  if (isElementwise(op))
    for (Value operand : op->getOperands())
      prepareSlice(operand);
}

bool TileEvaluator::isNeededAfter(Value x, Operation *at, Value stop) const {
  for (Operation *user : x.getUsers()) {
    if (user == at || user->getBlock() != at->getBlock())
      continue;
    if (at->isBeforeInBlock(user))
      return true;
    if (!isElementwise(user) || user->getResult(0) == stop ||
        accBuffers.contains(user->getResult(0)))
      continue;
    if (isNeededAfter(user->getResult(0), at, stop))
      return true;
  }
  return false;
}

Value TileEvaluator::bufferFor(Value x, Operation *at) {
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
  buffers.push_back({b.scratch(accBytes()), {}});
  return take(buffers.back());
}

Value TileEvaluator::keepFor(Value x, Operation *reduction) {
  // In place of the operands' memory: each element is read before it is
  // written, and what is overwritten is not needed later.
  if (accBuffers.contains(x) || x.hasOneUse())
    return {};
  return bufferFor(x, reduction);
}
