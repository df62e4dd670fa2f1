//===- ExecCompare.cpp - setp, set, selp, slct ----------------------------===//
#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

enum Cmp : uint32_t {
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  Equ,
  Neu,
  Ltu,
  Leu,
  Gtu,
  Geu,
  CmpNum,
  CmpNan,
  CmpCount
};
static const char *const cmpNames[] = {"eq",  "ne",  "lt",  "le",  "gt",
                                       "ge",  "equ", "neu", "ltu", "leu",
                                       "gtu", "geu", "num", "nan"};

template <Cmp C, class T>
static inline bool compare(T a, T b) {
  bool un = a != a || b != b;
  switch (C) {
  case Eq:
    return a == b;
  case Ne:
    return !un && a != b;
  case Lt:
    return a < b;
  case Le:
    return a <= b;
  case Gt:
    return a > b;
  case Ge:
    return a >= b;
  case Equ:
    return un || a == b;
  case Neu:
    return a != b;
  case Ltu:
    return !(a >= b);
  case Leu:
    return !(a > b);
  case Gtu:
    return !(a <= b);
  case Geu:
    return !(a < b);
  case CmpNum:
    return !un;
  default:
    return un;
  }
}

using CompareFn = uint32_t (*)(const void *, const void *, bool ftz);

template <class T, Cmp C>
static uint32_t compareLanes(const void *pa, const void *pb, bool ftz) {
  const T *a = static_cast<const T *>(pa), *b = static_cast<const T *>(pb);
  alignas(64) uint8_t r[32];
  if constexpr (std::is_same_v<T, float>) {
    if (ftz) {
      KVSIM_LANES r[l] = compare<C, T>(flush(a[l]), flush(b[l]));
    } else {
      KVSIM_LANES r[l] = compare<C, T>(a[l], b[l]);
    }
  } else {
    KVSIM_LANES r[l] = compare<C, T>(a[l], b[l]);
  }
  uint32_t m = 0;
  for (int l = 0; l < 32; ++l)
    m |= uint32_t(r[l]) << l;
  return m;
}

/// f16 and bf16: compared as f32.
template <bool Bf, Cmp C>
static uint32_t compareHalves(const void *pa, const void *pb, bool) {
  const uint16_t *a = static_cast<const uint16_t *>(pa),
                 *b = static_cast<const uint16_t *>(pb);
  uint32_t m = 0;
  for (int l = 0; l < 32; ++l) {
    float x = Bf ? bf16ToF32(a[l]) : f16ToF32(a[l]);
    float y = Bf ? bf16ToF32(b[l]) : f16ToF32(b[l]);
    m |= uint32_t(compare<C, float>(x, y)) << l;
  }
  return m;
}

template <class T, uint32_t... Cs>
static CompareFn pick(uint32_t c, std::integer_sequence<uint32_t, Cs...>) {
  static const CompareFn fns[] = {&compareLanes<T, Cmp(Cs)>...};
  return fns[c];
}
template <bool Bf, uint32_t... Cs>
static CompareFn pickHalf(uint32_t c, std::integer_sequence<uint32_t, Cs...>) {
  static const CompareFn fns[] = {&compareHalves<Bf, Cmp(Cs)>...};
  return fns[c];
}

static CompareFn compareFn(const std::string &t, uint32_t c) {
  using All = std::make_integer_sequence<uint32_t, CmpCount>;
  using Ints = std::make_integer_sequence<uint32_t, 6>;
  if (t == "f32")
    return pick<float>(c, All());
  if (t == "f64")
    return pick<double>(c, All());
  if (t == "f16" || t == "f16x2")
    return pickHalf<false>(c, All());
  if (t == "bf16" || t == "bf16x2")
    return pickHalf<true>(c, All());
  if (c >= 6)
    return nullptr;
  if (t == "s16")
    return pick<int16_t>(c, Ints());
  if (t == "u16" || t == "b16")
    return pick<uint16_t>(c, Ints());
  if (t == "s32")
    return pick<int32_t>(c, Ints());
  if (t == "u32" || t == "b32")
    return pick<uint32_t>(c, Ints());
  if (t == "s64")
    return pick<int64_t>(c, Ints());
  if (t == "u64" || t == "b64")
    return pick<uint64_t>(c, Ints());
  return nullptr;
}

/// The comparison modifier; lo ls hi hs are the unsigned names.
static uint32_t takeCompare(Decoder &D) {
  for (uint32_t i = 0; i < CmpCount; ++i)
    if (D.take(cmpNames[i]))
      return i;
  if (D.take("lo"))
    return Lt;
  if (D.take("ls"))
    return Le;
  if (D.take("hi"))
    return Gt;
  if (D.take("hs"))
    return Ge;
  D.error("'" + D.in->op + "' needs a comparison");
}

struct CompareExt {
  CompareFn fn;
  bool ftz;
  int boolOp; ///< 0 none, 1 and, 2 or, 3 xor
};

static uint32_t combine(Ctx &c, const CompareExt &x, uint32_t r,
                        const Opnd &o) {
  if (!x.boolOp)
    return r;
  uint32_t p = c.pred(o);
  return x.boolOp == 1 ? r & p : x.boolOp == 2 ? r | p : r ^ p;
}

/// o: p, q, a, b, c.
static Act execSetp(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CompareExt *>(I.ext);
  uint32_t r = x.fn(c.in<uint8_t>(I.o[2]), c.in<uint8_t>(I.o[3]), x.ftz);
  uint32_t pc = x.boolOp ? c.pred(I.o[4]) : 0;
  uint32_t p = x.boolOp == 1   ? r & pc
               : x.boolOp == 2 ? r | pc
               : x.boolOp == 3 ? r ^ pc
                               : r;
  uint32_t nr = ~r;
  uint32_t q = x.boolOp == 1   ? nr & pc
               : x.boolOp == 2 ? nr | pc
               : x.boolOp == 3 ? nr ^ pc
                               : nr;
  writePred(c, I.o[0], m, p);
  if (I.b)
    writePred(c, I.o[1], m, q);
  return Act::Next;
}

/// Pairs of halves: two predicates, one per half.
static Act execSetpPair(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CompareExt *>(I.ext);
  const uint32_t *a = c.in<uint32_t>(I.o[2]), *b = c.in<uint32_t>(I.o[3]);
  uint32_t r[2];
  for (int h = 0; h < 2; ++h) {
    uint16_t x16[32], y16[32];
    for (int l = 0; l < 32; ++l) {
      x16[l] = uint16_t(a[l] >> (16 * h));
      y16[l] = uint16_t(b[l] >> (16 * h));
    }
    r[h] = combine(c, x, x.fn(x16, y16, x.ftz), I.o[4]);
  }
  writePred(c, I.o[0], m, r[0]);
  if (I.b)
    writePred(c, I.o[1], m, r[1]);
  return Act::Next;
}

static CompareExt *compareExt(Decoder &D, std::string &t) {
  CompareExt x;
  uint32_t cmp = takeCompare(D);
  std::string b = D.oneOf({"and", "or", "xor"});
  x.boolOp = b == "and" ? 1 : b == "or" ? 2 : b == "xor" ? 3 : 0;
  x.ftz = D.take("ftz");
  t = D.type();
  x.fn = compareFn(t, cmp);
  if (!x.fn)
    D.error("type ." + t + " is not accepted by '" + D.in->op +
            "' with this "
            "comparison");
  return D.extra(x);
}

static void decodeSetp(Decoder &D, Instr &I) {
  std::string t;
  CompareExt *x = compareExt(D, t);
  I.ext = x;
  D.needOps(x->boolOp ? 4 : 3, x->boolOp ? 4 : 3);
  bool pair = t == "f16x2" || t == "bf16x2";
  const Operand &d = D.op(0);
  Opnd p, q;
  if (d.kind == Operand::Pair) {
    p = D.dst(d.elems[0], 0);
    q = D.dst(d.elems[1], 0);
    I.b = 1;
  } else {
    p = D.dst(d, 0);
    q = p;
  }
  I.cls = OpClass::Compare;
  I.fn = pair ? execSetpPair : execSetp;
  std::vector<Opnd> srcs{D.src(D.op(1), t), D.src(D.op(2), t)};
  if (x->boolOp)
    srcs.push_back(D.pred(D.op(3)));
  D.finish(I, {p, q}, srcs);
}

/// o: d, a, b [, c]. a: result kind 0 integer ones, 1 f32 1.0, 2 halves.
static Act execSet(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CompareExt *>(I.ext);
  uint32_t r = combine(
      c, x, x.fn(c.in<uint8_t>(I.o[1]), c.in<uint8_t>(I.o[2]), x.ftz), I.o[3]);
  KVSIM_EACH(m) {
    bool v = r >> l & 1;
    if (I.o[0].sz == 4)
      c.reg<uint32_t>(I.o[0])[l] =
          v ? (I.a == 1 ? 0x3f800000u : 0xffffffffu) : 0;
    else
      c.reg<uint16_t>(I.o[0])[l] = v ? (I.a == 2   ? 0x3c00
                                        : I.a == 3 ? 0x3f80
                                                   : 0xffff)
                                     : 0;
  }
  return Act::Next;
}

static Act execSetPair(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const CompareExt *>(I.ext);
  const uint32_t *a = c.in<uint32_t>(I.o[1]), *b = c.in<uint32_t>(I.o[2]);
  uint32_t one = I.a == 2 ? 0x3c00 : I.a == 3 ? 0x3f80 : 0xffff;
  uint32_t *d = c.reg<uint32_t>(I.o[0]), out[32] = {};
  for (int h = 0; h < 2; ++h) {
    uint16_t x16[32], y16[32];
    for (int l = 0; l < 32; ++l) {
      x16[l] = uint16_t(a[l] >> (16 * h));
      y16[l] = uint16_t(b[l] >> (16 * h));
    }
    uint32_t r = combine(c, x, x.fn(x16, y16, x.ftz), I.o[3]);
    for (int l = 0; l < 32; ++l)
      out[l] |= (r >> l & 1 ? one : 0) << (16 * h);
  }
  KVSIM_EACH(m) d[l] = out[l];
  return Act::Next;
}

static void decodeSet(Decoder &D, Instr &I) {
  uint32_t cmp = takeCompare(D);
  CompareExt x;
  std::string b = D.oneOf({"and", "or", "xor"});
  x.boolOp = b == "and" ? 1 : b == "or" ? 2 : b == "xor" ? 3 : 0;
  x.ftz = D.take("ftz");
  std::string dt = D.type(), t = D.type();
  x.fn = compareFn(t, cmp);
  if (!x.fn)
    D.error("type ." + t + " is not accepted by 'set'");
  I.ext = D.extra(x);
  bool pair = t == "f16x2" || t == "bf16x2";
  I.a = dt == "f32"                      ? 1
        : dt == "f16" || dt == "f16x2"   ? 2
        : dt == "bf16" || dt == "bf16x2" ? 3
                                         : 0;
  I.cls = OpClass::Compare;
  I.fn = pair ? execSetPair : execSet;
  D.needOps(x.boolOp ? 4 : 3, x.boolOp ? 4 : 3);
  std::vector<Opnd> srcs{D.src(D.op(1), t), D.src(D.op(2), t)};
  if (x.boolOp)
    srcs.push_back(D.pred(D.op(3)));
  D.finish(I, {D.dst(D.op(0), typeSize(dt))}, srcs);
}

template <class T>
static Act execSelp(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[1]), *b = c.in<T>(I.o[2]);
  uint32_t p = c.pred(I.o[3]);
  KVSIM_LANES d[l] = m >> l & 1 ? (p >> l & 1 ? a[l] : b[l]) : d[l];
  return Act::Next;
}

static void decodeSelp(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(4, 4);
  int n = typeSize(t);
  I.fn = n == 2   ? execSelp<uint16_t>
         : n == 4 ? execSelp<uint32_t>
         : n == 8 ? execSelp<uint64_t>
                  : ExecFn(nullptr);
  if (!I.fn)
    D.error("type ." + t + " is not accepted by 'selp'");
  I.shadow = shadowSelect;
  I.wrapKind = 1;
  I.cls = OpClass::Compare;
  D.finish(I, {D.dst(D.op(0), n)},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.pred(D.op(3))});
}

template <class T>
static Act execSlct(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *a = c.in<T>(I.o[1]), *b = c.in<T>(I.o[2]);
  const int32_t *s = c.in<int32_t>(I.o[3]);
  const float *f = c.in<float>(I.o[3]);
  KVSIM_EACH(m) {
    bool first = I.a ? (I.b ? flush(f[l]) : f[l]) >= 0.0f : s[l] >= 0;
    d[l] = first ? a[l] : b[l];
  }
  return Act::Next;
}

static void decodeSlct(Decoder &D, Instr &I) {
  I.b = D.take("ftz");
  std::string t = D.type(), s = D.type();
  D.needOps(4, 4);
  int n = typeSize(t);
  I.a = s == "f32";
  I.fn = n == 2   ? execSlct<uint16_t>
         : n == 4 ? execSlct<uint32_t>
                  : execSlct<uint64_t>;
  I.cls = OpClass::Compare;
  D.finish(I, {D.dst(D.op(0), n)},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), s)});
}

void addCompare(Table &t) {
  t.add("setp", decodeSetp);
  t.add("set", decodeSet);
  t.add("selp", decodeSelp);
  t.add("slct", decodeSlct);
}

} // namespace kvcache::sim::KVSIM_TIER
