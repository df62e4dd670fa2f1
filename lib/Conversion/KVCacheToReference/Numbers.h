//===- Numbers.h - IR values as the numbers of Image.h and Codec.h -*- C++
//-*-===//
//
// Page geometry and coding formulas are templates over number types; these are
// the ones whose operations emit arith ops. Each carries its builder.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVCACHETOREFERENCE_NUMBERS_H
#define KVCACHE_LIB_CONVERSION_KVCACHETOREFERENCE_NUMBERS_H

#include "Emitter.h"

#include "mlir/Dialect/Math/IR/Math.h"

namespace kvcache::ir {

/// A non-negative index: what Image.h computes with.
struct Index {
  Emitter *e;
  mlir::Value v;
};
inline Index operator+(Index a, Index b) { return {a.e, a.e->add(a.v, b.v)}; }
inline Index operator+(Index a, int64_t b) {
  return {a.e, a.e->add(a.v, a.e->index(b))};
}
inline Index operator+(int64_t a, Index b) { return b + a; }
inline Index operator*(Index a, int64_t b) {
  return {a.e, a.e->mul(a.v, a.e->index(b))};
}
inline Index operator/(Index a, int64_t b) { return {a.e, a.e->div(a.v, b)}; }
inline Index operator%(Index a, int64_t b) { return {a.e, a.e->mod(a.v, b)}; }
inline Index selectLess(Index a, int64_t bound, Index x, Index y) {
  return {a.e, a.e->select(a.e->lt(a.v, a.e->index(bound)), x.v, y.v)};
}

/// The 32 bits of a Float.
struct Word {
  Emitter *e;
  mlir::Value v;
};
/// An f32.
struct Float {
  Emitter *e;
  mlir::Value v;
};
struct Bool {
  Emitter *e;
  mlir::Value v;
};

inline Word like(Word x, uint32_t c) {
  return {x.e, mlir::arith::ConstantOp::create(
                   *x.e, x.e->getI32IntegerAttr(static_cast<int32_t>(c)))};
}
inline Float like(Float x, float c) { return {x.e, x.e->f32(c)}; }

template <typename OpTy>
Word word(Word a, Word b) {
  return {a.e, a.e->createOrFold<OpTy>(a.v, b.v)};
}
#define KVCACHE_WORD_OPERATOR(op, OpTy)                                        \
  inline Word operator op(Word a, Word b) { return word<OpTy>(a, b); }         \
  inline Word operator op(Word a, uint32_t b) {                                \
    return word<OpTy>(a, like(a, b));                                          \
  }
KVCACHE_WORD_OPERATOR(+, mlir::arith::AddIOp)
KVCACHE_WORD_OPERATOR(-, mlir::arith::SubIOp)
KVCACHE_WORD_OPERATOR(&, mlir::arith::AndIOp)
KVCACHE_WORD_OPERATOR(|, mlir::arith::OrIOp)
KVCACHE_WORD_OPERATOR(<<, mlir::arith::ShLIOp)
KVCACHE_WORD_OPERATOR(>>, mlir::arith::ShRUIOp)
#undef KVCACHE_WORD_OPERATOR

inline Float operator+(Float a, Float b) { return {a.e, a.e->addF(a.v, b.v)}; }
inline Float operator-(Float a, Float b) { return {a.e, a.e->subF(a.v, b.v)}; }
inline Float operator*(Float a, Float b) { return {a.e, a.e->mulF(a.v, b.v)}; }
inline Float operator/(Float a, Float b) { return {a.e, a.e->divF(a.v, b.v)}; }

inline Word toBits(Float x) {
  return {x.e, mlir::arith::BitcastOp::create(*x.e, x.e->getI32Type(), x.v)};
}
inline Float fromBits(Word x) {
  return {x.e, mlir::arith::BitcastOp::create(*x.e, x.e->getF32Type(), x.v)};
}
inline Bool lessThan(Float a, Float b) {
  return {a.e, a.e->cmp(mlir::arith::CmpFPredicate::OLT, a.v, b.v)};
}
inline Bool lessThan(Word a, Word b) {
  return {a.e, a.e->cmp(mlir::arith::CmpIPredicate::ult, a.v, b.v)};
}
inline Bool equals(Float a, Float b) {
  return {a.e, a.e->cmp(mlir::arith::CmpFPredicate::OEQ, a.v, b.v)};
}
inline Bool equals(Word a, Word b) {
  return {a.e, a.e->cmp(mlir::arith::CmpIPredicate::eq, a.v, b.v)};
}
inline Float select(Bool c, Float a, Float b) {
  return {a.e, a.e->select(c.v, a.v, b.v)};
}
inline Word select(Bool c, Word a, Word b) {
  return {a.e, a.e->select(c.v, a.v, b.v)};
}
inline Float multiplyAdd(Float a, Float b, Float c) {
  return {a.e, mlir::math::FmaOp::create(*a.e, a.v, b.v, c.v)};
}
inline Float roundEven(Float x) {
  return {x.e, mlir::math::RoundEvenOp::create(*x.e, x.v)};
}
inline Float absolute(Float x) {
  return {x.e, mlir::math::AbsFOp::create(*x.e, x.v)};
}
inline Word toInteger(Float x) {
  return {x.e, mlir::arith::FPToUIOp::create(*x.e, x.e->getI32Type(), x.v)};
}
inline Float toFloat(Word x) {
  return {x.e, mlir::arith::UIToFPOp::create(*x.e, x.e->getF32Type(), x.v)};
}

} // namespace kvcache::ir

#endif // KVCACHE_LIB_CONVERSION_KVCACHETOREFERENCE_NUMBERS_H
