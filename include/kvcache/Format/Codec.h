//===- Codec.h - How values become codes and back ---------------*- C++ -*-===//
//
// The formulas of encoding and decoding, once, as templates over a number type
// `F`: plain float here (kv.quantize, tests), an IR value wrapper in the code
// generators (a scalar or a vector of f32). Everything is f32 with IEEE
// division, rounding half to even and one fma per decoded value, so every
// backend gets the same bits.
//
// What `F` and its integer companion `I` (the 32 bits of an F) need: + - * / of
// F with F; + - & | << >> of I with I or uint32_t; and the functions of the
// section "Vocabulary", found by argument-dependent lookup.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_FORMAT_CODEC_H
#define KVCACHE_FORMAT_CODEC_H

#include "kvcache/Format/Format.h"

#include <cmath>
#include <cstring>

namespace kvcache::codec {

//===----------------------------------------------------------------------===//
// Vocabulary, for plain floats
//===----------------------------------------------------------------------===//

inline uint32_t toBits(float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  return b;
}
inline float fromBits(uint32_t b) {
  float x;
  std::memcpy(&x, &b, 4);
  return x;
}
/// The constant `c` as whatever `x` is.
inline float like(float, float c) { return c; }
inline uint32_t like(uint32_t, uint32_t c) { return c; }

inline bool lessThan(float a, float b) { return a < b; }
inline bool lessThan(uint32_t a, uint32_t b) { return a < b; }
inline bool equals(float a, float b) { return a == b; }
inline bool equals(uint32_t a, uint32_t b) { return a == b; }
template <typename T>
T select(bool c, T a, T b) {
  return c ? a : b;
}
inline float multiplyAdd(float a, float b, float c) {
  return std::fma(a, b, c);
}
/// The same where f32 holds a * b exactly.
inline float multiplyAddExact(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float roundEven(float x) { return std::nearbyint(x); }
inline float absolute(float x) { return fromBits(toBits(x) & 0x7fffffffu); }
/// A whole, non-negative number below 2^31, and back.
inline uint32_t toInteger(float x) { return static_cast<uint32_t>(x); }
inline float toFloat(uint32_t i) { return static_cast<float>(i); }

template <typename F>
using Bits = decltype(toBits(std::declval<F>()));

/// min and max of numbers; a NaN in `a` is dropped.
template <typename F>
F smaller(F a, F b) {
  return select(lessThan(a, b), a, b);
}
template <typename F>
F larger(F a, F b) {
  return select(lessThan(b, a), a, b);
}

//===----------------------------------------------------------------------===//
// Narrow floats, by integer arithmetic: neither libgcc's conversion functions
// nor F16C are needed. Round to nearest even; NaN stays NaN, f16 overflow is
// inf.
//===----------------------------------------------------------------------===//

template <typename F>
Bits<F> expandF32ToF16(F x) {
  auto bits = toBits(x);
  auto abs = bits & 0x7fffffffu;
  auto sign = (bits >> 16) & 0x8000u;
  // Normal result: rebias the exponent, round by adding half an ulp less one,
  // plus the lowest kept bit.
  auto odd = (abs >> 13) & 1u;
  auto normal = (abs + odd + (0u - (112u << 23) + 0xfffu)) >> 13;
  // Subnormal result: adding 0.5 lets the f32 adder do the rounding.
  F half = like(x, 0.5f);
  auto subnormal = toBits(fromBits(abs) + half) - 0x3f000000u;
  auto small = select(lessThan(abs, like(abs, 0x38800000u)), subnormal, normal);
  auto special = select(lessThan(like(abs, 0x7f800000u), abs),
                        like(abs, 0x7e00u), like(abs, 0x7c00u));
  return sign | select(lessThan(abs, like(abs, 0x47800000u)), small, special);
}

/// `h` holds the 16 bits, upper bits zero.
template <typename I>
auto expandF16ToF32(I h) {
  auto shifted = (h & 0x7fffu) << 13;
  auto exponent = shifted & (0x7c00u << 13);
  auto normal = shifted + (112u << 23);
  auto special = shifted + (224u << 23);
  // Subnormal: put the fraction under an implicit one, subtract that one.
  auto magic = fromBits(shifted + (113u << 23));
  auto subnormal = toBits(magic - like(magic, fromBits(113u << 23)));
  auto finite = select(equals(exponent, like(h, 0u)), subnormal, normal);
  auto abs = select(equals(exponent, like(h, 0x7c00u << 13)), special, finite);
  return fromBits(abs | ((h & 0x8000u) << 16));
}

template <typename F>
Bits<F> f32ToF16Bits(F x) {
  return expandF32ToF16(x);
}
template <typename I>
auto f16BitsToF32(I h) {
  return expandF16ToF32(h);
}
template <typename F>
Bits<F> f32ToBF16Bits(F x) {
  auto bits = toBits(x);
  auto rounded = (bits + ((bits >> 16) & 1u) + 0x7fffu) >> 16;
  auto nan = (bits >> 16) | 0x40u;
  return select(lessThan(like(bits, 0x7f800000u), bits & 0x7fffffffu), nan,
                rounded);
}
template <typename I>
auto bf16BitsToF32(I b) {
  return fromBits(b << 16);
}

/// The bits that store `x` in a float element, in the low end of the word.
template <typename F>
Bits<F> toElementBits(Element e, F x) {
  return e == Element::F16    ? f32ToF16Bits(x)
         : e == Element::BF16 ? f32ToBF16Bits(x)
                              : toBits(x);
}
template <typename I>
auto fromElementBits(Element e, I bits) {
  return e == Element::F16    ? f16BitsToF32(bits)
         : e == Element::BF16 ? bf16BitsToF32(bits)
                              : fromBits(bits);
}
inline Element elementOf(ScaleType t) {
  return t == ScaleType::F16    ? Element::F16
         : t == ScaleType::BF16 ? Element::BF16
                                : Element::F32;
}

/// S(x): `x` as the scale type stores it.
template <typename F>
F stored(ScaleType t, F x) {
  return t == ScaleType::F32
             ? x
             : fromElementBits(elementOf(t), toElementBits(elementOf(t), x));
}

//===----------------------------------------------------------------------===//
// Integer codes
//===----------------------------------------------------------------------===//

/// The largest code: 2^b - 1 asymmetric, 2^(b-1) - 1 symmetric.
inline int64_t largestCode(const Encoding &e) {
  unsigned bits = bitsOf(e.element) - (e.asymmetric ? 0 : 1);
  return (int64_t(1) << bits) - 1;
}
/// What is added to a symmetric code to store it unsigned.
inline int64_t codeBias(const Encoding &e) {
  return e.asymmetric ? 0 : int64_t(1) << (bitsOf(e.element) - 1);
}

/// A group's scale and zero, rounded to the scale type. Both get + 0.0, which
/// turns -0 into +0: the order in which a minimum is taken must not show.
template <typename F>
struct ScaleZero {
  F scale, zero;
};
template <typename F>
ScaleZero<F> fromRange(const Encoding &e, F min, F max) {
  F n = like(min, static_cast<float>(largestCode(e)));
  F plus = like(min, 0.0f);
  return {stored(e.scaleType, (max - min) / n) + plus,
          stored(e.scaleType, min) + plus};
}
template <typename F>
F fromAbsMax(const Encoding &e, F absmax) {
  float n = e.element == Element::E4M3   ? 448.0f
            : e.element == Element::E5M2 ? 57344.0f
                                         : static_cast<float>(largestCode(e));
  return stored(e.scaleType, absmax / like(absmax, n));
}

/// The stored (unsigned) code of `x`; `zero` is ignored by symmetric encodings.
template <typename F>
Bits<F> encode(const Encoding &e, F x, F scale, F zero) {
  float n = static_cast<float>(largestCode(e));
  F q = roundEven((e.asymmetric ? x - zero : x) / scale);
  q = larger(smaller(q, like(x, n)), like(x, e.asymmetric ? 0.0f : -n));
  q = select(equals(scale, like(x, 0.0f)), like(x, 0.0f), q);
  if (!e.asymmetric)
    q = q + like(x, static_cast<float>(codeBias(e)));
  return toInteger(q);
}

template <typename F>
F decode(const Encoding &e, Bits<F> code, F scale, F zero) {
  // A code has at most 8 bits and a 16-bit scale at most 11.
  if (e.asymmetric)
    return e.scaleType == ScaleType::F32
               ? multiplyAdd(toFloat(code), scale, zero)
               : multiplyAddExact(toFloat(code), scale, zero);
  return (toFloat(code) - like(scale, static_cast<float>(codeBias(e)))) * scale;
}

//===----------------------------------------------------------------------===//
// What may be stored
//===----------------------------------------------------------------------===//

/// The largest |x| that `append` accepts for this encoding; what is above it
/// (or not a number) is refused, so that sealing cannot fail. That is a scale,
/// zero or narrower element would overflow, or the range or a decoded value f32
/// itself. The largest finite f32 if nothing can overflow (static scales).
float largestAccepted(const Encoding &e);

/// fp8 (e4m3 or e5m2): saturating, half to even, NaN to NaN; and back.
uint8_t toFp8(Element e, float x);
float fromFp8(Element e, uint8_t code);

} // namespace kvcache::codec

#endif // KVCACHE_FORMAT_CODEC_H
