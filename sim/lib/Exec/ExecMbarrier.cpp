//===- ExecMbarrier.cpp - mbarrier objects --------------------------------===//
//
// The 64-bit object in shared memory: bit 63 phase, 20 bits expected arrivals,
// 20 bits pending arrivals, 23 bits transaction bytes (signed). A state token
// is the object's value at the arrive.
//
//===----------------------------------------------------------------------===//
#include "Async.h"

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
  void settle() {
    if (pending == 0 && tx == 0) {
      phase = !phase;
      pending = expected;
    }
  }
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

static uint64_t keyOf(const uint8_t *p) {
  return uint64_t(reinterpret_cast<uintptr_t>(p));
}

static void requireObject(Ctx &c, const Instr &I, int lane, uint64_t addr,
                          const Object &o) {
  if (o.expected == 0 && (c.checks & CheckAsync))
    c.violation("async", I, lane, addr, "the mbarrier is not initialised");
}

void completeTx(Ctx &c, const Instr &I, int lane, MemSpace space, uint64_t addr,
                int64_t bytes) {
  Bytes b = resolveBytes(c, I, lane, space, addr, 8);
  Object o = load(b.host);
  requireObject(c, I, lane, addr, o);
  if (c.checks & CheckRace)
    raceRelease(c, 1u << lane, keyOf(b.host));
  o.tx -= int32_t(bytes);
  o.settle();
  store(b.host, o);
}

static void arrive(Ctx &c, const Instr &I, int lane, uint64_t addr, Object &o,
                   int32_t count, bool drop) {
  if (count < 1 || count > o.pending) {
    if (c.checks & CheckAsync)
      c.violation("async", I, lane, addr,
                  "arrival of " + std::to_string(count) +
                      " at an mbarrier whose phase expects " +
                      std::to_string(o.pending) + " more");
    count = o.pending;
  }
  o.pending -= count;
  if (drop)
    o.expected -= count;
  o.settle();
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
    if (c.checks & CheckRace) {
      uint64_t off = b.offset;
      uint64_t offs[32];
      offs[l] = off;
      MemOrder strong;
      strong.strong = true;
      strong.scope = 2;
      raceAccess(c, I, *b.region, b.owner, 1u << l, offs, 8,
                 x.op == Init || x.op == Inval ? AccessKind::Write
                                               : AccessKind::Atomic,
                 x.op == Init || x.op == Inval ? MemOrder() : strong);
    }
    switch (x.op) {
    case Init:
      if (n < 1 || n > (1u << 20) - 1)
        c.violation("async", I, lane, addr[l],
                    "mbarrier count must be 1 to 2^20-1, got " +
                        std::to_string(n));
      o = Object();
      o.expected = o.pending = int32_t(n);
      if (b.undef)
        std::memset(b.undef, 0, 8);
      break;
    case Inval:
      o = Object();
      if (b.undef)
        std::memset(b.undef, 0xff, 8);
      break;
    case Arrive:
    case Drop: {
      requireObject(c, I, lane, addr[l], o);
      if (x.cpAsync) {
        deliverAll(c, 1u << l);
        if (!x.noinc)
          break; // counted up and down again
      }
      if (!x.relaxed && (c.checks & CheckRace))
        raceRelease(c, 1u << l, keyOf(b.host));
      if (x.expectTx)
        o.tx += int32_t(n);
      arrive(c, I, lane, addr[l], o, x.expectTx ? 1 : int32_t(n), x.op == Drop);
      break;
    }
    case ExpectTx:
      requireObject(c, I, lane, addr[l], o);
      o.tx += int32_t(n);
      break;
    case CompleteTx:
      o.tx -= int32_t(n);
      o.settle();
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
        raceAcquire(c, 1u << l, keyOf(b.host));
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
  } else {
    c.warp->failedWaits = 0;
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
