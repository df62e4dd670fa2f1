//===- CpuMath.cpp - Conversions, exp2 and log2 ---------------------------===//
//
// Everything a library or a missing instruction would otherwise be called for.
//
//===----------------------------------------------------------------------===//

#include "CpuBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <numbers>

using namespace mlir;
using namespace kvcache;

static int64_t lengthOf(Value v) {
  return cast<VectorType>(v.getType()).getNumElements();
}

//===----------------------------------------------------------------------===//
// Elementary functions
//===----------------------------------------------------------------------===//

// 2^x = 2^i * 2^f with i = rint(x), |f| <= 1/2. Adding 1.5 * 2^23 rounds to an
// integer and leaves it in the low bits, from where a shift makes 2^i. 2^f is a
// polynomial with constant 1 (so exp2(0) is exactly 1), relative error 1e-7.
// Below -126.5 the result is exactly 0, -inf included.
Value CpuBuilder::exp2(Value x) {
  bool scalar = !isa<VectorType>(x.getType());
  int64_t n = scalar ? 1 : lengthOf(x);
  if (scalar)
    x = splat(x, 1);
  auto least = [&](Value a, Value b) {
    Value c = arith::CmpFOp::create(*this, arith::CmpFPredicate::OLT, a, b);
    return select(c, a, b);
  };
  // In this order of operands a NaN stays one.
  x = least(fsplat(n, 128.0), fmax(fsplat(n, -127.0), x));
  Value magic = fsplat(n, 12582912.0);
  Value shifted = fadd(x, magic);
  Value f = fsub(x, fsub(shifted, magic));
  const double c[] = {0.001326472731307149, 0.009671512991189957,
                      0.05550733581185341,  0.24022242426872253,
                      0.6931470036506653,   1.0};
  Value p = fsplat(n, c[0]);
  for (double k : ArrayRef(c).drop_front())
    p = fma(p, f, fsplat(n, k));
  Value exponent = shl(iadd(bits(shifted, ivec(n)), isplat(n, 127)), 23);
  Value result = fmul(p, bits(exponent, fvec(n)));
  return scalar ? extract(result, 0) : result;
}

// log2(x) = e + log2(m), m in [sqrt(1/2), sqrt(2)); with s = (m - 1) / (m + 1),
// log2(m) = 2 / ln(2) * (s + s^3/3 + s^5/5 + ...), |s| <= 0.172.
Value CpuBuilder::log2(Value x) {
  bool scalar = !isa<VectorType>(x.getType());
  if (scalar)
    x = splat(x, 1);
  int64_t n = lengthOf(x);
  Value raw = bits(x, ivec(n));
  // Offset so that the exponent field changes at sqrt(1/2), 0x3f3504f3.
  Value offset = iadd(raw, isplat(n, 0x3f800000 - 0x3f3504f3));
  Value e = iadd(shr(offset, 23), isplat(n, -127));
  Value mantissa = iadd(iand(offset, 0x007fffff), isplat(n, 0x3f3504f3));
  Value m = bits(mantissa, fvec(n));
  Value one = fsplat(n, 1.0);
  Value s = fdiv(fsub(m, one), fadd(m, one));
  Value z = fmul(s, s);
  Value p = fsplat(n, 1.0 / 9.0);
  for (double k : {1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0})
    p = fma(p, z, fsplat(n, k));
  Value log = fmul(fmul(s, p), fsplat(n, 2.0 * std::numbers::log2e));
  Value result = fadd(toFloat(e), log);
  return scalar ? extract(result, 0) : result;
}

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

/// f16 bits (as i32) to f32: the exponent is rebiased by a product with 2^112,
/// exact for subnormals too; infinities and NaN get the full exponent back.
Value CpuBuilder::halfToFloat(Value h) {
  int64_t n = lengthOf(h);
  Value magnitude = shl(iand(h, 0x7fff), 13);
  Value scaled = fmul(bits(magnitude, fvec(n)), fsplat(n, 0x1p112));
  Value special = arith::CmpIOp::create(*this, arith::CmpIPredicate::uge,
                                        magnitude, isplat(n, 0x7c00 << 13));
  Value result = bits(scaled, ivec(n));
  result = select(special, ior(result, isplat(n, 0xff << 23)), result);
  result = ior(result, shl(iand(h, 0x8000), 16));
  return bits(result, fvec(n));
}

/// f32 to f16 bits (as i32), round to nearest even: normal results by integer
/// rounding, subnormal ones by an addition that aligns the mantissa.
Value CpuBuilder::floatToHalf(Value x) {
  int64_t n = lengthOf(x);
  auto below = [&](Value a, int64_t bound) -> Value {
    return arith::CmpIOp::create(*this, arith::CmpIPredicate::ult, a,
                                 isplat(n, bound));
  };
  Value raw = bits(x, ivec(n));
  Value sign = iand(raw, 0x80000000);
  Value magnitude = iand(raw, 0x7fffffff);
  int64_t magic = int64_t((127 - 15) + (23 - 10) + 1) << 23;
  Value aligned =
      fadd(bits(magnitude, fvec(n)), bits(isplat(n, magic), fvec(n)));
  Value subnormal = iadd(bits(aligned, ivec(n)), isplat(n, -magic));
  Value odd = iand(shr(magnitude, 13), 1);
  int64_t rebias = (int64_t(15 - 127) * (1 << 23)) + 0xfff;
  Value normal = shr(iadd(iadd(magnitude, isplat(n, rebias)), odd), 13);
  Value finite = select(below(magnitude, 113 << 23), subnormal, normal);
  Value special = select(below(magnitude, 0x7f800001), isplat(n, 0x7c00),
                         isplat(n, 0x7e00));
  Value result = select(below(magnitude, (127 + 16) << 23), finite, special);
  return ior(result, shr(sign, 16));
}

Value CpuBuilder::extend(Value stored) {
  auto type = cast<VectorType>(stored.getType());
  int64_t n = type.getNumElements();
  if (type.getElementType().isF32())
    return stored;
  bool hardware = type.getElementType().isF16() && vectorBits >= 256;
  if (hardware)
    return arith::ExtFOp::create(*this, fvec(n), stored);
  Value raw = arith::ExtUIOp::create(*this, ivec(n),
                                     bits(stored, vec(n, getIntegerType(16))));
  if (type.getElementType().isBF16())
    return bits(shl(raw, 16), fvec(n));
  return halfToFloat(raw);
}

Value CpuBuilder::truncate(Value x, Type element) {
  int64_t n = lengthOf(x);
  if (element.isF32())
    return x;
  if (element.isF16() && vectorBits >= 256)
    return arith::TruncFOp::create(*this, vec(n, element), x);
  Value raw;
  if (element.isBF16()) {
    // Round to nearest even; a NaN does not occur (results are finite).
    raw = bits(x, ivec(n));
    Value odd = iand(shr(raw, 16), 1);
    raw = shr(iadd(iadd(raw, isplat(n, 0x7fff)), odd), 16);
  } else {
    raw = floatToHalf(x);
  }
  Value narrow =
      arith::TruncIOp::create(*this, vec(n, getIntegerType(16)), raw);
  return bits(narrow, vec(n, element));
}

Value CpuBuilder::loadFloats(Type element, Value ptr, int64_t n) {
  return extend(load(vec(n, element), ptr));
}

Value CpuBuilder::loadFloatSplat(Type element, Value ptr, int64_t n) {
  if (element.isF32())
    return loadSplat(ptr, n);
  return splat(extract(extend(load(vec(1, element), ptr)), 0), n);
}
