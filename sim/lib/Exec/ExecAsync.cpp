//===- ExecAsync.cpp - cp.async -------------------------------------------===//
//
// A copy is carried out when it is issued; what makes it asynchronous here is
// that its bytes count as undelivered (Block::sharedPending) until the issuing
// thread waits for their group, which is what the async check watches.
//
//===----------------------------------------------------------------------===//
#include "Async.h"

namespace kvcache::sim::KVSIM_TIER {

/// o: dst, src, [src size or ignore predicate]. a: bytes, b: 0 none, 1 size,
/// 2 predicate; imm: dst offset; ext: src offset.
static Act execCpAsync(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t to[32], from[32];
  checkAddressInit(c, I, I.o[0], m);
  checkAddressInit(c, I, I.o[1], m);
  checkWrapped(c, I, I.o[0], m);
  checkWrapped(c, I, I.o[1], m);
  laneAddresses(c, I.o[0], I.imm, to);
  laneAddresses(c, I.o[1], *static_cast<const int64_t *>(I.ext), from);
  uint32_t bytes = I.a;
  uint32_t take[32];
  for (int l = 0; l < 32; ++l)
    take[l] = bytes;
  if (I.b && c.init && isTainted(c, I.o[2], m))
    c.violation("init", I, std::countr_zero(m), 0,
                "the size of the copy is undefined");
  if (I.b == 1)
    for (int l = 0; l < 32; ++l)
      take[l] = c.in<uint32_t>(I.o[2])[l];
  if (I.b == 2) {
    uint32_t p = c.pred(I.o[2]);
    for (int l = 0; l < 32; ++l)
      take[l] = p >> l & 1 ? 0 : bytes;
  }
  if (c.checks & CheckAlign) {
    checkAlign(c, I, m, to, bytes);
    uint32_t reads = 0;
    KVSIM_EACH(m) reads |= uint32_t(take[l] != 0) << l;
    checkAlign(c, I, reads, from, bytes);
  }
  alignas(64) uint8_t data[32 * 16] = {}, undef[32 * 16] = {};
  KVSIM_EACH(m) {
    if (take[l] > bytes)
      c.violation("bounds", I, int(l), from[l],
                  "the source has " + std::to_string(take[l]) +
                      " bytes, the copy only " + std::to_string(bytes));
  }
  AsyncOp op;
  uint32_t serial = ++c.warp->cpAsync.issued;
  if (c.checks & CheckRace)
    op = raceAgent(c, *c.block, AgentKind::CpAsync, uint64_t(c.warp->index),
                   serial, false);
  // Groups of equal size share one look-up.
  uint32_t todo = m;
  while (todo) {
    uint32_t n = take[std::countr_zero(todo)], group = 0;
    KVSIM_EACH(todo) group |= uint32_t(take[l] == n) << l;
    todo &= ~group;
    if (!n)
      continue;
    forGroups(c, I, MemSpace::Global, group, from, n, [&](const Group &g) {
      KVSIM_EACH(g.mask) std::memcpy(data + l * 16, g.host + g.off[l], n);
      if (c.init && g.undef)
        KVSIM_EACH(g.mask) std::memcpy(undef + l * 16, g.undef + g.off[l], n);
      if (c.checks & CheckRace && !g.region->readOnly)
        raceAccess(c, I, *g.region, g.owner, g.mask, g.off, n, AccessKind::Read,
                   MemOrder(), nullptr, &op);
      if (!c.stats->instr.empty())
        countAccess(c, I, g, n);
    });
  }
  forGroups(c, I, MemSpace::Shared, m, to, bytes, [&](const Group &g) {
    if (c.checks & CheckRace) {
      alignas(64) uint8_t values[32 * 16];
      for (int l = 0; l < 32; ++l)
        std::memcpy(values + l * bytes, data + l * 16, bytes);
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, bytes,
                 AccessKind::Write, MemOrder(), values, &op);
    }
    KVSIM_EACH(g.mask) {
      std::memcpy(g.host + g.off[l], data + l * 16, bytes);
      if (c.init && g.undef)
        std::memcpy(g.undef + g.off[l], undef + l * 16, bytes);
      if (c.checks & CheckAsync) {
        std::memset(&g.owner->sharedPending[g.off[l]], 1, bytes);
        c.warp->cpAsync.copies.push_back({uint32_t(g.off[l]), bytes, uint8_t(l),
                                          c.warp->cpAsync.seq[l], serial});
      }
    }
  });
  return Act::Next;
}

/// Delivers the copies of the lanes that are at most at their `upTo` group.
static void deliver(Ctx &c, uint32_t m, const uint32_t *upTo) {
  auto &v = c.warp->cpAsync.copies;
  size_t keep = 0;
  for (PendingCopy &p : v) {
    if ((m >> p.lane & 1) && int32_t(p.seq - upTo[p.lane]) < 0)
      std::memset(&c.block->sharedPending[p.addr], 0, p.bytes);
    else
      v[keep++] = p;
  }
  v.resize(keep);
  if (!(c.checks & CheckRace))
    return;
  // Seen now: what was issued before the oldest copy still in flight.
  uint32_t done = c.warp->cpAsync.issued;
  for (const PendingCopy &p : v)
    if (m >> p.lane & 1)
      done = std::min(done, p.serial - 1);
  raceAwait(c, *c.block, AgentKind::CpAsync, uint64_t(c.warp->index), done);
}

void deliverAll(Ctx &c, uint32_t m) {
  uint32_t upTo[32];
  for (int l = 0; l < 32; ++l)
    upTo[l] = c.warp->cpAsync.seq[l] + 1;
  deliver(c, m, upTo);
}

static Act execCommit(Ctx &c, const Instr &, uint32_t m) {
  KVSIM_EACH(m)++ c.warp->cpAsync.seq[l];
  return Act::Next;
}

static Act execWait(Ctx &c, const Instr &I, uint32_t m) {
  if (!(c.checks & CheckAsync))
    return Act::Next;
  if (I.b) {
    deliverAll(c, m);
    return Act::Next;
  }
  uint32_t upTo[32];
  for (int l = 0; l < 32; ++l)
    upTo[l] = c.warp->cpAsync.seq[l] - uint32_t(I.a);
  deliver(c, m, upTo);
  return Act::Next;
}

static void decodeCpAsync(Decoder &D, Instr &I) {
  I.cls = OpClass::Async;
  I.shadow = nullptr;
  I.matters = true;
  if (D.take("commit_group")) {
    D.needOps(0, 0);
    I.fn = execCommit;
    D.finish(I, {}, {});
    return;
  }
  if (D.take("wait_all")) {
    D.needOps(0, 0);
    I.fn = execWait;
    I.b = 1;
    D.finish(I, {}, {});
    return;
  }
  if (D.take("wait_group")) {
    D.needOps(1, 1);
    I.fn = execWait;
    I.a = uint32_t(D.literal(D.op(0)));
    D.finish(I, {}, {});
    return;
  }
  bool cg = D.take("cg");
  if (!cg && !D.take("ca"))
    D.error("unknown form of 'cp.async'");
  if (!D.take("shared") && !D.take("shared::cta"))
    D.error("'cp.async' copies from .global to .shared");
  D.take("global");
  D.cacheHints();
  D.needOps(3, 5);
  MemSpace to = MemSpace::Shared, from = MemSpace::Global;
  int64_t toOff, fromOff;
  Opnd dst = D.address(D.op(0), to, toOff),
       src = D.address(D.op(1), from, fromOff);
  int64_t n = D.literal(D.op(2));
  if (n != 16 && (cg || (n != 4 && n != 8)))
    D.error("'cp.async' copies " + std::string(cg ? "16" : "4, 8 or 16") +
            " bytes, got " + std::to_string(n));
  I.a = uint32_t(n);
  I.imm = toOff;
  I.ext = D.extra(fromOff);
  I.elem = uint8_t(n);
  I.fn = execCpAsync;
  std::vector<Opnd> ss{dst, src};
  if (D.count() >= 4) {
    const Operand &o = D.op(3);
    if (D.regBytes(o) == 0) {
      I.b = 2;
      ss.push_back(D.pred(o));
    } else if (D.regBytes(o) == 8) {
      // a cache policy
    } else {
      I.b = 1;
      ss.push_back(D.src(o, "u32"));
    }
  }
  D.needSm(I, 80);
  D.program.asyncOps = true;
  D.finish(I, {}, ss);
}

static void decodeCp(Decoder &D, Instr &I) {
  if (D.take("reduce")) {
    if (D.take("async"))
      D.take("bulk");
    return decodeBulk(D, I, true);
  }
  if (!D.take("async"))
    D.error("unknown form of 'cp'");
  if (D.take("bulk"))
    return decodeBulk(D, I, false);
  if (D.take("mbarrier"))
    return decodeCpMbarrier(D, I);
  decodeCpAsync(D, I);
}

void addAsync(Table &t) {
  t.add("cp", decodeCp);
  addBarrierObjects(t);
}

} // namespace kvcache::sim::KVSIM_TIER
