//===- ExecOverflow.cpp - 32-bit arithmetic that wrapped in an address ----===//
//
// 32-bit sums, products and shifts mark the lanes whose exact result fits
// neither reading of the register: as signed (mark 0) and, for what is widened
// without sign, as signed and unsigned (mark 1, so that i - 1 is none). Marks
// travel through copies and widenings (Warp.cpp); an address that carries one
// is a violation. Masks and remainders make new values, so hashes are none.
//
//===----------------------------------------------------------------------===//
#include "Arith.h"
#include "MemOrder.h"

namespace kvcache::sim::KVSIM_TIER {

enum Kind { Add, Sub, Mul, Mad, Shl };

template <int K>
static Act findWraps(Ctx &c, const Instr &I, uint32_t m) {
  const uint32_t *a = c.in<uint32_t>(I.o[1]), *b = c.in<uint32_t>(I.o[2]);
  const uint32_t *e = K == Mad ? c.in<uint32_t>(I.o[3]) : a;
  alignas(64) uint8_t badS[32], badU[32];
  KVSIM_LANES {
    int64_t sa = int32_t(a[l]), sb = int32_t(b[l]), se = int32_t(e[l]);
    uint64_t ua = a[l], ub = b[l], ue = e[l];
    int64_t s = K == Add   ? sa + sb
                : K == Sub ? sa - sb
                : K == Mul ? sa * sb
                : K == Mad ? sa * sb + se
                           : sa * (int64_t(1) << (ub & 31));
    uint64_t u = K == Add   ? ua + ub
                 : K == Sub ? ua - ub
                 : K == Mul ? ua * ub
                 : K == Mad ? ua * ub + ue
                            : ua << (ub & 31);
    badS[l] = s != int32_t(s);
    badU[l] = badS[l] & uint8_t(u >> 32 != 0);
  }
  uint32_t s = 0, u = 0;
  for (int l = 0; l < 32; ++l) {
    s |= uint32_t(badS[l]) << l;
    u |= uint32_t(badU[l]) << l;
  }
  s &= m;
  u &= m;
  auto &w = c.frame->wraps;
  if (!s && w.empty())
    return Act::Next;
  if (w.empty())
    w.resize(size_t(c.frame->code->frameBytes / 64) + 8);
  for (int i = 0; i < I.ns; ++i)
    if (I.o[1 + i].off >= 0) {
      s |= w[size_t(I.o[1 + i].off >> 6)][0] & m;
      u |= w[size_t(I.o[1 + i].off >> 6)][1] & m;
    }
  auto &x = w[size_t(I.o[0].off >> 6)];
  x[0] = (x[0] & ~m) | s;
  x[1] = (x[1] & ~m) | u;
  return Act::Next;
}

void trackOverflow(Decoder &, Instr &I, const std::string &t, int kind) {
  I.wrapKind = 1;
  if (typeSize(t) != 4 || t.find('x') != std::string::npos)
    return;
  I.overflow = kind == Add   ? findWraps<Add>
               : kind == Sub ? findWraps<Sub>
               : kind == Mul ? findWraps<Mul>
               : kind == Mad ? findWraps<Mad>
                             : findWraps<Shl>;
}

void wrappedAddress(Ctx &c, const Instr &I, const Opnd &base, uint32_t mask) {
  if (base.off < 0 || c.frame->wraps.empty())
    return;
  if (uint32_t w = c.frame->wraps[size_t(base.off >> 6)][0] & mask) {
    int l = std::countr_zero(w);
    uint64_t a =
        base.sz == 8 ? c.in<uint64_t>(base)[l] : c.in<uint32_t>(base)[l];
    c.violation("overflow", I, l, a,
                "32-bit arithmetic of this address wrapped");
  }
}

} // namespace kvcache::sim::KVSIM_TIER
