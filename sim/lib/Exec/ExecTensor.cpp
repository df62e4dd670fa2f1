//===- ExecTensor.cpp - Tensor copies, tensormap --------------------------===//
//
// A tile copy walks the box element by element (runs of the inner dimension),
// bounds against the tensor's dims: outside, loads fill and stores skip. The
// swizzle exchanges 16-byte chunks by bits 7.. of the shared memory address.
//
//===----------------------------------------------------------------------===//
#include "../Machine/TensorMap.h"
#include "Bulk.h"

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct TensorExt {
  bool load, multicast = false, reduce = false, mbarrier = false;
  int rank;
  MemSpace shared;
  int64_t mapOff, smemOff, barOff = 0;
  MemSpace mapSpace = MemSpace::Generic;
  int map, coords, smem, bar = -1, mask = -1; ///< operand indices
  ReduceOp op;
};
} // namespace

namespace {
/// Elements of global memory, joined to runs for the race check and counters.
struct Run {
  Ctx &c;
  const Instr &I;
  int lane;
  AccessKind kind;
  const AsyncOp &op;
  Bytes at;
  uint64_t bytes = 0;
  std::vector<uint8_t> values;

  void add(const Bytes &b, uint64_t n, const uint8_t *value) {
    if (bytes && (b.region != at.region || b.offset != at.offset + bytes))
      flush();
    if (!bytes)
      at = b;
    bytes += n;
    if (value && (c.checks & CheckRace))
      values.insert(values.end(), value, value + n);
  }
  void flush() {
    if (bytes)
      countBulk(c, I, at, bytes, kind == AccessKind::Write);
    if (bytes)
      bulkAccess(c, I, lane, at, bytes, kind,
                 values.empty() ? nullptr : values.data(), &op);
    bytes = 0;
    values.clear();
  }
};
} // namespace

static TensorMap loadMap(Ctx &c, const Instr &I, int lane, MemSpace sp,
                         uint64_t addr, int rank) {
  Bytes b = resolveBytes(c, I, lane, sp, addr, 128);
  if (addr % 64 && (c.checks & CheckAlign))
    c.violation("align", I, lane, addr,
                "a tensor map must be aligned to 64 bytes");
  if (b.undef)
    for (int i = 0; i < 104; ++i)
      if (b.undef[i])
        c.violation("init", I, lane, addr, "the tensor map is undefined");
  if ((c.checks & CheckAsync) && (c.checks & CheckRace) &&
      b.space == MemSpace::Global)
    raceTensormapUse(c, I, lane, *b.region, b.offset);
  TensorMap m;
  std::memcpy(&m, b.host, 128);
  if (m.rank1 + 1 != rank)
    c.violation("bounds", I, lane, addr,
                "the tensor map has rank " + std::to_string(m.rank1 + 1) +
                    ", the instruction " + std::to_string(rank));
  if (!tensorElemBytes(m.elemType) || m.interleave)
    c.violation(
        "bounds", I, lane, addr,
        "element type or interleave of the tensor map is not supported");
  uint64_t total = uint64_t(tensorElemBytes(m.elemType));
  for (int i = 0; i < rank; ++i) {
    total *= m.box[i];
    if (!m.box[i] || m.box[i] > 256 || !m.elementStrides[i] ||
        total > (1 << 20))
      c.violation("bounds", I, lane, addr, "the tensor map's box is invalid");
  }
  return m;
}

static uint64_t swizzled(const TensorMap &m, uint64_t a) {
  static const uint64_t masks[] = {0, 1, 3, 7};
  return a ^ ((a >> 7 & masks[m.swizzle & 3]) << 4);
}

/// Lines of the inner dimension: calls f(shared offset, global address, element
/// count inside, elements before the inside).
template <class F>
static void walkBox(const TensorMap &m, const int32_t *at, F f) {
  int rank = m.rank1 + 1, elem = tensorElemBytes(m.elemType);
  uint64_t lines = 1;
  auto count = [&](int d) {
    return (m.box[d] + m.elementStrides[d] - 1) / m.elementStrides[d];
  };
  for (int d = 1; d < rank; ++d)
    lines *= count(d);
  uint64_t inner = count(0);
  for (uint64_t line = 0; line < lines; ++line) {
    uint64_t rest = line, addr = m.address;
    bool inside = true;
    for (int d = 1; d < rank; ++d) {
      int64_t i = int64_t(rest % count(d)) * m.elementStrides[d] + at[d];
      rest /= count(d);
      inside &=
          i >= 0 && i < int64_t(m.dims[d] ? m.dims[d] : uint64_t(1) << 32);
      addr += uint64_t(i) * m.strides[d - 1];
    }
    for (uint64_t x = 0; x < inner; ++x) {
      int64_t i = int64_t(x) * m.elementStrides[0] + at[0];
      bool in = inside && i >= 0 &&
                i < int64_t(m.dims[0] ? m.dims[0] : uint64_t(1) << 32);
      f((line * inner + x) * uint64_t(elem),
        addr + uint64_t(i) * uint64_t(elem), in);
    }
  }
}

static void fillElement(const TensorMap &m, uint8_t *p, int elem) {
  std::memset(p, 0, size_t(elem));
  if (!m.fill)
    return;
  if (elem == 2) {
    uint16_t v = m.elemType == 10 ? 0x7fff : 0x7fff;
    std::memcpy(p, &v, 2);
  } else if (elem == 4) {
    uint32_t v = 0x7fffffff;
    std::memcpy(p, &v, 4);
  } else if (elem == 8) {
    uint64_t v = 0x7fffffffffffffffull;
    std::memcpy(p, &v, 8);
  }
}

static uint64_t boxBytes(const TensorMap &m) {
  uint64_t n = uint64_t(tensorElemBytes(m.elemType));
  for (int d = 0; d <= m.rank1; ++d)
    n *= (m.box[d] + m.elementStrides[d] - 1) / m.elementStrides[d];
  return n;
}

static void tensorLoad(Ctx &c, const Instr &I, int lane, const TensorMap &m,
                       const int32_t *at, const Bytes &dst, uint64_t bytes,
                       const BulkOps &ops) {
  int elem = tensorElemBytes(m.elemType);
  std::vector<uint8_t> data(bytes), undef(bytes, 0);
  Run run{c, I, lane, AccessKind::Read, ops.read};
  walkBox(m, at, [&](uint64_t off, uint64_t addr, bool in) {
    if (!in) {
      fillElement(m, &data[off], elem);
      return;
    }
    Bytes s = resolveBytes(c, I, lane, MemSpace::Global, addr, uint64_t(elem));
    std::memcpy(&data[off], s.host, size_t(elem));
    if (s.undef)
      std::memcpy(&undef[off], s.undef, size_t(elem));
    run.add(s, uint64_t(elem), nullptr);
  });
  run.flush();
  countBulk(c, I, dst, bytes, true);
  bulkAccess(c, I, lane, dst, bytes, AccessKind::Write, nullptr, &ops.write);
  for (uint64_t x = 0; x < bytes; x += uint64_t(elem)) {
    uint64_t a = swizzled(m, dst.offset + x) - dst.offset;
    std::memcpy(dst.host + a, &data[x], size_t(elem));
    if (dst.undef)
      std::memcpy(dst.undef + a, &undef[x], size_t(elem));
  }
}

static void tensorStore(Ctx &c, const Instr &I, int lane, const TensorMap &m,
                        const int32_t *at, const Bytes &src, uint64_t bytes,
                        const ReduceOp *op, const BulkOps &ops) {
  int elem = tensorElemBytes(m.elemType);
  countBulk(c, I, src, bytes, false);
  bulkAccess(c, I, lane, src, bytes, AccessKind::Read, nullptr, &ops.read);
  Run run{c, I, lane, AccessKind::Write, ops.write};
  walkBox(m, at, [&](uint64_t off, uint64_t addr, bool in) {
    if (!in)
      return;
    uint64_t a = swizzled(m, src.offset + off) - src.offset;
    Bytes d = resolveBytes(c, I, lane, MemSpace::Global, addr, uint64_t(elem));
    if (src.undef)
      for (int i = 0; i < elem; ++i)
        if (src.undef[a + uint64_t(i)])
          c.violation("init", I, lane, addr,
                      "an undefined value is copied to global memory");
    if (op) {
      countBulk(c, I, d, uint64_t(elem), true);
      reduceElement(*op, d.host, src.host + a);
      return;
    }
    run.add(d, uint64_t(elem), src.host + a);
    std::memcpy(d.host, src.host + a, size_t(elem));
    if (d.undef)
      std::memset(d.undef, 0, size_t(elem));
  });
  run.flush();
}

static const char *reduceType(const TensorMap &m) {
  static const char *const t[] = {"u8",   "u16", "u32", "s32", "u64",
                                  "s64",  "f16", "f32", "f32", "f64",
                                  "bf16", "f32", "f32"};
  return t[m.elemType];
}

static Act execTensor(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const TensorExt *>(I.ext);
  for (int i = 0; i < I.ns; ++i)
    if (c.init && isTainted(c, I.o[i], m))
      c.violation("init", I, std::countr_zero(m), 0,
                  "an operand of the tensor copy is undefined");
  alignas(64) uint64_t map[32], smem[32], bar[32];
  laneAddresses(c, I.o[x.map], x.mapOff, map);
  laneAddresses(c, I.o[x.smem], x.smemOff, smem);
  if (x.mbarrier)
    laneAddresses(c, I.o[x.bar], x.barOff, bar);
  KVSIM_EACH(m) {
    int lane = int(l);
    TensorMap t = loadMap(c, I, lane, x.mapSpace, map[l], x.rank);
    int32_t at[5] = {};
    for (int d = 0; d < x.rank; ++d)
      at[d] = c.in<int32_t>(I.o[x.coords + d])[l];
    uint64_t bytes = boxBytes(t);
    if (smem[l] % 128 && (c.checks & CheckAlign))
      c.violation("align", I, lane, smem[l],
                  "a tensor copy needs shared memory aligned to 128 bytes");
    if (t.address % 16 && (c.checks & CheckAlign))
      c.violation("align", I, lane, t.address,
                  "the tensor map's address must be aligned to 16 bytes");
    if (!x.load) {
      Bytes src = resolveBytes(c, I, lane, x.shared, smem[l], bytes);
      ReduceOp op = x.op;
      op.type = reduceType(t);
      tensorStore(c, I, lane, t, at, src, bytes, x.reduce ? &op : nullptr,
                  opsOfGroup(c));
      markBulkRead(c, lane, src, bytes);
      continue;
    }
    if (!x.multicast) {
      BulkOps ops = opsOfMbarrier(c, I, lane, x.shared, bar[l]);
      tensorLoad(c, I, lane, t, at,
                 resolveBytes(c, I, lane, x.shared, smem[l], bytes), bytes,
                 ops);
      completeTx(c, I, lane, x.shared, bar[l], int64_t(bytes), ops.write);
      continue;
    }
    uint32_t ctas = c.in<uint16_t>(I.o[x.mask])[l];
    uint64_t strip = ~(uint64_t(0xff) << kRankShift) & 0xffffffff;
    for (uint32_t r = 0; r < c.grid->clusterSize; ++r) {
      if (!(ctas >> r & 1))
        continue;
      uint64_t field = uint64_t(r + 1) << kRankShift;
      Bytes dst = resolveBytes(c, I, lane, MemSpace::Cluster,
                               (smem[l] & strip) | field, bytes);
      uint64_t to = (bar[l] & strip) | field;
      BulkOps ops = opsOfMbarrier(c, I, lane, MemSpace::Cluster, to);
      tensorLoad(c, I, lane, t, at, dst, bytes, ops);
      completeTx(c, I, lane, MemSpace::Cluster, to, int64_t(bytes), ops.write);
    }
  }
  return Act::Next;
}

static void mapOperand(Decoder &D, const Operand &o, TensorExt &x,
                       std::vector<Opnd> &ss) {
  if (o.kind != Operand::Mem || o.elems.size() != 2 ||
      o.elems[1].kind != Operand::Vec || int(o.elems[1].elems.size()) != x.rank)
    D.error("expected [map, {" + std::to_string(x.rank) + " coordinates}]");
  Operand plain = o;
  plain.elems.resize(1);
  MemSpace sp, have;
  int64_t v;
  sp = MemSpace::Generic;
  if (o.elems[0].kind == Operand::Sym && D.symbol(o.elems[0], have, v) &&
      have == MemSpace::KParam)
    sp = MemSpace::KParam;
  x.map = int(ss.size());
  ss.push_back(D.address(plain, sp, x.mapOff));
  x.mapSpace = sp;
  x.coords = int(ss.size());
  for (const Operand &e : o.elems[1].elems)
    ss.push_back(D.src(e, "s32"));
}

void decodeBulkTensor(Decoder &D, Instr &I, bool reduce) {
  TensorExt x;
  x.reduce = reduce;
  std::string dim = D.oneOf({"1d", "2d", "3d", "4d", "5d"});
  if (dim.empty())
    D.error("'cp.async.bulk.tensor' needs .1d to .5d");
  x.rank = dim[0] - '0';
  std::string first = D.peekMod();
  x.load = first == "shared::cluster" || first == "shared::cta";
  if (x.load) {
    D.take(first.c_str());
    D.take("global");
    x.shared = first == "shared::cta" ? MemSpace::Shared : MemSpace::Cluster;
  } else {
    D.take("global");
    D.take("shared::cta");
    x.shared = MemSpace::Shared;
  }
  if (reduce)
    x.op = takeReduce(D);
  D.take("tile");
  x.mbarrier = D.take("mbarrier::complete_tx::bytes");
  bool group = D.take("bulk_group");
  x.multicast = D.take("multicast::cluster");
  bool hint = D.take("L2::cache_hint");
  if (x.load != x.mbarrier || x.load == group)
    D.error("tensor loads complete on an mbarrier, stores in a .bulk_group");
  std::vector<Opnd> ss;
  if (x.load) {
    size_t n = 3 + x.multicast + hint;
    D.needOps(n, n);
    mapOperand(D, D.op(1), x, ss);
    x.smem = int(ss.size());
    MemSpace sp = x.shared;
    ss.push_back(D.address(D.op(0), sp, x.smemOff));
    x.bar = int(ss.size());
    ss.push_back(D.address(D.op(2), sp, x.barOff));
    if (x.multicast) {
      x.mask = int(ss.size());
      ss.push_back(D.src(D.op(3), "u16"));
    }
  } else {
    D.needOps(2 + hint, 2 + hint);
    mapOperand(D, D.op(0), x, ss);
    x.smem = int(ss.size());
    MemSpace sp = x.shared;
    ss.push_back(D.address(D.op(1), sp, x.smemOff));
  }
  I.fn = execTensor;
  I.ext = D.extra(x);
  D.program.asyncOps = true;
  D.finish(I, {}, ss);
}

//===----------------------------------------------------------------------===//
// tensormap.replace and .cp_fenceproxy.
//===----------------------------------------------------------------------===//

enum Field : uint32_t {
  GlobalAddress,
  Rank,
  BoxDim,
  GlobalDim,
  GlobalStride,
  ElementStride,
  ElemType,
  InterleaveLayout,
  SwizzleMode,
  FillMode
};

/// An ordinary store of the whole map.
static void mapWrite(Ctx &c, const Instr &I, int lane, const Bytes &b) {
  uint64_t off[32];
  off[lane] = b.offset;
  if (c.checks & CheckRace)
    raceAccess(c, I, *b.region, b.owner, 1u << lane, off, 128,
               AccessKind::Write, MemOrder());
}

static Act execReplace(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t addr[32];
  laneAddresses(c, I.o[0], I.imm, addr);
  if (c.init && (isTainted(c, I.o[0], m) || isTainted(c, I.o[1], m)))
    c.violation("init", I, std::countr_zero(m), 0,
                "an operand of 'tensormap.replace' is undefined");
  KVSIM_EACH(m) {
    Bytes b = resolveBytes(c, I, int(l), I.space, addr[l], 128);
    mapWrite(c, I, int(l), b);
    TensorMap t;
    std::memcpy(&t, b.host, 128);
    uint64_t v =
        I.o[1].sz == 8 ? c.in<uint64_t>(I.o[1])[l] : c.in<uint32_t>(I.o[1])[l];
    uint32_t k = I.b;
    switch (Field(I.a)) {
    case GlobalAddress:
      t.address = v;
      break;
    case Rank:
      t.rank1 = uint8_t(v);
      break;
    case BoxDim:
      t.box[k] = uint32_t(v);
      break;
    case GlobalDim:
      t.dims[k] = uint32_t(v);
      break;
    case GlobalStride:
      t.strides[k] = v;
      break;
    case ElementStride:
      t.elementStrides[k] = uint32_t(v);
      break;
    case ElemType:
      t.elemType = uint8_t(v);
      break;
    case InterleaveLayout:
      t.interleave = uint8_t(v);
      break;
    case SwizzleMode:
      t.swizzle = uint8_t(v & 3);
      break;
    case FillMode:
      t.fill = uint8_t(v);
      break;
    }
    std::memcpy(b.host, &t, 128);
  }
  return Act::Next;
}

/// Copies 128 bytes from shared to global memory, by one warp.
static Act execCpFence(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t to[32], from[32];
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  laneAddresses(c, I.o[0], I.imm, to);
  laneAddresses(c, I.o[1], *static_cast<const int64_t *>(I.ext), from);
  int lane = std::countr_zero(m);
  Bytes d = resolveBytes(c, I, lane, MemSpace::Global, to[lane], 128);
  Bytes s = resolveBytes(c, I, lane, MemSpace::Shared, from[lane], 128);
  if (c.checks & CheckRace) {
    raceFence(c, I, m, 2); // its modifiers are a release
    mapWrite(c, I, lane, d);
  }
  std::memcpy(d.host, s.host, 128);
  if (d.undef)
    std::memset(d.undef, 0, 128);
  return Act::Next;
}

static void decodeTensormap(Decoder &D, Instr &I) {
  I.shadow = nullptr;
  I.matters = true;
  I.cls = OpClass::Async;
  D.needSm(I, 90);
  if (D.take("cp_fenceproxy")) {
    D.takeRest();
    D.needOps(3, 3);
    MemSpace g = MemSpace::Global, s = MemSpace::Shared;
    int64_t a, b;
    Opnd to = D.address(D.op(0), g, a), from = D.address(D.op(1), s, b);
    I.imm = a;
    I.ext = D.extra(b);
    I.aligned = true;
    I.fn = execCpFence;
    D.finish(I, {}, {to, from});
    return;
  }
  if (!D.take("replace"))
    D.error("unknown form of 'tensormap'");
  D.take("tile");
  static const char *const names[] = {
      "global_address", "rank",           "box_dim",  "global_dim",
      "global_stride",  "element_stride", "elemtype", "interleave_layout",
      "swizzle_mode",   "fill_mode"};
  int f = -1;
  for (int i = 0; i < 10; ++i)
    if (D.take(names[i]))
      f = i;
  if (f < 0)
    D.error("'tensormap.replace' needs a known field");
  I.a = uint32_t(f);
  I.space = D.space();
  D.take("b1024");
  std::string t = D.type();
  bool indexed = f >= int(BoxDim) && f <= int(ElementStride);
  D.needOps(indexed ? 3 : 2, indexed ? 3 : 2);
  if (indexed) {
    int64_t k = D.literal(D.op(1));
    if (k < 0 || k > (f == int(GlobalStride) ? 3 : 4))
      D.error("'tensormap.replace' ordinal is out of range");
    I.b = uint32_t(k);
  }
  int64_t off;
  Opnd base = D.address(D.op(0), I.space, off);
  I.imm = off;
  I.fn = execReplace;
  D.finish(I, {}, {base, D.src(D.op(indexed ? 2 : 1), t)});
}

void addTensor(Table &t) { t.add("tensormap", decodeTensormap); }

} // namespace kvcache::sim::KVSIM_TIER
