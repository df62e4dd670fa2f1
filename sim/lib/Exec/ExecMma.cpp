//===- ExecMma.cpp - mma.sync and mma.sp ----------------------------------===//
//
// Fragments are gathered into matrices by tables made when the instruction is
// decoded. The most frequent form (16-bit inputs, f32 accumulators, exact
// model) works on the fragments in place: per k, the A column is a broadcast
// within quads of lanes and the B row a 4-element vector repeated over quads.
//
//===----------------------------------------------------------------------===//
#include "Access.h"
#include "Mma.h"

namespace kvcache::sim::KVSIM_TIER {

//===----------------------------------------------------------------------===//
// The frequent form.
//===----------------------------------------------------------------------===//

typedef float V16 __attribute__((vector_size(64)));

template <bool Bf>
static void widen2(const uint32_t *in, float *lo, float *hi) {
  KVSIM_LANES {
    lo[l] = Bf ? bitcast<float>(in[l] << 16) : f16ToF32(uint16_t(in[l]));
    hi[l] = Bf ? bitcast<float>(in[l] & 0xffff0000u)
               : f16ToF32(uint16_t(in[l] >> 16));
  }
}

template <int S>
static inline V16 quadBroadcast(V16 v) {
  return __builtin_shufflevector(v, v, S, S, S, S, S + 4, S + 4, S + 4, S + 4,
                                 S + 8, S + 8, S + 8, S + 8, S + 12, S + 12,
                                 S + 12, S + 12);
}
static inline V16 repeat4(const float *p) {
  typedef float V4 __attribute__((vector_size(16)));
  V4 v;
  std::memcpy(&v, p, 16);
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1,
                                 2, 3);
}
static inline V16 fmaV(V16 a, V16 b, V16 c) {
#if defined(__clang__)
  return __builtin_elementwise_fma(a, b, c);
#else
  V16 r;
  for (int i = 0; i < 16; ++i)
    r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#endif
}

struct FastState {
  alignas(64) float a[8][32]; ///< [reg * 2 + half][lane]
  alignas(64) float b[4][32];
  alignas(64) float bt[16][2][4]; ///< [k][column parity][column / 2]
};

/// One k: S = k % 8 / 2 selects the lane of the quad.
template <int S>
static inline void step(const FastState &f, int half, int kBlock,
                        V16 (&acc)[4][2]) {
  int k = kBlock * 8 + S * 2 + half;
  V16 be = repeat4(f.bt[k][0]), bo = repeat4(f.bt[k][1]);
  for (int v = 0; v < 2; ++v) {
    V16 lo, hi;
    std::memcpy(&lo, &f.a[(kBlock * 2) * 2 + half][v * 16], 64);
    std::memcpy(&hi, &f.a[(kBlock * 2 + 1) * 2 + half][v * 16], 64);
    lo = quadBroadcast<S>(lo);
    hi = quadBroadcast<S>(hi);
    acc[0][v] = fmaV(lo, be, acc[0][v]);
    acc[1][v] = fmaV(lo, bo, acc[1][v]);
    acc[2][v] = fmaV(hi, be, acc[2][v]);
    acc[3][v] = fmaV(hi, bo, acc[3][v]);
  }
}

/// One m16n8 tile.
template <bool Bf, int K>
static void fastTile(Ctx &c, const Opnd *A, const Opnd *B, const Opnd *C,
                     const Opnd *D) {
  FastState f;
  constexpr int nA = K / 4, nB = K / 8;
  for (int i = 0; i < nA; ++i)
    widen2<Bf>(c.in<uint32_t>(A[i]), f.a[2 * i], f.a[2 * i + 1]);
  for (int i = 0; i < nB; ++i)
    widen2<Bf>(c.in<uint32_t>(B[i]), f.b[2 * i], f.b[2 * i + 1]);
  for (int k = 0; k < K; ++k) {
    const float *row = f.b[k / 8 * 2 + k % 2] + k % 8 / 2;
    for (int n = 0; n < 8; ++n)
      f.bt[k][n & 1][n / 2] = row[n * 4];
  }
  V16 acc[4][2];
  for (int i = 0; i < 4; ++i)
    std::memcpy(acc[i], c.in<float>(C[i]), 128);
  for (int kb = 0; kb < K / 8; ++kb) {
    step<0>(f, 0, kb, acc);
    step<0>(f, 1, kb, acc);
    step<1>(f, 0, kb, acc);
    step<1>(f, 1, kb, acc);
    step<2>(f, 0, kb, acc);
    step<2>(f, 1, kb, acc);
    step<3>(f, 0, kb, acc);
    step<3>(f, 1, kb, acc);
  }
  for (int i = 0; i < 4; ++i)
    std::memcpy(c.reg<float>(D[i]), acc[i], 128);
}

/// The tiles of mma.sync or, two of them, of wmma.
template <bool Bf, int K>
static void fastMma(Ctx &c, const Instr &I, const MmaExt &x) {
  const Opnd *A = I.o + x.nD, *B = A + x.nA, *C = B + x.nB;
  bool swap = x.m == 8;
  for (int t = 0; t < x.nD / 4; ++t) {
    const Opnd *a = swap ? B + 4 * t : x.m == 32 ? A + 4 * t : A;
    const Opnd *b = swap ? A : x.n == 16 ? B + 2 * t : B;
    fastTile<Bf, K>(c, a, b, C + 4 * t, I.o + 4 * t);
  }
}

//===----------------------------------------------------------------------===//
// The general form.
//===----------------------------------------------------------------------===//

static uint32_t raw32(Ctx &c, const Opnd *o, const Slot &s, int bits) {
  uint32_t v = c.in<uint32_t>(o[s.reg])[s.lane] >> s.shift;
  return bits >= 32 ? v : v & ((1u << bits) - 1);
}

/// Product `p` of the batch.
static void runF32(Ctx &c, const Instr &I, const MmaExt &x, int p) {
  const Opnd *A = I.o + x.nD, *B = A + x.nA, *C = B + x.nB, *E = C + x.nC;
  bool fl = c.grid->launch.flushSubnormals;
  int na = x.m * x.kA, nb = x.k * x.n, nc = x.m * x.n;
  const Slot *sa = &x.sa[size_t(p * na)], *sb = &x.sb[size_t(p * nb)],
             *sc = &x.sc[size_t(p * nc)], *sd = &x.sd[size_t(p * nc)];
  std::vector<float> a(static_cast<size_t>(na)), b(static_cast<size_t>(nb)),
      acc(static_cast<size_t>(nc));
  int ab = elemBits(x.a), bb = elemBits(x.b);
  std::vector<uint16_t> cols;
  if (x.sparse)
    denseColumns(c, I, x.m, x.kA, elemBits(x.a), x.selector, x.ordered,
                 c.in<uint32_t>(*E), cols);
  for (int i = 0; i < na; ++i)
    a[i] = decodeElem(x.a, raw32(c, A, sa[i], ab), fl);
  for (int i = 0; i < nb; ++i)
    b[i] = decodeElem(x.b, raw32(c, B, sb[i], bb), fl);
  for (int i = 0; i < nc; ++i) {
    uint32_t v = raw32(c, C, sc[i], elemBits(x.c));
    acc[i] = x.c == Elem::F16 ? f16ToF32(uint16_t(v)) : bitcast<float>(v);
  }
  bool f16 = x.c == Elem::F16 && x.d == Elem::F16;
  AccModel model = accModel(c.grid->launch.mmaModel, x.a, x.b, f16, false);
  model.scalar = !model.exact && x.batch > 1;
  productF32(model, a.data(), b.data(), acc.data(), x.m, x.n, x.kA,
             x.sparse ? cols.data() : nullptr);
  for (int i = 0; i < nc; ++i) {
    const Slot &s = sd[i];
    uint32_t *d = c.reg<uint32_t>(I.o[s.reg]) + s.lane;
    if (x.d == Elem::F16)
      *d = (*d & ~(0xffffu << s.shift)) | uint32_t(f32ToF16(acc[i])) << s.shift;
    else
      *d = bitcast<uint32_t>(acc[i]);
  }
}

static void runInt(Ctx &c, const Instr &I, const MmaExt &x) {
  const Opnd *A = I.o + x.nD, *B = A + x.nA, *C = B + x.nB, *E = C + x.nC;
  std::vector<int32_t> a(size_t(x.m) * x.k, 0), b(size_t(x.k) * x.n);
  int bits = elemBits(x.a);
  std::vector<uint16_t> cols;
  if (x.sparse)
    denseColumns(c, I, x.m, x.kA, elemBits(x.a), x.selector, x.ordered,
                 c.in<uint32_t>(*E), cols);
  for (int r = 0; r < x.m; ++r)
    for (int i = 0; i < x.kA; ++i) {
      int k = x.sparse ? cols[r * x.kA + i] : i;
      a[r * x.k + k] = decodeInt(x.a, raw32(c, A, x.sa[r * x.kA + i], bits));
    }
  for (int i = 0; i < x.k * x.n; ++i)
    b[i] = decodeInt(x.b, raw32(c, B, x.sb[i], bits));
  std::vector<int32_t> out(size_t(x.m) * x.n);
  for (int r = 0; r < x.m; ++r)
    for (int n = 0; n < x.n; ++n) {
      int64_t s = int32_t(raw32(c, C, x.sc[r * x.n + n], 32));
      for (int k = 0; k < x.k; ++k) {
        int32_t p = a[r * x.k + k], q = b[k * x.n + n];
        s += x.a == Elem::B1 ? (x.andPopc ? p & q : p ^ q) : p * q;
      }
      if (x.satfinite)
        s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
      out[r * x.n + n] = int32_t(s);
    }
  for (int i = 0; i < x.m * x.n; ++i)
    c.reg<int32_t>(I.o[x.sd[i].reg])[x.sd[i].lane] = out[i];
}

static void runF64(Ctx &c, const Instr &I, const MmaExt &x) {
  const Opnd *A = I.o + x.nD, *B = A + x.nA, *C = B + x.nB;
  auto get = [&](const Opnd *o, const Slot &s) {
    return c.in<double>(o[s.reg])[s.lane];
  };
  std::vector<double> out(size_t(x.m) * x.n);
  for (int r = 0; r < x.m; ++r)
    for (int n = 0; n < x.n; ++n) {
      double s = get(C, x.sc[r * x.n + n]);
      for (int k = 0; k < x.k; ++k)
        s = __builtin_fma(get(A, x.sa[r * x.k + k]), get(B, x.sb[k * x.n + n]),
                          s);
      out[r * x.n + n] = s;
    }
  for (int i = 0; i < x.m * x.n; ++i)
    c.reg<double>(I.o[x.sd[i].reg])[x.sd[i].lane] = out[i];
}

/// An undefined row of A or column of B makes its outputs undefined, no others.
static void mmaShadow(Ctx &c, const Instr &I, const MmaExt &x) {
  const Opnd *A = I.o + x.nD, *B = A + x.nA, *C = B + x.nB;
  bool any = false;
  for (int i = 0; i < I.ns; ++i)
    any |= A[i].off >= 0 && c.frame->flags[A[i].off >> 6];
  if (!any) {
    for (int i = 0; i < x.nD; ++i)
      setDefined(c, I.o[i], ~0u);
    return;
  }
  if (x.sparse && isTainted(c, C[x.nC], ~0u)) {
    for (int i = 0; i < x.nD; ++i)
      setUndefined(c, I.o[i], ~0u);
    return;
  }
  uint32_t rows = 0, colsT = 0;
  auto bad = [&](const Opnd *o, const Slot &s, int bits) {
    if (bits == 64)
      return shadowIn<uint64_t>(c, o[s.reg])[s.lane] != 0;
    uint32_t v = shadowIn<uint32_t>(c, o[s.reg])[s.lane] >> s.shift;
    return (bits >= 32 ? v : v & ((1u << bits) - 1)) != 0;
  };
  for (int r = 0; r < x.m; ++r)
    for (int k = 0; k < x.kA; ++k)
      if (bad(A, x.sa[r * x.kA + k], elemBits(x.a)))
        rows |= 1u << r;
  for (int k = 0; k < x.k; ++k)
    for (int n = 0; n < x.n; ++n)
      if (bad(B, x.sb[k * x.n + n], elemBits(x.b)))
        colsT |= 1u << n;
  int dBytes = I.o[0].sz;
  std::vector<std::array<uint8_t, 256>> sh(size_t(x.nD));
  for (auto &s : sh)
    s.fill(0);
  for (int r = 0; r < x.m; ++r)
    for (int n = 0; n < x.n; ++n) {
      const Slot &s = x.sd[r * x.n + n];
      if (!(rows >> r & 1) && !(colsT >> n & 1) &&
          !bad(C, x.sc[r * x.n + n], elemBits(x.c)))
        continue;
      int width = elemBits(x.d) / 8;
      std::memset(&sh[s.reg][s.lane * dBytes + s.shift / 8], 0xff,
                  size_t(width));
    }
  for (int i = 0; i < x.nD; ++i)
    setShadow(c, I.o[i], ~0u, sh[i].data());
}

static Act execMma(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  const auto &x = *static_cast<const MmaExt *>(I.ext);
  if (c.init)
    mmaShadow(c, I, x);
  if (!c.stats->instr.empty())
    c.stats->instr[I.id].flops += 2ull * x.m * x.n * x.k;
  const Launch &l = c.grid->launch;
  if (I.a && l.mmaModel == MmaModel::Exact && !l.flushSubnormals) {
    if (I.a == 1)
      fastMma<false, 16>(c, I, x);
    else if (I.a == 2)
      fastMma<true, 16>(c, I, x);
    else if (I.a == 3)
      fastMma<false, 8>(c, I, x);
    else
      fastMma<true, 8>(c, I, x);
  } else if (x.a == Elem::F64) {
    runF64(c, I, x);
  } else if (isIntElem(x.a)) {
    runInt(c, I, x);
  } else {
    // The products of a batch share no lanes.
    for (int p = 0; p < x.batch; ++p)
      runF32(c, I, x, p);
  }
  return Act::Next;
}

/// Results of one tile must not be inputs of the next.
static bool independent(const MmaExt &x, const std::vector<Opnd> &ds,
                        const std::vector<Opnd> &ss) {
  for (size_t d = 0; d < ds.size(); ++d)
    for (size_t i = 0; i < ss.size(); ++i)
      if (ds[d].off == ss[i].off && i != size_t(x.nA + x.nB) + d)
        return false;
  return true;
}

void finishMma(Decoder &D, Instr &I, MmaExt x, const std::vector<Opnd> &ds,
               const std::vector<Opnd> &ss) {
  bool half = x.a == Elem::F16 || x.a == Elem::BF16;
  bool fast = !x.sparse && half && x.batch == 1 && x.a == x.b &&
              x.c == Elem::F32 && x.d == Elem::F32 &&
              (x.nD == 4 || independent(x, ds, ss));
  I.a = !fast ? 0 : (x.k == 16 ? 1 : 3) + (x.a == Elem::BF16);
  I.ext = D.extra(std::move(x));
  I.fn = execMma;
  I.shadow = nullptr;
  I.matters = true;
  I.aligned = true;
  I.cls = OpClass::Mma;
  D.finish(I, ds, ss);
}

static bool parseShape(const std::string &s, int &m, int &n, int &k) {
  return sscanf(s.c_str(), "m%dn%dk%d", &m, &n, &k) == 3;
}

/// Whether the ISA has this shape for the element.
static bool shapeExists(const MmaExt &x) {
  int bits = elemBits(x.a);
  if (x.a == Elem::F64)
    return !x.sparse &&
           ((x.m == 8 && x.n == 8 && x.k == 4) ||
            (x.m == 16 && x.n == 8 && (x.k == 4 || x.k == 8 || x.k == 16)));
  if (x.m == 16 && x.n == 8) {
    int base = 32 / bits * 4; // k of one register
    bool fp8 = x.a == Elem::E4M3 || x.a == Elem::E5M2;
    if (x.sparse)
      return fp8 ? x.k == 64
                 : bits != 1 && (x.k == 2 * base || x.k == 4 * base);
    return x.k == base || x.k == 2 * base;
  }
  return !x.sparse && x.m == 8 && x.n == 8 &&
         (isIntElem(x.a) ? x.k == 32 / bits * 4 : x.a == Elem::F16 && x.k == 4);
}

static void mmaTarget(Decoder &D, Instr &I, const MmaExt &x) {
  bool fp8 = x.a == Elem::E4M3 || x.a == Elem::E5M2;
  int sm = fp8                             ? 89
           : x.a == Elem::F64 && x.m == 16 ? 90
           : x.sparse || x.a == Elem::BF16 || x.a == Elem::TF32 ||
                   x.a == Elem::F64 || (x.m == 16 && x.k >= 16)
               ? 80
               : 75;
  D.needSm(I, sm);
}

/// The layouts of A and B, in this order.
static void takeLayouts(Decoder &D, bool &rowA, bool &rowB) {
  std::vector<bool> rows;
  for (const std::string &m : D.in->mods)
    if (m == "row" || m == "col")
      rows.push_back(m == "row");
  if (rows.size() != 2)
    D.error("'mma' needs .row.col");
  for (bool row : rows)
    D.take(row ? "row" : "col");
  rowA = rows[0];
  rowB = rows[1];
}

static void fragments(MmaExt &x, bool rowA, bool rowB) {
  int bits = elemBits(x.a);
  if (x.batch > 1) {
    x.sa = fragment884(rowA, true);
    x.sb = fragment884(rowB, false);
    x.sc = accumulator884(elemBits(x.c));
    x.sd = accumulator884(elemBits(x.d));
    return;
  }
  x.sa = fragmentA(x.m, x.kA, bits);
  x.sb = fragmentB(x.k, x.n, bits);
  x.sc = fragmentC(x.m, x.n, elemBits(x.c));
  x.sd = fragmentC(x.m, x.n, elemBits(x.d));
}

static void takeShape(Decoder &D, MmaExt &x) {
  for (const std::string &s : D.in->mods)
    if (parseShape(s, x.m, x.n, x.k)) {
      std::string shape = s;
      D.take(shape.c_str());
      return;
    }
  D.error("'mma' needs a shape");
}

/// Whether the ISA has these types together; `types` are of d, a, b and c.
static bool typesExist(const MmaExt &x) {
  bool fp8 = x.a == Elem::E4M3 || x.a == Elem::E5M2;
  if (x.a == Elem::F64)
    return x.b == x.a && x.c == x.a && x.d == x.a;
  if (isIntElem(x.a))
    return isIntElem(x.b) && elemBits(x.a) == elemBits(x.b) &&
           x.c == Elem::S32 && x.d == Elem::S32;
  if (x.satfinite || x.andPopc)
    return false;
  if (fp8 ? x.b != Elem::E4M3 && x.b != Elem::E5M2 : x.b != x.a)
    return false;
  bool f16 = x.a == Elem::F16 || fp8;
  auto acc = [&](Elem e) { return e == Elem::F32 || (f16 && e == Elem::F16); };
  // Only m8n8k4 takes f16 accumulators to f32 results.
  bool widens = x.m == 8 && x.c == Elem::F16;
  return acc(x.c) && acc(x.d) && (x.c == x.d || widens);
}

static void takeTypes(Decoder &D, MmaExt &x) {
  x.satfinite = D.take("satfinite");
  D.take("xor");
  x.andPopc = D.take("and");
  D.take("popc");
  std::vector<std::string> types;
  while (!D.peekMod().empty()) {
    std::string t = D.peekMod();
    if (elemOf(t) == Elem::None)
      D.error("unknown or unsupported modifier '." + t + "' of 'mma'");
    D.take(t.c_str());
    types.push_back(t);
  }
  if (types.size() != 4)
    D.error("'mma' needs four types");
  x.d = elemOf(types[0]);
  x.a = elemOf(types[1]);
  x.b = elemOf(types[2]);
  x.c = elemOf(types[3]);
  if (!shapeExists(x))
    D.error("'mma' has no shape m" + std::to_string(x.m) + "n" +
            std::to_string(x.n) + "k" + std::to_string(x.k) + " for ." +
            types[1]);
  if (!typesExist(x))
    D.error("'mma' does not accept these types together");
}

static int registerCount(const std::vector<Slot> &slots) {
  int n = 0;
  for (const Slot &v : slots)
    n = std::max<int>(n, v.reg + 1);
  return n;
}

/// f of each of the n registers of an operand.
template <class F>
static void eachRegister(Decoder &D, const Operand &o, int n, F f) {
  bool vec = o.kind == Operand::Vec;
  if (vec ? int(o.elems.size()) != n : n != 1)
    D.error("expected " + std::to_string(n) + " registers in braces" +
            (vec ? ", got " + std::to_string(o.elems.size()) : ""));
  if (!vec)
    return f(o);
  for (const Operand &e : o.elems)
    f(e);
}

static void decodeMma(Decoder &D, Instr &I) {
  MmaExt x;
  x.ordered = D.take("sp::ordered_metadata");
  x.sparse = x.ordered || D.take("sp");
  D.take("sync");
  D.take("aligned");
  takeShape(D, x);
  bool rowA = true, rowB = false;
  takeLayouts(D, rowA, rowB);
  takeTypes(D, x);
  x.kA = x.sparse ? x.k / 2 : x.k;
  x.batch = x.m == 8 && x.a == Elem::F16 ? 4 : 1;
  if (x.batch == 1 && !(rowA && !rowB))
    D.error("'mma' needs .row.col");
  fragments(x, rowA, rowB);
  x.nA = registerCount(x.sa);
  x.nB = registerCount(x.sb);
  x.nC = registerCount(x.sc);
  x.nD = registerCount(x.sd);
  D.needOps(x.sparse ? 6 : 4, x.sparse ? 6 : 4);
  std::vector<Opnd> ds, ss;
  bool wide = x.a == Elem::F64;
  auto source = [&](const Operand &e) {
    ss.push_back(D.src(e, wide ? "f64" : "b32"));
  };
  eachRegister(D, D.op(0), x.nD,
               [&](const Operand &e) { ds.push_back(D.dst(e, wide ? 8 : 4)); });
  eachRegister(D, D.op(1), x.nA, source);
  eachRegister(D, D.op(2), x.nB, source);
  eachRegister(D, D.op(3), x.nC, source);
  if (x.sparse) {
    ss.push_back(D.src(D.op(4), "b32"));
    x.selector = int(D.literal(D.op(5)));
    int count = sparseSelectors(x.kA, elemBits(x.a));
    if (x.selector < 0 || x.selector >= count)
      D.error("the sparsity selector of this shape is 0 to " +
              std::to_string(count - 1));
  }
  mmaTarget(D, I, x);
  finishMma(D, I, std::move(x), ds, ss);
}

void addMma(Table &t) { t.add("mma", decodeMma); }

} // namespace kvcache::sim::KVSIM_TIER
