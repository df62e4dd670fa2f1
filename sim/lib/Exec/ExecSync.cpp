//===- ExecSync.cpp - bar, barrier, fences --------------------------------===//
#include "Access.h"
#include "Members.h"

namespace kvcache::sim::KVSIM_TIER {

static uint32_t pcOf(const Ctx &c, const Instr &I) {
  return uint32_t(&I - c.frame->code->instrs.data());
}

enum BarMode : uint32_t { BarSync, BarArrive, BarRed };

struct BarExt {
  BarMode mode;
  int reduction = 0; ///< 1 popc 2 and 3 or
  bool aligned, hasCount;
};

/// Starts or joins a phase; refuses what does not fit the phase's start.
static void joinPhase(Ctx &c, const Instr &I, BarrierState &b, const BarExt &x,
                      int lane, int64_t count) {
  if (b.expected == 0 && !b.wholeBlock) {
    b.wholeBlock = !x.hasCount;
    b.expected = x.hasCount ? count : c.block->threads;
    b.reduction = x.reduction;
    return;
  }
  int64_t have = b.wholeBlock ? c.block->threads : b.expected;
  int64_t want = x.hasCount ? count : c.block->threads;
  // A whole-block barrier and one with a count for all threads agree.
  if ((c.checks & CheckBarrier) && have != want &&
      (have + 31) / 32 != (want + 31) / 32)
    c.violation("barrier", I, lane, 0,
                "barrier was started for " + std::to_string(have) +
                    " threads, this one expects " + std::to_string(want));
}

/// o: [d], id [, count] [, p].
static Act execBar(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const BarExt *>(I.ext);
  if (x.aligned && !needWholeWarp(c, I, m))
    return Act::Wait;
  int lane = std::countr_zero(m);
  const Opnd *o = I.o + I.nd;
  uint32_t id = c.in<uint32_t>(o[0])[lane];
  int64_t count = x.hasCount ? c.in<uint32_t>(o[1])[lane] : 0;
  if (id >= 16)
    c.violation("barrier", I, lane, 0,
                "barrier " + std::to_string(id) + ", a block has 16");
  if (c.init &&
      (isTainted(c, o[0], m) || (x.hasCount && isTainted(c, o[1], m))))
    c.violation("init", I, lane, 0, "barrier operand is undefined");
  if (x.hasCount && (count == 0 || count % 32) && (c.checks & CheckBarrier))
    c.violation("barrier", I, lane, 0,
                "thread count must be a positive multiple of 32, got " +
                    std::to_string(count));
  BarrierState &b = c.block->barriers[id];
  joinPhase(c, I, b, x, lane, count);
  if (x.reduction) {
    const Opnd &po = o[x.hasCount ? 2 : 1];
    uint32_t p = c.pred(po);
    if (c.init && isTainted(c, po, m))
      c.violation("init", I, lane, 0, "reduced predicate is undefined");
    b.reduction = x.reduction;
    b.popc += uint32_t(std::popcount(p & m));
    b.andAcc &= (p & m) == m;
    b.orAcc |= (p & m) != 0;
  }
  int64_t threads = std::popcount(m);
  if (!b.wholeBlock && m == c.warp->live)
    threads = 32;
  if (c.checks & CheckRace)
    raceBarrierArrive(c, int(id), m, x.mode != BarArrive);
  if (x.mode != BarArrive) {
    c.split->pc = pcOf(c, I);
    c.split->state = SplitState::Barrier;
    b.waiters.push_back({c.warp, c.frame, &I, m});
    if (m != c.split->mask) {
      // Lanes that are predicated off go on alone.
      Split rest = *c.split;
      rest.mask &= ~m;
      rest.state = SplitState::Ready;
      rest.pc = pcOf(c, I) + 1;
      ++rest.frame->refs;
      c.split->mask = m;
      c.warp->splits.push_back(rest);
      c.split = &c.warp->splits[c.warp->current];
    }
  }
  if (c.init && I.nd)
    setDefined(c, I.o[0], m);
  if (c.block->barrierArrive(c, int(id), threads)) {
    if (c.checks & CheckRace)
      raceBarrierRelease(c, int(id));
    if (b.arrived > (b.wholeBlock ? c.block->threads : b.expected) &&
        (c.checks & CheckBarrier) && !b.wholeBlock)
      c.violation("barrier", I, lane, 0,
                  "more threads arrive at barrier " + std::to_string(id) +
                      " than the " + std::to_string(b.expected) +
                      " it was started for");
    c.block->release(c, int(id));
  }
  if (x.mode == BarArrive)
    return Act::Next;
  // Released already? Then its pc was advanced.
  return c.split->state == SplitState::Ready ? Act::Jump : Act::Wait;
}

static Act execWarpSync(Ctx &c, const Instr &I, uint32_t m) {
  Members members(c, I, I.o[0], m);
  if (!needMembers(c, I, m, members.mask, true))
    return Act::Wait;
  if (c.checks & CheckRace)
    raceWarpSync(c, members.mask & c.warp->live);
  return members.next();
}

static Act execClusterArrive(Ctx &c, const Instr &I, uint32_t m) {
  if (I.aligned && !needWholeWarp(c, I, m))
    return Act::Wait;
  Warp &w = *c.warp;
  if (w.clusterArrived & m) {
    int l = std::countr_zero(w.clusterArrived & m);
    if (c.checks & CheckBarrier)
      c.violation("barrier", I, l, 0,
                  "cluster barrier arrived at twice without a wait between");
  }
  w.clusterArrived |= m;
  KVSIM_EACH(m) w.clusterPhase[l] = c.block->cluster->phase;
  if (c.checks & CheckRace)
    raceArrive(c, c.block->cluster->raceKey(), I.a);
  c.block->cluster->arrive(c, std::popcount(m));
  return Act::Next;
}

static Act execClusterWait(Ctx &c, const Instr &I, uint32_t m) {
  if (I.aligned && !needWholeWarp(c, I, m))
    return Act::Wait;
  Warp &w = *c.warp;
  int first = std::countr_zero(m);
  if ((w.clusterArrived & m) != m && (c.checks & CheckBarrier))
    c.violation("barrier", I, std::countr_zero(m & ~w.clusterArrived), 0,
                "cluster barrier waited for without an arrive");
  if (w.clusterPhase[first] == c.block->cluster->phase) {
    c.split->pc = pcOf(c, I);
    c.split->state = SplitState::Poll;
    return Act::Wait;
  }
  w.clusterArrived &= ~m;
  if (c.checks & CheckRace)
    raceWait(c, c.block->cluster->raceKey());
  return Act::Next;
}

static void decodeCluster(Decoder &D, Instr &I) {
  bool arrive = D.take("arrive");
  if (!arrive && !D.take("wait"))
    D.error("'barrier.cluster' needs .arrive or .wait");
  I.a = D.take("relaxed");
  D.take("release");
  D.take("acquire");
  I.aligned = D.take("aligned");
  D.needOps(0, 0);
  I.fn = arrive ? execClusterArrive : execClusterWait;
  I.shadow = nullptr;
  I.matters = true;
  I.cls = OpClass::Barrier;
  D.needSm(I, 90);
  D.finish(I, {}, {});
}

static void decodeBar(Decoder &D, Instr &I) {
  bool bar = D.in->op == "bar";
  I.cls = OpClass::Barrier;
  I.shadow = nullptr;
  I.matters = true;
  if (D.take("warp")) {
    D.take("sync");
    D.needOps(1, 1);
    I.fn = execWarpSync;
    D.finish(I, {}, {D.src(D.op(0), "b32")});
    return;
  }
  if (D.take("cluster"))
    return decodeCluster(D, I);
  D.take("cta");
  BarExt x;
  x.aligned = D.take("aligned") || bar;
  std::string red;
  if (D.take("sync"))
    x.mode = BarSync;
  else if (D.take("arrive"))
    x.mode = BarArrive;
  else if (D.take("red"))
    x.mode = BarRed;
  else
    D.error("'" + D.in->op + "' needs .sync, .arrive or .red");
  std::vector<Opnd> ds, ss;
  size_t i = 0;
  if (x.mode == BarRed) {
    red = D.oneOf({"popc", "and", "or"});
    std::string t = D.type();
    x.reduction = red == "popc" ? 1 : red == "and" ? 2 : 3;
    D.needOps(3, 4);
    ds.push_back(D.dst(D.op(i++), typeSize(t)));
    ss.push_back(D.src(D.op(i++), "u32"));
    x.hasCount = D.count() == 4;
    if (x.hasCount)
      ss.push_back(D.src(D.op(i++), "u32"));
    ss.push_back(D.pred(D.op(i)));
  } else {
    D.needOps(1, 2);
    ss.push_back(D.src(D.op(0), "u32"));
    x.hasCount = D.count() == 2;
    if (x.hasCount)
      ss.push_back(D.src(D.op(1), "u32"));
    if (x.mode == BarArrive && !x.hasCount)
      D.error("'" + D.in->op + ".arrive' needs a thread count");
  }
  I.aligned = x.aligned;
  I.ext = D.extra(x);
  I.fn = execBar;
  D.finish(I, ds, ss);
}

static Act execFence(Ctx &c, const Instr &I, uint32_t m) {
  if (c.checks & CheckRace) {
    if (I.b == 2)
      raceProxyFence(c);
    else if (I.b != 1)
      raceFence(c, I, m, int(I.a));
    if (I.ns) { // the acquire of a tensor map
      const uint64_t *a = c.in<uint64_t>(I.o[0]);
      KVSIM_EACH(m) raceTensormapFence(c, a[l] + uint64_t(I.imm));
    }
  }
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return Act::Next;
}

static void decodeFence(Decoder &D, Instr &I) {
  I.cls = OpClass::Barrier;
  I.shadow = nullptr;
  I.fn = execFence;
  if (D.in->op == "membar") {
    if (D.take("proxy")) {
      D.takeRest();
      I.b = 1;
    } else {
      std::string s = D.oneOf({"cta", "gl", "sys", "cluster", "gpu"}, "gl");
      I.a = s == "cta" ? 0 : s == "cluster" ? 1 : s == "sys" ? 3 : 2;
    }
    D.finish(I, {}, {});
    return;
  }
  if (!D.peekMod().empty() && (D.peekMod().rfind("proxy", 0) == 0)) {
    D.take("proxy");
    bool tensormap = D.peekMod().rfind("tensormap", 0) == 0;
    I.b = D.peekMod().rfind("async", 0) == 0 ? 2 : tensormap ? 3 : 1;
    D.takeRest();
    I.a = 2;
    std::vector<Opnd> ss;
    if (tensormap && D.count() >= 1) { // the acquire: [map], 128
      MemSpace space = MemSpace::Generic;
      ss.push_back(D.address(D.op(0), space, I.imm));
    }
    D.finish(I, {}, ss);
    return;
  }
  if (D.take("mbarrier_init")) {
    D.take("release");
    D.take("cluster");
    I.a = 1;
    D.needSm(I, 90);
  } else {
    D.oneOf({"sc", "acq_rel", "acquire", "release"});
    if (!D.peekMod().empty() && D.peekMod().find("sync_restrict") == 0)
      D.takeRest();
    std::string s = D.oneOf({"cta", "cluster", "gpu", "sys"}, "gpu");
    I.a = s == "cta" ? 0 : s == "cluster" ? 1 : s == "sys" ? 3 : 2;
  }
  D.finish(I, {}, {});
}

void addSync(Table &t) {
  t.add("bar", decodeBar);
  t.add("barrier", decodeBar);
  t.add("membar", decodeFence);
  t.add("fence", decodeFence);
}

} // namespace kvcache::sim::KVSIM_TIER
