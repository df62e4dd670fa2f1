//===- ExecBits.cpp - Logic, shifts, bit fields, carry chains -------------===//
#include "Arith.h"

namespace kvcache::sim::KVSIM_TIER {

template <class T>
struct BitOps {
  static constexpr unsigned bits = sizeof(T) * 8;
  using S = std::make_signed_t<T>;
  static T band(T a, T b) { return a & b; }
  static T bor(T a, T b) { return a | b; }
  static T bxor(T a, T b) { return a ^ b; }
  static T bnot(T a) { return T(~a); }
  static T cnot(T a) { return a == 0; }
  static T shl(T a, uint32_t n) {
    return n >= bits ? T(0) : T(a << (n & (bits - 1)));
  }
  static T shr(T a, uint32_t n) {
    return n >= bits ? T(0) : T(a >> (n & (bits - 1)));
  }
  static T sar(T a, uint32_t n) {
    return T(S(a) >> (n >= bits ? bits - 1 : n & (bits - 1)));
  }
  static uint32_t popc(T a) { return uint32_t(std::popcount(a)); }
  static uint32_t clz(T a) { return uint32_t(std::countl_zero(a)); }
  static T brev(T a) {
    T r = 0;
    for (unsigned i = 0; i < bits; ++i)
      r |= T((a >> i & 1) << (bits - 1 - i));
    return r;
  }
  template <bool Signed, bool Shift>
  static uint32_t bfind(T a) {
    if (Signed && S(a) < 0)
      a = T(~a);
    if (a == 0)
      return ~0u;
    uint32_t r = bits - 1 - uint32_t(std::countl_zero(a));
    return Shift ? bits - 1 - r : r;
  }
  template <bool Signed>
  static T bfe(T a, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    bool sign = false;
    if (Signed && len) {
      uint32_t m = pos + len - 1 > bits - 1 ? bits - 1 : pos + len - 1;
      sign = a >> m & 1;
    }
    T v = pos >= bits ? 0 : T(a >> pos);
    if (len < bits)
      v &= T((T(1) << len) - 1);
    // Bits that lie beyond the top read as the sign.
    if (sign) {
      uint32_t have = pos >= bits ? 0 : bits - pos;
      uint32_t keep = len < have ? len : have;
      v |= keep >= bits ? T(0) : T(~T(0) << keep);
    }
    return v;
  }
  static T bfi(T f, T base, uint32_t pos, uint32_t len) {
    pos &= 255;
    len &= 255;
    if (pos >= bits || len == 0)
      return base;
    T mask = len >= bits ? T(~T(0)) : T((T(1) << len) - 1);
    mask = T(mask << pos);
    return T((base & ~mask) | (T(f << pos) & mask));
  }
};

template <class T>
static ExecFn logicFn(const std::string &op) {
  using B = BitOps<T>;
  return op == "and"  ? ExecFn(bin<T, T, T, &B::band>)
         : op == "or" ? bin<T, T, T, &B::bor>
                      : bin<T, T, T, &B::bxor>;
}

static Act predLogic(Ctx &c, const Instr &I, uint32_t m) {
  uint32_t a = c.pred(I.o[1]), b = c.pred(I.o[2]);
  writePred(c, I.o[0], m, I.a == 0 ? a & b : I.a == 1 ? a | b : a ^ b);
  return Act::Next;
}
static Act predNot(Ctx &c, const Instr &I, uint32_t m) {
  writePred(c, I.o[0], m, ~c.pred(I.o[1]));
  return Act::Next;
}

static void decodeLogic(Decoder &D, Instr &I) {
  const std::string &op = D.in->op;
  std::string t = D.type();
  D.needOps(3, 3);
  I.cls = OpClass::Int;
  I.shadow = op == "and" ? shadowAnd : op == "or" ? shadowOr : shadowXor;
  if (t == "pred") {
    I.a = op == "and" ? 0 : op == "or" ? 1 : 2;
    I.fn = predLogic;
    D.finish(I, {D.dst(D.op(0), 0)}, {D.pred(D.op(1)), D.pred(D.op(2))});
    return;
  }
  int n = typeSize(t);
  if (t[0] != 'b' || n == 1 || n > 8)
    D.error("type ." + t + " is not accepted by '" + op + "'");
  I.fn = n == 2   ? logicFn<uint16_t>(op)
         : n == 4 ? logicFn<uint32_t>(op)
                  : logicFn<uint64_t>(op);
  D.finish(I, {D.dst(D.op(0), n)}, {D.src(D.op(1), t), D.src(D.op(2), t)});
}

static void decodeNot(Decoder &D, Instr &I) {
  bool cnot = D.in->op == "cnot";
  std::string t = D.type();
  D.needOps(2, 2);
  I.cls = OpClass::Int;
  I.shadow = cnot ? shadowAny : shadowCopy;
  if (t == "pred") {
    I.fn = predNot;
    D.finish(I, {D.dst(D.op(0), 0)}, {D.pred(D.op(1))});
    return;
  }
#define BITS_UN(F)                                                             \
  (typeSize(t) == 2   ? ExecFn(un<uint16_t, uint16_t, &BitOps<uint16_t>::F>)   \
   : typeSize(t) == 4 ? ExecFn(un<uint32_t, uint32_t, &BitOps<uint32_t>::F>)   \
   : typeSize(t) == 8 ? ExecFn(un<uint64_t, uint64_t, &BitOps<uint64_t>::F>)   \
                      : ExecFn(nullptr))
  I.fn = cnot ? BITS_UN(cnot) : BITS_UN(bnot);
  if (!I.fn)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

static void decodeShift(Decoder &D, Instr &I) {
  bool left = D.in->op == "shl";
  std::string t = D.type();
  D.needOps(3, 3);
  I.cls = OpClass::Int;
#define SHIFT(F)                                                               \
  (typeSize(t) == 2                                                            \
       ? ExecFn(bin<uint16_t, uint16_t, uint32_t, &BitOps<uint16_t>::F>)       \
   : typeSize(t) == 4                                                          \
       ? ExecFn(bin<uint32_t, uint32_t, uint32_t, &BitOps<uint32_t>::F>)       \
   : typeSize(t) == 8                                                          \
       ? ExecFn(bin<uint64_t, uint64_t, uint32_t, &BitOps<uint64_t>::F>)       \
       : ExecFn(nullptr))
  I.fn = left ? SHIFT(shl) : t[0] == 's' ? SHIFT(sar) : SHIFT(shr);
  I.a = left ? 0 : t[0] == 's' ? 2 : 1;
  I.shadow = shadowShift;
  if (!I.fn || t[0] == 'f')
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), "u32")});
  if (left)
    trackOverflow(D, I, t, 4);
}

template <bool Left, bool Wrap>
static uint32_t shf(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t n = Wrap ? c & 31 : c > 32 ? 32 : c;
  uint64_t v = uint64_t(b) << 32 | a;
  return Left ? uint32_t((v << n) >> 32) : uint32_t(v >> n);
}

static void decodeShf(Decoder &D, Instr &I) {
  bool left = D.take("l");
  if (!left && !D.take("r"))
    D.error("'shf' needs .l or .r");
  bool wrap = D.oneOf({"clamp", "wrap"}) == "wrap";
  D.type();
  D.needOps(4, 4);
  using W = uint32_t;
  I.fn = left ? (wrap ? ExecFn(tern<W, W, W, W, &shf<true, true>>)
                      : tern<W, W, W, W, &shf<true, false>>)
              : (wrap ? ExecFn(tern<W, W, W, W, &shf<false, true>>)
                      : tern<W, W, W, W, &shf<false, false>>);
  I.cls = OpClass::Int;
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "u32")});
}

static Act execLop3(Ctx &c, const Instr &I, uint32_t m) {
  uint32_t *d = c.reg<uint32_t>(I.o[0]);
  const uint32_t *a = c.in<uint32_t>(I.o[1]), *b = c.in<uint32_t>(I.o[2]),
                 *e = c.in<uint32_t>(I.o[3]);
  uint32_t t = I.a;
  KVSIM_LANES {
    uint32_t r = 0, x = a[l], y = b[l], z = e[l];
    r |= (t & 1 ? ~x & ~y & ~z : 0) | (t & 2 ? ~x & ~y & z : 0);
    r |= (t & 4 ? ~x & y & ~z : 0) | (t & 8 ? ~x & y & z : 0);
    r |= (t & 16 ? x & ~y & ~z : 0) | (t & 32 ? x & ~y & z : 0);
    r |= (t & 64 ? x & y & ~z : 0) | (t & 128 ? x & y & z : 0);
    d[l] = m >> l & 1 ? r : d[l];
  }
  return Act::Next;
}

/// A bit is defined if the table gives one result for all its undefined inputs.
static void shadowLop3(Ctx &c, const Instr &I, uint32_t m) {
  alignas(64) uint32_t out[32] = {};
  const uint32_t *v[3], *s[3];
  for (int k = 0; k < 3; ++k) {
    v[k] = c.in<uint32_t>(I.o[1 + k]);
    s[k] = shadowIn<uint32_t>(c, I.o[1 + k]);
  }
  for (int l = 0; l < 32; ++l) {
    uint32_t can1 = 0, can0 = 0;
    for (int row = 0; row < 8; ++row) {
      uint32_t match = ~0u;
      for (int k = 0; k < 3; ++k) {
        uint32_t want = row >> (2 - k) & 1 ? ~0u : 0;
        match &= ~(v[k][l] ^ want) | s[k][l];
      }
      (I.a >> row & 1 ? can1 : can0) |= match;
    }
    out[l] = can1 & can0;
  }
  setShadow(c, I.o[0], m, out);
}

/// o: d, p, then a, b, c and q; p = (d != 0) op q. b: and.
static Act execLop3Pred(Ctx &c, const Instr &I, uint32_t m) {
  Instr plain = I;
  Opnd o[4] = {I.o[0], I.o[2], I.o[3], I.o[4]};
  plain.o = o;
  uint32_t q = c.pred(I.o[5]), r = 0;
  execLop3(c, plain, m);
  const uint32_t *d = c.reg<uint32_t>(I.o[0]);
  KVSIM_EACH(m) r |= uint32_t(d[l] != 0) << l;
  writePred(c, I.o[1], m, I.b ? r & q : r | q);
  return Act::Next;
}

static void lop3Pred(Decoder &D, Instr &I, bool isAnd) {
  D.needOps(6, 6);
  if (D.op(0).kind != Operand::Pair)
    D.error("'lop3' with .or or .and needs a destination d|p");
  I.a = uint32_t(D.literal(D.op(4))) & 255;
  I.b = isAnd;
  I.fn = execLop3Pred;
  I.cls = OpClass::Int;
  D.needSm(I, 70);
  D.finish(I, {D.dst(D.op(0).elems[0], 4), D.dst(D.op(0).elems[1], 0)},
           {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "b32"),
            D.pred(D.op(5))});
}

static void decodeLop3(Decoder &D, Instr &I) {
  std::string boolOp = D.oneOf({"or", "and"});
  D.type();
  if (!boolOp.empty())
    return lop3Pred(D, I, boolOp == "and");
  D.needOps(5, 5);
  I.a = uint32_t(D.literal(D.op(4))) & 255;
  I.fn = execLop3;
  I.shadow = shadowLop3;
  I.cls = OpClass::Int;
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "b32")});
}

static uint32_t prmt(uint32_t a, uint32_t b, uint32_t s) {
  uint64_t v = uint64_t(b) << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t n = s >> (4 * i) & 15;
    uint32_t byte = uint32_t(v >> (8 * (n & 7))) & 255;
    if (n & 8)
      byte = byte & 0x80 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}

template <int Mode>
static uint32_t prmtMode(uint32_t a, uint32_t b, uint32_t s) {
  uint32_t n = s & 3, sel = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t k = 0;
    switch (Mode) {
    case 1:
      k = n + i;
      break; // f4e
    case 2:
      k = (n - i) & 7;
      break; // b4e
    case 3:
      k = n;
      break; // rc8
    case 4:
      k = i < n ? n : i;
      break; // ecl
    case 5:
      k = i < n ? i : n;
      break; // ecr
    case 6:
      k = (n & 1) * 2 + (i & 1);
      break; // rc16
    }
    sel |= k << (4 * i);
  }
  return prmt(a, b, sel);
}

static void decodePrmt(Decoder &D, Instr &I) {
  std::string mode = D.oneOf({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  D.type();
  D.needOps(4, 4);
  using W = uint32_t;
  I.fn = mode == "f4e"   ? ExecFn(tern<W, W, W, W, &prmtMode<1>>)
         : mode == "b4e" ? tern<W, W, W, W, &prmtMode<2>>
         : mode == "rc8" ? tern<W, W, W, W, &prmtMode<3>>
         : mode == "ecl" ? tern<W, W, W, W, &prmtMode<4>>
         : mode == "ecr" ? tern<W, W, W, W, &prmtMode<5>>
         : mode.empty()  ? tern<W, W, W, W, &prmt>
                         : tern<W, W, W, W, &prmtMode<6>>;
  I.a = !mode.empty();
  I.shadow = shadowPrmt;
  I.cls = OpClass::Int;
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "b32")});
}

static void decodeCount(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(2, 2);
  bool w = typeSize(t) == 8;
  const std::string &op = D.in->op;
  using W = uint32_t;
  using X = uint64_t;
  if (op == "popc")
    I.fn = w ? ExecFn(un<W, X, &BitOps<X>::popc>) : un<W, W, &BitOps<W>::popc>;
  else
    I.fn = w ? ExecFn(un<W, X, &BitOps<X>::clz>) : un<W, W, &BitOps<W>::clz>;
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), t)});
}

static void decodeBrev(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(2, 2);
  I.fn = BITS_UN(brev);
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

static void decodeBfind(Decoder &D, Instr &I) {
  bool shift = D.take("shiftamt");
  std::string t = D.type();
  D.needOps(2, 2);
  using W = uint32_t;
  using X = uint64_t;
  bool s = t[0] == 's';
#define BFIND(T)                                                               \
  (s ? (shift ? ExecFn(un<W, T, &BitOps<T>::template bfind<true, true>>)       \
              : un<W, T, &BitOps<T>::template bfind<true, false>>)             \
     : (shift ? ExecFn(un<W, T, &BitOps<T>::template bfind<false, true>>)      \
              : un<W, T, &BitOps<T>::template bfind<false, false>>))
  I.fn = typeSize(t) == 8 ? BFIND(X) : BFIND(W);
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), t)});
}

static void decodeBfe(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(4, 4);
  using W = uint32_t;
  using X = uint64_t;
  bool s = t[0] == 's';
  if (typeSize(t) == 8)
    I.fn = s ? ExecFn(tern<X, X, W, W, &BitOps<X>::bfe<true>>)
             : tern<X, X, W, W, &BitOps<X>::bfe<false>>;
  else
    I.fn = s ? ExecFn(tern<W, W, W, W, &BitOps<W>::bfe<true>>)
             : tern<W, W, W, W, &BitOps<W>::bfe<false>>;
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), "u32"), D.src(D.op(3), "u32")});
  // The field's own bits decide: extract the shadow alike.
  I.shadow = [](Ctx &c, const Instr &I, uint32_t m) {
    if (isTainted(c, I.o[2], m) || isTainted(c, I.o[3], m) || I.o[1].sz != 4)
      return shadowAny(c, I, m);
    alignas(64) uint32_t out[32];
    const uint32_t *s = shadowIn<uint32_t>(c, I.o[1]);
    const uint32_t *p = c.in<uint32_t>(I.o[2]), *n = c.in<uint32_t>(I.o[3]);
    for (int l = 0; l < 32; ++l)
      out[l] = BitOps<uint32_t>::bfe<true>(s[l], p[l], n[l]);
    setShadow(c, I.o[0], m, out);
  };
}

template <class T>
static Act execBfi(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *f = c.in<T>(I.o[1]), *b = c.in<T>(I.o[2]);
  const uint32_t *p = c.in<uint32_t>(I.o[3]), *n = c.in<uint32_t>(I.o[4]);
  KVSIM_LANES d[l] = m >> l & 1 ? BitOps<T>::bfi(f[l], b[l], p[l], n[l]) : d[l];
  return Act::Next;
}

static void decodeBfi(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(5, 5);
  I.fn = typeSize(t) == 8 ? execBfi<uint64_t> : execBfi<uint32_t>;
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), "u32"),
            D.src(D.op(4), "u32")});
  I.shadow = [](Ctx &c, const Instr &I, uint32_t m) {
    if (isTainted(c, I.o[3], m) || isTainted(c, I.o[4], m) || I.o[0].sz != 4)
      return shadowAny(c, I, m);
    alignas(64) uint32_t out[32];
    const uint32_t *f = shadowIn<uint32_t>(c, I.o[1]),
                   *b = shadowIn<uint32_t>(c, I.o[2]);
    const uint32_t *p = c.in<uint32_t>(I.o[3]), *n = c.in<uint32_t>(I.o[4]);
    for (int l = 0; l < 32; ++l)
      out[l] = BitOps<uint32_t>::bfi(f[l], b[l], p[l], n[l]);
    setShadow(c, I.o[0], m, out);
  };
}

template <bool Clamp>
static uint32_t bmsk(uint32_t a, uint32_t b) {
  if (Clamp) {
    a = a > 32 ? 32 : a;
    b = b > 32 ? 32 : b;
  } else {
    a &= 31;
    b &= 31;
  }
  uint64_t m = ((uint64_t(1) << b) - 1) << a;
  return uint32_t(m);
}

static void decodeBmsk(Decoder &D, Instr &I) {
  bool clamp = D.oneOf({"clamp", "wrap"}) == "clamp";
  D.type();
  D.needOps(3, 3);
  using W = uint32_t;
  I.fn = clamp ? bin<W, W, W, &bmsk<true>> : bin<W, W, W, &bmsk<false>>;
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), 4)},
           {D.src(D.op(1), "b32"), D.src(D.op(2), "b32")});
}

template <bool Signed, bool Clamp>
static uint32_t szext(uint32_t a, uint32_t n) {
  n = Clamp ? (n > 32 ? 32 : n) : n & 31;
  if (n == 0)
    return 0;
  uint32_t v = a << (32 - n);
  return Signed ? uint32_t(int32_t(v) >> (32 - n)) : v >> (32 - n);
}

static void decodeSzext(Decoder &D, Instr &I) {
  bool clamp = D.oneOf({"clamp", "wrap"}) == "clamp";
  bool s = D.type() == "s32";
  D.needOps(3, 3);
  using W = uint32_t;
  I.fn = s ? (clamp ? ExecFn(bin<W, W, W, &szext<true, true>>)
                    : bin<W, W, W, &szext<true, false>>)
           : (clamp ? ExecFn(bin<W, W, W, &szext<false, true>>)
                    : bin<W, W, W, &szext<false, false>>);
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), 4)},
           {D.src(D.op(1), "b32"), D.src(D.op(2), "u32")});
}

/// fns: the n-th set bit from `base`, upwards or downwards.
static uint32_t fns(uint32_t mask, uint32_t base, int32_t offset) {
  if (offset == 0)
    return base < 32 && (mask >> base & 1) ? base : ~0u;
  int64_t pos = base;
  int step = offset > 0 ? 1 : -1;
  int64_t need = offset > 0 ? offset : -int64_t(offset);
  for (; pos >= 0 && pos < 32; pos += step)
    if ((mask >> pos & 1) && --need == 0)
      return uint32_t(pos);
  return ~0u;
}

static void decodeFns(Decoder &D, Instr &I) {
  D.type();
  D.needOps(4, 4);
  I.fn = tern<uint32_t, uint32_t, uint32_t, int32_t, &fns>;
  I.cls = OpClass::Int;
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "s32")});
}

//===----------------------------------------------------------------------===//
// Extended precision: the carry is a predicate slot of the frame.
//===----------------------------------------------------------------------===//

template <class T>
static Act execCarry(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[2]), *b = c.in<T>(I.o[3]);
  uint32_t cin = I.a & 1 ? *c.in<uint32_t>(I.o[4]) : 0, cout = 0;
  bool sub = I.a & 2;
  for (int l = 0; l < 32; ++l) {
    if (!(m >> l & 1))
      continue;
    unsigned __int128 x = a[l], y = b[l], k = cin >> l & 1;
    unsigned __int128 r = sub ? x - y - k : x + y + k;
    cout |= uint32_t(r >> (sizeof(T) * 8) & 1) << l; // borrow or carry
    d[l] = T(r);
  }
  if (I.b)
    writePred(c, I.o[1], m, cout);
  return Act::Next;
}

void carryArith(Decoder &D, Instr &I, int kind, bool sets) {
  std::string t = D.type();
  D.needOps(3, 3);
  I.a = uint32_t(kind);
  I.b = sets;
  I.cls = OpClass::Int;
  int n = typeSize(t);
  if (n != 4 && n != 8)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  I.fn = n == 8 ? execCarry<uint64_t> : execCarry<uint32_t>;
  Opnd cc = D.carry();
  Opnd out = sets ? cc : D.scratch(0);
  D.finish(
      I, {D.dst(D.op(0), n), out},
      {D.src(D.op(1), t), D.src(D.op(2), t), kind & 1 ? cc : D.constant(0, 0)});
}

template <class T>
static Act execMadCarry(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[2]), *b = c.in<T>(I.o[3]), *e = c.in<T>(I.o[4]);
  uint32_t cin = I.a & 1 ? *c.in<uint32_t>(I.o[5]) : 0, cout = 0;
  constexpr int bits = sizeof(T) * 8;
  for (int l = 0; l < 32; ++l) {
    if (!(m >> l & 1))
      continue;
    unsigned __int128 p = (unsigned __int128)(a[l]) * b[l];
    if (I.a & 4) { // signed high part
      using S = std::make_signed_t<T>;
      p = (unsigned __int128)(__int128(S(a[l])) * S(b[l]));
    }
    T part = I.a & 2 ? T(p >> bits) : T(p);
    unsigned __int128 r = (unsigned __int128)(part) + e[l] + (cin >> l & 1);
    cout |= uint32_t(r >> bits & 1) << l;
    d[l] = T(r);
  }
  if (I.b)
    writePred(c, I.o[1], m, cout);
  return Act::Next;
}

void madCarry(Decoder &D, Instr &I, bool hi, bool in, bool sets) {
  std::string t = D.type();
  D.needOps(4, 4);
  I.a = uint32_t(in) | uint32_t(hi) << 1 | uint32_t(t[0] == 's') << 2;
  I.b = sets;
  I.cls = OpClass::Int;
  int n = typeSize(t);
  if (n != 4 && n != 8)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  I.fn = n == 8 ? execMadCarry<uint64_t> : execMadCarry<uint32_t>;
  Opnd cc = D.carry();
  D.finish(I, {D.dst(D.op(0), n), sets ? cc : D.scratch(0)},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t),
            in ? cc : D.constant(0, 0)});
}

void addBits(Table &t) {
  for (const char *n : {"and", "or", "xor"})
    t.add(n, decodeLogic);
  t.add("not", decodeNot);
  t.add("cnot", decodeNot);
  t.add("shl", decodeShift);
  t.add("shr", decodeShift);
  t.add("shf", decodeShf);
  t.add("lop3", decodeLop3);
  t.add("prmt", decodePrmt);
  t.add("popc", decodeCount);
  t.add("clz", decodeCount);
  t.add("brev", decodeBrev);
  t.add("bfind", decodeBfind);
  t.add("bfe", decodeBfe);
  t.add("bfi", decodeBfi);
  t.add("bmsk", decodeBmsk);
  t.add("szext", decodeSzext);
  t.add("fns", decodeFns);
}

} // namespace kvcache::sim::KVSIM_TIER
