//===- ExecMove.cpp - mov, cvta, isspacep, mapa ---------------------------===//
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

template <class T>
static Act execMov(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[1]);
  if (m == ~0u) {
    KVSIM_LANES d[l] = a[l];
  } else {
    KVSIM_LANES d[l] = m >> l & 1 ? a[l] : d[l];
  }
  return Act::Next;
}

static Act execMovPred(Ctx &c, const Instr &I, uint32_t m) {
  writePred(c, I.o[0], m, c.pred(I.o[1]));
  return Act::Next;
}

static Act execMov128(Ctx &c, const Instr &I, uint32_t m) {
  KVSIM_EACH(m)
  std::memmove(c.reg<uint8_t>(I.o[0]) + l * 16, c.in<uint8_t>(I.o[1]) + l * 16,
               16);
  return Act::Next;
}

/// Packs or unpacks: all sources concatenated, cut into destinations.
static Act execPack(Ctx &c, const Instr &I, uint32_t m) {
  uint8_t buf[32][32];
  int pos = 0;
  for (int i = 0; i < I.ns; ++i) {
    const Opnd &s = I.o[I.nd + i];
    const uint8_t *p = c.in<uint8_t>(s);
    for (int l = 0; l < 32; ++l)
      std::memcpy(buf[l] + pos, p + l * s.sz, s.sz);
    pos += s.sz;
  }
  pos = 0;
  for (int i = 0; i < I.nd; ++i) {
    const Opnd &d = I.o[i];
    uint8_t *p = c.reg<uint8_t>(d);
    KVSIM_EACH(m) std::memcpy(p + l * d.sz, buf[l] + pos, d.sz);
    pos += d.sz;
  }
  return Act::Next;
}

/// b32 <-> two b16, the frequent case.
static Act execUnpack2(Ctx &c, const Instr &I, uint32_t m) {
  uint16_t *lo = c.reg<uint16_t>(I.o[0]), *hi = c.reg<uint16_t>(I.o[1]);
  const uint32_t *a = c.in<uint32_t>(I.o[2]);
  KVSIM_LANES {
    lo[l] = m >> l & 1 ? uint16_t(a[l]) : lo[l];
    hi[l] = m >> l & 1 ? uint16_t(a[l] >> 16) : hi[l];
  }
  return Act::Next;
}
static Act execPack2(Ctx &c, const Instr &I, uint32_t m) {
  uint32_t *d = c.reg<uint32_t>(I.o[0]);
  const uint16_t *lo = c.in<uint16_t>(I.o[1]), *hi = c.in<uint16_t>(I.o[2]);
  KVSIM_LANES d[l] = m >> l & 1 ? uint32_t(hi[l]) << 16 | lo[l] : d[l];
  return Act::Next;
}

static void decodePack(Decoder &D, Instr &I, int bytes) {
  const Operand &d = D.op(0), &s = D.op(1);
  std::vector<Opnd> ds, ss;
  auto pieceType = [](int n) { return "b" + std::to_string(n * 8); };
  if (d.kind == Operand::Vec) {
    int n = int(d.elems.size());
    if (n != 2 && n != 4 && n != 8 && n != 16)
      D.error("cannot unpack into " + std::to_string(n) + " parts");
    for (const Operand &e : d.elems)
      ds.push_back(D.dst(e, bytes / n));
    if (s.kind == Operand::Vec)
      D.error("only one operand of 'mov' may be a vector");
    ss.push_back(D.src(s, pieceType(bytes)));
  } else {
    int n = int(s.elems.size());
    if (n == 0 || bytes / n * n != bytes || typeSize(pieceType(bytes / n)) < 1)
      D.error("cannot pack " + std::to_string(n) + " parts");
    ds.push_back(D.dst(d, bytes));
    for (const Operand &e : s.elems)
      ss.push_back(D.src(e, pieceType(bytes / n)));
  }
  for (const Opnd &o : ds)
    if (o.sz == 0)
      D.error("cannot split into parts this small");
  I.fn = execPack;
  if (ds.size() == 2 && ds[0].sz == 2)
    I.fn = execUnpack2;
  if (ss.size() == 2 && ss[0].sz == 2)
    I.fn = execPack2;
  I.shadow = shadowPack;
  I.cls = OpClass::Move;
  D.finish(I, ds, ss);
}

static void decodeMov(Decoder &D, Instr &I) {
  D.needOps(2, 2);
  std::string t = D.type();
  int n = typeSize(t);
  I.cls = OpClass::Move;
  I.shadow = shadowCopy;
  I.wrapKind = 1;
  const Operand &d = D.op(0), &s = D.op(1);
  if (t == "pred") {
    I.fn = execMovPred;
    D.finish(I, {D.dst(d, 0)}, {D.pred(s)});
    return;
  }
  if (d.kind == Operand::Vec || s.kind == Operand::Vec)
    return decodePack(D, I, n);
  I.fn = n == 1   ? ExecFn(nullptr)
         : n == 2 ? execMov<uint16_t>
         : n == 4 ? execMov<uint32_t>
         : n == 8 ? execMov<uint64_t>
                  : execMov128;
  if (!I.fn)
    D.error("type ." + t + " is not accepted by 'mov'");
  D.finish(I, {D.dst(d, n)}, {D.src(s, t)});
}

static uint64_t windowOf(MemSpace s) {
  switch (s) {
  case MemSpace::Shared:
  case MemSpace::Cluster:
    return kSharedWindow;
  case MemSpace::Local:
    return kLocalWindow;
  case MemSpace::KParam:
    return kParamWindow;
  case MemSpace::FParam:
    return kFParamWindow;
  default:
    return 0;
  }
}

template <class T>
static Act execCvta(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[1]);
  T add = T(I.imm), mask = T(I.b ? kWindow - 1 : ~uint64_t(0));
  KVSIM_LANES d[l] = m >> l & 1 ? T((a[l] & mask) + add) : d[l];
  return Act::Next;
}

static void decodeCvta(Decoder &D, Instr &I) {
  D.needOps(2, 2);
  bool to = D.take("to");
  MemSpace sp = D.space();
  std::string t = D.type();
  if (typeSize(t) != 8)
    D.error("only 64-bit addresses are supported");
  const Operand &s = D.op(1);
  if (s.kind == Operand::Sym) {
    MemSpace have;
    int64_t v;
    if (D.symbol(s, have, v) &&
        (have == MemSpace::FParam || have == MemSpace::KParam))
      sp = have;
  }
  if (sp == MemSpace::KParam && !D.fn.isEntry)
    sp = MemSpace::FParam;
  I.fn = execCvta<uint64_t>;
  I.imm = to ? 0 : int64_t(windowOf(sp));
  I.b = to && windowOf(sp);
  I.shadow = shadowCopy;
  I.wrapKind = 1;
  I.cls = OpClass::Move;
  Opnd src;
  if (sp == MemSpace::FParam && s.kind == Operand::Sym) {
    src = D.src(s, t); // its value is generic already
    I.imm = 0;
  } else {
    src = D.src(s, t);
  }
  D.finish(I, {D.dst(D.op(0), 8)}, {src});
}

static Act execIsspacep(Ctx &c, const Instr &I, uint32_t m) {
  const uint64_t *a = c.in<uint64_t>(I.o[1]);
  uint32_t r = 0;
  KVSIM_EACH(m) {
    uint64_t w = a[l] / kWindow;
    bool p;
    switch (MemSpace(I.a)) {
    case MemSpace::Shared: {
      uint64_t rank = a[l] >> kRankShift & 0xff;
      p = w == 1 && (rank == 0 || rank == c.block->rank + 1);
      break;
    }
    case MemSpace::Cluster:
      p = w == 1;
      break;
    case MemSpace::Local:
      p = w == 2;
      break;
    case MemSpace::KParam:
      p = w == 3;
      break;
    case MemSpace::Const: {
      const Region *g = c.grid->find(a[l]);
      p = g && g->readOnly;
      break;
    }
    default:
      p = w == 0 || w > 4;
    }
    r |= uint32_t(p) << l;
  }
  writePred(c, I.o[0], m, r);
  return Act::Next;
}

static void decodeIsspacep(Decoder &D, Instr &I) {
  D.needOps(2, 2);
  I.a = uint32_t(D.space());
  I.fn = execIsspacep;
  I.cls = OpClass::Move;
  D.finish(I, {D.dst(D.op(0), 0)}, {D.src(D.op(1), "b64")});
}

/// The address of the same variable in another block of the cluster.
template <class T>
static Act execMapa(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[1]);
  const uint32_t *rank = c.in<uint32_t>(I.o[2]);
  KVSIM_EACH(m) {
    if (rank[l] >= c.grid->clusterSize)
      c.violation("bounds", I, int(l), rank[l],
                  "the cluster has " + std::to_string(c.grid->clusterSize) +
                      " blocks, 'mapa' names block " + std::to_string(rank[l]));
    T low = a[l] & T(~(uint64_t(0xff) << kRankShift));
    d[l] = low | T(uint64_t(rank[l] + 1) << kRankShift);
  }
  return Act::Next;
}

static void decodeMapa(Decoder &D, Instr &I) {
  D.needOps(3, 3);
  D.space();
  std::string t = D.type();
  I.fn = typeSize(t) == 8 ? execMapa<uint64_t> : execMapa<uint32_t>;
  I.cls = OpClass::Move;
  D.needSm(I, 90);
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), "u32")});
}

static void decodeGetctarank(Decoder &D, Instr &I) {
  D.needOps(2, 2);
  D.space();
  std::string t = D.type();
  I.fn = [](Ctx &c, const Instr &I, uint32_t m) {
    KVSIM_EACH(m) {
      uint64_t a = I.o[1].sz == 8 ? c.in<uint64_t>(I.o[1])[l]
                                  : c.in<uint32_t>(I.o[1])[l];
      uint32_t r = uint32_t(a >> kRankShift & 0xff);
      c.reg<uint32_t>(I.o[0])[l] = r ? r - 1 : c.block->rank;
    }
    return Act::Next;
  };
  I.cls = OpClass::Move;
  D.needSm(I, 90);
  D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), t)});
}

void addMove(Table &t) {
  t.add("mov", decodeMov);
  t.add("cvta", decodeCvta);
  t.add("isspacep", decodeIsspacep);
  t.add("mapa", decodeMapa);
  t.add("getctarank", decodeGetctarank);
}

} // namespace kvcache::sim::KVSIM_TIER
