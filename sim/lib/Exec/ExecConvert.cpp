//===- ExecConvert.cpp - cvt ----------------------------------------------===//
//
// The frequent conversions are loops over lanes; all others go through a
// general lane-by-lane routine that handles every rounding and saturation.
//
//===----------------------------------------------------------------------===//
#include "Convert.h"
#include "Num.h"
#include <algorithm>

namespace kvcache::sim::KVSIM_TIER {

/// To an fp8 format with saturation to its largest finite value.
static uint8_t toFp8(float f, int mant, int emin, double maxValue,
                     uint8_t nanBits, bool relu, Round mode, int bias) {
  if (f != f)
    return nanBits;
  if (relu && std::signbit(f))
    f = 0;
  uint8_t sign = std::signbit(f) ? 0x80 : 0;
  double r = std::fabs(roundTo(std::fabs(double(f)), mant, emin, mode));
  if (r > maxValue)
    r = maxValue;
  if (r == 0)
    return sign;
  int e;
  double m = std::frexp(r, &e); // r = m * 2^e
  e -= 1;
  m *= 2;
  if (e < emin)
    return uint8_t(sign | uint8_t(std::ldexp(r, mant - emin)));
  auto frac = uint8_t((m - 1.0) * (1 << mant));
  return uint8_t(sign | (e + bias) << mant | frac);
}
uint8_t f32ToE4m3(float f, bool relu, Round mode) {
  return toFp8(f, 3, -6, 448.0, 0x7f, relu, mode, 7);
}
uint8_t f32ToE5m2(float f, bool relu, Round mode) {
  return toFp8(f, 2, -14, 57344.0, 0x7f, relu, mode, 15);
}

struct CvtExt {
  std::string d, s;
  int dBits, sBits;
  bool dSigned, sSigned, dFloat, sFloat;
  Round mode = Round::Nearest;
  bool integer = false; ///< .rni .rzi .rmi .rpi: result is integral
  bool sat = false, ftz = false, relu = false, satfinite = false;
};

static bool isFp(const std::string &t) {
  return t == "f16" || t == "bf16" || t == "f32" || t == "f64";
}
static int bitsOf(const std::string &t) { return typeSize(t) * 8; }

static double loadFloat(const std::string &t, const void *p) {
  if (t == "f64") {
    double v;
    std::memcpy(&v, p, 8);
    return v;
  }
  if (t == "f32") {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  return t == "bf16" ? bf16ToF32(h) : f16ToF32(h);
}

static uint64_t nanOf(const std::string &t) {
  return t == "f64"   ? 0x7fffffffffffffffull
         : t == "f32" ? 0x7fffffffull
                      : 0x7fffull;
}

/// Bits of `v` (exact, or rounded to odd) in a float type.
static uint64_t storeFloat(const CvtExt &x, double v) {
  const std::string &t = x.d;
  if (v != v)
    return x.sat ? 0 : nanOf(t);
  if (x.sat)
    v = saturate(v);
  if (x.relu && (v < 0 || (v == 0 && std::signbit(v))))
    v = 0;
  if (t == "f64")
    return bitcast<uint64_t>(v);
  if (t == "f32") {
    float f = toF32(v, x.mode);
    if (x.ftz)
      f = flush(f);
    return bitcast<uint32_t>(f);
  }
  bool bf = t == "bf16";
  double max = bf ? 3.3895313892515355e38 : 65504.0;
  double r =
      std::isfinite(v) ? roundTo(v, bf ? 7 : 10, bf ? -126 : -14, x.mode) : v;
  if (std::fabs(r) > max) {
    bool inf = x.mode == Round::Nearest || std::isinf(v) ||
               (x.mode == Round::Up && r > 0) ||
               (x.mode == Round::Down && r < 0);
    if (x.satfinite)
      inf = false;
    r = inf ? std::copysign(INFINITY, r) : std::copysign(max, r);
  }
  return bf ? f32ToBf16(float(r)) : f32ToF16(float(r));
}

static double toIntegral(double v, Round mode) {
  switch (mode) {
  case Round::Zero:
    return std::trunc(v);
  case Round::Down:
    return std::floor(v);
  case Round::Up:
    return std::ceil(v);
  default:
    return std::nearbyint(v);
  }
}

static uint64_t floatToInt(const CvtExt &x, double v) {
  int bits = x.dBits;
  if (v != v) {
    bool special = x.s == "f64" || bits == 64;
    return special ? uint64_t(1) << (bits - 1) : 0;
  }
  double r = toIntegral(v, x.mode);
  if (x.dSigned) {
    double lim = std::ldexp(1.0, bits - 1);
    if (r >= lim)
      return (uint64_t(1) << (bits - 1)) - 1;
    if (r < -lim)
      return uint64_t(1) << (bits - 1);
    return uint64_t(int64_t(r));
  }
  double lim = std::ldexp(1.0, bits);
  if (r >= lim)
    return bits == 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1;
  return r <= 0 ? 0 : uint64_t(r);
}

/// Integers to floats: exact in f64 up to 53 bits; beyond, rounded to odd.
static double intToDouble(uint64_t raw, bool isSigned, bool &neg) {
  neg = isSigned && int64_t(raw) < 0;
  uint64_t mag = neg ? 0 - raw : raw;
  int shift = 64 - std::countl_zero(mag) - 53;
  if (shift > 0) {
    uint64_t low = mag & ((uint64_t(1) << shift) - 1);
    mag = (mag >> shift | (low != 0)) << shift;
  }
  double v = double(mag);
  return neg ? -v : v;
}

static uint64_t convertOne(const CvtExt &x, const void *p, int regBytes) {
  uint64_t raw = 0;
  std::memcpy(&raw, p, size_t(regBytes < 8 ? regBytes : 8));
  if (x.sFloat) {
    double v = loadFloat(x.s, p);
    if (x.ftz && x.s == "f32")
      v = flush(float(v));
    if (!x.dFloat)
      return floatToInt(x, v);
    if (x.integer) {
      if (v == v)
        v = std::copysign(toIntegral(v, x.mode), v);
    }
    return storeFloat(x, v);
  }
  if (x.sBits < 64)
    raw = x.sSigned ? uint64_t(int64_t(raw << (64 - x.sBits)) >> (64 - x.sBits))
                    : raw & ((uint64_t(1) << x.sBits) - 1);
  if (x.dFloat) {
    bool neg;
    double v = intToDouble(raw, x.sSigned, neg);
    if (x.d == "f64") {
      if (x.mode == Round::Nearest)
        v = x.sSigned ? double(int64_t(raw)) : double(raw);
      else
        v = roundTo(v, 52, -1022, x.mode);
      return bitcast<uint64_t>(v);
    }
    return storeFloat(x, v);
  }
  if (x.sat && x.dBits < 64) {
    if (x.dSigned) {
      int64_t hi = (int64_t(1) << (x.dBits - 1)) - 1, lo = -hi - 1;
      if (!x.sSigned)
        return raw > uint64_t(hi) ? uint64_t(hi) : raw;
      int64_t v = int64_t(raw);
      return uint64_t(v > hi ? hi : v < lo ? lo : v);
    }
    uint64_t hi = (uint64_t(1) << x.dBits) - 1;
    if (x.sSigned && int64_t(raw) < 0)
      return 0;
    return raw > hi ? hi : raw;
  }
  if (x.sat && x.sSigned != x.dSigned && int64_t(raw) < 0)
    return x.sSigned ? 0 : INT64_MAX;
  return raw;
}

static Act execGeneral(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CvtExt *>(I.ext);
  const Opnd &d = I.o[0], &s = I.o[1];
  const uint8_t *in = c.in<uint8_t>(s);
  uint8_t *out = c.reg<uint8_t>(d);
  KVSIM_EACH(m) {
    uint64_t v = convertOne(x, in + l * s.sz, s.sz);
    if (!x.dFloat && x.dBits < 64) // fill the register by the result's sign
      v = x.dSigned ? uint64_t(int64_t(v << (64 - x.dBits)) >> (64 - x.dBits))
                    : v & ((uint64_t(1) << x.dBits) - 1);
    std::memcpy(out + l * d.sz, &v, d.sz);
  }
  return Act::Next;
}

//===----------------------------------------------------------------------===//
// Two values packed: f16x2 and bf16x2 from f32, fp8 pairs.
//===----------------------------------------------------------------------===//

/// o: d, a (upper), b (lower).
template <bool Bf>
static Act execPackHalves(Ctx &c, const Instr &I, uint32_t m) {
  uint32_t *d = c.reg<uint32_t>(I.o[0]);
  const float *a = c.in<float>(I.o[1]), *b = c.in<float>(I.o[2]);
  KVSIM_LANES {
    uint32_t hi = Bf ? f32ToBf16(a[l]) : f32ToF16(a[l]);
    uint32_t lo = Bf ? f32ToBf16(b[l]) : f32ToF16(b[l]);
    d[l] = m >> l & 1 ? hi << 16 | lo : d[l];
  }
  return Act::Next;
}

static Act execPackGeneral(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CvtExt *>(I.ext);
  const float *a = c.in<float>(I.o[1]), *b = c.in<float>(I.o[2]);
  CvtExt y = x;
  y.d = x.d.substr(0, x.d.size() - 2);
  KVSIM_EACH(m) {
    float p = x.ftz ? flush(a[l]) : a[l], q = x.ftz ? flush(b[l]) : b[l];
    if (y.d == "e4m3" || y.d == "e5m2") {
      auto f = y.d == "e4m3" ? f32ToE4m3 : f32ToE5m2;
      c.reg<uint16_t>(I.o[0])[l] =
          uint16_t(f(p, x.relu, x.mode) << 8 | f(q, x.relu, x.mode));
    } else {
      c.reg<uint32_t>(I.o[0])[l] =
          uint32_t(storeFloat(y, p) << 16 | storeFloat(y, q));
    }
  }
  return Act::Next;
}

/// f16x2 or bf16x2 -> fp8 pair.
static Act execHalvesToFp8(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CvtExt *>(I.ext);
  const uint32_t *a = c.in<uint32_t>(I.o[1]);
  bool bf = x.s == "bf16x2";
  auto f = x.d == "e4m3x2" ? f32ToE4m3 : f32ToE5m2;
  KVSIM_EACH(m) {
    float hi =
        bf ? bf16ToF32(uint16_t(a[l] >> 16)) : f16ToF32(uint16_t(a[l] >> 16));
    float lo = bf ? bf16ToF32(uint16_t(a[l])) : f16ToF32(uint16_t(a[l]));
    c.reg<uint16_t>(I.o[0])[l] =
        uint16_t(f(hi, x.relu, x.mode) << 8 | f(lo, x.relu, x.mode));
  }
  return Act::Next;
}

static Act execFp8ToHalves(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CvtExt *>(I.ext);
  const uint16_t *a = c.in<uint16_t>(I.o[1]);
  bool e4 = x.s == "e4m3x2", relu = x.relu, bf = x.d == "bf16x2";
  KVSIM_EACH(m) {
    uint32_t r = 0;
    for (int h = 0; h < 2; ++h) {
      auto v = uint8_t(a[l] >> (8 * h));
      float f = e4 ? e4m3ToF32(v) : e5m2ToF32(v);
      if (relu && f == f && std::signbit(f))
        f = 0;
      r |= uint32_t(bf ? f32ToBf16(f) : f32ToF16(f)) << (16 * h);
    }
    c.reg<uint32_t>(I.o[0])[l] = r;
  }
  return Act::Next;
}

/// tf32: 10 mantissa bits, the low bits become zero. a: 0 ties away, 1 to
/// even, 2 toward zero; b: 1 relu, 2 satfinite.
static Act execTf32(Ctx &c, const Instr &I, uint32_t m) {
  const uint32_t *a = c.in<uint32_t>(I.o[1]);
  const uint32_t largest = 0x7f7fe000u;
  KVSIM_EACH(m) {
    uint32_t b = a[l], mag = b & 0x7fffffff, r = mag;
    if (mag > 0x7f800000u) {
      c.reg<uint32_t>(I.o[0])[l] = 0x7fffffffu;
      continue;
    }
    if (mag != 0x7f800000u) {
      r += I.a == 0 ? 0x1000u : I.a == 1 ? 0xfffu + (mag >> 13 & 1) : 0u;
      r &= 0xffffe000u;
    }
    if ((I.b & 2) && r > largest)
      r = largest;
    r |= b & 0x80000000u;
    c.reg<uint32_t>(I.o[0])[l] = (I.b & 1) && r >> 31 ? 0 : r;
  }
  return Act::Next;
}

//===----------------------------------------------------------------------===//
// Frequent single conversions.
//===----------------------------------------------------------------------===//

static inline uint32_t wF16(uint16_t h) {
  return bitcast<uint32_t>(f16ToF32(h));
}
static inline uint32_t wBf16(uint16_t h) { return uint32_t(h) << 16; }
template <class D, class S>
static inline D cast(S v) {
  return D(v);
}
/// f32 to s32, toward zero, saturating, NaN to 0.
static inline int32_t f32ToS32(float f) {
  float c = f < 2147483648.0f ? f : 0.0f;
  c = c >= -2147483648.0f ? c : 0.0f;
  int32_t r = int32_t(c);
  r = f >= 2147483648.0f ? INT32_MAX : r;
  r = f < -2147483648.0f ? INT32_MIN : r;
  return f != f ? 0 : r;
}

static ExecFn fastConvert(const CvtExt &x, int dReg, int sReg) {
  if (x.sat || x.ftz || x.relu || x.satfinite || dReg * 8 != x.dBits ||
      sReg * 8 != x.sBits)
    return nullptr;
  if (!x.dFloat && !x.sFloat) {
    bool s = x.sSigned;
    if (x.dBits == 64 && x.sBits == 32)
      return s ? ExecFn(un<int64_t, int32_t, &cast<int64_t, int32_t>>)
               : un<uint64_t, uint32_t, &cast<uint64_t, uint32_t>>;
    if (x.dBits == 32 && x.sBits == 64)
      return un<uint32_t, uint64_t, &cast<uint32_t, uint64_t>>;
    if (x.dBits == 32 && x.sBits == 16)
      return s ? ExecFn(un<int32_t, int16_t, &cast<int32_t, int16_t>>)
               : un<uint32_t, uint16_t, &cast<uint32_t, uint16_t>>;
    if (x.dBits == 16 && x.sBits == 32)
      return un<uint16_t, uint32_t, &cast<uint16_t, uint32_t>>;
    return nullptr;
  }
  bool rn = x.mode == Round::Nearest && !x.integer;
  if (x.d == "f32" && x.s == "f16" && !x.integer)
    return un<uint32_t, uint16_t, &wF16>;
  if (x.d == "f32" && x.s == "bf16" && !x.integer)
    return un<uint32_t, uint16_t, &wBf16>;
  if (x.d == "f16" && x.s == "f32" && rn)
    return un<uint16_t, float, &f32ToF16>;
  if (x.d == "bf16" && x.s == "f32" && rn)
    return un<uint16_t, float, &f32ToBf16>;
  if (x.d == "f32" && !x.sFloat && x.sBits == 32 && rn)
    return x.sSigned ? ExecFn(un<float, int32_t, &cast<float, int32_t>>)
                     : un<float, uint32_t, &cast<float, uint32_t>>;
  if (x.d == "s32" && x.s == "f32" && x.mode == Round::Zero)
    return un<int32_t, float, &f32ToS32>;
  return nullptr;
}

static void takeRounding(Decoder &D, CvtExt &x) {
  std::string m = D.oneOf({"rni", "rzi", "rmi", "rpi"});
  x.integer = !m.empty();
  if (m.empty())
    m = D.oneOf({"rn", "rz", "rm", "rp", "rna"},
                x.sFloat && !x.dFloat ? "rz" : "rn");
  x.mode = m[1] == 'z'   ? Round::Zero
           : m[1] == 'm' ? Round::Down
           : m[1] == 'p' ? Round::Up
           : m == "rna"  ? Round::Away
                         : Round::Nearest;
}

static void packedConvert(Decoder &D, Instr &I, CvtExt x) {
  bool fp8 = x.d[0] == 'e';
  I.cls = OpClass::Convert;
  if (D.count() == 2) { // one pair to another
    D.needOps(2, 2);
    bool toFp8 = fp8 && (x.s == "f16x2" || x.s == "bf16x2");
    bool fromFp8 = x.s[0] == 'e' && (x.d == "f16x2" || x.d == "bf16x2");
    if (!toFp8 && !fromFp8)
      D.error("conversion from ." + x.s + " to ." + x.d + " is not supported");
    I.fn = toFp8 ? execHalvesToFp8 : execFp8ToHalves;
    D.finish(I, {D.dst(D.op(0), typeSize(x.d))}, {D.src(D.op(1), x.s)});
  } else {
    D.needOps(3, 3);
    if (x.s != "f32")
      D.error("conversion from ." + x.s + " to ." + x.d + " is not supported");
    bool plain = x.mode == Round::Nearest && !x.relu && !x.satfinite && !x.ftz;
    I.fn = fp8 || !plain     ? execPackGeneral
           : x.d == "bf16x2" ? execPackHalves<true>
                             : execPackHalves<false>;
    D.finish(I, {D.dst(D.op(0), typeSize(x.d))},
             {D.src(D.op(1), x.s), D.src(D.op(2), x.s)});
    I.shadow = [](Ctx &c, const Instr &I, uint32_t m) {
      uint32_t a = taintedLanes(c, I.o[1], m), b = taintedLanes(c, I.o[2], m);
      alignas(64) uint8_t out[512] = {};
      int h = I.o[0].sz / 2;
      for (int l = 0; l < 32; ++l) {
        std::memset(out + l * 2 * h, b >> l & 1 ? 0xff : 0, h);
        std::memset(out + l * 2 * h + h, a >> l & 1 ? 0xff : 0, h);
      }
      setShadow(c, I.o[0], m, out);
    };
  }
  I.ext = D.extra(x);
  if (fp8 || x.s[0] == 'e')
    D.needSm(I, 89);
}

/// Two saturated integers; shorter ones behind the low bits of c.
static void packIntegers(Decoder &D, Instr &I) {
  if (!D.take("sat"))
    D.error("'cvt.pack' needs .sat");
  std::string d = D.oneOf({"u2", "s2", "u4", "s4"});
  int bits = d.empty() ? 0 : d[1] - '0';
  if (!bits) {
    d = D.type();
    bits = typeSize(d) * 8;
  } else {
    D.needSm(I, 75);
  }
  std::string s = D.type(), c = D.typeOr("");
  bool isSigned = d[0] == 's';
  if (bits > 16 || s != "s32" || (bits < 16) != !c.empty())
    D.error("'cvt.pack' of ." + d + " from ." + s + " is not supported");
  D.needOps(bits < 16 ? 4 : 3, bits < 16 ? 4 : 3);
  I.a = uint32_t(bits);
  I.b = isSigned;
  I.fn = [](Ctx &c, const Instr &I, uint32_t m) {
    const int32_t *a = c.in<int32_t>(I.o[1]), *b = c.in<int32_t>(I.o[2]);
    const uint32_t *e = c.in<uint32_t>(I.o[3]);
    int bits = int(I.a);
    int32_t hi = I.b ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
    int32_t lo = I.b ? -(1 << (bits - 1)) : 0;
    uint32_t mask = (1u << bits) - 1;
    KVSIM_EACH(m) {
      uint32_t x = uint32_t(std::min(std::max(a[l], lo), hi)) & mask;
      uint32_t y = uint32_t(std::min(std::max(b[l], lo), hi)) & mask;
      c.reg<uint32_t>(I.o[0])[l] =
          bits == 16 ? x << 16 | y : e[l] << 2 * bits | x << bits | y;
    }
    return Act::Next;
  };
  I.cls = OpClass::Convert;
  D.finish(I, {D.dst(D.op(0), 4)},
           {D.src(D.op(1), "s32"), D.src(D.op(2), "s32"),
            D.count() == 4 ? D.src(D.op(3), "b32") : D.zero(4)});
}

static void decodeCvt(Decoder &D, Instr &I) {
  if (D.take("pack"))
    return packIntegers(D, I);
  CvtExt x;
  x.sat = D.take("sat");
  x.ftz = D.take("ftz");
  x.relu = D.take("relu");
  x.satfinite = D.take("satfinite");
  x.d = D.type();
  x.s = D.type();
  bool fp8Only = x.d != "bf16x2" && x.s != "bf16x2" && x.d.back() == '2';
  auto isFp8 = [](const std::string &t) {
    return t == "e4m3x2" || t == "e5m2x2";
  };
  bool plainFp8 = fp8Only && (isFp8(x.d) || isFp8(x.s));
  if (D.peekMod() == "rs" || (!plainFp8 && (isNarrow(x.d) || isNarrow(x.s))))
    return narrowConvert(D, I, x.d, x.s, x.relu, x.satfinite);
  x.dFloat = isFp(x.d);
  x.sFloat = isFp(x.s);
  x.dBits = bitsOf(x.d);
  x.sBits = bitsOf(x.s);
  x.dSigned = x.d[0] == 's';
  x.sSigned = x.s[0] == 's';
  takeRounding(D, x);
  if (x.d == "tf32") {
    D.needOps(2, 2);
    I.fn = execTf32;
    I.a = x.mode == Round::Away ? 0 : x.mode == Round::Zero ? 2 : 1;
    I.b = (x.relu ? 1 : 0) | (x.satfinite ? 2 : 0);
    I.cls = OpClass::Convert;
    D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), "f32")});
    return;
  }
  if (x.d.find("x2") != std::string::npos ||
      x.s.find("x2") != std::string::npos)
    return packedConvert(D, I, x);
  D.needOps(2, 2);
  I.cls = OpClass::Convert;
  // Registers may be wider than the types.
  Opnd d = D.dstAny(D.op(0), typeSize(x.d)), s = D.srcAny(D.op(1), x.s);
  int ds = typeSize(x.d), ss = typeSize(x.s);
  if (d.sz < ds || s.sz < ss || (x.dFloat && d.sz != ds) ||
      (x.sFloat && s.sz != ss))
    D.error("register size does not fit the types of 'cvt'");
  I.fn = fastConvert(x, d.sz, s.sz);
  if (!x.dFloat && !x.sFloat && !x.sat) {
    I.shadow = shadowZext;
    if (x.dBits == 64 && x.sBits == 32)
      I.wrapKind = x.sSigned ? 2 : 3;
    I.a = x.sSigned;
    I.imm = x.sBits;
  }
  if (!I.fn) {
    I.ext = D.extra(x);
    I.fn = execGeneral;
  }
  D.finish(I, {d}, {s});
}

void addConvert(Table &t) { t.add("cvt", decodeCvt); }

} // namespace kvcache::sim::KVSIM_TIER
