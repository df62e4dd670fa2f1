//===- ExecBulk.cpp - cp.async.bulk, 1-D; st.async, red.async -------------===//
//
// Carried out when issued; the mbarrier receives its bytes at once. Shared
// memory written by a bulk copy is published through the mbarrier (race check);
// shared memory that a bulk store reads must have passed a proxy fence (async
// check) and not be overwritten before wait_group.read.
//
//===----------------------------------------------------------------------===//
#include "Bulk.h"
#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

void bulkAccess(Ctx &c, const Instr &I, int lane, const Bytes &b,
                uint64_t bytes, AccessKind kind, const uint8_t *values,
                const AsyncOp *op) {
  if (!(c.checks & CheckRace) || b.region->readOnly)
    return;
  uint64_t off[32];
  off[lane] = b.offset;
  std::vector<uint8_t> v;
  if (values) {
    v.resize(bytes * size_t(lane + 1));
    std::memcpy(v.data() + bytes * size_t(lane), values, bytes);
  }
  raceAccess(c, I, *b.region, b.owner, 1u << lane, off, uint32_t(bytes), kind,
             MemOrder(), values ? v.data() : nullptr, op);
}

BulkOps opsOfMbarrier(Ctx &c, const Instr &I, int lane, MemSpace space,
                      uint64_t addr) {
  BulkOps ops;
  if (!(c.checks & CheckRace))
    return ops;
  Bytes b = resolveBytes(c, I, lane, space, addr, 8);
  if (b.owner)
    ops.read = ops.write = raceMbarrierOp(c, *b.owner, b.offset);
  return ops;
}

BulkOps opsOfGroup(Ctx &c) {
  BulkOps ops;
  if (!(c.checks & CheckRace))
    return ops;
  auto w = uint64_t(c.warp->index);
  uint32_t group = c.warp->bulkSeq + 1;
  ops.read = raceAgent(c, *c.block, AgentKind::BulkRead, w, group, true);
  ops.write = raceAgent(c, *c.block, AgentKind::BulkWrite, w, group, true);
  return ops;
}

static void noUndefinedToGlobal(Ctx &c, const Instr &I, int lane,
                                const Bytes &to, const uint8_t *undef,
                                uint64_t bytes) {
  if (!undef || to.space != MemSpace::Global)
    return;
  for (uint64_t i = 0; i < bytes; ++i)
    if (undef[i])
      c.violation("init", I, lane, to.region->base + to.offset + i,
                  "an undefined value is copied to global memory");
}

void countBulk(Ctx &c, const Instr &I, const Bytes &b, uint64_t bytes,
               bool isWrite) {
  if (c.stats->instr.empty() || !bytes)
    return;
  InstrStats &s = c.stats->instr[I.id];
  if (b.space != MemSpace::Global) {
    s.sharedBytes += bytes;
    return;
  }
  s.requests += 1;
  s.bytes += bytes;
  s.sectors += (b.offset + bytes - 1) / 32 - b.offset / 32 + 1;
  s.storesGlobal = isWrite;
}

void copyBytes(Ctx &c, const Instr &I, int lane, const Bytes &to,
               const Bytes &from, uint64_t bytes, const BulkOps &ops) {
  noUndefinedToGlobal(c, I, lane, to, from.undef, bytes);
  countBulk(c, I, from, bytes, false);
  countBulk(c, I, to, bytes, true);
  bulkAccess(c, I, lane, from, bytes, AccessKind::Read, nullptr, &ops.read);
  bulkAccess(c, I, lane, to, bytes, AccessKind::Write, from.host, &ops.write);
  std::memmove(to.host, from.host, bytes);
  if (to.undef) {
    if (from.undef)
      std::memmove(to.undef, from.undef, bytes);
    else
      std::memset(to.undef, 0, bytes);
  }
}

/// One element of a reduction, in place.
void reduceElement(const ReduceOp &r, uint8_t *to, const uint8_t *from) {
  auto apply = [&](auto a, auto b) {
    using T = decltype(a);
    switch (r.op) {
    case ReduceOp::Add:
      if constexpr (std::is_integral_v<T>)
        return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
      else
        return a + b;
    case ReduceOp::Min:
      return b < a ? b : a;
    case ReduceOp::Max:
      return b > a ? b : a;
    case ReduceOp::Inc:
      return a >= b ? T(0) : T(a + 1);
    case ReduceOp::Dec:
      return a == 0 || a > b ? b : T(a - 1);
    default:
      break;
    }
    if constexpr (std::is_integral_v<T>)
      return r.op == ReduceOp::And  ? T(a & b)
             : r.op == ReduceOp::Or ? T(a | b)
                                    : T(a ^ b);
    return a;
  };
  auto with = [&](auto sample) {
    using T = decltype(sample);
    T a, b;
    std::memcpy(&a, to, sizeof(T));
    std::memcpy(&b, from, sizeof(T));
    a = apply(a, b);
    std::memcpy(to, &a, sizeof(T));
  };
  const std::string &t = r.type;
  if (t == "f16" || t == "bf16") {
    uint16_t a, b;
    std::memcpy(&a, to, 2);
    std::memcpy(&b, from, 2);
    bool bf = t == "bf16";
    float v =
        apply(bf ? bf16ToF32(a) : f16ToF32(a), bf ? bf16ToF32(b) : f16ToF32(b));
    a = bf ? f32ToBf16(v) : f32ToF16(v);
    std::memcpy(to, &a, 2);
  } else if (t == "f32") {
    with(float());
  } else if (t == "f64") {
    with(double());
  } else if (t == "s32") {
    with(int32_t());
  } else if (t == "s64") {
    with(int64_t());
  } else if (typeSize(t) == 8) {
    with(uint64_t());
  } else {
    with(uint32_t());
  }
}

ReduceOp takeReduce(Decoder &D) {
  static const char *const names[] = {"add", "min", "max", "inc",
                                      "dec", "and", "or",  "xor"};
  ReduceOp r;
  int found = -1;
  for (int i = 0; i < 8; ++i)
    if (D.take(names[i]))
      found = i;
  if (found < 0)
    D.error("a bulk reduction needs an operation");
  r.op = ReduceOp::Kind(found);
  D.take("noftz");
  return r;
}

/// Shared memory that a bulk store still reads: writes before wait_group.read
/// are the async check's business.
void markBulkRead(Ctx &c, int lane, const Bytes &from, uint64_t bytes) {
  if (c.checks & CheckAsync)
    c.warp->bulkReads.push_back({uint32_t(from.offset), uint32_t(bytes),
                                 uint8_t(lane), c.warp->bulkSeq});
}

namespace {
struct BulkExt {
  MemSpace to, from, bar;
  int64_t toOff, fromOff, barOff;
  bool mbarrier = false, multicast = false, reduce = false;
  ReduceOp op;
};
} // namespace

/// o: dst, src, size, [mbar], [mask].
static Act execBulk(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const BulkExt *>(I.ext);
  alignas(64) uint64_t to[32], from[32], bar[32];
  for (int i = 0; i < I.ns; ++i)
    if (c.init && isTainted(c, I.o[i], m))
      c.violation("init", I, std::countr_zero(m), 0,
                  "an operand of the bulk copy is undefined");
  checkWrapped(c, I, I.o[0], m);
  checkWrapped(c, I, I.o[1], m);
  laneAddresses(c, I.o[0], x.toOff, to);
  laneAddresses(c, I.o[1], x.fromOff, from);
  if (x.mbarrier)
    laneAddresses(c, I.o[3], x.barOff, bar);
  const uint32_t *size = c.in<uint32_t>(I.o[2]);
  KVSIM_EACH(m) {
    int lane = int(l);
    uint32_t n = size[l];
    if (c.checks & CheckAlign) {
      if (n % 16)
        c.violation("align", I, lane, n,
                    "the size of a bulk copy must be a multiple of 16, got " +
                        std::to_string(n));
      checkAlign(c, I, 1u << l, to, 16);
      checkAlign(c, I, 1u << l, from, 16);
    }
    Bytes src = resolveBytes(c, I, lane, x.from, from[l], n);
    uint32_t ctas = x.multicast ? c.in<uint16_t>(I.o[4])[l] : 0;
    if (x.multicast) {
      for (uint32_t r = 0; r < c.grid->clusterSize; ++r) {
        if (!(ctas >> r & 1))
          continue;
        uint64_t field = uint64_t(r + 1) << kRankShift;
        uint64_t strip = ~(uint64_t(0xff) << kRankShift);
        Bytes dst = resolveBytes(c, I, lane, MemSpace::Cluster,
                                 (to[l] & strip & 0xffffffff) | field, n);
        uint64_t to = (bar[l] & strip & 0xffffffff) | field;
        BulkOps ops = opsOfMbarrier(c, I, lane, MemSpace::Cluster, to);
        copyBytes(c, I, lane, dst, src, n, ops);
        completeTx(c, I, lane, MemSpace::Cluster, to, n, ops.write);
      }
      continue;
    }
    Bytes dst = resolveBytes(c, I, lane, x.to, to[l], n);
    BulkOps ops =
        x.mbarrier ? opsOfMbarrier(c, I, lane, x.bar, bar[l]) : opsOfGroup(c);
    if (x.reduce) {
      int e = typeSize(x.op.type);
      noUndefinedToGlobal(c, I, lane, dst, src.undef, n);
      countBulk(c, I, src, n, false);
      countBulk(c, I, dst, n, true);
      bulkAccess(c, I, lane, src, n, AccessKind::Read, nullptr, &ops.read);
      static std::mutex reductions; // of blocks on other threads
      std::lock_guard<std::mutex> lock(reductions);
      for (uint32_t i = 0; i + uint32_t(e) <= n; i += uint32_t(e))
        reduceElement(x.op, dst.host + i, src.host + i);
    } else {
      copyBytes(c, I, lane, dst, src, n, ops);
    }
    if (x.mbarrier)
      completeTx(c, I, lane, x.bar, bar[l], n, ops.write);
    else if (src.owner)
      markBulkRead(c, lane, src, n);
  }
  return Act::Next;
}

static Act execBulkCommit(Ctx &c, const Instr &, uint32_t) {
  ++c.warp->bulkSeq;
  return Act::Next;
}

static Act execBulkWait(Ctx &c, const Instr &I, uint32_t m) {
  auto &v = c.warp->bulkReads;
  size_t keep = 0;
  for (PendingCopy &p : v)
    if (!(m >> p.lane & 1) || int32_t(p.seq - (c.warp->bulkSeq - I.a)) >= 0)
      v[keep++] = p;
  v.resize(keep);
  if ((c.checks & CheckRace) && c.warp->bulkSeq > I.a) {
    uint32_t done = c.warp->bulkSeq - I.a;
    auto w = uint64_t(c.warp->index);
    raceAwait(c, *c.block, AgentKind::BulkRead, w, done);
    if (!I.b)
      raceAwait(c, *c.block, AgentKind::BulkWrite, w, done);
  }
  return Act::Next;
}

static void decodeGroup(Decoder &D, Instr &I, bool commit) {
  I.b = D.take("read");
  I.shadow = nullptr;
  I.cls = OpClass::Async;
  I.fn = commit ? execBulkCommit : execBulkWait;
  D.needOps(commit ? 0 : 1, commit ? 0 : 1);
  if (!commit)
    I.a = uint32_t(D.literal(D.op(0)));
  D.needSm(I, 90);
  D.finish(I, {}, {});
}

static Act nothing(Ctx &, const Instr &, uint32_t) { return Act::Next; }

void decodeBulk(Decoder &D, Instr &I, bool reduce) {
  I.cls = OpClass::Async;
  I.shadow = nullptr;
  I.matters = true;
  D.needSm(I, 90);
  if (D.take("commit_group"))
    return decodeGroup(D, I, true);
  if (D.take("wait_group"))
    return decodeGroup(D, I, false);
  if (D.take("prefetch")) {
    D.takeRest();
    I.fn = nothing;
    D.finish(I, {}, {});
    return;
  }
  if (D.take("tensor"))
    return decodeBulkTensor(D, I, reduce);
  D.program.asyncOps = true;
  BulkExt x;
  x.reduce = reduce;
  // Destination first, then source: as the modifiers stand.
  std::vector<MemSpace> spaces;
  while (true) {
    std::string p = D.peekMod();
    MemSpace s = p == "global"            ? MemSpace::Global
                 : p == "shared::cta"     ? MemSpace::Shared
                 : p == "shared::cluster" ? MemSpace::Cluster
                                          : MemSpace::Generic;
    if (s == MemSpace::Generic)
      break;
    D.take(p.c_str());
    spaces.push_back(s);
  }
  if (spaces.size() != 2)
    D.error("'cp.async.bulk' needs a destination and a source space");
  x.to = spaces[0];
  x.from = spaces[1];
  x.mbarrier = D.take("mbarrier::complete_tx::bytes");
  bool group = D.take("bulk_group");
  x.multicast = D.take("multicast::cluster");
  bool hint = D.take("L2::cache_hint");
  if (D.take("cp_mask"))
    D.error("'.cp_mask' is not supported");
  if (x.mbarrier == group)
    D.error(
        "'cp.async.bulk' needs .mbarrier::complete_tx::bytes or .bulk_group");
  if (reduce) {
    x.op = takeReduce(D);
    x.op.type = D.type();
  }
  size_t n = 3 + x.mbarrier + x.multicast + hint;
  D.needOps(n, n);
  std::vector<Opnd> ss;
  ss.push_back(D.address(D.op(0), x.to, x.toOff));
  ss.push_back(D.address(D.op(1), x.from, x.fromOff));
  ss.push_back(D.src(D.op(2), "u32"));
  if (x.mbarrier) {
    x.bar = x.to == MemSpace::Global ? MemSpace::Shared : x.to;
    ss.push_back(D.address(D.op(3), x.bar, x.barOff));
  }
  if (x.multicast)
    ss.push_back(D.src(D.op(4), "u16"));
  I.fn = execBulk;
  I.ext = D.extra(x);
  D.finish(I, {}, ss);
}

//===----------------------------------------------------------------------===//
// st.async and red.async: stores to the cluster that complete an mbarrier.
//===----------------------------------------------------------------------===//

namespace {
struct RemoteExt {
  int64_t barOff;
  int vec, elem;
  bool reduce;
  ReduceOp op;
};
} // namespace

static Act execRemote(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const RemoteExt *>(I.ext);
  alignas(64) uint64_t to[32], bar[32];
  for (int i = 0; i < I.ns; ++i)
    if (c.init && isTainted(c, I.o[i], m))
      c.violation("init", I, std::countr_zero(m), 0,
                  "an undefined value is stored to another block");
  laneAddresses(c, I.o[0], I.imm, to);
  laneAddresses(c, I.o[1], x.barOff, bar);
  uint64_t bytes = uint64_t(x.vec) * uint64_t(x.elem);
  if (c.checks & CheckAlign)
    checkAlign(c, I, m, to, uint32_t(bytes));
  KVSIM_EACH(m) {
    Bytes b = resolveBytes(c, I, int(l), MemSpace::Cluster, to[l], bytes);
    uint8_t v[32];
    for (int i = 0; i < x.vec; ++i) {
      const Opnd &s = I.o[2 + i];
      std::memcpy(v + i * x.elem, c.in<uint8_t>(s) + l * s.sz, size_t(x.elem));
    }
    BulkOps ops = opsOfMbarrier(c, I, int(l), MemSpace::Cluster, bar[l]);
    if (!x.reduce)
      bulkAccess(c, I, int(l), b, bytes, AccessKind::Write, v, &ops.write);
    for (int i = 0; i < x.vec; ++i)
      if (x.reduce)
        reduceElement(x.op, b.host + i * x.elem, v + i * x.elem);
      else
        std::memcpy(b.host + i * x.elem, v + i * x.elem, size_t(x.elem));
    if (b.undef && !x.reduce)
      std::memset(b.undef, 0, bytes);
    completeTx(c, I, int(l), MemSpace::Cluster, bar[l], int64_t(bytes),
               ops.write);
  }
  return Act::Next;
}

static void decodeRemote(Decoder &D, Instr &I, bool reduce) {
  RemoteExt x;
  x.reduce = reduce;
  D.take("weak");
  D.take("relaxed");
  D.take("cluster");
  D.take("shared::cluster");
  if (!D.take("mbarrier::complete_tx::bytes"))
    D.error("'" + D.in->op + ".async' needs .mbarrier::complete_tx::bytes");
  if (reduce)
    x.op = takeReduce(D);
  x.vec = D.take("v2") ? 2 : D.take("v4") ? 4 : 1;
  std::string t = D.type();
  x.op.type = t;
  x.elem = typeSize(t);
  D.needOps(3, 3);
  MemSpace sp = MemSpace::Cluster;
  int64_t offset;
  std::vector<Opnd> ss;
  ss.push_back(D.address(D.op(0), sp, offset));
  I.imm = offset;
  ss.push_back(D.address(D.op(2), sp, x.barOff));
  if (x.vec > 1) {
    if (int(D.op(1).elems.size()) != x.vec)
      D.error("expected " + std::to_string(x.vec) + " registers in braces");
    for (const Operand &e : D.op(1).elems)
      ss.push_back(D.src(e, t));
  } else {
    ss.push_back(D.src(D.op(1), t));
  }
  I.fn = execRemote;
  I.shadow = nullptr;
  I.matters = true;
  I.cls = OpClass::Async;
  I.ext = D.extra(x);
  D.needSm(I, 90);
  D.program.asyncOps = true;
  D.finish(I, {}, ss);
}

void decodeStAsync(Decoder &D, Instr &I) { decodeRemote(D, I, false); }
void decodeRedAsync(Decoder &D, Instr &I) { decodeRemote(D, I, true); }

} // namespace kvcache::sim::KVSIM_TIER
