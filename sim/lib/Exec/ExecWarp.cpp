//===- ExecWarp.cpp - shfl, vote, match, redux, elect, activemask ---------===//
#include "Members.h"
#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

enum ShflMode : uint32_t { Up, Down, Bfly, Idx };

/// o: d, p, a, b, c, mask. a: mode.
static Act execShfl(Ctx &c, const Instr &I, uint32_t m) {
  Members members(c, I, I.o[5], m);
  if (!needMembers(c, I, m, members.mask))
    return Act::Wait;
  const uint32_t *a = c.in<uint32_t>(I.o[2]), *b = c.in<uint32_t>(I.o[3]),
                 *cc = c.in<uint32_t>(I.o[4]);
  uint32_t *d = c.reg<uint32_t>(I.o[0]);
  alignas(64) uint32_t out[32], from[32];
  uint32_t p = 0;
  KVSIM_LANES {
    uint32_t seg = cc[l] >> 8 & 31, cv = cc[l] & 31, bv = b[l] & 31;
    uint32_t maxLane = (uint32_t(l) & seg) | (cv & ~seg);
    uint32_t minLane = uint32_t(l) & seg;
    uint32_t j = I.a == Up     ? uint32_t(l) - bv
                 : I.a == Down ? uint32_t(l) + bv
                 : I.a == Bfly ? uint32_t(l) ^ bv
                               : minLane | (bv & ~seg);
    bool ok = I.a == Up ? int32_t(j) >= int32_t(maxLane) : j <= maxLane;
    from[l] = ok ? j & 31 : uint32_t(l);
    out[l] = ok;
  }
  for (int l = 0; l < 32; ++l)
    p |= uint32_t(out[l]) << l;
  if (c.checks & CheckBarrier) {
    uint32_t bad = 0;
    KVSIM_LANES bad |= (m >> l & 1) & ~(m >> from[l]) ? 1u << l : 0;
    if (bad) {
      int l = std::countr_zero(bad);
      c.violation("barrier", I, l, 0,
                  "shuffle from lane " + std::to_string(from[l]) +
                      ", which does not take part");
    }
  }
  KVSIM_LANES out[l] = a[from[l]];
  if (c.init) {
    const uint32_t *sa = shadowIn<uint32_t>(c, I.o[2]);
    uint32_t lanesT = taintedLanes(c, I.o[3], m) | taintedLanes(c, I.o[4], m);
    alignas(64) uint32_t sh[32];
    for (int l = 0; l < 32; ++l)
      sh[l] = lanesT >> l & 1 ? ~0u : sa[from[l]];
    setShadow(c, I.o[0], m, sh);
    setDefined(c, I.o[1], m);
  }
  KVSIM_LANES d[l] = m >> l & 1 ? out[l] : d[l];
  writePred(c, I.o[1], m, p);
  return members.next();
}

// "d" or "d|p": a 32-bit destination with the predicate that may follow it.
static std::pair<Opnd, Opnd> dstAndPredicate(Decoder &D) {
  const Operand &d = D.op(0);
  if (d.kind != Operand::Pair)
    return {D.dst(d, 4), D.scratch(0)};
  return {D.dst(d.elems[0], 4), D.dst(d.elems[1], 0)};
}

static void decodeShfl(Decoder &D, Instr &I) {
  I.b = D.take("sync");
  std::string mode = D.oneOf({"up", "down", "bfly", "idx"});
  if (mode.empty())
    D.error("'shfl' needs .up, .down, .bfly or .idx");
  if (!I.b)
    D.error("'shfl' without .sync is not supported");
  I.a = mode == "up" ? Up : mode == "down" ? Down : mode == "bfly" ? Bfly : Idx;
  D.type();
  D.needOps(5, 5);
  auto [r, p] = dstAndPredicate(D);
  I.fn = execShfl;
  I.shadow = nullptr;
  I.cls = OpClass::WarpOp;
  D.finish(I, {r, p},
           {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "b32"),
            D.src(D.op(4), "b32")});
}

/// o: d, p, mask. a: 0 all 1 any 2 uni 3 ballot.
static Act execVote(Ctx &c, const Instr &I, uint32_t m) {
  Members members(c, I, I.o[2], m);
  if (!needMembers(c, I, m, members.mask))
    return Act::Wait;
  uint32_t p = c.pred(I.o[1]) & m;
  if (I.a == 3) {
    KVSIM_EACH(m) c.reg<uint32_t>(I.o[0])[l] = p;
  } else {
    bool r = I.a == 0 ? p == m : I.a == 1 ? p != 0 : p == m || p == 0;
    writePred(c, I.o[0], m, r ? ~0u : 0);
  }
  if (c.init) {
    uint32_t t = taintedLanes(c, I.o[1], m);
    // A defined lane may decide all and any.
    bool decided = (I.a == 0 && (~p & m & ~t)) || (I.a == 1 && (p & ~t));
    if (I.a == 3) {
      alignas(64) uint32_t sh[32];
      for (uint32_t &x : sh)
        x = t;
      setShadow(c, I.o[0], m, sh);
    } else if (t && !decided) {
      setUndefined(c, I.o[0], m);
    } else {
      setDefined(c, I.o[0], m);
    }
  }
  return members.next();
}

static void decodeVote(Decoder &D, Instr &I) {
  if (!D.take("sync"))
    D.error("'vote' without .sync is not supported");
  std::string mode = D.oneOf({"all", "any", "uni", "ballot"});
  I.a = mode == "all" ? 0 : mode == "any" ? 1 : mode == "uni" ? 2 : 3;
  std::string t = D.type();
  D.needOps(3, 3);
  I.fn = execVote;
  I.shadow = nullptr;
  I.cls = OpClass::WarpOp;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.pred(D.op(1)), D.src(D.op(2), "b32")});
}

/// o: d, p, a, mask. a: any 0, all 1.
template <class T>
static Act execMatch(Ctx &c, const Instr &I, uint32_t m) {
  Members members(c, I, I.o[3], m);
  if (!needMembers(c, I, m, members.mask))
    return Act::Wait;
  const T *a = c.in<T>(I.o[2]);
  uint32_t *d = c.reg<uint32_t>(I.o[0]), same[32];
  bool all = true;
  T first = a[std::countr_zero(m)];
  KVSIM_EACH(m) {
    uint32_t r = 0;
    for (int k = 0; k < 32; ++k)
      r |= uint32_t((m >> k & 1) && a[k] == a[l]) << k;
    same[l] = r;
    all &= a[l] == first;
  }
  KVSIM_EACH(m) d[l] = I.a ? (all ? m : 0) : same[l];
  writePred(c, I.o[1], m, all ? ~0u : 0);
  if (c.init) {
    bool t = isTainted(c, I.o[2], m);
    for (int i = 0; i < 2; ++i)
      t ? setUndefined(c, I.o[i], m) : setDefined(c, I.o[i], m);
  }
  return members.next();
}

static void decodeMatch(Decoder &D, Instr &I) {
  I.a = D.oneOf({"any", "all"}) == "all";
  if (!D.take("sync"))
    D.error("'match' needs .sync");
  std::string t = D.type();
  D.needOps(3, 3);
  auto [r, p] = dstAndPredicate(D);
  I.fn = typeSize(t) == 8 ? execMatch<uint64_t> : execMatch<uint32_t>;
  I.shadow = nullptr;
  I.cls = OpClass::WarpOp;
  D.finish(I, {r, p}, {D.src(D.op(1), t), D.src(D.op(2), "b32")});
}

enum ReduxOp : uint32_t { RAdd, RMin, RMax, RAnd, ROr, RXor };

/// o: d, a, mask. a: op | signed << 4 | float << 5; b: 1 abs, 2 NaN.
static Act execRedux(Ctx &c, const Instr &I, uint32_t m) {
  Members members(c, I, I.o[2], m);
  if (!needMembers(c, I, m, members.mask))
    return Act::Wait;
  const uint32_t *a = c.in<uint32_t>(I.o[1]);
  uint32_t r = a[std::countr_zero(m)];
  auto op = ReduxOp(I.a & 15);
  bool s = I.a & 16, f = I.a & 32;
  auto value = [&](uint32_t x) {
    float v = bitcast<float>(x);
    return I.b & 1 ? std::fabs(v) : v;
  };
  if (f)
    r = bitcast<uint32_t>(value(r));
  KVSIM_EACH(m & (m - 1)) {
    uint32_t x = a[l];
    if (f) {
      float p = bitcast<float>(r), q = value(x);
      bool nan = p != p || q != q;
      float w = p != p       ? q
                : q != q     ? p
                : op == RMin ? (q < p ? q : p)
                             : (q > p ? q : p);
      r = nan && (I.b & 2) ? 0x7fffffffu : bitcast<uint32_t>(w);
      continue;
    }
    bool less = s ? int32_t(x) < int32_t(r) : x < r;
    switch (op) {
    case RAdd:
      r += x;
      break;
    case RMin:
      r = less ? x : r;
      break;
    case RMax:
      r = less ? r : x;
      break;
    case RAnd:
      r &= x;
      break;
    case ROr:
      r |= x;
      break;
    default:
      r ^= x;
    }
  }
  KVSIM_EACH(m) c.reg<uint32_t>(I.o[0])[l] = r;
  if (c.init)
    isTainted(c, I.o[1], m) ? setUndefined(c, I.o[0], m)
                            : setDefined(c, I.o[0], m);
  return members.next();
}

static void decodeRedux(Decoder &D, Instr &I) {
  if (!D.take("sync"))
    D.error("'redux' needs .sync");
  std::string op = D.oneOf({"add", "min", "max", "and", "or", "xor"});
  I.b = (D.take("abs") ? 1 : 0) | (D.take("NaN") ? 2 : 0);
  std::string t = D.type();
  D.needOps(3, 3);
  I.a = op == "add"   ? RAdd
        : op == "min" ? RMin
        : op == "max" ? RMax
        : op == "and" ? RAnd
        : op == "or"  ? ROr
                      : RXor;
  I.a |= t == "s32" ? 16 : t == "f32" ? 32 : 0;
  if (t == "f32") {
    D.needSm(I, 100, true);
    if (op != "min" && op != "max")
      D.error("'redux' of .f32 needs .min or .max");
  } else {
    D.needSm(I, 80);
  }
  I.fn = execRedux;
  I.shadow = nullptr;
  I.cls = OpClass::WarpOp;
  D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), t), D.src(D.op(2), "b32")});
}

static Act execElect(Ctx &c, const Instr &I, uint32_t m) {
  Members members(c, I, I.o[2], m);
  if (!needMembers(c, I, m, members.mask))
    return Act::Wait;
  uint32_t lane = uint32_t(std::countr_zero(m));
  KVSIM_EACH(m) c.reg<uint32_t>(I.o[0])[l] = lane;
  writePred(c, I.o[1], m, 1u << lane);
  if (c.init)
    for (int i = 0; i < 2; ++i)
      setDefined(c, I.o[i], m);
  return members.next();
}

static void decodeElect(Decoder &D, Instr &I) {
  if (!D.take("sync"))
    D.error("'elect' needs .sync");
  D.needOps(2, 2);
  const Operand &d = D.op(0);
  if (d.kind != Operand::Pair)
    D.error("'elect' needs a register and a predicate");
  I.fn = execElect;
  I.shadow = nullptr;
  I.cls = OpClass::WarpOp;
  D.needSm(I, 90);
  D.finish(I, {D.dst(d.elems[0], 4), D.dst(d.elems[1], 0)},
           {D.src(D.op(1), "b32")});
}

void addWarp(Table &t) {
  t.add("shfl", decodeShfl);
  t.add("vote", decodeVote);
  t.add("match", decodeMatch);
  t.add("redux", decodeRedux);
  t.add("elect", decodeElect);
  t.add("activemask", [](Decoder &D, Instr &I) {
    D.type();
    D.needOps(1, 1);
    I.fn = [](Ctx &c, const Instr &I, uint32_t m) {
      KVSIM_EACH(m) c.reg<uint32_t>(I.o[0])[l] = m;
      return Act::Next;
    };
    I.shadow = shadowNone;
    I.cls = OpClass::WarpOp;
    D.finish(I, {D.dst(D.op(0), 4)}, {});
  });
}

} // namespace kvcache::sim::KVSIM_TIER
