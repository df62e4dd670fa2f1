//===- ExecNarrow.cpp - cvt to and from 4, 6 and 8-bit floats -------------===//
//
// One description of a format serves all: exponent and fraction bits, what NaN
// becomes and the largest number. Rounding is to nearest even, toward zero or
// up (ue8m0), or stochastic: random bits are added to those that are cut off.
//
//===----------------------------------------------------------------------===//
#include "Convert.h"
#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct Narrow {
  const char *name;
  int bits, exp, mant, bias;
  double max;
  int nan; ///< bits of NaN, -1: none, the largest number instead
};

struct NarrowExt {
  const Narrow *f;
  std::string s; ///< source type
  int count;     ///< elements
  bool relu, up, stochastic, satfinite;
  Round mode;
};
} // namespace

static const Narrow kFormats[] = {
    {"e4m3", 8, 4, 3, 7, 448, 0x7f}, {"e5m2", 8, 5, 2, 15, 57344, 0x7f},
    {"e2m3", 6, 2, 3, 1, 7.5, -1},   {"e3m2", 6, 3, 2, 3, 28, -1},
    {"e2m1", 4, 2, 1, 1, 6, -1},     {"ue8m0", 8, 8, 0, 127, 0x1p127, 0xff}};

static const Narrow *formatOf(const std::string &type) {
  for (const Narrow &f : kFormats) {
    std::string n = f.name;
    if (type == n + "x2" || type == n + "x4")
      return &f;
  }
  return nullptr;
}

bool isNarrow(const std::string &type) { return formatOf(type) != nullptr; }

/// The value of the bits of a format.
static double decode(const Narrow &f, uint32_t v) {
  if (f.exp == 8)
    return v == 0xff ? NAN : std::ldexp(1.0, int(v) - 127);
  int e = int(v >> f.mant) & ((1 << f.exp) - 1),
      m = int(v) & ((1 << f.mant) - 1);
  double r = e ? std::ldexp((1 << f.mant) + m, e - f.bias - f.mant)
               : std::ldexp(m, 1 - f.bias - f.mant);
  return v >> (f.exp + f.mant) & 1 ? -r : r;
}

/// A power of two: the exponent of |v|, rounded up or toward zero; beyond the
/// largest NaN, or with .satfinite the largest.
static uint32_t encodeScale(double v, bool up, bool satfinite) {
  if (v != v)
    return 0xff;
  v = std::fabs(v);
  if (v <= 0x1p-127)
    return 0;
  int e = 129;
  double m = std::isinf(v) ? 0.5 : std::frexp(v, &e); // 0.5 <= m < 1
  int r = e - 1 + (up && m > 0.5) + 127;
  return r > 0xfe ? (satfinite ? 0xfe : 0xff) : uint32_t(r);
}

/// Rounds a positive number to the format; `random` fills `width` bits.
static double roundNarrow(const Narrow &f, double v, const NarrowExt &x,
                          uint32_t random, int width) {
  int emin = 1 - f.bias;
  if (!x.stochastic)
    return roundTo(v, f.mant, emin, x.mode);
  int e;
  std::frexp(v, &e);
  int lsb = (e - 1 < emin ? emin : e - 1) - f.mant;
  double q = std::ldexp(v, lsb > -1074 ? -lsb : 1074);
  double low = std::trunc(q);
  auto cut = uint32_t(std::ldexp(q - low, width));
  return std::ldexp(low + ((cut + random) >> width), lsb);
}

static uint32_t encode(const Narrow &f, double v, const NarrowExt &x,
                       uint32_t random, int width) {
  if (f.exp == 8)
    return encodeScale(v, x.up, x.satfinite);
  uint32_t sign = std::signbit(v) ? 1u << (f.exp + f.mant) : 0;
  uint32_t largest = uint32_t(1u << (f.exp + f.mant)) - 1;
  if (f.mant == 3 && f.exp == 4)
    --largest; // 0x7f is NaN
  else if (f.exp == 5)
    largest = 0x7b;
  if (v != v)
    return f.nan < 0 ? largest : uint32_t(f.nan);
  if (x.relu && sign)
    return 0;
  double a = std::fabs(v);
  double r = std::isinf(a) ? a : roundNarrow(f, a, x, random, width);
  if (r >= f.max)
    return sign | largest;
  if (r == 0)
    return sign;
  int e;
  double m = std::frexp(r, &e);
  if (e - 1 < 1 - f.bias)
    return sign | uint32_t(std::ldexp(r, f.mant - 1 + f.bias));
  auto frac = uint32_t((m * 2 - 1) * (1 << f.mant));
  return sign | uint32_t(e - 1 + f.bias) << f.mant | frac;
}

static double halfAt(const std::string &t, uint32_t v, int i) {
  auto h = uint16_t(v >> (16 * i));
  return t[0] == 'b' ? bf16ToF32(h) : f16ToF32(h);
}

static void storeBits(Ctx &c, const Opnd &o, int lane, uint32_t v) {
  std::memcpy(c.reg<uint8_t>(o) + lane * o.sz, &v, o.sz < 4 ? o.sz : 4);
}

/// From f32 (o: d, the elements from the highest, random bits) or halves.
static Act execToNarrow(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const NarrowExt *>(I.ext);
  int step = x.f->bits == 4 ? 4 : 8;
  KVSIM_EACH(m) {
    uint32_t r = 0;
    for (int i = 0; i < x.count; ++i) { // i counts from the lowest
      double v = x.s == "f32" ? double(c.in<float>(I.o[x.count - i])[l])
                              : halfAt(x.s, c.in<uint32_t>(I.o[1])[l], i);
      uint32_t random = 0;
      int width = 16;
      if (x.stochastic) {
        random = c.in<uint32_t>(I.o[1 + x.count])[l];
        // Two elements share a half of the bits; e2m1 has a byte of each.
        if (step == 4) {
          random = random >> (i >= 2 ? 8 : 0) >> (i % 2 ? 16 : 0) & 0xff;
          width = 8;
        } else {
          random = random >> (i >= 2 ? 16 : 0) & 0xffff;
        }
      }
      r |= encode(*x.f, v, x, random, width) << (step * i);
    }
    storeBits(c, I.o[0], int(l), r);
  }
  return Act::Next;
}

static Act execFromNarrow(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const NarrowExt *>(I.ext);
  int step = x.f->bits == 4 ? 4 : 8;
  uint32_t field = (1u << x.f->bits) - 1;
  KVSIM_EACH(m) {
    uint32_t in = 0, r = 0;
    std::memcpy(&in, c.in<uint8_t>(I.o[1]) + l * I.o[1].sz,
                I.o[1].sz < 4 ? I.o[1].sz : 4);
    for (int i = 0; i < 2; ++i) {
      auto v = float(decode(*x.f, in >> (step * i) & field));
      if (x.relu && std::signbit(v))
        v = 0;
      r |= uint32_t(x.s[0] == 'b' ? f32ToBf16(v) : f32ToF16(v)) << (16 * i);
    }
    c.reg<uint32_t>(I.o[0])[l] = r;
  }
  return Act::Next;
}

/// cvt.rs to f16x2 or bf16x2: o: d, a (upper), b, random bits.
static Act execStochasticHalves(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const NarrowExt *>(I.ext);
  bool bf = x.s[0] == 'b';
  int cut = bf ? 16 : 13;
  KVSIM_EACH(m) {
    uint32_t rbits = c.in<uint32_t>(I.o[3])[l], r = 0;
    for (int i = 0; i < 2; ++i) {
      float v = c.in<float>(I.o[2 - i])[l];
      uint32_t random = rbits >> (16 * i) & ((1u << cut) - 1);
      // The bits below a normal half; smaller numbers lose more of them.
      int e;
      std::frexp(v, &e);
      int emin = bf ? -126 : -14, lsb = std::max(e - 1, emin) - (bf ? 7 : 10);
      double q = std::ldexp(std::fabs(double(v)), -lsb), low = std::trunc(q);
      double up = std::ldexp(q - low, cut) + random >= (1 << cut) ? 1 : 0;
      double w = std::copysign(std::ldexp(low + up, lsb), double(v));
      if (!std::isfinite(v))
        w = v;
      double max = bf ? 0x1.fep127 : 65504.0;
      if (x.satfinite && std::fabs(w) > max)
        w = std::copysign(max, w);
      if (x.relu && std::signbit(w) && w == w)
        w = 0;
      r |= uint32_t(bf ? f32ToBf16(float(w)) : f32ToF16(float(w))) << (16 * i);
    }
    c.reg<uint32_t>(I.o[0])[l] = r;
  }
  return Act::Next;
}

static void stochasticHalves(Decoder &D, Instr &I, NarrowExt x) {
  D.needOps(4, 4);
  x.s = x.s == "bf16x2" ? "bf16" : "f16";
  I.fn = execStochasticHalves;
  I.ext = D.extra(x);
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "f32"), D.src(D.op(2), "f32"), D.src(D.op(3), "b32")});
}

static void toNarrow(Decoder &D, Instr &I, NarrowExt x, const std::string &d) {
  std::vector<Opnd> src;
  if (x.s != "f32") {
    D.needOps(2, 2);
    if (x.s != "f16x2" && x.s != "bf16x2")
      D.error("conversion from ." + x.s + " to ." + d + " is not supported");
    src.push_back(D.src(D.op(1), "b32"));
  } else if (x.count == 4) {
    D.needOps(3, 3);
    if (!x.stochastic || D.op(1).elems.size() != 4)
      D.error("conversion to ." + d + " needs .rs and {a, b, e, f}");
    for (const Operand &e : D.op(1).elems)
      src.push_back(D.src(e, "f32"));
    src.push_back(D.src(D.op(2), "b32"));
  } else {
    D.needOps(3, 3);
    src = {D.src(D.op(1), "f32"), D.src(D.op(2), "f32")};
  }
  int bytes = x.f->bits == 4 ? x.count / 2 : x.count;
  I.ext = D.extra(x);
  I.fn = execToNarrow;
  D.finish(I, {D.dst(D.op(0), bytes)}, src);
}

void narrowConvert(Decoder &D, Instr &I, const std::string &d,
                   const std::string &s, bool relu, bool satfinite) {
  NarrowExt x{formatOf(d),   s, 2, relu, false, D.take("rs"), satfinite,
              Round::Nearest};
  if (!x.stochastic) {
    std::string m = D.oneOf({"rn", "rz", "rp"}, "rn");
    x.mode = m == "rz" ? Round::Zero : Round::Nearest;
    x.up = m == "rp";
  }
  I.cls = OpClass::Convert;
  bool old = d == "e4m3x2" || d == "e5m2x2" || s == "e4m3x2" || s == "e5m2x2";
  D.needSm(I, old ? 89 : 100, !old);
  if (x.f) {
    x.count = d.back() - '0';
    return toNarrow(D, I, x, d);
  }
  x.f = formatOf(s);
  x.s = d;
  if (!x.f)
    return stochasticHalves(D, I, x);
  D.needOps(2, 2);
  if (d != "f16x2" && d != "bf16x2")
    D.error("conversion from ." + s + " to ." + d + " is not supported");
  I.ext = D.extra(x);
  I.fn = execFromNarrow;
  D.finish(I, {D.dst(D.op(0), 4)},
           {D.src(D.op(1), x.f->bits == 4 ? "b8" : "b16")});
}

} // namespace kvcache::sim::KVSIM_TIER
