//===- ExecAtomic.cpp - atom, red -----------------------------------------===//
//
// Lanes are served in order; each is one atomic operation of the host, since
// blocks run on several threads.
//
//===----------------------------------------------------------------------===//
#include "MemOrder.h"
#include "Num.h"
#include <mutex>

namespace kvcache::sim::KVSIM_TIER {

enum AtomOp : uint32_t {
  AtomAdd,
  AtomMin,
  AtomMax,
  AtomAnd,
  AtomOr,
  AtomXor,
  AtomExch,
  AtomCas,
  AtomInc,
  AtomDec
};
enum AtomType : uint32_t {
  TypeU,
  TypeS,
  TypeF,
  TypeHalf2,
  TypeBf2,
  TypeHalf,
  TypeBf
};

template <class T>
static T combineInt(AtomOp op, bool isSigned, T old, T v, T w) {
  using S = std::make_signed_t<T>;
  switch (op) {
  case AtomAdd:
    return T(old + v);
  case AtomMin:
    return isSigned ? T(S(old) < S(v) ? old : v) : (old < v ? old : v);
  case AtomMax:
    return isSigned ? T(S(old) > S(v) ? old : v) : (old > v ? old : v);
  case AtomAnd:
    return old & v;
  case AtomOr:
    return old | v;
  case AtomXor:
    return old ^ v;
  case AtomExch:
    return v;
  case AtomCas:
    return old == v ? w : old;
  case AtomInc:
    return old >= v ? T(0) : T(old + 1);
  default:
    return old == 0 || old > v ? v : T(old - 1);
  }
}

template <bool Bf>
static uint16_t combineHalf(AtomOp op, uint16_t a, uint16_t b) {
  float x = Bf ? bf16ToF32(a) : f16ToF32(a),
        y = Bf ? bf16ToF32(b) : f16ToF32(b);
  float r = op == AtomAdd   ? x + y
            : op == AtomMin ? (y < x || x != x ? y : x)
                            : (y > x || x != x ? y : x);
  return Bf ? f32ToBf16(r) : f32ToF16(r);
}

template <class T>
static T combine(const Instr &I, T old, T v, T w) {
  auto op = AtomOp(I.a & 15);
  auto type = AtomType(I.a >> 4 & 15);
  if (type <= TypeS || op >= AtomAnd)
    return combineInt<T>(op, type == TypeS, old, v, w);
  if constexpr (sizeof(T) == 4) {
    if (type == TypeF)
      return bitcast<uint32_t>(bitcast<float>(old) + bitcast<float>(v));
    auto f = type == TypeHalf2 ? combineHalf<false> : combineHalf<true>;
    return f(op, uint16_t(old), uint16_t(v)) |
           uint32_t(f(op, uint16_t(old >> 16), uint16_t(v >> 16))) << 16;
  } else if constexpr (sizeof(T) == 8) {
    return bitcast<uint64_t>(bitcast<double>(old) + bitcast<double>(v));
  } else {
    return type == TypeHalf ? combineHalf<false>(op, old, v)
                            : combineHalf<true>(op, old, v);
  }
}

/// Undefined operands, and what they do to the cell and the result.
template <class T>
static void atomicShadow(Ctx &c, const Instr &I, const Group &g, int l,
                         uint32_t extra, int v, T *resultShadow) {
  const Opnd &s = I.o[I.nd + 1 + v];
  T sh = shadowIn<T>(c, s)[l];
  if (sh && g.space == MemSpace::Global)
    c.violation("init", I, l, g.region->base + g.off[l],
                "an undefined value is combined into global memory");
  T cell = 0;
  if (g.undef) {
    std::memcpy(&cell, g.undef + g.off[l] + extra, sizeof(T));
    auto op = AtomOp(I.a & 15);
    T now = op == AtomExch ? sh : T((cell | sh) ? ~T(0) : 0);
    std::memcpy(g.undef + g.off[l] + extra, &now, sizeof(T));
  }
  resultShadow[l] = cell;
}

template <class T>
static Act execAtomic(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t addr[32];
  const Opnd &base = I.o[I.nd];
  checkAddressInit(c, I, base, m);
  checkWrapped(c, I, base, m);
  laneAddresses(c, base, I.imm, addr);
  uint32_t bytes = uint32_t(sizeof(T)) * I.vec;
  // Not only a check: the host's atomics need natural alignment.
  checkAlign(c, I, m, addr, bytes);
  bool result = I.nd > 0;
  forGroups(c, I, I.space, m, addr, bytes, [&](const Group &g) {
    if (g.region->readOnly)
      c.violation("bounds", I, std::countr_zero(g.mask),
                  addr[std::countr_zero(g.mask)],
                  "atomic on read-only " + g.region->name);
    if (c.checks & CheckAsync)
      checkPending(c, I, g, bytes, true);
    if (c.checks & CheckRace)
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, bytes,
                 AccessKind::Atomic, memOrder(I.b));
    for (int v = 0; v < I.vec; ++v) {
      const T *x = c.in<T>(I.o[I.nd + 1 + v]);
      const T *y = (I.a & 15) == AtomCas ? c.in<T>(I.o[I.nd + 2]) : x;
      T shadow[32] = {}, olds[32];
      KVSIM_EACH(g.mask) {
        auto *p = reinterpret_cast<T *>(g.host + g.off[l] + v * sizeof(T));
        if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) {
          // A caller's buffer that is less aligned than the device's.
          T old;
          std::memcpy(&old, p, sizeof(T));
          T now = combine<T>(I, old, x[l], y[l]);
          std::memcpy(p, &now, sizeof(T));
          olds[l] = old;
          c.stats->changes += std::memcmp(&old, &now, sizeof(T)) != 0;
        } else {
          T old = __atomic_load_n(p, __ATOMIC_RELAXED), now;
          do
            now = combine<T>(I, old, x[l], y[l]);
          while (!__atomic_compare_exchange_n(
              p, &old, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
          olds[l] = old;
          c.stats->changes += std::memcmp(&old, &now, sizeof(T)) != 0;
        }
        if (c.init)
          atomicShadow<T>(c, I, g, int(l), uint32_t(v * sizeof(T)), v, shadow);
      }
      if (result) {
        T *d = c.reg<T>(I.o[v]);
        KVSIM_EACH(g.mask) d[l] = olds[l];
        if (c.init)
          setShadow(c, I.o[v], g.mask, shadow);
      }
    }
    if (!c.stats->instr.empty())
      countAccess(c, I, g, bytes);
  });
  return polled(c, I, addr[std::countr_zero(m)]);
}

/// cas and exch of 16 bytes, one at a time over all blocks.
static Act execAtomic128(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint64_t addr[32];
  const Opnd &base = I.o[1];
  checkAddressInit(c, I, base, m);
  checkWrapped(c, I, base, m);
  laneAddresses(c, base, I.imm, addr);
  checkAlign(c, I, m, addr, 16);
  bool cas = (I.a & 15) == AtomCas;
  const uint8_t *x = c.in<uint8_t>(I.o[2]), *y = c.in<uint8_t>(I.o[3]);
  forGroups(c, I, I.space, m, addr, 16, [&](const Group &g) {
    if (g.region->readOnly)
      c.violation("bounds", I, std::countr_zero(g.mask),
                  addr[std::countr_zero(g.mask)],
                  "atomic on read-only " + g.region->name);
    if (c.checks & CheckAsync)
      checkPending(c, I, g, 16, true);
    if (c.checks & CheckRace)
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, 16,
                 AccessKind::Atomic, memOrder(I.b));
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    uint8_t shadow[512] = {};
    KVSIM_EACH(g.mask) {
      uint8_t *p = g.host + g.off[l], old[16];
      std::memcpy(old, p, 16);
      bool write = !cas || !std::memcmp(old, x + 16 * l, 16);
      if (write)
        std::memcpy(p, (cas ? y : x) + 16 * l, 16);
      std::memcpy(c.reg<uint8_t>(I.o[0]) + 16 * l, old, 16);
      if (c.init && g.undef) {
        std::memcpy(shadow + 16 * l, g.undef + g.off[l], 16);
        if (write)
          std::memcpy(g.undef + g.off[l],
                      shadowIn<uint8_t>(c, I.o[cas ? 3 : 2]) + 16 * l, 16);
      }
    }
    if (c.init)
      setShadow(c, I.o[0], g.mask, shadow);
    if (!c.stats->instr.empty())
      countAccess(c, I, g, 16);
  });
  return polled(c, I, addr[std::countr_zero(m)]);
}

static void decodeAtomic(Decoder &D, Instr &I) {
  bool red = D.in->op == "red";
  if (red && D.take("async"))
    return decodeRedAsync(D, I);
  I.b = takeMemOrder(D, true);
  I.space = D.space();
  D.cacheHints();
  static const char *const names[] = {"add", "min",  "max", "and", "or",
                                      "xor", "exch", "cas", "inc", "dec"};
  uint32_t op = 99;
  for (uint32_t i = 0; i < 10; ++i)
    if (D.take(names[i]))
      op = i;
  if (op == 99)
    D.error("'" + D.in->op + "' needs an operation");
  D.take("noftz");
  I.vec = D.take("v2") ? 2 : D.take("v4") ? 4 : D.take("v8") ? 8 : 1;
  std::string t = D.type();
  int n = typeSize(t);
  uint32_t type = t == "f32" || t == "f64" ? TypeF
                  : t == "f16x2"           ? TypeHalf2
                  : t == "bf16x2"          ? TypeBf2
                  : t == "f16"             ? TypeHalf
                  : t == "bf16"            ? TypeBf
                  : t[0] == 's'            ? TypeS
                                           : TypeU;
  if ((type == TypeF && op != AtomAdd && op != AtomExch) ||
      (type >= TypeHalf2 && op > AtomMax) ||
      (n > 8 && (red || (op != AtomCas && op != AtomExch))))
    D.error("'" + D.in->op + "." + names[op] + "' does not accept ." + t);
  I.a = op | type << 4;
  I.elem = uint8_t(n);
  I.cls = OpClass::Atomic;
  I.shadow = nullptr;
  I.matters = true;
  I.fn = n == 2   ? execAtomic<uint16_t>
         : n == 4 ? execAtomic<uint32_t>
         : n == 8 ? execAtomic<uint64_t>
                  : execAtomic128;
  if (n == 16)
    D.needSm(I, 90);
  size_t at = red ? 0 : 1;
  size_t plain = at + 2 + (op == AtomCas);
  D.needOps(plain, plain + 1);
  std::vector<Opnd> ds, ss;
  int64_t offset;
  ss.push_back(D.address(D.op(at), I.space, offset));
  I.imm = offset;
  auto each = [&](const Operand &o, auto f) {
    if (I.vec > 1) {
      if (o.kind != Operand::Vec || o.elems.size() != I.vec)
        D.error("'" + D.in->op + "' needs " + std::to_string(I.vec) +
                " registers in braces");
      for (const Operand &e : o.elems)
        f(e);
    } else {
      f(o);
    }
  };
  if (!red)
    each(D.op(0), [&](const Operand &e) { ds.push_back(D.dst(e, n)); });
  each(D.op(at + 1), [&](const Operand &e) { ss.push_back(D.src(e, t)); });
  if (op == AtomCas)
    ss.push_back(D.src(D.op(at + 2), t));
  else if (n == 16)
    ss.push_back(ss.back());
  D.finish(I, ds, ss);
}

void addAtomic(Table &t) {
  t.add("atom", decodeAtomic);
  t.add("red", decodeAtomic);
}

} // namespace kvcache::sim::KVSIM_TIER
