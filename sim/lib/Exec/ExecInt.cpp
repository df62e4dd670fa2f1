//===- ExecInt.cpp - Integer arithmetic; add, sub, mul... of all types ----===//
#include "Arith.h"

namespace kvcache::sim::KVSIM_TIER {

template <class T>
using U = std::make_unsigned_t<T>;

template <class T>
struct IntOps {
  using W = std::conditional_t<
      sizeof(T) == 2,
      std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
      std::conditional_t<
          sizeof(T) == 4,
          std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
          std::conditional_t<std::is_signed_v<T>, __int128,
                             unsigned __int128>>>;
  static constexpr int bits = sizeof(T) * 8;
  static T add(T a, T b) { return T(U<T>(a) + U<T>(b)); }
  static T sub(T a, T b) { return T(U<T>(a) - U<T>(b)); }
  static T lo(T a, T b) { return T(uint64_t(a) * uint64_t(b)); }
  static T hi(T a, T b) { return T((W(a) * W(b)) >> bits); }
  static W wide(T a, T b) { return W(a) * W(b); }
  static T madlo(T a, T b, T c) {
    return T(uint64_t(a) * uint64_t(b) + uint64_t(c));
  }
  static T madhi(T a, T b, T c) { return add(hi(a, b), c); }
  static W madwide(T a, T b, W c) {
    if constexpr (sizeof(T) == 2)
      return W(uint32_t(W(a) * W(b)) + uint32_t(c));
    else
      return W(uint64_t(W(a) * W(b)) + uint64_t(c));
  }
  static T min(T a, T b) { return a < b ? a : b; }
  static T max(T a, T b) { return a > b ? a : b; }
  static T div(T a, T b) {
    if (b == 0)
      return T(-1);
    if constexpr (std::is_signed_v<T>)
      if (b == T(-1))
        return T(0 - U<T>(a));
    return T(a / b);
  }
  static T rem(T a, T b) {
    if (b == 0)
      return a;
    if constexpr (std::is_signed_v<T>)
      if (b == T(-1))
        return 0;
    return T(a % b);
  }
  static T abs(T a) { return a < 0 ? T(0 - U<T>(a)) : a; }
  static T neg(T a) { return T(0 - U<T>(a)); }
  static T sad(T a, T b, T c) {
    U<T> d = a > b ? U<T>(a) - U<T>(b) : U<T>(b) - U<T>(a);
    return T(d + U<T>(c));
  }
};

static int32_t addSat(int32_t a, int32_t b) {
  int64_t r = int64_t(a) + b;
  return int32_t(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
static int32_t subSat(int32_t a, int32_t b) {
  int64_t r = int64_t(a) - b;
  return int32_t(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
static int32_t madHiSat(int32_t a, int32_t b, int32_t c) {
  return addSat(int32_t(int64_t(a) * b >> 32), c);
}
static int32_t relu(int32_t v) { return v < 0 ? 0 : v; }
static int32_t minRelu(int32_t a, int32_t b) { return relu(a < b ? a : b); }
static int32_t maxRelu(int32_t a, int32_t b) { return relu(a > b ? a : b); }

template <class T, auto F>
static uint32_t each16(uint32_t a, uint32_t b) {
  uint16_t lo = uint16_t(F(T(a), T(b)));
  uint16_t hi = uint16_t(F(T(a >> 16), T(b >> 16)));
  return lo | uint32_t(hi) << 16;
}

#define PICK(T, M, OP)                                                         \
  (T == "s16"                 ? M(int16_t, OP)                                 \
   : T == "u16" || T == "b16" ? M(uint16_t, OP)                                \
   : T == "s32"               ? M(int32_t, OP)                                 \
   : T == "u32" || T == "b32" ? M(uint32_t, OP)                                \
   : T == "s64"               ? M(int64_t, OP)                                 \
   : T == "u64" || T == "b64" ? M(uint64_t, OP)                                \
                              : ExecFn(nullptr))
#define BIN(X, OP) ExecFn(bin<X, X, X, &IntOps<X>::OP>)
#define UN(X, OP) ExecFn(un<X, X, &IntOps<X>::OP>)
#define TERN(X, OP) ExecFn(tern<X, X, X, X, &IntOps<X>::OP>)

static void binaryInt(Decoder &D, Instr &I, const std::string &t, ExecFn fn) {
  D.needOps(3, 3);
  if (!fn)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  I.fn = fn;
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
}

static bool isPacked16(const std::string &t) {
  return t == "u16x2" || t == "s16x2";
}

static void decodeAddSub(Decoder &D, Instr &I) {
  bool sub = D.in->op == "sub";
  if (D.take("cc"))
    return carryArith(D, I, sub ? 2 : 0, true);
  bool sat = D.take("sat");
  std::string t = D.type();
  if (isFloatType(t)) {
    if (sat)
      I.b |= 1;
    return floatBinary(D, I, t, sub ? FloatSub : FloatAdd);
  }
  if (isPacked16(t)) {
    D.needSm(I, 90);
    I.shadow = shadowHalves;
    return binaryInt(D, I, t,
                     sub ? bin<uint32_t, uint32_t, uint32_t,
                               &each16<uint16_t, &IntOps<uint16_t>::sub>>
                         : bin<uint32_t, uint32_t, uint32_t,
                               &each16<uint16_t, &IntOps<uint16_t>::add>>);
  }
  if (sat) {
    if (t != "s32")
      D.error("'.sat' needs .s32");
    return binaryInt(D, I, t,
                     sub ? bin<int32_t, int32_t, int32_t, &subSat>
                         : bin<int32_t, int32_t, int32_t, &addSat>);
  }
  I.shadow = shadowAdd;
  binaryInt(D, I, t, sub ? PICK(t, BIN, sub) : PICK(t, BIN, add));
  trackOverflow(D, I, t, sub ? 1 : 0);
}

static void decodeMul(Decoder &D, Instr &I) {
  std::string mode = D.oneOf({"hi", "lo", "wide"});
  if (mode.empty()) {
    bool sat = D.take("sat");
    std::string t = D.type();
    if (!isFloatType(t))
      D.error("'mul' of integers needs .hi, .lo or .wide");
    if (sat)
      I.b |= 1;
    return floatBinary(D, I, t, FloatMul);
  }
  std::string t = D.type();
  if (mode == "lo") {
    binaryInt(D, I, t, PICK(t, BIN, lo));
    I.shadow = shadowAdd;
    return trackOverflow(D, I, t, 2);
  }
  if (mode == "hi")
    return binaryInt(D, I, t, PICK(t, BIN, hi));
  D.needOps(3, 3);
  I.cls = OpClass::Int;
  I.shadow = shadowAdd;
#define WIDE(X, OP) ExecFn(bin<IntOps<X>::W, X, X, &IntOps<X>::wide>)
  if (t == "s64" || t == "u64" || !(I.fn = PICK(t, WIDE, wide)))
    D.error("type ." + t + " is not accepted by 'mul.wide'");
  I.wrapKind = t[0] == 's' ? 2 : 3;
  D.finish(I, {D.dst(D.op(0), typeSize(t) * 2)},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
}

static void decodeMad(Decoder &D, Instr &I) {
  std::string mode = D.oneOf({"hi", "lo", "wide"});
  if (mode.empty())
    return floatFma(D, I, true);
  if (D.take("cc"))
    return madCarry(D, I, mode == "hi", false, true);
  bool sat = D.take("sat");
  std::string t = D.type();
  D.needOps(4, 4);
  I.cls = OpClass::Int;
  I.shadow = shadowAdd;
  if (sat) {
    if (mode != "hi" || t != "s32")
      D.error("'.sat' needs mad.hi.s32");
    I.fn = tern<int32_t, int32_t, int32_t, int32_t, &madHiSat>;
  } else if (mode == "lo") {
    I.fn = PICK(t, TERN, madlo);
  } else if (mode == "hi") {
    I.fn = PICK(t, TERN, madhi);
  } else {
#define MADW(X, OP)                                                            \
  ExecFn(tern<IntOps<X>::W, X, X, IntOps<X>::W, &IntOps<X>::madwide>)
    if (t != "s64" && t != "u64")
      I.fn = PICK(t, MADW, madwide);
    if (!I.fn)
      D.error("type ." + t + " is not accepted by 'mad.wide'");
    I.wrapKind = t[0] == 's' ? 2 : 3;
    std::string w = t[0] + std::to_string(typeSize(t) * 16);
    D.finish(I, {D.dst(D.op(0), typeSize(w))},
             {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), w)});
    return;
  }
  if (!I.fn)
    D.error("type ." + t + " is not accepted by 'mad'");
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t)});
  if (mode == "lo")
    trackOverflow(D, I, t, 3);
}

template <bool Hi, class T>
static T mul24(T a, T b) {
  int64_t x = std::is_signed_v<T> ? int64_t(int32_t(uint32_t(a) << 8) >> 8)
                                  : int64_t(a & 0xffffff);
  int64_t y = std::is_signed_v<T> ? int64_t(int32_t(uint32_t(b) << 8) >> 8)
                                  : int64_t(b & 0xffffff);
  return T(Hi ? (x * y) >> 16 : x * y);
}
template <bool Hi, class T>
static T mad24(T a, T b, T c) {
  return T(uint32_t(mul24<Hi>(a, b)) + uint32_t(c));
}

static int32_t mad24HiSat(int32_t a, int32_t b, int32_t c) {
  return addSat(mul24<true>(a, b), c);
}

static void decodeMul24(Decoder &D, Instr &I) {
  bool mad = D.in->op == "mad24";
  bool hi = D.oneOf({"hi", "lo"}) == "hi";
  std::string t = D.type();
  bool s = t == "s32";
  if (!s && t != "u32")
    D.error("'" + D.in->op + "' needs .s32 or .u32");
  if (!mad) {
    ExecFn f =
        s ? (hi ? ExecFn(bin<int32_t, int32_t, int32_t, &mul24<true, int32_t>>)
                : bin<int32_t, int32_t, int32_t, &mul24<false, int32_t>>)
          : (hi ? ExecFn(
                      bin<uint32_t, uint32_t, uint32_t, &mul24<true, uint32_t>>)
                : bin<uint32_t, uint32_t, uint32_t, &mul24<false, uint32_t>>);
    return binaryInt(D, I, t, f);
  }
  bool sat = D.take("sat");
  if (sat && !(hi && s))
    D.error("'.sat' of 'mad24' needs .hi and .s32");
  I.fn = sat ? ExecFn(tern<int32_t, int32_t, int32_t, int32_t, &mad24HiSat>)
         : s ? (hi ? ExecFn(tern<int32_t, int32_t, int32_t, int32_t,
                                 &mad24<true, int32_t>>)
                   : tern<int32_t, int32_t, int32_t, int32_t,
                          &mad24<false, int32_t>>)
             : (hi ? ExecFn(tern<uint32_t, uint32_t, uint32_t, uint32_t,
                                 &mad24<true, uint32_t>>)
                   : tern<uint32_t, uint32_t, uint32_t, uint32_t,
                          &mad24<false, uint32_t>>);
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), 4)},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t)});
}

static void decodeMinMax(Decoder &D, Instr &I) {
  bool max = D.in->op == "max";
  bool rel = D.take("relu");
  std::string t = D.type();
  if (isFloatType(t)) {
    if (rel)
      I.b |= 4;
    return floatMinMax(D, I, t, max);
  }
  if (rel && t == "s32")
    return binaryInt(D, I, t,
                     max ? bin<int32_t, int32_t, int32_t, &maxRelu>
                         : bin<int32_t, int32_t, int32_t, &minRelu>);
  if (isPacked16(t)) {
    D.needSm(I, 90);
    I.shadow = shadowHalves;
    if (rel) {
      if (t != "s16x2")
        D.error("'.relu' needs .s32 or .s16x2");
      using P = uint32_t;
      return binaryInt(D, I, t,
                       max ? ExecFn(bin<P, P, P, &each16<int16_t, &maxRelu>>)
                           : bin<P, P, P, &each16<int16_t, &minRelu>>);
    }
    using S = IntOps<int16_t>;
    using V = IntOps<uint16_t>;
    using W = uint32_t;
    return binaryInt(
        D, I, t,
        t == "s16x2" ? (max ? ExecFn(bin<W, W, W, &each16<int16_t, &S::max>>)
                            : bin<W, W, W, &each16<int16_t, &S::min>>)
                     : (max ? ExecFn(bin<W, W, W, &each16<uint16_t, &V::max>>)
                            : bin<W, W, W, &each16<uint16_t, &V::min>>));
  }
  binaryInt(D, I, t, max ? PICK(t, BIN, max) : PICK(t, BIN, min));
}

static void decodeDiv(Decoder &D, Instr &I) {
  std::string t = D.type();
  if (isFloatType(t))
    return floatDiv(D, I, t);
  binaryInt(D, I, t, PICK(t, BIN, div));
}

static void decodeRem(Decoder &D, Instr &I) {
  std::string t = D.type();
  binaryInt(D, I, t, PICK(t, BIN, rem));
}

static void decodeAbsNeg(Decoder &D, Instr &I) {
  bool abs = D.in->op == "abs";
  D.needOps(2, 2);
  std::string t = D.type();
  if (isFloatType(t))
    return floatSign(D, I, t, abs);
  I.fn = abs ? PICK(t, UN, abs) : PICK(t, UN, neg);
  if (!I.fn)
    D.error("type ." + t + " is not accepted by '" + D.in->op + "'");
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

static void decodeSad(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(4, 4);
  I.fn = PICK(t, TERN, sad);
  if (!I.fn)
    D.error("type ." + t + " is not accepted by 'sad'");
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t)});
}

template <class A, class B>
static int32_t dp4(uint32_t a, uint32_t b, int32_t c) {
  uint32_t r = uint32_t(c);
  for (int i = 0; i < 4; ++i)
    r += uint32_t(int32_t(A(a >> (8 * i))) * int32_t(B(b >> (8 * i))));
  return int32_t(r);
}
template <class A, class B, bool Hi>
static int32_t dp2(uint32_t a, uint32_t b, int32_t c) {
  using A16 = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
  uint32_t r = uint32_t(c);
  for (int i = 0; i < 2; ++i)
    r += uint32_t(int32_t(A16(a >> (16 * i))) *
                  int32_t(B(b >> (8 * i + (Hi ? 16 : 0)))));
  return int32_t(r);
}

static void decodeDp(Decoder &D, Instr &I) {
  bool four = D.in->op == "dp4a";
  bool hi = !four && D.oneOf({"hi", "lo"}) == "hi";
  std::string a = D.type(), b = D.type();
  D.needOps(4, 4);
  bool sa = a == "s32", sb = b == "s32";
#define DP(F, ...)                                                             \
  ExecFn(tern<int32_t, uint32_t, uint32_t, int32_t, &F<__VA_ARGS__>>)
  if (four)
    I.fn = sa ? (sb ? DP(dp4, int8_t, int8_t) : DP(dp4, int8_t, uint8_t))
              : (sb ? DP(dp4, uint8_t, int8_t) : DP(dp4, uint8_t, uint8_t));
  else if (hi)
    I.fn = sa ? (sb ? DP(dp2, int8_t, int8_t, true)
                    : DP(dp2, int8_t, uint8_t, true))
              : (sb ? DP(dp2, uint8_t, int8_t, true)
                    : DP(dp2, uint8_t, uint8_t, true));
  else
    I.fn = sa ? (sb ? DP(dp2, int8_t, int8_t, false)
                    : DP(dp2, int8_t, uint8_t, false))
              : (sb ? DP(dp2, uint8_t, int8_t, false)
                    : DP(dp2, uint8_t, uint8_t, false));
  I.cls = OpClass::Int;
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "b32")});
}

void addInt(Table &t) {
  t.add("add", decodeAddSub);
  t.add("sub", decodeAddSub);
  t.add("mul", decodeMul);
  t.add("mad", decodeMad);
  t.add("mul24", decodeMul24);
  t.add("mad24", decodeMul24);
  t.add("min", decodeMinMax);
  t.add("max", decodeMinMax);
  t.add("div", decodeDiv);
  t.add("rem", decodeRem);
  t.add("abs", decodeAbsNeg);
  t.add("neg", decodeAbsNeg);
  t.add("sad", decodeSad);
  t.add("dp4a", decodeDp);
  t.add("dp2a", decodeDp);
  t.add("addc",
        [](Decoder &D, Instr &I) { carryArith(D, I, 1, D.take("cc")); });
  t.add("subc",
        [](Decoder &D, Instr &I) { carryArith(D, I, 3, D.take("cc")); });
  t.add("madc", [](Decoder &D, Instr &I) {
    bool hi = D.oneOf({"hi", "lo"}) == "hi";
    madCarry(D, I, hi, true, D.take("cc"));
  });
}

} // namespace kvcache::sim::KVSIM_TIER
