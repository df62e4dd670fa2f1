//===- ExecMemory.cpp - ld, st, ldu, prefetch -----------------------------===//
#include "Access.h"
#include "MemOrder.h"

namespace kvcache::sim::KVSIM_TIER {

/// Loads one element per lane into a register of the same size.
template <class T>
static void gather(T *d, const uint8_t *host, const uint64_t *off,
                   uint32_t mask, uint32_t extra) {
  if (mask == ~0u) {
    for (int l = 0; l < 32; ++l)
      std::memcpy(&d[l], host + off[l] + extra, sizeof(T));
    return;
  }
  KVSIM_EACH(mask) std::memcpy(&d[l], host + off[l] + extra, sizeof(T));
}

/// A narrower element: extended to the register.
static void gatherExtend(Ctx &c, const Opnd &d, const uint8_t *host,
                         const uint64_t *off, uint32_t mask, uint32_t extra,
                         uint32_t elem, bool isSigned) {
  KVSIM_EACH(mask) {
    uint64_t v = 0;
    std::memcpy(&v, host + off[l] + extra, elem);
    if (isSigned)
      v = uint64_t(int64_t(v << (64 - 8 * elem)) >> (64 - 8 * elem));
    std::memcpy(c.reg<uint8_t>(d) + l * d.sz, &v, d.sz);
  }
}

static bool contiguous(const uint64_t *off, uint32_t step) {
  uint64_t bad = 0;
  KVSIM_LANES bad |= off[l] ^ (off[0] + uint64_t(l) * step);
  return bad == 0;
}

static void loadShadow(Ctx &c, const Instr &I, const Group &g, const Opnd &d,
                       uint32_t extra, uint32_t elem) {
  if (!g.undef) {
    setDefined(c, d, g.mask);
    return;
  }
  alignas(64) uint8_t out[512] = {};
  bool any = false;
  KVSIM_EACH(g.mask) {
    uint64_t v = 0;
    std::memcpy(&v, g.undef + g.off[l] + extra, elem < 8 ? elem : 8);
    if (elem == 16) {
      std::memcpy(out + l * 16, g.undef + g.off[l] + extra, 16);
      any = true;
      continue;
    }
    if (!v)
      continue;
    any = true;
    if (I.a && elem < 8)
      v = uint64_t(int64_t(v << (64 - 8 * elem)) >> (64 - 8 * elem));
    std::memcpy(out + l * d.sz, &v, d.sz < 8 ? d.sz : 8);
  }
  if (any)
    setShadow(c, d, g.mask, out);
  else
    setDefined(c, d, g.mask);
}

template <int Elem>
static Act execLoad(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t addr[32];
  const Opnd &base = I.o[I.nd];
  checkAddressInit(c, I, base, m);
  checkWrapped(c, I, base, m);
  laneAddresses(c, base, I.imm, addr);
  uint32_t bytes = uint32_t(Elem) * I.vec;
  if (c.checks & CheckAlign)
    checkAlign(c, I, m, addr, bytes);
  forGroups(c, I, I.space, m, addr, bytes, [&](const Group &g) {
    for (int v = 0; v < I.vec; ++v) {
      const Opnd &d = I.o[v];
      uint32_t extra = uint32_t(v * Elem);
      if (d.sz != Elem) {
        gatherExtend(c, d, g.host, g.off, g.mask, extra, Elem, I.a);
      } else if constexpr (Elem == 16) {
        KVSIM_EACH(g.mask)
        std::memcpy(c.reg<uint8_t>(d) + l * 16, g.host + g.off[l], 16);
      } else if constexpr (Elem == 1) {
        gather(c.reg<uint8_t>(d), g.host, g.off, g.mask, extra);
      } else {
        using T = std::conditional_t<
            Elem == 2, uint16_t,
            std::conditional_t<Elem == 4, uint32_t, uint64_t>>;
        if (g.mask == ~0u && I.vec == 1 && contiguous(g.off, Elem))
          std::memcpy(c.reg<T>(d), g.host + g.off[0], 32 * Elem);
        else
          gather(c.reg<T>(d), g.host, g.off, g.mask, extra);
      }
      if (c.init)
        loadShadow(c, I, g, d, extra, Elem);
    }
    if (c.checks & CheckAsync)
      checkPending(c, I, g, bytes, false);
    if (c.checks & CheckRace && !g.region->readOnly)
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, bytes,
                 AccessKind::Read, memOrder(I.b));
    if (!c.stats->instr.empty())
      countAccess(c, I, g, bytes);
  });
  return I.b & 1 ? polled(c, I, addr[std::countr_zero(m)]) : Act::Next;
}

static void storeShadow(Ctx &c, const Instr &I, const Group &g, const Opnd &s,
                        uint32_t extra, uint32_t elem) {
  bool tainted = s.off >= 0 && c.frame->flags[s.off >> 6];
  if (tainted &&
      (g.space == MemSpace::Global || g.space == MemSpace::Cluster)) {
    const uint8_t *sh = shadowIn<uint8_t>(c, s);
    KVSIM_EACH(g.mask)
    for (uint32_t i = 0; i < elem; ++i)
      if (sh[l * s.sz + i])
        c.violation("init", I, int(l), g.region->base + g.off[l],
                    "an undefined value is stored to " +
                        std::string(g.space == MemSpace::Global
                                        ? "global memory"
                                        : "another block's shared memory"));
  }
  if (!g.undef)
    return;
  const uint8_t *sh = shadowIn<uint8_t>(c, s);
  KVSIM_EACH(g.mask)
  std::memcpy(g.undef + g.off[l] + extra, sh + l * s.sz, elem);
}

template <int Elem>
static Act execStore(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t addr[32];
  const Opnd &base = I.o[0];
  checkAddressInit(c, I, base, m);
  checkWrapped(c, I, base, m);
  laneAddresses(c, base, I.imm, addr);
  uint32_t bytes = uint32_t(Elem) * I.vec;
  if (c.checks & CheckAlign)
    checkAlign(c, I, m, addr, bytes);
  forGroups(c, I, I.space, m, addr, bytes, [&](const Group &g) {
    if (g.region->readOnly)
      c.violation("bounds", I, std::countr_zero(g.mask),
                  addr[std::countr_zero(g.mask)],
                  "store to read-only " + g.region->name);
    if (c.checks & CheckAsync)
      checkPending(c, I, g, bytes, true);
    if (c.checks & CheckRace) {
      alignas(64) uint8_t values[32 * 128];
      for (int v = 0; v < I.vec; ++v) {
        const Opnd &s = I.o[1 + v];
        const uint8_t *p = c.in<uint8_t>(s);
        for (int l = 0; l < 32; ++l)
          std::memcpy(values + l * bytes + v * Elem, p + l * s.sz, Elem);
      }
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, bytes,
                 AccessKind::Write, memOrder(I.b), values);
    }
    c.stats->changes += !c.warp->polls;
    for (int v = 0; v < I.vec; ++v) {
      const Opnd &s = I.o[1 + v];
      const uint8_t *p = c.in<uint8_t>(s);
      uint32_t extra = uint32_t(v * Elem);
      if (c.warp->polls) [[unlikely]]
        KVSIM_EACH(g.mask)
      c.stats->changes +=
          std::memcmp(g.host + g.off[l] + extra, p + l * s.sz, Elem) != 0;
      if (g.mask == ~0u && I.vec == 1 && s.sz == Elem &&
          contiguous(g.off, Elem))
        std::memcpy(g.host + g.off[0], p, 32 * Elem);
      else
        KVSIM_EACH(g.mask)
      std::memcpy(g.host + g.off[l] + extra, p + l * s.sz, Elem);
      if (c.init)
        storeShadow(c, I, g, s, extra, Elem);
    }
    if (!c.stats->instr.empty())
      countAccess(c, I, g, bytes);
  });
  return Act::Next;
}

static int takeVec(Decoder &D) {
  return D.take("v2") ? 2 : D.take("v4") ? 4 : D.take("v8") ? 8 : 1;
}

/// A cache policy may follow the address or the value.
static void dropPolicy(Decoder &D, size_t plain) {
  if (D.count() > plain + 1 || D.count() < plain)
    D.needOps(plain, plain + 1);
}

static void decodeLd(Decoder &D, Instr &I) {
  bool nc = D.take("nc");
  I.b = takeMemOrder(D);
  I.space = D.space();
  D.cacheHints();
  I.vec = uint8_t(takeVec(D));
  std::string t = D.type();
  D.cacheHints();
  dropPolicy(D, 2);
  (void)nc;
  int elem = typeSize(t);
  I.a = t[0] == 's';
  I.elem = uint8_t(elem);
  I.cls = OpClass::Load;
  I.shadow = nullptr;
  if (I.space == MemSpace::KParam && !D.fn.isEntry)
    I.space = MemSpace::FParam;
  std::vector<Opnd> ds;
  const Operand &d = D.op(0);
  if (I.vec > 1) {
    if (d.kind != Operand::Vec || d.elems.size() != I.vec)
      D.error("'ld' with .v" + std::to_string(I.vec) +
              " needs that many "
              "registers in braces");
    for (const Operand &e : d.elems)
      ds.push_back(D.dstAny(e, elem));
  } else if (d.kind == Operand::Vec && d.elems.size() == 1) {
    ds.push_back(D.dstAny(d.elems[0], elem));
  } else {
    ds.push_back(D.dstAny(d, elem));
  }
  for (const Opnd &o : ds)
    if (o.sz < elem)
      D.error("a destination of 'ld' is smaller than ." + t);
  int64_t offset;
  Opnd base = D.address(D.op(1), I.space, offset);
  I.imm = offset;
  switch (elem) {
  case 1:
    I.fn = execLoad<1>;
    break;
  case 2:
    I.fn = execLoad<2>;
    break;
  case 4:
    I.fn = execLoad<4>;
    break;
  case 8:
    I.fn = execLoad<8>;
    break;
  case 16:
    I.fn = execLoad<16>;
    break;
  default:
    D.error("type ." + t + " is not accepted by 'ld'");
  }
  D.finish(I, ds, {base});
}

static void decodeSt(Decoder &D, Instr &I) {
  I.b = takeMemOrder(D);
  if (D.take("async"))
    return decodeStAsync(D, I);
  I.space = D.space();
  D.cacheHints();
  I.vec = uint8_t(takeVec(D));
  std::string t = D.type();
  dropPolicy(D, 2);
  int elem = typeSize(t);
  I.elem = uint8_t(elem);
  I.cls = OpClass::Store;
  I.shadow = nullptr;
  I.matters = true;
  if (I.space == MemSpace::KParam)
    I.space = MemSpace::FParam;
  int64_t offset;
  std::vector<Opnd> ss{D.address(D.op(0), I.space, offset)};
  I.imm = offset;
  const Operand &s = D.op(1);
  if (I.vec > 1) {
    if (s.kind != Operand::Vec || s.elems.size() != I.vec)
      D.error("'st' with .v" + std::to_string(I.vec) +
              " needs that many "
              "registers in braces");
    for (const Operand &e : s.elems)
      ss.push_back(D.srcAny(e, t));
  } else if (s.kind == Operand::Vec && s.elems.size() == 1) {
    ss.push_back(D.srcAny(s.elems[0], t));
  } else {
    ss.push_back(D.srcAny(s, t));
  }
  for (size_t i = 1; i < ss.size(); ++i)
    if (ss[i].sz < elem)
      D.error("a source of 'st' is smaller than ." + t);
  switch (elem) {
  case 1:
    I.fn = execStore<1>;
    break;
  case 2:
    I.fn = execStore<2>;
    break;
  case 4:
    I.fn = execStore<4>;
    break;
  case 8:
    I.fn = execStore<8>;
    break;
  case 16:
    I.fn = execStore<16>;
    break;
  default:
    D.error("type ." + t + " is not accepted by 'st'");
  }
  D.finish(I, {}, ss);
}

/// Hints: prefetch, discard, applypriority, createpolicy.
static void decodeHint(Decoder &D, Instr &I) {
  D.takeRest();
  I.shadow = nullptr;
  I.fn = [](Ctx &c, const Instr &I, uint32_t m) {
    for (int i = 0; i < I.nd; ++i) // a policy is any value
      KVSIM_EACH(m) c.reg<uint64_t>(I.o[i])[l] = 0;
    if (c.init)
      for (int i = 0; i < I.nd; ++i)
        setDefined(c, I.o[i], m);
    return Act::Next;
  };
  if (D.in->op == "createpolicy")
    D.finish(I, {D.dst(D.op(0), 8)}, {});
  else
    D.finish(I, {}, {});
}

void addMemory(Table &t) {
  t.add("ld", decodeLd);
  t.add("ldu", decodeLd);
  t.add("st", decodeSt);
  for (const char *n :
       {"prefetch", "prefetchu", "discard", "applypriority", "createpolicy"})
    t.add(n, decodeHint);
}

} // namespace kvcache::sim::KVSIM_TIER
