//===- IRNumbers.cpp - IR values that compute like numbers ----------------===//
#include "kvcache/Conversion/IRNumbers.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::ir;

/// `type` with another element type.
static Type withElement(Type type, Type element) {
  if (auto v = dyn_cast<VectorType>(type))
    return VectorType::get(v.getShape(), element);
  return element;
}

template <typename Op, typename N>
static N binary(N a, N b) {
  return {*a.env, a.env->builder.template createOrFold<Op>(a.env->loc, a.value,
                                                           b.value)};
}
template <typename Op>
static Value unary(Env &env, Type type, Value a) {
  return env.builder.template createOrFold<Op>(env.loc, type, a);
}

static Value constantOf(Env &env, Type type, TypedAttr element) {
  TypedAttr attr = element;
  if (auto v = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(v, element);
  return arith::ConstantOp::create(env.builder, env.loc, attr);
}

Int ir::constant(Env &env, Type type, int64_t c) {
  Type element = getElementTypeOrSelf(type);
  unsigned width = element.isIndex() ? 64 : element.getIntOrFloatBitWidth();
  APInt bits = APInt(64, static_cast<uint64_t>(c)).zextOrTrunc(width);
  return {env, constantOf(env, type, IntegerAttr::get(element, bits))};
}
Float ir::constantF(Env &env, Type type, float c) {
  return {env, constantOf(env, type, env.builder.getF32FloatAttr(c))};
}
Int ir::i32(Env &env, int64_t c) {
  return constant(env, env.builder.getI32Type(), c);
}
Int ir::i64(Env &env, int64_t c) {
  return constant(env, env.builder.getI64Type(), c);
}

template <typename Op>
static Int wrapping(Int a, Int b) {
  auto flags = a.env->noWrap ? arith::IntegerOverflowFlags::nsw |
                                   arith::IntegerOverflowFlags::nuw
                             : arith::IntegerOverflowFlags::none;
  return {*a.env, a.env->builder.template createOrFold<Op>(a.env->loc, a.value,
                                                           b.value, flags)};
}

#define KV_INT_OPERATOR(OP, ARITH, MAKE)                                       \
  Int ir::operator OP(Int a, Int b) { return MAKE<arith::ARITH>(a, b); }       \
  Int ir::operator OP(Int a, int64_t b) {                                      \
    return a OP constant(*a.env, a.type(), b);                                 \
  }
KV_INT_OPERATOR(+, AddIOp, wrapping)
KV_INT_OPERATOR(-, SubIOp, binary)
KV_INT_OPERATOR(*, MulIOp, wrapping)
KV_INT_OPERATOR(/, DivUIOp, binary)
KV_INT_OPERATOR(%, RemUIOp, binary)
KV_INT_OPERATOR(&, AndIOp, binary)
KV_INT_OPERATOR(|, OrIOp, binary)
KV_INT_OPERATOR(<<, ShLIOp, binary)
KV_INT_OPERATOR(>>, ShRUIOp, binary)
#undef KV_INT_OPERATOR

Float ir::operator+(Float a, Float b) { return binary<arith::AddFOp>(a, b); }
Float ir::operator-(Float a, Float b) { return binary<arith::SubFOp>(a, b); }
Float ir::operator*(Float a, Float b) { return binary<arith::MulFOp>(a, b); }
Float ir::operator/(Float a, Float b) { return binary<arith::DivFOp>(a, b); }
Bool ir::operator&(Bool a, Bool b) { return binary<arith::AndIOp>(a, b); }
Bool ir::operator|(Bool a, Bool b) { return binary<arith::OrIOp>(a, b); }

static Value splatValue(Env &env, Value scalar, int64_t lanes) {
  OpBuilder &b = env.builder;
  Type type = VectorType::get({lanes}, scalar.getType());
  Value v = LLVM::PoisonOp::create(b, env.loc, type);
  v = LLVM::InsertElementOp::create(b, env.loc, v, scalar, i32(env, 0).value);
  SmallVector<int32_t> zeros(lanes, 0);
  return LLVM::ShuffleVectorOp::create(b, env.loc, v, v, zeros);
}
Int ir::splat(Int scalar, int64_t lanes) {
  return {*scalar.env, splatValue(*scalar.env, scalar, lanes)};
}
Float ir::splat(Float scalar, int64_t lanes) {
  return {*scalar.env, splatValue(*scalar.env, scalar, lanes)};
}
Int ir::lanesOf(Env &env, ArrayRef<int32_t> values) {
  auto type = VectorType::get({static_cast<int64_t>(values.size())},
                              env.builder.getI32Type());
  return {env, arith::ConstantOp::create(env.builder, env.loc,
                                         DenseElementsAttr::get(type, values))};
}

Int ir::toWidth(Int a, unsigned bits) {
  Type to =
      withElement(a.type(), IntegerType::get(a.type().getContext(), bits));
  unsigned from = getElementTypeOrSelf(a.type()).getIntOrFloatBitWidth();
  if (from == bits)
    return a;
  return {*a.env, from < bits ? unary<arith::ExtUIOp>(*a.env, to, a)
                              : unary<arith::TruncIOp>(*a.env, to, a)};
}

Int ir::toBits(Float x) {
  Type to = withElement(x.type(), x.env->builder.getI32Type());
  return {*x.env, unary<arith::BitcastOp>(*x.env, to, x)};
}
Float ir::fromBits(Int bits) {
  Type to = withElement(bits.type(), bits.env->builder.getF32Type());
  return {*bits.env, unary<arith::BitcastOp>(*bits.env, to, bits)};
}
Float ir::like(Float x, float c) { return constantF(*x.env, x.type(), c); }
Int ir::like(Int x, uint32_t c) {
  return constant(*x.env, x.type(), int64_t(c));
}

static Bool compare(Float a, Float b, arith::CmpFPredicate p) {
  return {*a.env, a.env->builder.template createOrFold<arith::CmpFOp>(
                      a.env->loc, p, a.value, b.value)};
}
static Bool compare(Int a, Int b, arith::CmpIPredicate p) {
  return {*a.env, a.env->builder.template createOrFold<arith::CmpIOp>(
                      a.env->loc, p, a.value, b.value)};
}
Bool ir::lessThan(Float a, Float b) {
  return compare(a, b, arith::CmpFPredicate::OLT);
}
Bool ir::lessThan(Int a, Int b) {
  return compare(a, b, arith::CmpIPredicate::ult);
}
Bool ir::equals(Float a, Float b) {
  return compare(a, b, arith::CmpFPredicate::OEQ);
}
Bool ir::equals(Int a, Int b) {
  return compare(a, b, arith::CmpIPredicate::eq);
}

template <typename N>
static N choose(Bool c, N a, N b) {
  return {*a.env, a.env->builder.template createOrFold<arith::SelectOp>(
                      a.env->loc, c.value, a.value, b.value)};
}
Int ir::select(Bool c, Int a, Int b) { return choose(c, a, b); }
Float ir::select(Bool c, Float a, Float b) { return choose(c, a, b); }
Int ir::selectLess(Int a, int64_t bound, Int x, Int y) {
  return select(lessThan(a, constant(*a.env, a.type(), bound)), x, y);
}

/// fma through f64: the product of two f32 is exact there; the sum is rounded
/// to odd (its error decides the last bit), so that rounding again to f32 is
/// right.
static Value fmaThroughF64(Env &env, Value a, Value b, Value c) {
  OpBuilder &builder = env.builder;
  Type f64 = withElement(a.getType(), builder.getF64Type());
  Type i64 = withElement(a.getType(), builder.getI64Type());
  auto wide = [&](Value v) { return unary<arith::ExtFOp>(env, f64, v); };
  auto add = [&](Value x, Value y) -> Value {
    return arith::AddFOp::create(builder, env.loc, x, y);
  };
  auto sub = [&](Value x, Value y) -> Value {
    return arith::SubFOp::create(builder, env.loc, x, y);
  };
  Value p = arith::MulFOp::create(builder, env.loc, wide(a), wide(b));
  Value z = wide(c), s = add(p, z);
  // Two-sum: s + e == p + z exactly.
  Value t = sub(s, p);
  Value e = add(sub(p, sub(s, t)), sub(z, t));
  Value zero = constantOf(env, f64, builder.getF64FloatAttr(0.0));
  Int bits(env, unary<arith::BitcastOp>(env, i64, s));
  Int errorBits(env, unary<arith::BitcastOp>(env, i64, e));
  Bool inexact(env, arith::CmpFOp::create(builder, env.loc,
                                          arith::CmpFPredicate::ONE, e, zero));
  Int one = constant(env, i64, 1);
  Bool even = equals(bits & 1, constant(env, i64, 0));
  Bool sameSign = equals(bits >> 63, errorBits >> 63);
  Int odd = select(sameSign, bits + one, bits - one);
  bits = select(inexact & even, odd, bits);
  Value rounded = unary<arith::BitcastOp>(env, f64, bits);
  return unary<arith::TruncFOp>(env, a.getType(), rounded);
}

Float ir::multiplyAdd(Float a, Float b, Float c) {
  Env &env = *a.env;
  if (env.nativeFma)
    return {env, math::FmaOp::create(env.builder, env.loc, a.value, b.value,
                                     c.value)};
  return {env, fmaThroughF64(env, a, b, c)};
}
Float ir::multiplyAddExact(Float a, Float b, Float c) {
  return a.env->nativeFma ? multiplyAdd(a, b, c) : a * b + c;
}
Float ir::roundEven(Float x) {
  return {*x.env,
          math::RoundEvenOp::create(x.env->builder, x.env->loc, x.value)};
}
Float ir::absolute(Float x) { return fromBits(toBits(x) & 0x7fffffff); }

Int ir::toInteger(Float x) {
  Type to = withElement(x.type(), x.env->builder.getI32Type());
  return {*x.env, unary<arith::FPToSIOp>(*x.env, to, x)};
}
Float ir::toFloat(Int i) {
  // Codes are small and non-negative, so the signed conversion will do.
  Type to = withElement(i.type(), i.env->builder.getF32Type());
  return {*i.env, unary<arith::SIToFPOp>(*i.env, to, i)};
}

Int ir::f32ToF16Bits(Float x) {
  Env &env = *x.env;
  if (!env.nativeF16)
    return codec::expandF32ToF16(x);
  Type f16 = withElement(x.type(), env.builder.getF16Type());
  Type i16 = withElement(x.type(), env.builder.getI16Type());
  Value half = unary<arith::TruncFOp>(env, f16, x);
  return toWidth(Int(env, unary<arith::BitcastOp>(env, i16, half)), 32);
}
Float ir::f16BitsToF32(Int h) {
  Env &env = *h.env;
  if (!env.nativeF16)
    return codec::expandF16ToF32(h);
  Type f16 = withElement(h.type(), env.builder.getF16Type());
  Type f32 = withElement(h.type(), env.builder.getF32Type());
  Value half = unary<arith::BitcastOp>(env, f16, toWidth(h, 16));
  return {env, unary<arith::ExtFOp>(env, f32, half)};
}
