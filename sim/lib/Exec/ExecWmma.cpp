//===- ExecWmma.cpp - wmma.load, wmma.store, wmma.mma ---------------------===//
//
// The layout of a fragment is opaque in PTX. Here element i of a fragment of n
// elements lies, counting lanes, registers and positions in a register in this
// order, at every place congruent to i modulo n (f16 fragments hold each
// element twice, as on the chips).
//
//===----------------------------------------------------------------------===//
#include "Bulk.h"
#include "Mma.h"

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct Shape {
  int m = 0, n = 0, k = 0;
};
struct WmmaExt {
  Shape s;
  char which = 'a'; ///< a b c d
  bool rowMajor = true, hasStride = false;
  Elem e;
  int regs;
};
struct WmmaMmaExt {
  Shape s;
  Elem a, b, c, d;
  int nA, nB, nC, nD;
  bool satfinite, isAnd;
};
} // namespace

static void dims(const Shape &s, char which, int &rows, int &cols) {
  rows = which == 'b' ? s.k : s.m;
  cols = which == 'a' ? s.k : s.n;
}

static int perReg(Elem e) {
  int bits = elemBits(e);
  return bits >= 32 ? 1 : 32 / bits;
}

/// f(lane, register, position, element index) over all places.
template <class F>
static void places(Elem e, int regs, int count, F f) {
  int per = perReg(e), i = 0;
  for (int l = 0; l < 32; ++l)
    for (int r = 0; r < regs; ++r)
      for (int j = 0; j < per; ++j, ++i)
        f(l, r, j, i % count);
}

static Act execMove(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  const auto &x = *static_cast<const WmmaExt *>(I.ext);
  bool load = I.nd > 0;
  const Opnd *regs = load ? I.o : I.o + 1, &base = load ? I.o[x.regs] : I.o[0];
  const Opnd &stride = load ? I.o[x.regs + 1] : I.o[1 + x.regs];
  alignas(64) uint64_t addr[32];
  checkAddressInit(c, I, base, m);
  laneAddresses(c, base, I.imm, addr);
  int rows, cols, bits = elemBits(x.e);
  dims(x.s, x.which, rows, cols);
  int lane0 = std::countr_zero(m);
  int64_t ld = c.in<int32_t>(stride)[lane0];
  std::vector<std::array<uint8_t, 256>> shadow(size_t(x.regs));
  for (auto &s : shadow)
    s.fill(0);
  places(x.e, x.regs, rows * cols, [&](int l, int r, int j, int i) {
    int row = i / cols, col = i % cols;
    int64_t at = x.rowMajor ? row * ld + col : col * ld + row;
    uint64_t a = addr[lane0] + uint64_t(at * bits / 8);
    uint64_t bytes = uint64_t(bits < 8 ? 1 : bits / 8);
    Bytes b = resolveBytes(c, I, l, I.space, a, bytes);
    uint8_t *reg = c.reg<uint8_t>(regs[r]) + l * regs[r].sz;
    int shift = bits < 8 ? int(at * bits & 7) : 0;
    if (load) {
      bulkAccess(c, I, l, b, bytes, AccessKind::Read, nullptr);
      if (bits >= 8) {
        std::memcpy(reg + j * bits / 8, b.host, bytes);
        if (c.init && b.undef)
          std::memcpy(&shadow[size_t(r)][size_t(l * regs[r].sz + j * bits / 8)],
                      b.undef, bytes);
        return;
      }
      uint32_t mask = (1u << bits) - 1, v;
      std::memcpy(&v, reg, 4);
      v = (v & ~(mask << (j * bits))) | (uint32_t(*b.host >> shift) & mask)
                                            << (j * bits);
      std::memcpy(reg, &v, 4);
      return;
    }
    bulkAccess(c, I, l, b, bytes, AccessKind::Write, reg + j * bits / 8);
    if (c.init) {
      const uint8_t *sh =
          shadowIn<uint8_t>(c, regs[r]) + l * regs[r].sz + j * bits / 8;
      for (uint64_t k = 0; k < bytes; ++k) {
        if (sh[k] && b.space == MemSpace::Global)
          c.violation("init", I, l, a,
                      "an undefined value is stored to global memory");
        if (b.undef)
          b.undef[k] = sh[k];
      }
    }
    std::memcpy(b.host, reg + j * bits / 8, bytes);
  });
  if (load && c.init)
    for (int r = 0; r < x.regs; ++r)
      setShadow(c, regs[r], ~0u, shadow[size_t(r)].data());
  return Act::Next;
}

static Shape takeShape(Decoder &D) {
  Shape s;
  for (const std::string &t : D.in->mods)
    if (sscanf(t.c_str(), "m%dn%dk%d", &s.m, &s.n, &s.k) == 3) {
      std::string text = t;
      D.take(text.c_str());
      if (s.m < 1 || s.n < 1 || s.k < 1 || s.m > 32 || s.n > 32 || s.k > 128)
        D.error("unknown shape of 'wmma'");
      return s;
    }
  D.error("'wmma' needs a shape");
}

static std::vector<Opnd> registers(Decoder &D, const Operand &o, Elem e,
                                   bool dst) {
  std::vector<Opnd> out;
  int bytes = e == Elem::F64 ? 8 : 4;
  auto add = [&](const Operand &x) {
    out.push_back(dst ? D.dst(x, bytes) : D.src(x, bytes == 8 ? "f64" : "b32"));
  };
  if (o.kind == Operand::Vec)
    for (const Operand &x : o.elems)
      add(x);
  else
    add(o);
  return out;
}

static void checkSize(Decoder &D, Elem e, size_t regs, int count) {
  int places = int(regs) * perReg(e) * 32;
  if (places == 0 || places % count || places / count > 2)
    D.error("wrong number of registers for a fragment: " +
            std::to_string(regs));
}

static Elem takeElem(Decoder &D) {
  std::string t = D.peekMod();
  Elem e = elemOf(t);
  if (e == Elem::None)
    D.error("unknown or unsupported modifier '." + t + "' of 'wmma'");
  D.take(t.c_str());
  return e;
}

static void decodeMove(Decoder &D, Instr &I, bool load) {
  WmmaExt x;
  std::string w = D.oneOf({"a", "b", "c", "d"});
  if (w.empty())
    D.error("'wmma' needs .a, .b, .c or .d");
  x.which = w[0];
  D.take("sync");
  D.take("aligned");
  x.rowMajor = D.oneOf({"row", "col"}) != "col";
  x.s = takeShape(D);
  I.space = D.space();
  x.e = takeElem(D);
  int rows, cols;
  dims(x.s, x.which, rows, cols);
  std::vector<Opnd> regs = registers(D, D.op(load ? 0 : 1), x.e, load);
  checkSize(D, x.e, regs.size(), rows * cols);
  x.regs = int(regs.size());
  D.needOps(2, 3);
  int64_t off;
  Opnd base = D.address(D.op(load ? 1 : 0), I.space, off);
  I.imm = off;
  Opnd ld = D.count() == 3 ? D.src(D.op(2), "u32")
                           : D.constant(uint64_t(x.rowMajor ? cols : rows), 4);
  I.ext = D.extra(x);
  I.fn = execMove;
  I.cls = load ? OpClass::Load : OpClass::Store;
  if (load) {
    D.finish(I, regs, {base, ld});
  } else {
    regs.insert(regs.begin(), base);
    regs.push_back(ld);
    D.finish(I, {}, regs);
  }
}

template <class F>
static void gatherFragment(Ctx &c, const Opnd *o, int regs, Elem e, int count,
                           F store) {
  int bits = elemBits(e);
  places(e, regs, count, [&](int l, int r, int j, int i) {
    if (bits == 64) {
      store(i, c.in<uint64_t>(o[r])[l]);
      return;
    }
    uint32_t v = c.in<uint32_t>(o[r])[l] >> (bits >= 32 ? 0 : j * bits);
    store(i, bits >= 32 ? v : v & ((1u << bits) - 1));
  });
}

static void putElement(Ctx &c, const Opnd &o, int l, int j, Elem e,
                       uint64_t v) {
  if (e == Elem::F64) {
    c.reg<uint64_t>(o)[l] = v;
  } else if (e == Elem::F16) {
    uint32_t &d = c.reg<uint32_t>(o)[l];
    d = (d & ~(0xffffu << (16 * j))) | uint32_t(v) << (16 * j);
  } else {
    c.reg<uint32_t>(o)[l] = uint32_t(v);
  }
}

static Act execMma(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  const auto &x = *static_cast<const WmmaMmaExt *>(I.ext);
  const Opnd *A = I.o + x.nD, *B = A + x.nA, *C = B + x.nB;
  int M = x.s.m, N = x.s.n, K = x.s.k;
  if (c.init) {
    bool t = false;
    for (int i = 0; i < I.ns; ++i)
      t |= isTainted(c, A[i], ~0u);
    for (int i = 0; i < I.nd; ++i)
      t ? setUndefined(c, I.o[i], ~0u) : setDefined(c, I.o[i], ~0u);
  }
  if (!c.stats->instr.empty())
    c.stats->instr[I.id].flops +=
        2ull * uint64_t(M) * uint64_t(N) * uint64_t(K);
  std::vector<uint64_t> out(size_t(M * N));
  if (isIntElem(x.a)) {
    std::vector<int32_t> a(size_t(M * K)), b(size_t(K * N));
    std::vector<int64_t> acc(size_t(M * N));
    gatherFragment(c, A, x.nA, x.a, M * K, [&](int i, uint64_t v) {
      a[size_t(i)] = decodeInt(x.a, uint32_t(v));
    });
    gatherFragment(c, B, x.nB, x.b, K * N, [&](int i, uint64_t v) {
      b[size_t(i)] = decodeInt(x.b, uint32_t(v));
    });
    gatherFragment(c, C, x.nC, x.c, M * N,
                   [&](int i, uint64_t v) { acc[size_t(i)] = int32_t(v); });
    for (int r = 0; r < M; ++r)
      for (int n = 0; n < N; ++n) {
        int64_t s = acc[size_t(r * N + n)];
        for (int k = 0; k < K; ++k) {
          int32_t p = a[size_t(r * K + k)], q = b[size_t(k * N + n)];
          s += x.a == Elem::B1 ? (x.isAnd ? p & q : p ^ q) : p * q;
        }
        if (x.satfinite)
          s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        out[size_t(r * N + n)] = uint32_t(s);
      }
  } else if (x.a == Elem::F64) {
    std::vector<double> a(size_t(M * K)), b(size_t(K * N)), acc(size_t(M * N));
    gatherFragment(c, A, x.nA, x.a, M * K, [&](int i, uint64_t v) {
      a[size_t(i)] = bitcast<double>(v);
    });
    gatherFragment(c, B, x.nB, x.b, K * N, [&](int i, uint64_t v) {
      b[size_t(i)] = bitcast<double>(v);
    });
    gatherFragment(c, C, x.nC, x.c, M * N, [&](int i, uint64_t v) {
      acc[size_t(i)] = bitcast<double>(v);
    });
    for (int r = 0; r < M; ++r)
      for (int n = 0; n < N; ++n) {
        double s = acc[size_t(r * N + n)];
        for (int k = 0; k < K; ++k)
          s = __builtin_fma(a[size_t(r * K + k)], b[size_t(k * N + n)], s);
        out[size_t(r * N + n)] = bitcast<uint64_t>(s);
      }
  } else {
    bool fl = c.grid->launch.flushSubnormals;
    std::vector<float> a(size_t(M * K)), b(size_t(K * N)), acc(size_t(M * N));
    gatherFragment(c, A, x.nA, x.a, M * K, [&](int i, uint64_t v) {
      a[size_t(i)] = decodeElem(x.a, uint32_t(v), fl);
    });
    gatherFragment(c, B, x.nB, x.b, K * N, [&](int i, uint64_t v) {
      b[size_t(i)] = decodeElem(x.b, uint32_t(v), fl);
    });
    gatherFragment(c, C, x.nC, x.c, M * N, [&](int i, uint64_t v) {
      acc[size_t(i)] = x.c == Elem::F16 ? f16ToF32(uint16_t(v))
                                        : bitcast<float>(uint32_t(v));
    });
    bool f16 = x.c == Elem::F16 && x.d == Elem::F16;
    productF32(accModel(c.grid->launch.mmaModel, x.a, x.b, f16, false),
               a.data(), b.data(), acc.data(), M, N, K);
    for (int i = 0; i < M * N; ++i)
      out[size_t(i)] = x.d == Elem::F16 ? f32ToF16(acc[size_t(i)])
                                        : bitcast<uint32_t>(acc[size_t(i)]);
  }
  places(x.d, x.nD, M * N, [&](int l, int r, int j, int i) {
    putElement(c, I.o[r], l, j, x.d, out[size_t(i)]);
  });
  return Act::Next;
}

static void decodeMma(Decoder &D, Instr &I) {
  WmmaMmaExt x;
  D.take("xor");
  x.isAnd = D.take("and");
  D.take("popc");
  D.take("sync");
  D.take("aligned");
  // Layouts are a matter of loading only.
  for (int i = 0; i < 2; ++i)
    if (!D.take("row"))
      D.take("col");
  x.s = takeShape(D);
  D.take("rn");
  x.satfinite = D.take("satfinite");
  std::vector<Elem> types;
  while (!D.peekMod().empty() && D.peekMod() != "satfinite")
    types.push_back(takeElem(D));
  x.satfinite |= D.take("satfinite");
  if (types.size() == 2) { // .dtype.ctype of f16 inputs
    x.d = types[0];
    x.c = types[1];
    x.a = x.b = Elem::F16;
  } else if (types.size() == 4) {
    x.d = types[0];
    x.a = types[1];
    x.b = types[2];
    x.c = types[3];
  } else {
    D.error("'wmma.mma' needs two or four types");
  }
  D.needOps(4, 4);
  std::vector<Opnd> d = registers(D, D.op(0), x.d, true), ss;
  auto add = [&](size_t i, Elem e, int count) {
    std::vector<Opnd> r = registers(D, D.op(i), e, false);
    checkSize(D, e, r.size(), count);
    ss.insert(ss.end(), r.begin(), r.end());
    return int(r.size());
  };
  x.nD = int(d.size());
  checkSize(D, x.d, d.size(), x.s.m * x.s.n);
  x.nA = add(1, x.a, x.s.m * x.s.k);
  x.nB = add(2, x.b, x.s.k * x.s.n);
  x.nC = add(3, x.c, x.s.m * x.s.n);
  I.ext = D.extra(x);
  I.fn = execMma;
  I.cls = OpClass::Mma;
  D.finish(I, d, ss);
}

void addWmma(Table &t) {
  t.add("wmma", [](Decoder &D, Instr &I) {
    I.shadow = nullptr;
    I.matters = true;
    I.aligned = true;
    D.needSm(I, 70);
    if (D.take("load"))
      decodeMove(D, I, true);
    else if (D.take("store"))
      decodeMove(D, I, false);
    else if (D.take("mma"))
      decodeMma(D, I);
    else
      D.error("unknown form of 'wmma'");
  });
}

} // namespace kvcache::sim::KVSIM_TIER
