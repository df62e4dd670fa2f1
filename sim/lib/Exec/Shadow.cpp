//===- Shadow.cpp - Following undefined bits through registers ------------===//
//
// A shadow bit is set where the value's bit is undefined. Slots carry a flag:
// 0 all defined, 1 see the shadow slot, 2 all undefined (the shadow slot is not
// written yet), so that defined data costs one byte test per operand.
//
//===----------------------------------------------------------------------===//
#include "Decoder.h"
#include <bit>
#include <cstring>

namespace kvcache::sim {

alignas(64) static uint8_t zeros[512];
alignas(64) static uint8_t ones[512];
static const bool onesReady = [] {
  std::memset(ones, 0xff, sizeof ones);
  return true;
}();

template <class T>
const T *shadowIn(Ctx &c, const Opnd &o) {
  (void)onesReady;
  if (o.off < 0)
    return reinterpret_cast<const T *>(zeros);
  switch (c.frame->flags[o.off >> 6]) {
  case 0:
    return reinterpret_cast<const T *>(zeros);
  case 1:
    return reinterpret_cast<const T *>(c.frame->shadow + o.off);
  default:
    return reinterpret_cast<const T *>(ones);
  }
}
template const uint8_t *shadowIn(Ctx &, const Opnd &);
template const uint16_t *shadowIn(Ctx &, const Opnd &);
template const uint32_t *shadowIn(Ctx &, const Opnd &);
template const uint64_t *shadowIn(Ctx &, const Opnd &);

static int slotBytes(const Opnd &o) { return o.sz ? o.sz * 32 : 4; }

static void materialise(Ctx &c, const Opnd &o) {
  uint8_t &f = c.frame->flags[o.off >> 6];
  if (f == 1)
    return;
  std::memset(c.frame->shadow + o.off, f ? 0xff : 0, size_t(slotBytes(o)));
  f = 1;
}

uint32_t taintedLanes(Ctx &c, const Opnd &o, uint32_t mask) {
  if (o.off < 0 || c.frame->flags[o.off >> 6] == 0)
    return 0;
  if (c.frame->flags[o.off >> 6] == 2)
    return mask;
  const uint8_t *s = c.frame->shadow + o.off;
  uint32_t r = 0;
  if (o.sz == 0) {
    std::memcpy(&r, s, 4);
    return r & mask;
  }
  for (int l = 0; l < 32; ++l) {
    uint8_t any = 0;
    for (int i = 0; i < o.sz; ++i)
      any |= s[l * o.sz + i];
    r |= uint32_t(any != 0) << l;
  }
  return r & mask;
}

bool isTainted(Ctx &c, const Opnd &o, uint32_t mask) {
  return taintedLanes(c, o, mask) != 0;
}

void setShadow(Ctx &c, const Opnd &o, uint32_t mask, const void *lanes) {
  uint8_t &f = c.frame->flags[o.off >> 6];
  int bytes = slotBytes(o);
  if (std::memcmp(lanes, zeros, size_t(bytes)) == 0) {
    setDefined(c, o, mask);
    return;
  }
  if (mask != ~0u || o.sz == 0)
    materialise(c, o);
  f = 1;
  uint8_t *s = c.frame->shadow + o.off;
  if (o.sz == 0) {
    uint32_t old, now;
    std::memcpy(&old, s, 4);
    std::memcpy(&now, lanes, 4);
    now = (old & ~mask) | (now & mask);
    std::memcpy(s, &now, 4);
    return;
  }
  const auto *in = static_cast<const uint8_t *>(lanes);
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1)
      std::memcpy(s + l * o.sz, in + l * o.sz, o.sz);
}

void setUndefined(Ctx &c, const Opnd &o, uint32_t mask) {
  if (mask == ~0u)
    c.frame->flags[o.off >> 6] = 2;
  else if (c.frame->flags[o.off >> 6] != 2)
    setShadow(c, o, mask, ones);
}

void setDefined(Ctx &c, const Opnd &o, uint32_t mask) {
  uint8_t &f = c.frame->flags[o.off >> 6];
  if (f == 0)
    return;
  if ((mask | ~c.warp->all) == ~0u) {
    f = 0;
    return;
  }
  materialise(c, o);
  uint8_t *s = c.frame->shadow + o.off;
  if (o.sz == 0) {
    uint32_t old;
    std::memcpy(&old, s, 4);
    old &= ~mask;
    std::memcpy(s, &old, 4);
  } else {
    for (int l = 0; l < 32; ++l)
      if (mask >> l & 1)
        std::memset(s + l * o.sz, 0, o.sz);
  }
  // All lanes that exist are defined by now? Divergent code defines in parts.
  if (taintedLanes(c, o, c.warp->all) == 0)
    f = 0;
}

/// All ones per lane where any source has an undefined bit.
void shadowAny(Ctx &c, const Instr &I, uint32_t mask) {
  uint32_t t = 0;
  for (int i = 0; i < I.ns; ++i)
    t |= taintedLanes(c, I.o[I.nd + i], mask);
  for (int i = 0; i < I.nd; ++i) {
    if (mask & ~t)
      setDefined(c, I.o[i], mask & ~t);
    if (t)
      setUndefined(c, I.o[i], t);
  }
}

void shadowNone(Ctx &c, const Instr &I, uint32_t mask) {
  for (int i = 0; i < I.nd; ++i)
    setDefined(c, I.o[i], mask);
}

static uint64_t laneOf(const void *p, int sz, int l) {
  uint64_t v = 0;
  if (sz == 0)
    return reinterpret_cast<const uint32_t *>(p)[0] >> l & 1 ? ~0ull : 0;
  std::memcpy(&v, static_cast<const uint8_t *>(p) + l * sz,
              size_t(sz < 8 ? sz : 8));
  return v;
}

namespace {
/// The result's shadow, collected lane by lane.
struct Lanes {
  alignas(64) uint8_t bytes[512] = {};
  int sz;
  explicit Lanes(int sz) : sz(sz) {}
  void set(int l, uint64_t v) {
    if (sz == 0) {
      uint32_t m;
      std::memcpy(&m, bytes, 4);
      m = v ? m | 1u << l : m & ~(1u << l);
      std::memcpy(bytes, &m, 4);
    } else {
      std::memcpy(bytes + l * sz, &v, size_t(sz < 8 ? sz : 8));
    }
  }
};
} // namespace

void shadowCopy(Ctx &c, const Instr &I, uint32_t mask) {
  const Opnd &s = I.o[I.nd];
  if (s.sz != I.o[0].sz)
    return shadowZext(c, I, mask);
  alignas(64) uint8_t copy[512];
  std::memcpy(copy, shadowIn<uint8_t>(c, s), size_t(slotBytes(s)));
  setShadow(c, I.o[0], mask, copy);
}

template <class F>
static void bitwise(Ctx &c, const Instr &I, uint32_t mask, F f) {
  const Opnd &a = I.o[I.nd], &b = I.o[I.nd + 1];
  const uint8_t *sa = shadowIn<uint8_t>(c, a), *sb = shadowIn<uint8_t>(c, b);
  const uint8_t *va = c.in<uint8_t>(a), *vb = c.in<uint8_t>(b);
  Lanes out(I.o[0].sz);
  for (int l = 0; l < 32; ++l) {
    uint64_t na = a.neg ? ~0ull : 0, nb = b.neg ? ~0ull : 0;
    out.set(l, f(laneOf(va, a.sz, l) ^ na, laneOf(vb, b.sz, l) ^ nb,
                 laneOf(sa, a.sz, l), laneOf(sb, b.sz, l)));
  }
  setShadow(c, I.o[0], mask, out.bytes);
}

/// A defined 0 decides an and, a defined 1 an or.
void shadowAnd(Ctx &c, const Instr &I, uint32_t mask) {
  bitwise(c, I, mask, [](uint64_t a, uint64_t b, uint64_t sa, uint64_t sb) {
    return (sa & sb) | (sa & b) | (sb & a);
  });
}
void shadowOr(Ctx &c, const Instr &I, uint32_t mask) {
  bitwise(c, I, mask, [](uint64_t a, uint64_t b, uint64_t sa, uint64_t sb) {
    return (sa & sb) | (sa & ~b) | (sb & ~a);
  });
}
void shadowXor(Ctx &c, const Instr &I, uint32_t mask) {
  bitwise(c, I, mask,
          [](uint64_t, uint64_t, uint64_t sa, uint64_t sb) { return sa | sb; });
}

void shadowShift(Ctx &c, const Instr &I, uint32_t mask) {
  const Opnd &a = I.o[I.nd], &b = I.o[I.nd + 1];
  if (isTainted(c, b, mask))
    return shadowAny(c, I, mask);
  const uint8_t *sa = shadowIn<uint8_t>(c, a), *vb = c.in<uint8_t>(b);
  Lanes out(I.o[0].sz);
  int bits = a.sz * 8;
  for (int l = 0; l < 32; ++l) {
    uint64_t s = laneOf(sa, a.sz, l), n = laneOf(vb, b.sz, l);
    if (I.a == 0)
      s = n >= unsigned(bits) ? 0 : s << n;
    else if (I.a == 1)
      s = n >= unsigned(bits) ? 0 : s >> n;
    else
      s = uint64_t((int64_t(s << (64 - bits)) >> (64 - bits)) >>
                   (n >= unsigned(bits) ? bits - 1 : n));
    out.set(l, s);
  }
  setShadow(c, I.o[0], mask, out.bytes);
}

/// o: d, a, b, p.
void shadowSelect(Ctx &c, const Instr &I, uint32_t mask) {
  const Opnd &a = I.o[1], &b = I.o[2], &p = I.o[3];
  uint32_t sel = c.pred(p), undef = taintedLanes(c, p, mask);
  const uint8_t *sa = shadowIn<uint8_t>(c, a), *sb = shadowIn<uint8_t>(c, b);
  const uint8_t *va = c.in<uint8_t>(a), *vb = c.in<uint8_t>(b);
  Lanes out(I.o[0].sz);
  for (int l = 0; l < 32; ++l) {
    uint64_t x = laneOf(sa, a.sz, l), y = laneOf(sb, b.sz, l);
    if (undef >> l & 1) // either: bits that differ or are undefined in one
      out.set(l, x | y | (laneOf(va, a.sz, l) ^ laneOf(vb, b.sz, l)));
    else
      out.set(l, sel >> l & 1 ? x : y);
  }
  setShadow(c, I.o[0], mask, out.bytes);
}

/// Bytes are moved; sign replication takes the sign's shadow.
void shadowPrmt(Ctx &c, const Instr &I, uint32_t mask) {
  if (isTainted(c, I.o[3], mask) || I.a != 0)
    return shadowAny(c, I, mask);
  const uint32_t *sa = shadowIn<uint32_t>(c, I.o[1]),
                 *sb = shadowIn<uint32_t>(c, I.o[2]);
  const uint32_t *sel = c.in<uint32_t>(I.o[3]);
  Lanes out(4);
  for (int l = 0; l < 32; ++l) {
    uint64_t v = uint64_t(sb[l]) << 32 | sa[l];
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
      uint32_t s = sel[l] >> (4 * i) & 15;
      uint8_t byte = uint8_t(v >> (8 * (s & 7)));
      if (s & 8)
        byte = byte & 0x80 ? 0xff : 0;
      r |= uint32_t(byte) << (8 * i);
    }
    out.set(l, r);
  }
  setShadow(c, I.o[0], mask, out.bytes);
}

/// Integer conversion: imm source bits, a != 0: sign extension.
void shadowZext(Ctx &c, const Instr &I, uint32_t mask) {
  const Opnd &s = I.o[I.nd];
  const uint8_t *sa = shadowIn<uint8_t>(c, s);
  Lanes out(I.o[0].sz);
  int bits = I.imm > 0 && I.imm <= 64 ? int(I.imm) : s.sz * 8;
  for (int l = 0; l < 32; ++l) {
    uint64_t v = laneOf(sa, s.sz, l);
    if (bits < 64)
      v = I.a ? uint64_t(int64_t(v << (64 - bits)) >> (64 - bits))
              : v & ((uint64_t(1) << bits) - 1);
    out.set(l, v);
  }
  setShadow(c, I.o[0], mask, out.bytes);
}

/// Concatenates all sources and cuts the result into the destinations.
void shadowPack(Ctx &c, const Instr &I, uint32_t mask) {
  alignas(64) uint8_t all[32][32] = {};
  int pos = 0;
  for (int i = 0; i < I.ns; ++i) {
    const Opnd &s = I.o[I.nd + i];
    const uint8_t *sh = shadowIn<uint8_t>(c, s);
    for (int l = 0; l < 32; ++l)
      std::memcpy(all[l] + pos, sh + l * s.sz, s.sz);
    pos += s.sz;
  }
  pos = 0;
  for (int i = 0; i < I.nd; ++i) {
    const Opnd &d = I.o[i];
    alignas(64) uint8_t out[512] = {};
    for (int l = 0; l < 32; ++l)
      std::memcpy(out + l * d.sz, all[l] + pos, d.sz);
    pos += d.sz;
    setShadow(c, d, mask, out);
  }
}

/// Two 16-bit halves, each by itself.
void shadowHalves(Ctx &c, const Instr &I, uint32_t mask) {
  Lanes out(I.o[0].sz);
  uint32_t any[32] = {};
  for (int i = 0; i < I.ns; ++i) {
    const Opnd &s = I.o[I.nd + i];
    if (s.sz != 4)
      return shadowAny(c, I, mask);
    const uint32_t *sh = shadowIn<uint32_t>(c, s);
    for (int l = 0; l < 32; ++l)
      any[l] |= sh[l];
  }
  for (int l = 0; l < 32; ++l)
    out.set(l,
            (any[l] & 0xffff ? 0xffffu : 0) | (any[l] >> 16 ? 0xffff0000u : 0));
  setShadow(c, I.o[0], mask, out.bytes);
}

/// Undefined from the lowest undefined bit upwards.
void shadowAdd(Ctx &c, const Instr &I, uint32_t mask) {
  Lanes out(I.o[0].sz);
  for (int l = 0; l < 32; ++l) {
    uint64_t s = 0;
    for (int i = 0; i < I.ns; ++i) {
      const Opnd &o = I.o[I.nd + i];
      s |= laneOf(shadowIn<uint8_t>(c, o), o.sz, l);
    }
    out.set(l, s ? ~uint64_t(0) << std::countr_zero(s) : 0);
  }
  setShadow(c, I.o[0], mask, out.bytes);
}

} // namespace kvcache::sim
