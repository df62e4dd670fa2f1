//===- BuildArrayAttend.cpp - Attention on arrays at the schedule level ---===//
//
// The body of a kernel on arrays: as BuildAttend.cpp, with one loop over tiles
// of keys, mask arrays and sink logits, and the finished rows stored at once.
//
// Scores stay in natural units until they are exponents. An added mask of -1e9
// or finfo.min rounds the score away, or nearly, and the source graph's f32 sum
// decides which: x = f32(score) + f32(mask), p = exp2((x - max) * log2(e)).
//
//===----------------------------------------------------------------------===//

#include "SoftmaxSteps.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <cmath>
#include <numbers>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

namespace {

class ArrayAttendBuilder {
public:
  ArrayAttendBuilder(ArrayKernelOp kernel)
      : kernel(kernel), spec(kernel.getSpec()), schedule(*kernel.getSchedule()),
        b(kernel.getLoc(), kernel.getContext()), acc(type(LayoutKind::Acc)),
        rows(type(LayoutKind::Rows)), out(type(LayoutKind::Out)) {}

  void run();

private:
  RankedTensorType type(LayoutKind kind, Type element = {}) {
    return tileType(spec, schedule, kind, element);
  }
  Value toAcc(Value statistic) {
    return BroadcastOp::create(b, acc, statistic);
  }
  Value scores(Value tile);
  Value exponential(Value difference);
  SmallVector<Value> step(Value tile, ValueRange carried);

  ArrayKernelOp kernel;
  ArraysAttr spec;
  ScheduleAttr schedule;
  ImplicitLocOpBuilder b;
  RankedTensorType acc, rows, out;
  Value query, slopes;
};

} // namespace

/// Scores of a tile, -inf where nothing is visible.
Value ArrayAttendBuilder::scores(Value tile) {
  std::optional<double> softcap;
  if (spec.getSoftcap())
    softcap = spec.getSoftcap().getValueAsDouble();
  Value x = cappedScores(b, ScoreOp::create(b, acc, DotKind::F32, tile, query),
                         spec.getScale().getValueAsDouble(), softcap, 1.0);
  if (slopes)
    x = arith::AddFOp::create(
        b, x,
        arith::MulFOp::create(b, DistanceOp::create(b, acc, tile),
                              toAcc(slopes)));
  MaskAttr mask = spec.getMask();
  if (!mask)
    mask = MaskAttr::get(b.getContext(), false, -1, -1);
  RankedTensorType flags = type(LayoutKind::Acc, b.getI1Type());
  Value visible = VisibleOp::create(b, flags, tile, mask);
  Type operand = spec.getMaskOperand();
  if (operand && operand.isInteger(1))
    visible =
        arith::AndIOp::create(b, visible, LoadMaskOp::create(b, flags, tile));
  else if (operand)
    x = arith::AddFOp::create(b, x, LoadMaskOp::create(b, acc, tile));
  return arith::SelectOp::create(b, visible, x, splatOf(b, acc, -INFINITY));
}

Value ArrayAttendBuilder::exponential(Value difference) {
  auto type = cast<RankedTensorType>(difference.getType());
  return math::Exp2Op::create(
      b, arith::MulFOp::create(b, difference,
                               splatOf(b, type, std::numbers::log2e)));
}

SmallVector<Value> ArrayAttendBuilder::step(Value tile, ValueRange carried) {
  Value m = carried[0], l = carried[1], o = carried[2];
  Value x = scores(tile);
  Value newMax = arith::MaximumFOp::create(
      b, m, ReduceOp::create(b, rows, ReduceKind::Max, x));
  Value safe = guardedMaximum(b, newMax);
  Value alpha = exponential(arith::SubFOp::create(b, m, safe));
  Value p = exponential(arith::SubFOp::create(b, x, toAcc(safe)));
  Value sum = ReduceOp::create(b, rows, ReduceKind::Add, p);
  Value newSum =
      arith::AddFOp::create(b, arith::MulFOp::create(b, l, alpha), sum);
  Value newOut = AccumulateOp::create(b, out, DotKind::F32, tile, p, o, alpha);
  return {newMax, newSum, newOut};
}

void ArrayAttendBuilder::run() {
  b.setInsertionPointToStart(&kernel.getBody().emplaceBlock());
  query = LoadQueryOp::create(b, type(LayoutKind::Query));
  if (spec.getAlibi())
    slopes = LoadSlopesOp::create(b, rows);
  SmallVector<Value> state = {splatOf(b, rows, -INFINITY),
                              splatOf(b, rows, 0.0), splatOf(b, out, 0.0)};
  if (spec.getSinks()) {
    // A logit without a value: exp(sink - max) of the sum, from the start.
    Value sinks = LoadSinksOp::create(b, rows);
    state[0] = sinks;
    state[1] =
        exponential(arith::SubFOp::create(b, sinks, guardedMaximum(b, sinks)));
  }
  auto loop = PageLoopOp::create(b, PageClass::External, state);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(&loop.getBody().front());
    YieldOp::create(b, step(loop.getTile(), loop.getCarried()));
  }
  ValueRange results = loop.getResults();
  StoreResultOp::create(b, results[0], results[1], results[2]);
  ReturnOp::create(b);
}

void kvcache::expandArrayAttend(ArrayKernelOp kernel) {
  ArrayAttendBuilder(kernel).run();
}
