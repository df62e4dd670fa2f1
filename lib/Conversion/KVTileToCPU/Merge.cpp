//===- Merge.cpp - Combining a row's partials -----------------------------===//
//
// m = max m_i, l = sum l_i 2^(m_i - m), out = sum O_i 2^(m_i - m) / l, in index
// order. Splits in which nothing was visible have m_i = -inf, hence weight 0. A
// row that sees nothing: out = 0, lse = -inf.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"
#include "kvcache/ABI/KernelABI.h"

#include "llvm/Support/MathExtras.h"

#include <numbers>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

namespace {
class MergeLowering {
public:
  MergeLowering(KernelOp kernel)
      : kernel(kernel), spec(kernel.getSpec().getKernelSpec()),
        b(kernel.getLoc(), kernel.getSchedule()->getVectorBits()),
        dtype(toType(kernel.getContext(), spec.dtype)), v(spec.valueDim) {}
  void run();

private:
  void emitItem(Value item);
  Value maximum(Value partials, Value count);
  Value addPartials(Value partials, Value count, Value max);
  void writeOut(Value index, Value factor);

  KernelOp kernel;
  KernelSpec spec;
  CpuBuilder b;
  Type dtype;
  int64_t v;
  Fields fields;
  Value out;
};
} // namespace

void kvcache::emitMerge(KernelOp kernel) { MergeLowering(kernel).run(); }

void MergeLowering::run() {
  b.setInsertionPoint(kernel);
  func::FuncOp function = openEntry(b, "merge");
  fields.loadAttend(b, function.getArgument(0));
  out = b.scratch(llvm::alignTo(v, 16) * 4);
  b.loop(function.getArgument(1), function.getArgument(2), 1,
         [&](Value item) { emitItem(item); });
  func::ReturnOp::create(b, b.i32(KVCACHE_OK));
}

void MergeLowering::emitItem(Value item) {
  Value row = b.add(fields["row_begin"], b.div(item, spec.qHeads));
  Value head = b.rem(item, spec.qHeads);
  Value seq = b.loadIndex(fields["row_seq"], row);
  int64_t splitTokens = kernel.getSchedule()->getSplitTokens();
  Value count = computeSplits(b, spec, splitTokens, fields, seq).count;
  int64_t bytes = kvcache_partial_floats(v) * 4;
  Value partials = b.at(fields["workspace"],
                        b.mul(b.mul(item, fields["max_splits"]), bytes));
  Value max = maximum(partials, count);
  Value empty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, max,
                                      b.f32(-INFINITY));
  // Differences to 0 instead of -inf are no NaN; all weights are 0 then.
  Value sum = addPartials(partials, count, b.select(empty, b.f32(0.0), max));
  Value index = b.add(b.mul(row, spec.qHeads), head);
  Value safe = b.select(empty, b.f32(1.0), sum);
  writeOut(index, b.fdiv(b.f32(1.0), safe));
  Value lse = b.fmul(b.fadd(max, b.log2(safe)), b.f32(std::numbers::ln2));
  b.store(lse, b.at(fields["lse"], b.mul(index, 4)));
}

Value MergeLowering::maximum(Value partials, Value count) {
  int64_t bytes = kvcache_partial_floats(v) * 4;
  return b.loop(b.i64(0), count, 1, CpuBuilder::Values{b.f32(-INFINITY)},
                [&](Value i, ValueRange carried) {
                  Value at = b.at(partials, b.add(b.mul(i, bytes), v * 4));
                  return CpuBuilder::Values{
                      b.fmax(carried[0], b.load(b.getF32Type(), at))};
                })[0];
}

/// out = sum of weighted outputs; returns the weighted sum of l.
Value MergeLowering::addPartials(Value partials, Value count, Value max) {
  int64_t bytes = kvcache_partial_floats(v) * 4, w = b.lanes();
  int64_t padded = llvm::alignTo(v, w);
  b.loop(b.i64(0), b.i64(padded), w,
         [&](Value ch) { b.store(b.fsplat(w, 0.0), b.at(out, b.mul(ch, 4))); });
  return b.loop(
      b.i64(0), count, 1, CpuBuilder::Values{b.f32(0.0)},
      [&](Value i, ValueRange carried) {
        Value partial = b.at(partials, b.mul(i, bytes));
        Value m = b.load(b.getF32Type(), b.at(partial, v * 4));
        Value l = b.load(b.getF32Type(), b.at(partial, v * 4 + 4));
        Value weight = b.exp2(b.fsub(m, max));
        auto add = [&](Value ch, int64_t width) {
          Value place = b.at(out, b.mul(ch, 4));
          Value o = b.load(b.fvec(width), b.at(partial, b.mul(ch, 4)));
          b.store(
              b.fma(o, b.splat(weight, width), b.load(b.fvec(width), place)),
              place);
        };
        int64_t whole = v / w * w;
        b.loop(b.i64(0), b.i64(whole), w, [&](Value ch) { add(ch, w); });
        if (whole < v)
          add(b.i64(whole), v - whole);
        return CpuBuilder::Values{b.fma(l, weight, carried[0])};
      })[0];
}

void MergeLowering::writeOut(Value index, Value factor) {
  int64_t w = b.lanes(), whole = v / w * w;
  auto write = [&](Value ch, int64_t width) {
    Value x = b.load(b.fvec(width), b.at(out, b.mul(ch, 4)));
    x = b.truncate(b.fmul(x, b.splat(factor, width)), dtype);
    Value element = b.add(b.mul(index, v), ch);
    b.store(x, b.at(fields["out"], b.mul(element, bitsOf(spec.dtype) / 8)));
  };
  b.loop(b.i64(0), b.i64(whole), w, [&](Value ch) { write(ch, w); });
  if (whole < v)
    write(b.i64(whole), v - whole);
}
