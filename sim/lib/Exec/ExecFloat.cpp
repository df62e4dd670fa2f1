//===- ExecFloat.cpp - f32 and f64 arithmetic -----------------------------===//
#include "Approx.h"
#include "Arith.h"

namespace kvcache::sim::KVSIM_TIER {

static Round roundMode(Decoder &D, const char *otherwise = "rn") {
  std::string m = D.oneOf({"rn", "rz", "rm", "rp"}, otherwise);
  return m == "rz"   ? Round::Zero
         : m == "rm" ? Round::Down
         : m == "rp" ? Round::Up
                     : Round::Nearest;
}

template <FloatOp Op, class T>
static inline T plain(T a, T b) {
  if constexpr (Op == FloatAdd)
    return a + b;
  else if constexpr (Op == FloatSub)
    return a - b;
  else if constexpr (Op == FloatMul)
    return a * b;
  else
    return a / b;
}
template <FloatOp Op, bool Ftz, bool Sat>
static inline float op32(float a, float b) {
  if constexpr (Ftz)
    a = flush(a), b = flush(b);
  float r = plain<Op>(a, b);
  if constexpr (Ftz)
    r = flush(r);
  return Sat ? saturate(r) : r;
}

static int feMode(Round r) {
  return r == Round::Zero   ? FE_TOWARDZERO
         : r == Round::Down ? FE_DOWNWARD
         : r == Round::Up   ? FE_UPWARD
                            : FE_TONEAREST;
}

/// f64 in a directed mode: the hardware's own rounding, values kept from
/// folding by volatile.
template <class F>
static double directed64(Round mode, double a, double b, double c, F f) {
  volatile double x = a, y = b, z = c, r;
  int old = std::fegetround();
  std::fesetround(feMode(mode));
  r = f(double(x), double(y), double(z));
  std::fesetround(old);
  return r;
}

/// imm: 0..3 FloatOp, 4 fma, 5 sqrt, 6 rcp.
static double slow64(int op, Round mode, double a, double b, double c) {
  switch (op) {
  case FloatAdd:
    return directed64(mode, a, b, c,
                      [](double x, double y, double) { return x + y; });
  case FloatSub:
    return directed64(mode, a, b, c,
                      [](double x, double y, double) { return x - y; });
  case FloatMul:
    return directed64(mode, a, b, c,
                      [](double x, double y, double) { return x * y; });
  case FloatDiv:
    return directed64(mode, a, b, c,
                      [](double x, double y, double) { return x / y; });
  case 4:
    return directed64(mode, a, b, c, [](double x, double y, double z) {
      return std::fma(x, y, z);
    });
  case 5:
    return directed64(mode, a, b, c,
                      [](double x, double, double) { return std::sqrt(x); });
  default:
    return directed64(mode, a, b, c,
                      [](double x, double, double) { return 1.0 / x; });
  }
}

/// f32 in a directed mode: exact or rounded to odd in f64, then rounded.
static float slow32(int op, Round mode, float a, float b, float c) {
  switch (op) {
  case FloatAdd:
    return toF32(addOdd(a, b), mode);
  case FloatSub:
    return toF32(addOdd(a, -double(b)), mode);
  case FloatMul:
    return toF32(double(a) * b, mode);
  case 4:
    return toF32(addOdd(double(a) * b, c), mode);
  default: {
    // Quotients and roots: nearest in f64, then to odd by the residue's sign.
    double q = op == FloatDiv ? double(a) / b
               : op == 5      ? std::sqrt(double(a))
                              : 1.0 / double(a);
    if (!std::isfinite(q) || q == 0)
      return float(q);
    double res = op == FloatDiv ? -std::fma(q, double(b), -double(a))
                 : op == 5      ? -std::fma(q, q, -double(a))
                                : -std::fma(q, double(a), -1.0);
    if (op == FloatDiv && b < 0)
      res = -res;
    if (op == 6 && a < 0)
      res = -res;
    uint64_t bits = bitcast<uint64_t>(q);
    if (res != 0 && !(bits & 1))
      bits = (res > 0) == (q > 0) ? bits + 1 : bits - 1;
    return toF32(bitcast<double>(bits), mode);
  }
  }
}

/// Directed rounding of any f32 or f64 operation. a: op; imm: Round; b: flags.
template <class T>
static Act execDirected(Ctx &c, const Instr &I, uint32_t m) {
  T *d = c.reg<T>(I.o[0]);
  const T *x = c.in<T>(I.o[1]);
  const T *y = I.ns > 1 ? c.in<T>(I.o[2]) : x,
          *z = I.ns > 2 ? c.in<T>(I.o[3]) : x;
  Round mode = Round(I.imm);
  KVSIM_EACH(m) {
    T r;
    if constexpr (sizeof(T) == 4) {
      bool ftz = I.b & 2;
      float p = ftz ? flush(x[l]) : x[l], q = ftz ? flush(y[l]) : y[l],
            s = ftz ? flush(z[l]) : z[l];
      r = slow32(int(I.a), mode, p, q, s);
      if (ftz)
        r = flush(r);
    } else {
      r = slow64(int(I.a), mode, x[l], y[l], z[l]);
    }
    d[l] = I.b & 1 ? saturate(r) : r;
  }
  return Act::Next;
}

template <FloatOp Op>
static ExecFn fn32(uint32_t flags) {
  using F = float;
  switch (flags & 3) {
  case 0:
    return bin<F, F, F, &op32<Op, false, false>>;
  case 1:
    return bin<F, F, F, &op32<Op, false, true>>;
  case 2:
    return bin<F, F, F, &op32<Op, true, false>>;
  default:
    return bin<F, F, F, &op32<Op, true, true>>;
  }
}

static void setDirected(Instr &I, const std::string &t, int op, Round mode) {
  I.a = uint32_t(op);
  I.imm = int64_t(mode);
  I.fn = t == "f64" ? execDirected<double> : execDirected<float>;
}

void floatBinary(Decoder &D, Instr &I, const std::string &t, FloatOp op) {
  if (t != "f32" && t != "f64" && t != "f32x2")
    return halfBinary(D, I, t, op);
  D.needOps(3, 3);
  Round mode = roundMode(D);
  I.b |= D.take("sat") ? 1 : 0;
  I.b |= D.take("ftz") ? 2 : 0;
  if (t == "f32x2" && op != FloatDiv)
    return pairArith(D, I, op, int64_t(mode));
  std::string half = t == "f32" ? D.oneOf({"f16", "bf16"}) : "";
  if (!half.empty() && (op == FloatAdd || op == FloatSub))
    return mixedArith(D, I, half, op, int64_t(mode));
  if (t == "f32x2" || !half.empty())
    D.error("'" + D.in->op + "' does not accept these types");
  I.cls = t == "f64" ? OpClass::Double : OpClass::Float;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
  if (mode != Round::Nearest)
    return setDirected(I, t, op, mode);
  using X = double;
  if (t == "f64")
    I.fn = op == FloatAdd   ? ExecFn(bin<X, X, X, &plain<FloatAdd, X>>)
           : op == FloatSub ? bin<X, X, X, &plain<FloatSub, X>>
           : op == FloatMul ? bin<X, X, X, &plain<FloatMul, X>>
                            : bin<X, X, X, &plain<FloatDiv, X>>;
  else
    I.fn = op == FloatAdd   ? fn32<FloatAdd>(I.b)
           : op == FloatSub ? fn32<FloatSub>(I.b)
           : op == FloatMul ? fn32<FloatMul>(I.b)
                            : fn32<FloatDiv>(I.b);
}

static inline float fmaf32(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
static inline double fma64(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
template <bool Ftz, bool Sat>
static inline float fma32(float a, float b, float c) {
  if constexpr (Ftz)
    a = flush(a), b = flush(b), c = flush(c);
  float r = fmaf32(a, b, c);
  if constexpr (Ftz)
    r = flush(r);
  return Sat ? saturate(r) : r;
}

void floatFma(Decoder &D, Instr &I, bool mad) {
  I.b |= D.take("sat") ? 1 : 0;
  I.b |= D.take("ftz") ? 2 : 0;
  I.b |= D.take("relu") ? 4 : 0;
  I.b |= D.take("oob") ? 32 : 0;
  Round mode = roundMode(D);
  std::string t = D.type();
  if (t == "f32x2")
    return pairArith(D, I, 4, int64_t(mode));
  std::string half = t == "f32" ? D.oneOf({"f16", "bf16"}) : "";
  if (!half.empty())
    return mixedArith(D, I, half, 4, int64_t(mode));
  if (t != "f32" && t != "f64")
    return halfFma(D, I, t);
  D.needOps(4, 4);
  I.cls = t == "f64" ? OpClass::Double : OpClass::Float;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t)});
  if (mode != Round::Nearest)
    return setDirected(I, t, 4, mode);
  using F = float;
  using X = double;
  if (t == "f64")
    I.fn = tern<X, X, X, X, &fma64>;
  else
    switch (I.b & 3) {
    case 0:
      I.fn = tern<F, F, F, F, &fma32<false, false>>;
      break;
    case 1:
      I.fn = tern<F, F, F, F, &fma32<false, true>>;
      break;
    case 2:
      I.fn = tern<F, F, F, F, &fma32<true, false>>;
      break;
    default:
      I.fn = tern<F, F, F, F, &fma32<true, true>>;
    }
}

/// min and max: -0 < +0, one NaN gives the other operand.
template <class T, bool Max, bool Nan>
static inline T minmax(T a, T b) {
  using U = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  bool an = __builtin_isnan(a), bn = __builtin_isnan(b);
  bool less = a < b || (a == b && bitcast<U>(a) < bitcast<U>(b));
  T r = (less != Max) ? a : b;
  r = an ? b : bn ? a : r;
  U nan = U(sizeof(T) == 4 ? 0x7fffffffll : 0x7fffffffffffffffll);
  bool toNan = Nan ? (an || bn) : (an && bn);
  return toNan ? bitcast<T>(nan) : r;
}
template <bool Max, bool Nan, bool Ftz, bool Xor>
static inline float minmax32(float a, float b) {
  if constexpr (Ftz)
    a = flush(a), b = flush(b);
  if constexpr (Xor) {
    uint32_t s = (bitcast<uint32_t>(a) ^ bitcast<uint32_t>(b)) & 0x80000000u;
    float r = minmax<float, Max, Nan>(std::fabs(a), std::fabs(b));
    return r != r ? r
                  : bitcast<float>((bitcast<uint32_t>(r) & 0x7fffffffu) | s);
  }
  return minmax<float, Max, Nan>(a, b);
}

template <bool Max>
static ExecFn minmaxFn(uint32_t f) {
  using F = float;
  bool ftz = f & 2, nan = f & 8, x = f & 16;
  if (x)
    return nan ? ExecFn(bin<F, F, F, &minmax32<Max, true, false, true>>)
               : bin<F, F, F, &minmax32<Max, false, false, true>>;
  if (nan)
    return ftz ? ExecFn(bin<F, F, F, &minmax32<Max, true, true, false>>)
               : bin<F, F, F, &minmax32<Max, true, false, false>>;
  return ftz ? ExecFn(bin<F, F, F, &minmax32<Max, false, true, false>>)
             : bin<F, F, F, &minmax32<Max, false, false, false>>;
}

template <bool Max>
static Act execMinMax3(Ctx &c, const Instr &I, uint32_t m) {
  float *d = c.reg<float>(I.o[0]);
  const float *a = c.in<float>(I.o[1]), *b = c.in<float>(I.o[2]),
              *e = c.in<float>(I.o[3]);
  bool nan = I.b & 8, ftz = I.b & 2;
  KVSIM_EACH(m) {
    auto f = nan ? minmax32<Max, true, false, false>
                 : minmax32<Max, false, false, false>;
    float x = ftz ? flush(a[l]) : a[l], y = ftz ? flush(b[l]) : b[l],
          z = ftz ? flush(e[l]) : e[l];
    d[l] = f(f(x, y), z);
  }
  return Act::Next;
}

void floatMinMax(Decoder &D, Instr &I, const std::string &t, bool max) {
  I.b |= D.take("ftz") ? 2 : 0;
  I.b |= D.take("NaN") ? 8 : 0;
  I.b |= D.take("xorsign") ? 16 : 0;
  D.take("abs");
  if (t != "f32" && t != "f64")
    return halfMinMax(D, I, t, max);
  I.cls = t == "f64" ? OpClass::Double : OpClass::Float;
  if (D.count() == 4 && t == "f32") {
    D.needSm(I, 100);
    I.fn = max ? execMinMax3<true> : execMinMax3<false>;
    D.finish(I, {D.dst(D.op(0), 4)},
             {D.src(D.op(1), t), D.src(D.op(2), t), D.src(D.op(3), t)});
    return;
  }
  D.needOps(3, 3);
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
  using X = double;
  if (t == "f64")
    I.fn = max ? ExecFn(bin<X, X, X, &minmax<X, true, false>>)
               : bin<X, X, X, &minmax<X, false, false>>;
  else
    I.fn = max ? minmaxFn<true>(I.b) : minmaxFn<false>(I.b);
}

template <bool Abs, bool Ftz>
static inline float sign32(float a) {
  if constexpr (Ftz)
    a = flush(a);
  uint32_t b = bitcast<uint32_t>(a);
  return bitcast<float>(Abs ? b & 0x7fffffffu : b ^ 0x80000000u);
}
template <bool Abs>
static inline uint64_t sign64(uint64_t a) {
  return Abs ? a & ~(uint64_t(1) << 63) : a ^ (uint64_t(1) << 63);
}

void floatSign(Decoder &D, Instr &I, const std::string &t, bool abs) {
  bool ftz = D.take("ftz");
  if (t != "f32" && t != "f64") {
    I.b |= ftz ? 2 : 0;
    return halfSign(D, I, t, abs);
  }
  I.cls = t == "f64" ? OpClass::Double : OpClass::Float;
  using F = float;
  using X = uint64_t;
  if (t == "f64")
    I.fn = abs ? un<X, X, &sign64<true>> : un<X, X, &sign64<false>>;
  else
    I.fn = abs ? (ftz ? ExecFn(un<F, F, &sign32<true, true>>)
                      : un<F, F, &sign32<true, false>>)
               : (ftz ? ExecFn(un<F, F, &sign32<false, true>>)
                      : un<F, F, &sign32<false, false>>);
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
}

template <class U>
static inline U copysign(U a, U b) {
  constexpr U s = U(1) << (sizeof(U) * 8 - 1);
  return (b & ~s) | (a & s);
}

static void decodeCopysign(Decoder &D, Instr &I) {
  std::string t = D.type();
  D.needOps(3, 3);
  using W = uint32_t;
  using X = uint64_t;
  I.fn = t == "f64" ? ExecFn(bin<X, X, X, &copysign<X>>)
                    : bin<W, W, W, &copysign<W>>;
  I.cls = OpClass::Float;
  D.finish(I, {D.dst(D.op(0), typeSize(t))},
           {D.src(D.op(1), t), D.src(D.op(2), t)});
}

static void decodeTestp(Decoder &D, Instr &I) {
  std::string what = D.oneOf(
      {"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  std::string t = D.type();
  D.needOps(2, 2);
  if (what.empty())
    D.error("'testp' needs a property");
  static const char *names[] = {"finite",     "infinite", "number",
                                "notanumber", "normal",   "subnormal"};
  for (uint32_t i = 0; i < 6; ++i)
    if (what == names[i])
      I.a = i;
  I.fn = [](Ctx &c, const Instr &I, uint32_t m) {
    uint32_t r = 0;
    KVSIM_EACH(m) {
      double v = I.o[1].sz == 8 ? c.in<double>(I.o[1])[l]
                                : double(c.in<float>(I.o[1])[l]);
      int k = I.o[1].sz == 8 ? std::fpclassify(v)
                             : std::fpclassify(c.in<float>(I.o[1])[l]);
      bool p = I.a == 0   ? std::isfinite(v)
               : I.a == 1 ? std::isinf(v)
               : I.a == 2 ? !std::isnan(v)
               : I.a == 3 ? std::isnan(v)
               : I.a == 4 ? k == FP_NORMAL
                          : k == FP_SUBNORMAL;
      r |= uint32_t(p) << l;
    }
    writePred(c, I.o[0], m, r);
    return Act::Next;
  };
  I.cls = OpClass::Float;
  D.finish(I, {D.dst(D.op(0), 0)}, {D.src(D.op(1), t)});
}

template <bool Ftz>
static inline float sqrt32(float a) {
  if constexpr (Ftz)
    a = flush(a);
  return __builtin_sqrtf(a);
}
template <bool Ftz>
static inline float rcp32(float a) {
  if constexpr (Ftz)
    a = flush(a);
  float r = 1.0f / a;
  return Ftz ? flush(r) : r;
}
static inline double sqrt64(double a) { return __builtin_sqrt(a); }
static inline double rcp64(double a) { return 1.0 / a; }
/// rcp and rsqrt.approx.ftz.f64 keep the upper 32 bits.
static inline double top32(double r) {
  return bitcast<double>(bitcast<uint64_t>(r) & 0xffffffff00000000ull);
}
static inline double flush64(double a) {
  return std::fabs(a) < 2.2250738585072014e-308 ? std::copysign(0.0, a) : a;
}
static inline double rcpTop(double a) {
  return top32(flush64(1.0 / flush64(a)));
}
static inline double rsqrtTop(double a) {
  return top32(1.0 / std::sqrt(flush64(a)));
}
static inline double rsqrt64(double a) { return 1.0 / std::sqrt(a); }

template <bool Ftz>
static inline float rsqrt32(float a) {
  if constexpr (Ftz)
    a = flush(a);
  float r = float(1.0 / __builtin_sqrt(double(a)));
  return Ftz ? flush(r) : r;
}

/// Approximate f32 functions may be perturbed within the ISA's error.
static ExecFn perturbing(ExecFn);

static void decodeRoot(Decoder &D, Instr &I) {
  const std::string &op = D.in->op;
  bool approx = D.take("approx");
  bool ftz = D.take("ftz");
  I.b = ftz ? 2 : 0;
  Round mode = approx ? Round::Nearest : roundMode(D);
  std::string t = D.type();
  D.needOps(2, 2);
  if (t != "f32" && t != "f64")
    D.error("type ." + t + " is not accepted by '" + op + "'");
  bool d = t == "f64";
  I.cls = d ? OpClass::Double : OpClass::Special;
  D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
  if (mode != Round::Nearest) {
    if (op == "rsqrt")
      D.error("'rsqrt' has no rounding mode");
    return setDirected(I, t, op == "sqrt" ? 5 : 6, mode);
  }
  using F = float;
  using X = double;
  if (op == "sqrt")
    I.fn = d     ? ExecFn(un<X, X, &sqrt64>)
           : ftz ? un<F, F, &sqrt32<true>>
                 : un<F, F, &sqrt32<false>>;
  else if (op == "rcp")
    I.fn = d     ? (approx ? ExecFn(un<X, X, &rcpTop>) : un<X, X, &rcp64>)
           : ftz ? un<F, F, &rcp32<true>>
                 : un<F, F, &rcp32<false>>;
  else
    I.fn = d     ? (ftz ? ExecFn(un<X, X, &rsqrtTop>) : un<X, X, &rsqrt64>)
           : ftz ? un<F, F, &rsqrt32<true>>
                 : un<F, F, &rsqrt32<false>>;
  if (approx && !d)
    I.ext = reinterpret_cast<const void *>(I.fn), I.fn = perturbing(I.fn),
    I.imm = op == "rcp"     ? 0
            : op == "rsqrt" ? 1
                            : 2;
}

/// Executes ext, then, if asked to, moves results within the ISA's limit.
/// imm: 0 rcp, 1 rsqrt, 2 sqrt, 3 div.full, 4 div.approx.
static ExecFn perturbing(ExecFn) {
  return [](Ctx &c, const Instr &I, uint32_t m) {
    auto fn = reinterpret_cast<ExecFn>(const_cast<void *>(I.ext));
    const float *a = c.in<float>(I.o[1]),
                *b = I.ns > 1 ? c.in<float>(I.o[2]) : a;
    alignas(64) float x[32], y[32]; // the result may replace an operand
    std::memcpy(x, a, sizeof x);
    std::memcpy(y, b, sizeof y);
    fn(c, I, m);
    float *d = c.reg<float>(I.o[0]);
    bool ftz = I.b & 2;
    if (I.imm == 4) // the reciprocal of a large divisor is flushed
      KVSIM_EACH(m) if (std::fabs(y[l]) > 0x1p126f && std::isfinite(y[l])) {
        d[l] = std::isinf(x[l]) ? canonical(NAN) : d[l] * 0.0f;
      }
    uint32_t seed = c.grid->launch.perturb;
    if (!seed)
      return Act::Next;
    KVSIM_EACH(m) {
      double p = ftz ? flush(x[l]) : x[l], q = ftz ? flush(y[l]) : y[l];
      double v = I.imm == 0   ? 1 / p
                 : I.imm == 1 ? 1 / std::sqrt(p)
                 : I.imm == 2 ? std::sqrt(p)
                              : p / q;
      if (!std::isfinite(v) || v == 0 || !std::isfinite(d[l]) || d[l] == 0)
        continue;
      double limit = I.imm == 0   ? ulpOf(v)
                     : I.imm == 1 ? std::fabs(v) * 0x1p-23 * 1.0717734625
                     : I.imm == 2 ? v * 0x1p-23
                                  : 2 * ulpOf(v);
      auto r = float(perturbed(v, limit, seed));
      d[l] = ftz ? flush(r) : r;
    }
    return Act::Next;
  };
}

void floatDiv(Decoder &D, Instr &I, const std::string &t) {
  bool approx = D.take("approx"), full = D.take("full");
  floatBinary(D, I, t, FloatDiv);
  if (!approx && !full)
    return;
  if (t != "f32")
    D.error("'div." + std::string(full ? "full" : "approx") + "' needs .f32");
  I.ext = reinterpret_cast<const void *>(I.fn);
  I.fn = perturbing(I.fn);
  I.imm = approx ? 4 : 3;
}

void addFloat(Table &t) {
  t.add("fma", [](Decoder &D, Instr &I) { floatFma(D, I, false); });
  t.add("copysign", decodeCopysign);
  t.add("testp", decodeTestp);
  t.add("sqrt", decodeRoot);
  t.add("rcp", decodeRoot);
  t.add("rsqrt", decodeRoot);
}

} // namespace kvcache::sim::KVSIM_TIER
