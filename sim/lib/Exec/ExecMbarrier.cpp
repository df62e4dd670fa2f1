//===- ExecMbarrier.cpp - mbarrier objects --------------------------------===//
//
// The 64-bit object in shared memory: bit 63 phase, 20 bits expected arrivals,
// 20 bits pending arrivals, 23 bits transaction bytes (signed). A state token
// is the object's value at the arrive.
//
//===----------------------------------------------------------------------===//
#include "Async.h"
#include <algorithm>

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct Object {
  bool phase = false;
  int32_t expected = 0, pending = 0;
  int32_t tx = 0;

  static Object unpack(uint64_t v) {
    Object o;
    o.phase = v >> 63;
    o.expected = int32_t(v >> 43 & 0xfffff);
    o.pending = int32_t(v >> 23 & 0xfffff);
    o.tx = int32_t(uint32_t(v << 9)) >> 9;
    return o;
  }
  uint64_t pack() const {
    return uint64_t(phase) << 63 | uint64_t(expected & 0xfffff) << 43 |
           uint64_t(pending & 0xfffff) << 23 |
           (uint64_t(uint32_t(tx)) & 0x7fffff);
  }
  /// True when the phase ended.
  bool settle() {
    if (pending != 0 || tx != 0)
      return false;
    phase = !phase;
    pending = expected;
    return true;
  }
  bool inUse() const { return pending != expected || tx != 0; }
};

enum Op : uint32_t {
  Init,
  Inval,
  Arrive,
  Drop,
  ExpectTx,
  CompleteTx,
  TestWait,
  TryWait,
};

struct MbarExt {
  Op op;
  bool expectTx = false, parity = false, noComplete = false, hasResult = false;
  bool hasCount = false, relaxed = false;
  bool cpAsync = false, noinc = false;
};
} // namespace

static Object load(const uint8_t *p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return Object::unpack(v);
}
static void store(uint8_t *p, const Object &o) {
  uint64_t v = o.pack();
  std::memcpy(p, &v, 8);
}

/// Of the object's clock in the race check.
static uint64_t keyOf(const Bytes &b) {
  return uint64_t(b.owner->linear) << 24 | b.offset;
}

/// The object itself as memory: initialised, then used by atomic operations.
static void objectAccess(Ctx &c, const Instr &I, int lane, const Bytes &b,
                         bool whole) {
  uint64_t off[32];
  off[lane] = b.offset;
  MemOrder order;
  order.strong = !whole;
  order.scope = 2;
  raceAccess(c, I, *b.region, b.owner, 1u << lane, off, 8,
             whole ? AccessKind::Write : AccessKind::Atomic, order);
}

/// The transaction count has a range of its own (PTX ISA, mbarrier).
static constexpr int32_t kMaxTx = (1 << 20) - 1;

static void addTx(Ctx &c, const Instr &I, int lane, uint64_t addr, Object &o,
                  int64_t bytes) {
  int64_t tx = o.tx + bytes;
  if (tx > kMaxTx || tx < -kMaxTx) {
    if (c.checks & CheckAsync)
      c.violation("async", I, lane, addr,
                  "the mbarrier's transaction count would be " +
                      std::to_string(tx) +
                      ", its range is -(2^20-1) to 2^20-1");
    tx = std::clamp<int64_t>(tx, -kMaxTx, kMaxTx);
  }
  o.tx = int32_t(tx);
}

static void requireObject(Ctx &c, const Instr &I, int lane, uint64_t addr,
                          const Object &o) {
  if (o.expected == 0 && (c.checks & CheckAsync))
    c.violation("async", I, lane, addr, "the mbarrier is not initialised");
}

void completeTx(Ctx &c, const Instr &I, int lane, MemSpace space, uint64_t addr,
                int64_t bytes, const AsyncOp &op) {
  Bytes b = resolveBytes(c, I, lane, space, addr, 8);
  if (!b.owner)
    c.violation("bounds", I, lane, addr, "an mbarrier lies in shared memory");
  Object o = load(b.host);
  requireObject(c, I, lane, addr, o);
  if (c.checks & CheckRace) {
    objectAccess(c, I, lane, b, false);
    raceArriveOp(c, keyOf(b), op);
  }
  addTx(c, I, lane, addr, o, -bytes);
  if (o.settle() && (c.checks & CheckRace))
    racePhase(c, keyOf(b));
  store(b.host, o);
  ++c.stats->changes;
}

static void arrive(Ctx &c, const Instr &I, int lane, uint64_t addr, Object &o,
                   int64_t count, bool drop, uint64_t key) {
  if (count < 1 || count > o.pending) {
    if (c.checks & CheckAsync)
      c.violation("async", I, lane, addr,
                  "arrival of " + std::to_string(count) +
                      " at an mbarrier whose phase expects " +
                      std::to_string(o.pending) + " more");
    count = o.pending;
  }
  o.pending -= int32_t(count);
  if (drop)
    o.expected -= int32_t(count);
  if (o.settle() && (c.checks & CheckRace))
    racePhase(c, key);
}

/// Operands: [result], address, [count or tx or state or parity].
static Act execMbarrier(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const MbarExt *>(I.ext);
  const Opnd &base = I.o[I.nd];
  const Opnd *arg = I.ns > 1 ? &I.o[I.nd + 1] : nullptr;
  alignas(64) uint64_t addr[32];
  checkAddressInit(c, I, base, m);
  laneAddresses(c, base, I.imm, addr);
  if (c.checks & CheckAlign)
    checkAlign(c, I, m, addr, 8);
  if (c.init && arg && isTainted(c, *arg, m))
    c.violation("init", I, std::countr_zero(m), 0,
                "an operand of the mbarrier operation is undefined");
  bool failed = false;
  uint32_t ready = 0;
  KVSIM_EACH(m) {
    int lane = int(l);
    Bytes b = resolveBytes(c, I, lane, I.space, addr[l], 8);
    if (!b.owner)
      c.violation("bounds", I, lane, addr[l],
                  "an mbarrier lies in shared memory");
    if (b.undef && x.op != Init) {
      bool undef = false;
      for (int i = 0; i < 8; ++i)
        undef |= b.undef[i] != 0;
      if (undef && (c.checks & CheckAsync))
        c.violation("async", I, lane, addr[l],
                    "the mbarrier is not initialised");
    }
    Object o = load(b.host);
    uint64_t token = o.pack();
    uint32_t n = arg ? (arg->sz == 8 ? uint32_t(c.in<uint64_t>(*arg)[l])
                                     : c.in<uint32_t>(*arg)[l])
                     : 1;
    if (c.checks & CheckRace)
      objectAccess(c, I, lane, b, x.op == Init || x.op == Inval);
    auto known = b.owner->mbarriers.find(uint32_t(b.offset));
    bool valid = known != b.owner->mbarriers.end() && o.expected &&
                 known->second == o.expected && o.pending <= o.expected;
    if ((x.op == Init || x.op == Inval) && valid && o.inUse() &&
        (c.checks & CheckAsync))
      c.violation(
          "async", I, lane, addr[l],
          std::string("the mbarrier is ") +
              (x.op == Init ? "initialised" : "invalidated") +
              " while its phase is under way: " + std::to_string(o.pending) +
              " of " + std::to_string(o.expected) + " arrivals and " +
              std::to_string(o.tx) + " bytes are pending");
    switch (x.op) {
    case Init:
      if (n < 1 || n > (1u << 20) - 1)
        c.violation("async", I, lane, addr[l],
                    "mbarrier count must be 1 to 2^20-1, got " +
                        std::to_string(n));
      o = Object();
      if (c.checks & CheckRace)
        raceForget(c, keyOf(b));
      o.expected = o.pending = int32_t(n & 0xfffff);
      b.owner->mbarriers[uint32_t(b.offset)] = o.expected;
      if (b.undef)
        std::memset(b.undef, 0, 8);
      break;
    case Inval:
      o = Object();
      b.owner->mbarriers.erase(uint32_t(b.offset));
      if (b.undef)
        std::memset(b.undef, 0xff, 8);
      break;
    case Arrive:
    case Drop: {
      requireObject(c, I, lane, addr[l], o);
      if (x.cpAsync) {
        deliverAll(c, 1u << l);
        if (c.checks & CheckRace)
          raceArriveOp(c, keyOf(b),
                       raceAgent(c, *c.block, AgentKind::CpAsync,
                                 uint64_t(c.warp->index),
                                 c.warp->cpAsync.issued, false));
        if (!x.noinc)
          break; // counted up and down again
      }
      if (c.checks & CheckRace)
        raceArrive(c, keyOf(b), x.relaxed);
      if (x.expectTx)
        addTx(c, I, lane, addr[l], o, int64_t(n));
      arrive(c, I, lane, addr[l], o, x.expectTx ? 1 : int64_t(n), x.op == Drop,
             keyOf(b));
      break;
    }
    case ExpectTx:
      requireObject(c, I, lane, addr[l], o);
      addTx(c, I, lane, addr[l], o, int64_t(n));
      break;
    case CompleteTx:
      requireObject(c, I, lane, addr[l], o);
      addTx(c, I, lane, addr[l], o, -int64_t(n));
      if (o.settle() && (c.checks & CheckRace))
        racePhase(c, keyOf(b));
      break;
    case TestWait:
    case TryWait: {
      requireObject(c, I, lane, addr[l], o);
      bool done;
      if (x.parity)
        done = o.phase != bool(n & 1);
      else
        done = (c.in<uint64_t>(*arg)[l] >> 63) != uint64_t(o.phase);
      ready |= uint32_t(done) << l;
      failed |= !done;
      if (done && !x.relaxed && (c.checks & CheckRace))
        raceWait(c, keyOf(b));
      break;
    }
    }
    if (x.op != TestWait && x.op != TryWait)
      store(b.host, o);
    if (x.hasResult && (x.op == Arrive || x.op == Drop))
      c.reg<uint64_t>(I.o[0])[l] = token;
  }
  if (x.op == TestWait || x.op == TryWait) {
    writePred(c, I.o[0], m, ready);
    c.warp->failedWaits = failed ? c.warp->failedWaits + 1 : 0;
    c.warp->waitsAt = &I;
    if (failed)
      c.warp->waitsFor = addr[std::countr_zero(m & ~ready)];
  } else {
    c.warp->failedWaits = 0;
    ++c.stats->changes;
  }
  if (c.init && I.nd)
    setDefined(c, I.o[0], m);
  return failed ? Act::Yield : Act::Next;
}

static Act execPendingCount(Ctx &c, const Instr &I, uint32_t m) {
  KVSIM_EACH(m)
  c.reg<uint32_t>(I.o[0])[l] =
      uint32_t(Object::unpack(c.in<uint64_t>(I.o[1])[l]).pending);
  return Act::Next;
}

static void common(Instr &I) {
  I.fn = execMbarrier;
  I.shadow = nullptr;
  I.matters = true;
  I.cls = OpClass::Barrier;
}

static void decodeMbarrier(Decoder &D, Instr &I) {
  common(I);
  D.needSm(I, 80);
  if (D.take("pending_count")) {
    D.type();
    D.needOps(2, 2);
    I.fn = execPendingCount;
    I.shadow = shadowAny;
    D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), "b64")});
    return;
  }
  MbarExt x;
  if (D.take("init"))
    x.op = Op::Init;
  else if (D.take("inval"))
    x.op = Inval;
  else if (D.take("arrive"))
    x.op = Arrive;
  else if (D.take("arrive_drop"))
    x.op = Drop;
  else if (D.take("expect_tx"))
    x.op = ExpectTx;
  else if (D.take("complete_tx"))
    x.op = CompleteTx;
  else if (D.take("test_wait"))
    x.op = TestWait;
  else if (D.take("try_wait"))
    x.op = TryWait;
  else
    D.error("unknown form of 'mbarrier'");
  x.expectTx = (x.op == Arrive || x.op == Drop) && D.take("expect_tx");
  x.noComplete = D.take("noComplete");
  x.parity = D.take("parity");
  D.take("release");
  D.take("acquire");
  x.relaxed = D.take("relaxed");
  D.take("cta");
  D.take("cluster");
  I.space = D.space();
  D.type();
  bool wait = x.op == TestWait || x.op == TryWait;
  bool arrives = x.op == Arrive || x.op == Drop;
  std::vector<Opnd> ds, ss;
  size_t i = 0;
  if (wait) {
    ds.push_back(D.dst(D.op(i++), 0));
  } else if (arrives && D.op(0).kind != Operand::Mem) {
    x.hasResult = D.op(0).kind != Operand::Sink;
    ds.push_back(D.dst(D.op(i++), 8));
  }
  int64_t offset;
  ss.push_back(D.address(D.op(i++), I.space, offset));
  I.imm = offset;
  if (x.op != Inval && i < D.count()) {
    bool state = wait && !x.parity;
    ss.push_back(D.src(D.op(i), state ? "b64" : "u32"));
    ++i;
  } else if (wait || x.op == Op::Init || x.expectTx || x.op == ExpectTx ||
             x.op == CompleteTx) {
    D.error("'mbarrier' expects one more operand");
  }
  if (x.op == TryWait && i < D.count())
    ++i; // the time limit only matters to the hardware
  if (i != D.count())
    D.error("too many operands of 'mbarrier'");
  if (x.expectTx || x.op == TryWait || x.op == ExpectTx || x.op == CompleteTx)
    D.needSm(I, 90);
  I.ext = D.extra(x);
  D.finish(I, ds, ss);
}

void decodeCpMbarrier(Decoder &D, Instr &I) {
  MbarExt x;
  x.op = Arrive;
  x.cpAsync = true;
  if (!D.take("arrive"))
    D.error("unknown form of 'cp.async.mbarrier'");
  x.noinc = D.take("noinc");
  I.space = D.space();
  D.type();
  D.needOps(1, 1);
  common(I);
  D.needSm(I, 80);
  int64_t offset;
  Opnd a = D.address(D.op(0), I.space, offset);
  I.imm = offset;
  I.ext = D.extra(x);
  D.finish(I, {}, {a});
}

void addBarrierObjects(Table &t) { t.add("mbarrier", decodeMbarrier); }

} // namespace kvcache::sim::KVSIM_TIER
