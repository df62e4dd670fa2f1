//===- ExecSpecial.cpp - ex2, lg2, sin, cos, tanh -------------------------===//
//
// Computed in f64 and rounded once (correct to f32 within 0.51 ulp), far inside
// the ISA's bounds; `perturb` moves results by an ulp, as other chips might.
//
//===----------------------------------------------------------------------===//
#include "Num.h"

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
static inline float sine(float a) { return float(std::sin(double(a))); }
static inline float cosine(float a) { return float(std::cos(double(a))); }
static inline float tanhf64(float a) { return float(std::tanh(double(a))); }

static inline uint16_t half1(float (*f)(float), uint16_t h, bool bf) {
  return bf ? f32ToBf16(f(bf16ToF32(h))) : f32ToF16(f(f16ToF32(h)));
}
template <float (*F)(float), bool Bf>
static inline uint16_t viaHalf(uint16_t h) {
  return half1(F, h, Bf);
}
template <float (*F)(float), bool Bf>
static inline uint32_t viaPair(uint32_t v) {
  return half1(F, uint16_t(v), Bf) | uint32_t(half1(F, uint16_t(v >> 16), Bf))
                                         << 16;
}

template <float (*F)(float), float (*Ftz)(float)>
static Act exec32(Ctx &c, const Instr &I, uint32_t m) {
  float *d = c.reg<float>(I.o[0]);
  const float *a = c.in<float>(I.o[1]);
  if (I.b & 2) {
    KVSIM_LANES d[l] = m >> l & 1 ? Ftz(a[l]) : d[l];
  } else {
    KVSIM_LANES d[l] = m >> l & 1 ? F(a[l]) : d[l];
  }
  if (uint32_t seed = c.grid->launch.perturb) {
    auto *u = c.reg<uint32_t>(I.o[0]);
    KVSIM_EACH(m) {
      uint32_t h = (u[l] ^ seed) * 2654435761u, e = u[l] >> 23 & 255;
      int32_t step = int32_t(h >> 30) - 1; // -1 0 1 2
      if (e > 1 && e < 254)
        u[l] += uint32_t(step > 1 ? 1 : step);
    }
  }
  return Act::Next;
}

template <float (*F)(float), float (*Ftz)(float)>
static void decodeMath(Decoder &D, Instr &I, bool halves) {
  D.take("approx");
  I.b = D.take("ftz") ? 2 : 0;
  std::string t = D.type();
  D.needOps(2, 2);
  I.cls = OpClass::Special;
  using H = uint16_t;
  using W = uint32_t;
  if (t == "f32")
    I.fn = exec32<F, Ftz>;
  else if (!halves)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  else if (t == "f16")
    I.fn = un<H, H, &viaHalf<F, false>>;
  else if (t == "bf16")
    I.fn = un<H, H, &viaHalf<F, true>>;
  else if (t == "f16x2")
    I.fn = un<W, W, &viaPair<F, false>>, I.shadow = shadowHalves;
  else if (t == "bf16x2")
    I.fn = un<W, W, &viaPair<F, true>>, I.shadow = shadowHalves;
  else
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

void addSpecialMath(Table &t) {
  t.add("ex2", [](Decoder &D, Instr &I) {
    decodeMath<&ex2<false>, &ex2<true>>(D, I, true);
  });
  t.add("lg2", [](Decoder &D, Instr &I) {
    decodeMath<&lg2<false>, &lg2<true>>(D, I, false);
  });
  t.add("sin",
        [](Decoder &D, Instr &I) { decodeMath<&sine, &sine>(D, I, false); });
  t.add("cos", [](Decoder &D, Instr &I) {
    decodeMath<&cosine, &cosine>(D, I, false);
  });
  t.add("tanh", [](Decoder &D, Instr &I) {
    decodeMath<&tanhf64, &tanhf64>(D, I, true);
  });
}

} // namespace kvcache::sim::KVSIM_TIER
