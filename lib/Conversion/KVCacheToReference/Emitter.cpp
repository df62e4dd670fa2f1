//===- Emitter.cpp - Short names for plain loops --------------------------===//
#include "kvcache/Conversion/KVCacheToReference/Emitter.h"

using namespace kvcache;
using namespace mlir;

Value Emitter::toFloat(Value v, FloatType type) {
  unsigned have = cast<FloatType>(v.getType()).getWidth();
  if (v.getType() == type)
    return v;
  if (have < type.getWidth())
    return arith::ExtFOp::create(*this, type, v);
  if (have > type.getWidth()) {
    // f64 goes to a narrow float through f32: libgcc's direct conversions are
    // not everywhere, and the reference does not hang on the last half ulp.
    if (have == 64 && type.getWidth() < 32)
      v = arith::TruncFOp::create(*this, getF32Type(), v);
    return arith::TruncFOp::create(*this, type, v);
  }
  // f16 <-> bf16
  return toFloat(arith::ExtFOp::create(*this, getF32Type(), v), type);
}

Value Emitter::empty(RankedTensorType type, ValueRange sizes) {
  Values dynamic;
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (type.isDynamicDim(i))
      dynamic.push_back(sizes[i]);
  return tensor::EmptyOp::create(*this, type, dynamic);
}

Values Emitter::sizesOf(Value tensor) {
  Values sizes;
  for (int64_t i = 0, e = cast<RankedTensorType>(tensor.getType()).getRank();
       i < e; ++i)
    sizes.push_back(dim(tensor, i));
  return sizes;
}

Values Emitter::loop(Value lo, Value hi, ValueRange init,
                     function_ref<Values(Value, ValueRange)> body) {
  auto op = scf::ForOp::create(*this, lo, hi, index(1), init);
  OpBuilder::InsertionGuard guard(*this);
  // A loop without carried values already has its terminator.
  if (init.empty())
    setInsertionPoint(op.getBody()->getTerminator());
  else
    setInsertionPointToStart(op.getBody());
  Values results = body(op.getInductionVar(), op.getRegionIterArgs());
  if (!init.empty())
    scf::YieldOp::create(*this, results);
  return op.getResults();
}

static Values nest(Emitter &e, ValueRange sizes, Values &indices,
                   ValueRange init,
                   function_ref<Values(ValueRange, ValueRange)> body) {
  if (indices.size() == sizes.size())
    return body(indices, init);
  return e.loop(e.index(0), sizes[indices.size()], init,
                [&](Value i, ValueRange carried) {
                  indices.push_back(i);
                  Values results = nest(e, sizes, indices, carried, body);
                  indices.pop_back();
                  return results;
                });
}

Values Emitter::loops(ValueRange sizes, ValueRange init,
                      function_ref<Values(ValueRange, ValueRange)> body) {
  Values indices;
  return nest(*this, sizes, indices, init, body);
}

Values Emitter::branch(Value c, function_ref<Values()> then,
                       function_ref<Values()> otherwise) {
  auto build = [&](function_ref<Values()> body) {
    return [this, body](OpBuilder &b, Location) {
      OpBuilder::InsertionGuard guard(*this);
      restoreInsertionPoint(b.saveInsertionPoint());
      scf::YieldOp::create(*this, body());
    };
  };
  auto op = scf::IfOp::create(*this, c, build(then), build(otherwise));
  return op.getResults();
}
