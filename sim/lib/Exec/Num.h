//===- Num.h - Float formats and correctly rounded helpers ------*- C++ -*-===//
//
// Conversions written as integer arithmetic so that loops over lanes vectorise
// and no tier depends on library calls. Directed rounding goes through f64 and
// round-to-odd: a result that is rounded to odd at 53 bits can be rounded again
// to at most 51 bits in any mode without error.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_NUM_H
#define KVCACHE_SIM_EXEC_NUM_H

#include "Lanes.h"
#include <cfenv>
#include <limits>

namespace kvcache::sim::KVSIM_TIER {

enum class Round : uint8_t { Nearest, Zero, Down, Up, Away, Odd };

inline float f16ToF32(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, em = h & 0x7fff;
  // Scale by 2^112 turns f16's exponent into f32's, subnormals included.
  float v = bitcast<float>(em << 13) * bitcast<float>(0x77800000u);
  uint32_t b = bitcast<uint32_t>(v);
  b = em >= 0x7c00 ? (em << 13) | 0x7f800000u : b;
  return bitcast<float>(b | sign);
}

inline uint16_t f32ToF16(float f) {
  uint32_t x = bitcast<uint32_t>(f), sign = x >> 16 & 0x8000;
  x &= 0x7fffffff;
  // Subnormal results: adding 0.5 aligns the bits and rounds to even.
  uint32_t sub = bitcast<uint32_t>(bitcast<float>(x) + 0.5f) - 0x3f000000u;
  uint32_t nor = (x + 0xfff + (x >> 13 & 1) - 0x38000000u) >> 13;
  uint32_t r = x < 0x38800000u ? sub : nor;
  r = x >= 0x477ff000u ? 0x7c00u : r;
  r = x > 0x7f800000u ? 0x7fffu : r;
  return uint16_t(r | (x > 0x7f800000u ? 0 : sign));
}

inline float bf16ToF32(uint16_t h) { return bitcast<float>(uint32_t(h) << 16); }

inline uint16_t f32ToBf16(float f) {
  uint32_t x = bitcast<uint32_t>(f);
  uint32_t r = (x + 0x7fff + (x >> 16 & 1)) >> 16;
  return uint16_t((x & 0x7fffffff) > 0x7f800000u ? 0x7fff : r);
}

inline float flush(float f) {
  uint32_t x = bitcast<uint32_t>(f);
  return (x & 0x7f800000u) ? f : bitcast<float>(x & 0x80000000u);
}
inline float saturate(float f) { // NaN to +0
  return f > 0.0f ? (f < 1.0f ? f : 1.0f) : 0.0f;
}
inline double saturate(double f) { return f > 0 ? (f < 1 ? f : 1.0) : 0.0; }
inline float canonical(float f) {
  return f != f ? bitcast<float>(0x7fffffffu) : f;
}

/// a + b rounded to odd in f64.
inline double addOdd(double a, double b) {
  double s = a + b;
  if (!std::isfinite(s))
    return s;
  double bb = s - a, err = (a - (s - bb)) + (b - bb);
  uint64_t bits = bitcast<uint64_t>(s);
  if (err != 0 && !(bits & 1)) {
    bool away = (err > 0) == (s > 0);
    if (s == 0)
      return err;
    bits = away ? bits + 1 : bits - 1;
    return bitcast<double>(bits);
  }
  return s;
}

/// Rounds a real, given to odd at 53 bits, to a format of `mant` mantissa bits
/// (without the hidden one) and minimum exponent `emin` of normals.
inline double roundTo(double v, int mant, int emin, Round mode) {
  if (v == 0 || !std::isfinite(v))
    return v;
  int e;
  std::frexp(v, &e); // v = m * 2^e, 0.5 <= m < 1
  int lsb = (e - 1 < emin ? emin : e - 1) - mant;
  double q = std::ldexp(v, -lsb);
  double r;
  switch (mode) {
  case Round::Zero:
    r = std::trunc(q);
    break;
  case Round::Down:
    r = std::floor(q);
    break;
  case Round::Up:
    r = std::ceil(q);
    break;
  case Round::Away: // ties away from zero
    r = std::trunc(q + std::copysign(0.5, q));
    if (std::fabs(q - std::trunc(q)) < 0.5)
      r = std::trunc(q);
    break;
  default:
    r = std::nearbyint(q);
    break;
  }
  r = std::ldexp(r, lsb);
  return r == 0 ? std::copysign(0.0, v) : r;
}

/// To f32 in a directed mode, overflow included.
inline float toF32(double v, Round mode) {
  if (mode == Round::Nearest || !std::isfinite(v))
    return float(v);
  double r = roundTo(v, 23, -126, mode);
  const double big = 3.4028234663852886e38;
  if (std::fabs(r) > big) {
    bool up = r > 0;
    bool inf = mode == Round::Up     ? up
               : mode == Round::Down ? !up
                                     : mode == Round::Away;
    return float(std::copysign(inf ? INFINITY : big, r));
  }
  return float(r);
}

/// fp8: e4m3 (no infinity, NaN 0x7f) and e5m2.
float e4m3ToF32(uint8_t v);
float e5m2ToF32(uint8_t v);
inline float e5m2ToF32(uint8_t v) { return f16ToF32(uint16_t(v) << 8); }
inline float e4m3ToF32(uint8_t v) {
  uint32_t sign = uint32_t(v & 0x80) << 24, em = v & 0x7f;
  float f = bitcast<float>(em << 20) * bitcast<float>(0x7b800000u); // 2^120
  uint32_t b = em == 0x7f ? 0x7fffffffu : bitcast<uint32_t>(f) | sign;
  return bitcast<float>(b);
}
uint8_t f32ToE4m3(float f, bool relu, Round mode = Round::Nearest);
uint8_t f32ToE5m2(float f, bool relu, Round mode = Round::Nearest);

/// tf32 as the tensor core reads it: the low 13 bits are ignored.
inline float tf32(uint32_t b) { return bitcast<float>(b & 0xffffe000u); }

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_NUM_H
