//===- SoftmaxSteps.cpp - Pieces of online softmax ------------------------===//
#include "SoftmaxSteps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>
#include <numbers>

using namespace mlir;

Value kvcache::splatOf(ImplicitLocOpBuilder &b, RankedTensorType type,
                       double x) {
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(type, b.getF32FloatAttr(x)));
}

Value kvcache::cappedScores(ImplicitLocOpBuilder &b, Value score, double scale,
                            std::optional<double> softcap, double unit) {
  auto acc = cast<RankedTensorType>(score.getType());
  if (!softcap)
    return arith::MulFOp::create(b, score, splatOf(b, acc, scale * unit));
  // c * tanh(y) with y = scale * score / c: tanh|y| = (1 - e) / (1 + e) with
  // e = 2^(-2 |y| log2(e)), which neither overflows nor needs tanh.
  double c = *softcap;
  Value magnitude = math::AbsFOp::create(b, score);
  Value exponent = arith::MulFOp::create(
      b, magnitude,
      splatOf(b, acc, -2.0 * std::abs(scale) / c * std::numbers::log2e));
  Value e = math::Exp2Op::create(b, exponent);
  Value one = splatOf(b, acc, 1.0);
  Value tanh = arith::DivFOp::create(b, arith::SubFOp::create(b, one, e),
                                     arith::AddFOp::create(b, one, e));
  double factor = (scale < 0 ? -c : c) * unit;
  return arith::MulFOp::create(b, math::CopySignOp::create(b, tanh, score),
                               splatOf(b, acc, factor));
}

Value kvcache::guardedMaximum(ImplicitLocOpBuilder &b, Value max) {
  auto rows = cast<RankedTensorType>(max.getType());
  Value empty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, max,
                                      splatOf(b, rows, -INFINITY));
  return arith::SelectOp::create(b, empty, splatOf(b, rows, 0.0), max);
}
