//===- ArrayTile.cpp - Tiles of keys and values of arrays -----------------===//

#include "ArrayLowering.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

LogicalResult ArrayLowering::emitOp(Operation *op) {
  if (op->getNumResults() == 1 && isElementwise(op))
    return emitElementwise(op), success();
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case<BroadcastOp, VisibleOp, DistanceOp, LoadMaskOp, YieldOp, ReturnOp>(
          [](auto) { return success(); })
      .Case<arith::ConstantOp>(
          [&](arith::ConstantOp constant) -> LogicalResult {
            if (!splatValue(constant.getResult()))
              return op->emitOpError("expected a splat of f32");
            return success();
          })
      .Case<LoadQueryOp>([&](auto) { return emitLoadQuery(), success(); })
      .Case<LoadSlopesOp>([&](LoadSlopesOp o) {
        rowValues[o.getResult()] = loadColumns("slopes");
        return success();
      })
      .Case<LoadSinksOp>([&](LoadSinksOp o) {
        rowValues[o.getResult()] = loadColumns("sinks");
        return success();
      })
      .Case<PageLoopOp>([&](auto o) { return emitPageLoop(o); })
      .Case<ScoreOp>([&](auto o) { return emitScore(o), success(); })
      .Case<ReduceOp>([&](ReduceOp o) {
        rowValues[o.getResult()] = emitReduce(o);
        return success();
      })
      .Case<AccumulateOp>([&](auto o) { return emitAccumulate(o), success(); })
      .Case<StoreResultOp>(
          [&](auto o) { return emitStoreResult(o), success(); })
      .Default([](Operation *other) {
        return other->emitOpError("has no lowering to CPUs");
      });
}

void ArrayLowering::zero(Value memory, int64_t floats) {
  b.loop(b.i64(0), b.i64(floats), b.lanes(), [&](Value i) {
    b.store(b.fsplat(b.lanes(), 0.0), b.at(memory, b.mul(i, 4)));
  });
}

LogicalResult ArrayLowering::emitPageLoop(PageLoopOp op) {
  Value from = b.div(firstToken, tokens);
  Value to = b.div(b.add(lastToken, tokens), tokens);
  Values inits;
  for (Value init : op.getInits()) {
    if (hasLayout(init.getType(), LayoutKind::Rows))
      inits.push_back(rows(init));
    else if (init.getDefiningOp<arith::ConstantOp>())
      zero(out, outFloats());
  }
  bool failed = false;
  Values results =
      b.loop(from, to, 1, inits, [&](Value number, ValueRange args) {
        enterTile(number);
        rowMemory.clear();
        unsigned k = 0;
        for (Value carried : op.getCarried())
          if (hasLayout(carried.getType(), LayoutKind::Rows))
            rowValues[carried] = args[k++];
        for (Operation &inner : op.getBody().front())
          failed |= mlir::failed(emitOp(&inner));
        Values next;
        for (Value value : op.getYield().getOperands())
          if (hasLayout(value.getType(), LayoutKind::Rows))
            next.push_back(rows(value));
        return next;
      });
  unsigned k = 0;
  for (Value result : op.getResults())
    if (hasLayout(result.getType(), LayoutKind::Rows))
      rowValues[result] = results[k++];
  rowMemory.clear();
  return failure(failed);
}

void ArrayLowering::enterTile(Value number) {
  first = b.mul(number, tokens);
  count = b.min(b.sub(b.add(lastToken, 1), first), b.i64(tokens));
  enterSide(key);
  enterSide(value);
  if (maskScratch)
    loadMask();
}

/// Finds the tile's rows: as they lie, or in scratch memory.
void ArrayLowering::enterSide(Side &side) {
  int64_t rowBytes = side.pad * bytesOf(side.held);
  if (!side.scratch)
    side.scratch = b.scratch(tokens * rowBytes);
  if (side.rows) {
    callRows(side, first, count, side.scratch);
    side.tile = side.scratch;
    side.tileStride = b.i64(rowBytes);
    return;
  }
  Value rows = b.at(side.base, b.mul(first, side.stride));
  Value direct = arith::CmpIOp::create(b, arith::CmpIPredicate::eq,
                                       side.channelStride, b.i64(1));
  auto branch = scf::IfOp::create(b, direct, /*withElseRegion=*/true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(branch.elseBlock());
    gatherRows(side, rows);
    b.setInsertionPointToStart(branch.thenBlock());
    if (side.held != side.element)
      convertRows(side, rows);
  }
  side.tile = side.scratch;
  side.tileStride = b.i64(rowBytes);
  if (side.held != side.element)
    return;
  side.tile = b.select(direct, rows, side.scratch);
  side.tileStride = b.select(direct, side.stride, side.tileStride);
}

void ArrayLowering::callRows(Side &side, Value first, Value count, Value to) {
  func::CallOp::create(
      b, side.rows, TypeRange(),
      ValueRange{fields["source"], seq, kvHead, first, count, to});
}

/// Copies rows whose channels are apart to scratch memory, one by one.
void ArrayLowering::gatherRows(Side &side, Value rows) {
  int64_t bytes = bytesOf(side.element), held = bytesOf(side.held);
  b.loop(b.i64(0), count, 1, [&](Value t) {
    Value from = b.at(rows, b.mul(t, side.stride));
    Value to = b.at(side.scratch, b.mul(t, side.pad * held));
    b.loop(b.i64(0), b.i64(side.channels), 1, [&](Value c) {
      Value place = b.at(from, b.mul(b.mul(c, side.channelStride), bytes));
      Value x = side.held == side.element ? b.load(side.element, place)
                                          : loadFloat(side.element, place);
      b.store(x, b.at(to, b.mul(c, held)));
    });
  });
}

/// Converts rows of f16 or bf16 to f32 in scratch memory.
void ArrayLowering::convertRows(Side &side, Value rows) {
  int64_t bytes = bytesOf(side.element), w = b.lanes();
  b.loop(b.i64(0), count, 1, [&](Value t) {
    Value from = b.at(rows, b.mul(t, side.stride));
    Value to = b.at(side.scratch, b.mul(t, side.pad * 4));
    auto block = [&](Value c, int64_t width) {
      b.store(b.loadFloats(side.element, b.at(from, b.mul(c, bytes)), width),
              b.at(to, b.mul(c, 4)));
    };
    int64_t whole = side.channels / w * w;
    b.loop(b.i64(0), b.i64(whole), w, [&](Value c) { block(c, w); });
    if (whole < side.channels)
      block(b.i64(whole), side.channels - whole);
  });
}

/// The tile's mask as f32 (visible: 1), one row or column per query.
void ArrayLowering::loadMask() {
  Type element = spec.getMaskOperand();
  bool isBoolean = element.isInteger(1);
  int64_t bytes = isBoolean ? 1 : bytesOf(element);
  forColumns(true, [&](Value column, Value head, Value row) {
    Value offset = b.add(b.mul(seq, fields["mask_seq"]),
                         b.mul(b.add(firstHead, head), fields["mask_head"]));
    offset = b.add(offset, b.mul(b.add(rowBase, row), fields["mask_row"]));
    offset = b.add(offset, b.mul(first, fields["mask_token"]));
    Value from = b.at(fields["mask"], b.mul(offset, bytes));
    Value stride = b.mul(fields["mask_token"], bytes);
    b.loop(b.i64(0), count, 1, [&](Value t) {
      Value place = b.at(from, b.mul(t, stride));
      Value x;
      if (isBoolean)
        x = arith::UIToFPOp::create(b, b.getF32Type(),
                                    b.load(b.getIntegerType(8), place));
      else
        x = loadFloat(element, place);
      b.store(x, b.at(maskScratch, maskPlace(t, column)));
    });
  });
}
