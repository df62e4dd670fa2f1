//===- BuildAttend.cpp - The decode kernel at the schedule level ----------===//
//
// Writes the body of `attend` for one work item. Online softmax in base 2:
//
//   x   = visible ? score * scale * log2(e) : -inf       (soft cap, ALiBi
//   before) m'  = max(m, max x) ref = m' == -inf ? 0 : m' - exp_bias (so x -
//   ref is no NaN) p   = exp2(x - ref) (masked: exactly 0) a   = exp2(m - m')
//   (m = -inf: exactly 0) l   = l * a + sum p;  O = O * a + V^T p
//
// Masks act through the exponent alone: exp2(-inf) is 0, no large finite number
// stands in. The stored maximum is m - exp_bias, which makes the factor
// 2^exp_bias in l and O consistent with it.
//
//===----------------------------------------------------------------------===//

#include "SoftmaxSteps.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <limits>
#include <numbers>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

namespace {

/// Builds the body of one kernel.
class AttendBuilder {
public:
  AttendBuilder(KernelOp kernel)
      : kernel(kernel), specAttr(kernel.getSpec()),
        schedule(*kernel.getSchedule()), spec(specAttr.getKernelSpec()),
        b(kernel.getLoc(), kernel.getContext()) {
    acc = type(LayoutKind::Acc);
    rows = type(LayoutKind::Rows);
    out = type(LayoutKind::Out);
  }

  void run();

private:
  RankedTensorType type(LayoutKind kind, Type element = {}) {
    return tileType(specAttr, schedule, kind, element);
  }
  Value splat(RankedTensorType type, double x) { return splatOf(b, type, x); }
  Value toAcc(Value statistic) {
    return BroadcastOp::create(b, acc, statistic);
  }
  DotKind dotKind(PageClass pageClass, const Encoding &encoding);
  Value logits(Value tile, PageClass pageClass);
  SmallVector<Value> step(Value tile, PageClass pageClass, ValueRange carried);
  SmallVector<Value> loop(PageClass pageClass, ValueRange inits);

  KernelOp kernel;
  SpecAttr specAttr;
  ScheduleAttr schedule;
  KernelSpec spec;
  ImplicitLocOpBuilder b;
  RankedTensorType acc, rows, out;
  Value query, slopes, minusInf;
};

} // namespace

/// The arithmetic of a product with stored elements: the schedule's kind where
/// it applies, else f32 on CPUs and f16 (bf16 for bf16) on GPUs.
DotKind AttendBuilder::dotKind(PageClass pageClass, const Encoding &encoding) {
  Element element =
      pageClass == PageClass::Open ? spec.dtype : encoding.element;
  DotKind wanted = schedule.getDotKind();
  bool integer = element == Element::I8 || element == Element::I4;
  bool integerKind = wanted == DotKind::U8S8x2 || wanted == DotKind::S8;
  if (integer || !integerKind)
    return wanted;
  if (schedule.getVectorBits())
    return DotKind::F32;
  return element == Element::BF16 ? DotKind::BF16 : DotKind::F16;
}

/// Base-2 logits of a tile, -inf where nothing is visible.
Value AttendBuilder::logits(Value tile, PageClass pageClass) {
  Value score =
      ScoreOp::create(b, acc, dotKind(pageClass, spec.format.key), tile, query);
  Value x = cappedScores(b, score, spec.softmaxScale(), spec.softcap,
                         std::numbers::log2e);
  if (spec.alibi) {
    Value distance = DistanceOp::create(b, acc, tile);
    x = arith::AddFOp::create(
        b, x, arith::MulFOp::create(b, distance, toAcc(slopes)));
  }
  MaskAttr mask =
      MaskAttr::get(b.getContext(), spec.causal, spec.windowLeft.value_or(-1),
                    spec.windowRight.value_or(-1));
  Value visible =
      VisibleOp::create(b, type(LayoutKind::Acc, b.getI1Type()), tile, mask);
  return arith::SelectOp::create(b, visible, x, splat(acc, -INFINITY));
}

SmallVector<Value> AttendBuilder::step(Value tile, PageClass pageClass,
                                       ValueRange carried) {
  Value m = carried[0], l = carried[1], o = carried[2];
  Value x = logits(tile, pageClass);
  Value tileMax = ReduceOp::create(b, rows, ReduceKind::Max, x);
  Value newMax = arith::MaximumFOp::create(b, m, tileMax);
  Value safe = guardedMaximum(b, newMax);
  Value alpha = math::Exp2Op::create(b, arith::SubFOp::create(b, m, safe));
  Value ref = safe;
  if (int64_t bias = schedule.getExpBias())
    ref = arith::SubFOp::create(b, safe, splat(rows, double(bias)));
  Value p = math::Exp2Op::create(b, arith::SubFOp::create(b, x, toAcc(ref)));
  Value sum = ReduceOp::create(b, rows, ReduceKind::Add, p);
  Value newSum =
      arith::AddFOp::create(b, arith::MulFOp::create(b, l, alpha), sum);
  Value newOut = AccumulateOp::create(
      b, out, dotKind(pageClass, spec.format.value), tile, p, o, alpha);
  return {newMax, newSum, newOut};
}

SmallVector<Value> AttendBuilder::loop(PageClass pageClass, ValueRange inits) {
  auto op = PageLoopOp::create(b, pageClass, inits);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&op.getBody().front());
  YieldOp::create(b, step(op.getTile(), pageClass, op.getCarried()));
  return llvm::to_vector_of<Value>(op.getResults());
}

void AttendBuilder::run() {
  b.setInsertionPointToStart(&kernel.getBody().emplaceBlock());
  query = LoadQueryOp::create(b, type(LayoutKind::Query));
  if (spec.alibi)
    slopes = arith::MulFOp::create(b, LoadSlopesOp::create(b, rows),
                                   splat(rows, std::numbers::log2e));
  minusInf = splat(rows, -INFINITY);
  SmallVector<Value> state = {minusInf, splat(rows, 0.0), splat(out, 0.0)};
  state = loop(PageClass::Sealed, state);
  state = loop(PageClass::Open, state);
  if (int64_t bias = schedule.getExpBias())
    state[0] = arith::SubFOp::create(b, state[0], splat(rows, double(bias)));
  StorePartialOp::create(b, state[0], state[1], state[2]);
  ReturnOp::create(b);
}

void kvcache::expandAttend(KernelOp kernel) { AttendBuilder(kernel).run(); }

KernelOp kvcache::buildAttendKernel(ModuleOp module, const KernelSpec &spec,
                                    ScheduleAttr schedule) {
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  SpecAttr attr = SpecAttr::fromKernelSpec(builder.getContext(), spec);
  auto kernel =
      KernelOp::create(builder, module.getLoc(), "attend", attr, schedule);
  expandAttend(kernel);
  return kernel;
}
