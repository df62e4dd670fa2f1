//===- ExecSpecial.cpp - ex2, lg2, sin, cos, tanh -------------------------===//
//
// Computed in f64 and rounded once (correct to f32 within 0.51 ulp), far inside
// the ISA's bounds; `perturb` moves results as far as those allow.
//
//===----------------------------------------------------------------------===//
#include "Approx.h"

namespace kvcache::sim::KVSIM_TIER {

/// 2^x by a polynomial in f64: |error| < 1e-13, so that loops vectorise.
static inline float exp2f64(float f) {
  double x = f;
  x = x > 1100 ? 1100 : x;
  x = x < -1100 ? -1100 : x;
  double n = __builtin_rint(x), r = (x - n) * 0.69314718055994530942;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // n is within +-1100: scale in two steps to stay among normal numbers.
  int32_t k = int32_t(n), h = k / 2;
  double s1 = bitcast<double>(uint64_t(h + 1023) << 52),
         s2 = bitcast<double>(uint64_t(k - h + 1023) << 52);
  float v = float(p * s1 * s2);
  return f != f ? f : v;
}
template <bool Ftz>
static inline float ex2(float a) {
  if constexpr (Ftz)
    a = flush(a);
  float r = exp2f64(a);
  return Ftz ? flush(r) : r;
}
template <bool Ftz>
static inline float lg2(float a) {
  if constexpr (Ftz)
    a = flush(a);
  return float(std::log2(double(a)));
}
template <bool Ftz>
static inline float sine(float a) {
  float r = float(std::sin(double(Ftz ? flush(a) : a)));
  return Ftz ? flush(r) : r;
}
template <bool Ftz>
static inline float cosine(float a) {
  return float(std::cos(double(Ftz ? flush(a) : a)));
}
static inline float tanhf64(float a) { return float(std::tanh(double(a))); }

/// The functions in f64, and how far from them the ISA lets results be.
enum MathOp : uint32_t { Ex2, Lg2, Sin, Cos, Tanh };

static double exactly(uint32_t op, double x) {
  switch (op) {
  case Ex2:
    return std::exp2(x);
  case Lg2:
    return std::log2(x);
  case Sin:
    return std::sin(x);
  case Cos:
    return std::cos(x);
  default:
    return std::tanh(x);
  }
}

/// mant: 23 f32, 10 f16, 7 bf16.
static double errorLimit(uint32_t op, double x, double v, int mant) {
  double rel = 0, abs = 0;
  switch (op) {
  case Ex2:
    if (mant == 23)
      return 2 * ulpOf(v);
    rel = mant == 10 ? 0x1p-10 * 1.0717734625 : 0x1p-7; // 2^-9.9
    break;
  case Lg2:
    abs = x > 0.5 && x < 2 ? 0x1p-22 : 0;
    rel = abs != 0 ? 0 : 0x1p-22;
    break;
  case Sin:
  case Cos:
    abs = std::fabs(x) <= 3.14159265358979 ? 0x1p-21 * 1.41421356237
                                           : 0x1p-15 * 1.23114441334;
    break;
  default:
    if (mant == 23)
      rel = 0x1p-11;
    else
      abs = mant == 10 ? 0x1p-11 * 1.0090517 : 0x1p-8; // 2^-10.987
  }
  return rel != 0 ? rel * std::fabs(v) : abs;
}

/// One result moved within the limit; what the ISA's tables of zeros,
/// infinities and NaN give stays.
static double moved(uint32_t op, double x, uint32_t seed, int mant, int emin) {
  double v = exactly(op, x);
  if (!std::isfinite(v) || !std::isfinite(x) || x == 0)
    return v;
  if (op == Ex2 && mant == 23) // counted from the correctly rounded result
    v = float(v);
  return perturbed(v, errorLimit(op, x, v, mant), seed, mant, emin);
}

template <float (*F)(float), float (*Ftz)(float)>
static Act exec32(Ctx &c, const Instr &I, uint32_t m) {
  float *d = c.reg<float>(I.o[0]);
  const float *a = c.in<float>(I.o[1]);
  if (uint32_t seed = c.grid->launch.perturb) {
    KVSIM_EACH(m) {
      float x = I.b & 2 ? flush(a[l]) : a[l];
      auto r = float(moved(I.a, x, seed, 23, -126));
      d[l] = I.b & 2 ? flush(r) : r;
    }
    return Act::Next;
  }
  if (I.b & 2) {
    KVSIM_LANES d[l] = m >> l & 1 ? Ftz(a[l]) : d[l];
  } else {
    KVSIM_LANES d[l] = m >> l & 1 ? F(a[l]) : d[l];
  }
  return Act::Next;
}

/// One or two halves.
template <bool Bf>
static Act execHalves(Ctx &c, const Instr &I, uint32_t m) {
  uint32_t seed = c.grid->launch.perturb;
  int count = I.o[0].sz / 2;
  uint16_t *d = c.reg<uint16_t>(I.o[0]);
  const uint16_t *a = c.in<uint16_t>(I.o[1]);
  KVSIM_EACH(m) for (uint32_t i = l * count; i < (l + 1) * count; ++i) {
    float x = Bf ? bf16ToF32(a[i]) : f16ToF32(a[i]);
    if (Bf && (I.b & 2))
      x = flush(x);
    auto r = float(seed ? moved(I.a, x, seed, Bf ? 7 : 10, Bf ? -126 : -14)
                        : exactly(I.a, x));
    if (Bf && (I.b & 2))
      r = flush(r);
    d[i] = Bf ? f32ToBf16(r) : f32ToF16(r);
  }
  return Act::Next;
}

template <float (*F)(float), float (*Ftz)(float)>
static void decodeMath(Decoder &D, Instr &I, MathOp op, bool halves) {
  D.take("approx");
  I.a = op;
  I.b = D.take("ftz") ? 2 : 0;
  std::string t = D.type();
  D.needOps(2, 2);
  I.cls = OpClass::Special;
  bool half = t == "f16" || t == "f16x2", bf = t == "bf16" || t == "bf16x2";
  if (t != "f32" && !(halves && (half || bf)))
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  I.fn = t == "f32" ? exec32<F, Ftz>
         : bf       ? execHalves<true>
                    : execHalves<false>;
  if (t.back() == '2' && t != "f32")
    I.shadow = shadowHalves;
  D.needSm(I, bf ? 90 : 75);
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

void addSpecialMath(Table &t) {
  t.add("ex2", [](Decoder &D, Instr &I) {
    decodeMath<&ex2<false>, &ex2<true>>(D, I, Ex2, true);
  });
  t.add("lg2", [](Decoder &D, Instr &I) {
    decodeMath<&lg2<false>, &lg2<true>>(D, I, Lg2, false);
  });
  t.add("sin", [](Decoder &D, Instr &I) {
    decodeMath<&sine<false>, &sine<true>>(D, I, Sin, false);
  });
  t.add("cos", [](Decoder &D, Instr &I) {
    decodeMath<&cosine<false>, &cosine<true>>(D, I, Cos, false);
  });
  t.add("tanh", [](Decoder &D, Instr &I) {
    decodeMath<&tanhf64, &tanhf64>(D, I, Tanh, true);
  });
}

} // namespace kvcache::sim::KVSIM_TIER
