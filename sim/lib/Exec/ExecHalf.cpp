//===- ExecHalf.cpp - f16, bf16 and their pairs ---------------------------===//
//
// Sums and products of halves rounded from f32 are correctly rounded (f32 has
// more than 2p+2 bits for both); fma goes through f64, rounded to odd.
//
//===----------------------------------------------------------------------===//
#include "Arith.h"
#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

enum : uint32_t { Sat = 1, Ftz = 2, Relu = 4, NanFlag = 8, Xor = 16 };

template <bool Bf>
static inline float widen(uint16_t h) {
  return Bf ? bf16ToF32(h) : f16ToF32(h);
}
template <bool Bf>
static inline uint16_t narrow(float f) {
  return Bf ? f32ToBf16(f) : f32ToF16(f);
}
template <bool Bf>
static inline uint16_t flushHalf(uint16_t h) {
  return (h & (Bf ? 0x7f80 : 0x7c00)) ? h : h & 0x8000;
}

/// From f64 rounded to odd to the half format, to nearest even.
template <bool Bf>
static inline uint16_t narrowOdd(double v) {
  // f32 rounded to odd keeps enough bits for a second rounding.
  float f = float(v);
  if (double(f) != v && std::isfinite(f)) {
    uint32_t b = bitcast<uint32_t>(f);
    bool away = std::fabs(double(f)) > std::fabs(v);
    if (away)
      b -= 1; // truncate, then to odd
    f = bitcast<float>(b | 1);
  }
  return narrow<Bf>(f);
}

template <bool Bf>
static inline uint16_t finishHalf(uint16_t r, uint32_t flags) {
  if (flags & Ftz)
    r = flushHalf<Bf>(r);
  if (flags & Sat)
    r = narrow<Bf>(saturate(widen<Bf>(r)));
  if (flags & Relu) {
    float f = widen<Bf>(r);
    r = f != f ? r : f < 0 || r == 0x8000 ? 0 : r;
  }
  return r;
}

template <bool Bf>
static uint16_t arith(uint32_t op, uint16_t a, uint16_t b, uint32_t flags) {
  if (flags & Ftz)
    a = flushHalf<Bf>(a), b = flushHalf<Bf>(b);
  float x = widen<Bf>(a), y = widen<Bf>(b);
  float r = op == FloatAdd ? x + y : op == FloatSub ? x - y : x * y;
  return finishHalf<Bf>(narrow<Bf>(r), flags);
}

template <bool Bf>
static uint16_t fmaHalf(uint16_t a, uint16_t b, uint16_t c, uint32_t flags) {
  if (flags & Ftz)
    a = flushHalf<Bf>(a), b = flushHalf<Bf>(b), c = flushHalf<Bf>(c);
  double v = addOdd(double(widen<Bf>(a)) * widen<Bf>(b), widen<Bf>(c));
  return finishHalf<Bf>(narrowOdd<Bf>(v), flags);
}

template <bool Bf>
static uint16_t minmaxHalf(bool max, uint16_t a, uint16_t b, uint32_t flags) {
  if (flags & Ftz)
    a = flushHalf<Bf>(a), b = flushHalf<Bf>(b);
  uint16_t sign = (a ^ b) & 0x8000;
  if (flags & Xor)
    a &= 0x7fff, b &= 0x7fff;
  float x = widen<Bf>(a), y = widen<Bf>(b);
  bool an = x != x, bn = y != y;
  if ((an && bn) || ((flags & NanFlag) && (an || bn)))
    return 0x7fff;
  bool less = x < y || (x == y && (a & 0x8000) && !(b & 0x8000));
  uint16_t r = an ? b : bn ? a : less != max ? a : b;
  if (flags & Xor)
    r = uint16_t((r & 0x7fff) | sign);
  return finishHalf<Bf>(r, flags & Relu);
}

/// Applies a half operation to each half of the lanes.
template <class T, class F>
static void eachHalf(T *d, uint32_t m, F f) {
  KVSIM_EACH(m) {
    if constexpr (sizeof(T) == 2)
      d[l] = f(l, 0);
    else
      d[l] = uint32_t(f(l, 0)) | uint32_t(f(l, 16)) << 16;
  }
}

template <class T, bool Bf>
static Act execArith(Ctx &c, const Instr &I, uint32_t m) {
  const T *a = c.in<T>(I.o[1]), *b = c.in<T>(I.o[2]);
  uint32_t op = I.a, flags = I.b;
  eachHalf(c.reg<T>(I.o[0]), m, [&](int l, int s) {
    return arith<Bf>(op, uint16_t(a[l] >> s), uint16_t(b[l] >> s), flags);
  });
  return Act::Next;
}
template <class T, bool Bf>
static Act execFma(Ctx &c, const Instr &I, uint32_t m) {
  const T *a = c.in<T>(I.o[1]), *b = c.in<T>(I.o[2]), *e = c.in<T>(I.o[3]);
  uint32_t flags = I.b;
  eachHalf(c.reg<T>(I.o[0]), m, [&](int l, int s) {
    return fmaHalf<Bf>(uint16_t(a[l] >> s), uint16_t(b[l] >> s),
                       uint16_t(e[l] >> s), flags);
  });
  return Act::Next;
}
template <class T, bool Bf>
static Act execMinMax(Ctx &c, const Instr &I, uint32_t m) {
  const T *a = c.in<T>(I.o[1]), *b = c.in<T>(I.o[2]);
  bool max = I.a;
  uint32_t flags = I.b;
  eachHalf(c.reg<T>(I.o[0]), m, [&](int l, int s) {
    return minmaxHalf<Bf>(max, uint16_t(a[l] >> s), uint16_t(b[l] >> s), flags);
  });
  return Act::Next;
}
template <class T, bool Bf>
static Act execSign(Ctx &c, const Instr &I, uint32_t m) {
  const T *a = c.in<T>(I.o[1]);
  bool abs = I.a;
  uint32_t flags = I.b;
  eachHalf(c.reg<T>(I.o[0]), m, [&](int l, int s) {
    uint16_t h = uint16_t(a[l] >> s);
    if (flags & Ftz)
      h = flushHalf<Bf>(h);
    return uint16_t(abs ? h & 0x7fff : h ^ 0x8000);
  });
  return Act::Next;
}

#define HALF_PICK(F)                                                           \
  (t == "f16"      ? ExecFn(F<uint16_t, false>)                                \
   : t == "bf16"   ? F<uint16_t, true>                                         \
   : t == "f16x2"  ? F<uint32_t, false>                                        \
   : t == "bf16x2" ? F<uint32_t, true>                                         \
                   : ExecFn(nullptr))

static void prepare(Decoder &D, Instr &I, const std::string &t) {
  I.cls = OpClass::Half;
  if (typeSize(t) == 4)
    I.shadow = shadowHalves;
  if (!I.fn)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
}

void halfBinary(Decoder &D, Instr &I, const std::string &t, FloatOp op) {
  D.take("rn");
  I.b |= D.take("sat") ? Sat : 0;
  I.b |= D.take("ftz") ? Ftz : 0;
  D.needOps(3, 3);
  I.a = op;
  I.fn = op == FloatDiv ? ExecFn(nullptr) : HALF_PICK(execArith);
  prepare(D, I, t);
  if (t[0] == 'b')
    D.needSm(I, 90);
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
}

void halfFma(Decoder &D, Instr &I, const std::string &t) {
  D.needOps(4, 4);
  I.fn = HALF_PICK(execFma);
  prepare(D, I, t);
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t)});
}

void halfMinMax(Decoder &D, Instr &I, const std::string &t, bool max) {
  D.needOps(3, 3);
  I.a = max;
  I.fn = HALF_PICK(execMinMax);
  prepare(D, I, t);
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
}

void halfSign(Decoder &D, Instr &I, const std::string &t, bool abs) {
  D.needOps(2, 2);
  I.a = abs;
  I.fn = HALF_PICK(execSign);
  prepare(D, I, t);
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

void addHalf(Table &) {}

} // namespace kvcache::sim::KVSIM_TIER
