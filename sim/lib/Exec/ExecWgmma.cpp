//===- ExecWgmma.cpp - wgmma ----------------------------------------------===//
//
// Each warp of a warpgroup computes its 16 of the 64 rows when it issues the
// instruction; the async check keeps the registers reserved until wait_group.
//
// A descriptor names a matrix in shared memory: start, leading and stride byte
// offsets (in 16 bytes) and the swizzle. Canonical layouts, in 16-byte chunks:
//   K-major, no swizzle: 8 rows of one chunk; next k chunk LBO, next 8 rows SBO
//   K-major, swizzled:   8 rows of W bytes, next 8 rows SBO
//   MN-major: W bytes of rows, 8 of k; next W bytes LBO, next 8 of k SBO (for
//   no swizzle the two are exchanged)
//
//===----------------------------------------------------------------------===//
#include "Bulk.h"
#include "Mma.h"
#include <bit>

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct WgmmaExt {
  int n, k, kA;
  Elem a, b, d;
  int nD, nA; ///< nA 0: A by descriptor
  bool sparse = false, satfinite = false;
  bool bits = false; ///< b1: bytes of 8 single bits
  int scaleA = 1, scaleB = 1;
  bool transA = false, transB = false;
  int selector = 0;
  bool ordered = true; ///< metadata indices ascend
  std::vector<Slot> sa;
  // Operand indices among the sources.
  int opA, opB, opMeta = -1, opScale;
};

struct Matrix {
  uint64_t start, lbo, sbo;
  int swizzle;   ///< width in bytes, 0 none
  uint64_t base; ///< row of the swizzle pattern where it starts
};

/// Rows x columns of elements as raw bits; undefined ones mark their row.
struct Tile {
  std::vector<uint32_t> v;
  std::vector<uint8_t> undef;
};
} // namespace

static Matrix descriptor(uint64_t d) {
  static const int widths[] = {0, 128, 64, 32};
  return {(d & 0x3fff) << 4, (d >> 16 & 0x3fff) << 4, (d >> 32 & 0x3fff) << 4,
          widths[d >> 62], d >> 49 & 7};
}

/// The shared address of element (row, column k), `bytes` per element. The
/// swizzle exchanges 16-byte chunks by the rows of its pattern (bits 7 and up
/// of the address), counted from the base offset.
static uint64_t elementAddress(const Matrix &m, bool mnMajor, int row, int k,
                               int bytes) {
  uint64_t a;
  if (!mnMajor) {
    uint64_t kb = uint64_t(k) * uint64_t(bytes);
    if (!m.swizzle)
      return m.start + uint64_t(row % 8) * 16 + uint64_t(row / 8) * m.sbo +
             kb / 16 * m.lbo + kb % 16;
    a = m.start + uint64_t(row % 8) * uint64_t(m.swizzle) +
        uint64_t(row / 8) * m.sbo + kb;
  } else {
    uint64_t rb = uint64_t(row) * uint64_t(bytes), chunk = rb / 16;
    if (!m.swizzle)
      return m.start + chunk * m.sbo + uint64_t(k % 8) * 16 +
             uint64_t(k / 8) * m.lbo + rb % 16;
    uint64_t w = uint64_t(m.swizzle);
    a = m.start + rb % w + rb / w * m.lbo + uint64_t(k % 8) * w +
        uint64_t(k / 8) * m.sbo;
  }
  uint64_t mask = m.swizzle == 128 ? 7 : m.swizzle == 64 ? 3 : 1;
  return a ^ ((((a >> 7) - m.base) & mask) << 4);
}

/// The checks of 16 bytes of a matrix.
static void checkChunk(Ctx &c, const Instr &I, uint64_t a, const AsyncOp &op) {
  Block &b = *c.block;
  if (!(c.checks & CheckRace))
    return;
  Bytes x;
  x.region = &b.shared;
  x.owner = &b;
  x.offset = a;
  for (uint64_t i = 0; !b.sharedPending.empty() && i < 16; ++i)
    if (b.sharedPending[a + i])
      c.violation("async", I, 0, a + i,
                  "wgmma reads shared memory that an asynchronous copy "
                  "still writes");
  bulkAccess(c, I, 0, x, 16, AccessKind::Read, nullptr, &op);
}

/// Reads in chunks of 16 bytes, which a swizzle leaves together: elements of
/// one row, or of one column if the matrix is MN-major.
static void readMatrix(Ctx &c, const Instr &I, const Matrix &m, bool mnMajor,
                       int row0, int rows, int cols, int bytes, Tile &out,
                       const AsyncOp &op) {
  const Region &sh = c.block->shared;
  int per = 16 / bytes;
  out.v.resize(size_t(rows * cols));
  out.undef.assign(size_t(rows), 0);
  for (int r = 0; r < rows; r += mnMajor ? per : 1)
    for (int k = 0; k < cols; k += mnMajor ? 1 : per) {
      uint64_t a = elementAddress(m, mnMajor, row0 + r, k, bytes);
      if (a + 16 > sh.size)
        c.violation("bounds", I, 0, a,
                    "the wgmma descriptor reaches outside shared memory");
      checkChunk(c, I, a, op);
      for (int i = 0; i < per; ++i) {
        int row = mnMajor ? r + i : r, col = mnMajor ? k : k + i;
        uint32_t v = 0;
        std::memcpy(&v, sh.host + a + i * bytes, size_t(bytes));
        out.v[size_t(row * cols + col)] = v;
        for (int x = 0; sh.undef && x < bytes; ++x)
          out.undef[size_t(row)] |= sh.undef[a + uint64_t(i * bytes + x)];
      }
    }
}

/// The warp's 16 rows of A.
static void readA(Ctx &c, const Instr &I, const WgmmaExt &x, Tile &a,
                  const AsyncOp &op) {
  const Opnd *S = I.o + x.nD;
  int bits = elemBits(x.a), rows0 = c.warp->index % 4 * 16;
  if (!x.nA)
    return readMatrix(c, I, descriptor(c.in<uint64_t>(S[x.opA])[0]), x.transA,
                      rows0, 16, x.kA, bits / 8, a, op);
  a.v.resize(size_t(16 * x.kA));
  a.undef.assign(16, 0);
  uint32_t mask = bits >= 32 ? ~0u : (1u << bits) - 1;
  for (int i = 0; i < 16 * x.kA; ++i) {
    const Slot &s = x.sa[size_t(i)];
    const Opnd &o = S[x.opA + s.reg];
    a.v[size_t(i)] = c.in<uint32_t>(o)[s.lane] >> s.shift & mask;
    if (c.init && (shadowIn<uint32_t>(c, o)[s.lane] >> s.shift & mask))
      a.undef[size_t(i / x.kA)] = 1;
  }
}

/// Where accumulator (r, n) lies: m16n8 fragments side by side.
static Slot accumulator(const WgmmaExt &x, int r, int n) {
  bool half = x.d == Elem::F16;
  int j = n / 8, reg = half ? j * 2 + r / 8 : j * 4 + r / 8 * 2 + n % 2;
  return Slot{uint8_t(reg), uint8_t(r % 8 * 4 + n % 8 / 2),
              uint8_t(half ? n % 2 * 16 : 0)};
}

static uint32_t oldBits(Ctx &c, const Instr &I, const WgmmaExt &x, int r,
                        int n) {
  Slot s = accumulator(x, r, n);
  return c.in<uint32_t>(I.o[s.reg])[s.lane] >> s.shift;
}

/// D = A B (+ D); out[16][n] are the bits of the results.
static void integerProduct(Ctx &c, const Instr &I, const WgmmaExt &x,
                           const Tile &a, const Tile &b, const uint16_t *cols,
                           bool keep, uint32_t *out) {
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < x.n; ++n) {
      int64_t s = keep ? int32_t(oldBits(c, I, x, r, n)) : 0;
      for (int i = 0; i < x.kA; ++i) {
        int k = cols ? cols[r * x.kA + i] : i;
        uint32_t p = a.v[size_t(r * x.kA + i)], q = b.v[size_t(n * x.k + k)];
        s += x.bits ? std::popcount(p & q)
                    : decodeInt(x.a, p) * decodeInt(x.b, q);
      }
      if (x.satfinite)
        s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
      out[r * x.n + n] = uint32_t(s);
    }
}

static void floatProduct(Ctx &c, const Instr &I, const WgmmaExt &x,
                         const Tile &a, const Tile &b, const uint16_t *cols,
                         bool keep, uint32_t *out) {
  bool fl = c.grid->launch.flushSubnormals, half = x.d == Elem::F16;
  std::vector<float> fa(a.v.size()), fb(b.v.size()),
      acc(size_t(16 * x.n), 0.0f);
  for (size_t i = 0; i < fa.size(); ++i)
    fa[i] = float(x.scaleA) * decodeElem(x.a, a.v[i], fl);
  for (int n = 0; n < x.n; ++n)
    for (int k = 0; k < x.k; ++k)
      fb[size_t(k * x.n + n)] =
          float(x.scaleB) * decodeElem(x.b, b.v[size_t(n * x.k + k)], fl);
  for (int i = 0; keep && i < 16 * x.n; ++i) {
    uint32_t v = oldBits(c, I, x, i / x.n, i % x.n);
    acc[size_t(i)] = half ? f16ToF32(uint16_t(v)) : bitcast<float>(v);
  }
  productF32(accModel(c.grid->launch.mmaModel, x.a, x.b, half, true), fa.data(),
             fb.data(), acc.data(), 16, x.n, x.kA, cols);
  for (size_t i = 0; i < acc.size(); ++i)
    out[i] = half ? f32ToF16(acc[i]) : bitcast<uint32_t>(acc[i]);
}

/// Writes the results and, for the init check, their shadow.
static void storeResult(Ctx &c, const Instr &I, const WgmmaExt &x,
                        const Tile &a, const Tile &b, bool keep,
                        const uint32_t *out) {
  uint32_t width = x.d == Elem::F16 ? 0xffffu : ~0u;
  std::vector<std::array<uint32_t, 32>> shadow(c.init ? size_t(x.nD) : 0);
  for (auto &s : shadow)
    s.fill(0);
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < x.n; ++n) {
      Slot s = accumulator(x, r, n);
      if (c.init) {
        uint32_t old =
            keep ? shadowIn<uint32_t>(c, I.o[s.reg])[s.lane] >> s.shift & width
                 : 0;
        if (old || a.undef[size_t(r)] || b.undef[size_t(n)])
          shadow[s.reg][s.lane] |= width << s.shift;
      }
      uint32_t &d = c.reg<uint32_t>(I.o[s.reg])[s.lane];
      d = (d & ~(width << s.shift)) | out[r * x.n + n] << s.shift;
    }
  for (size_t i = 0; i < shadow.size(); ++i)
    setShadow(c, I.o[i], ~0u, shadow[i].data());
}

/// The warp's register marks, for its current frame.
static WgmmaState &registers(Ctx &c) {
  if (!c.warp->wgmma)
    c.warp->wgmma = std::make_shared<WgmmaState>();
  WgmmaState &g = *c.warp->wgmma;
  if (g.frame != c.frame) {
    auto slots = size_t(c.frame->code->frameBytes) / 64 + 1;
    g.frame = c.frame;
    g.pending.clear();
    g.inFlight.assign(slots, 0);
    g.wroteAt.assign(slots, 0);
  }
  return g;
}

/// Registers written by others since the last wgmma.fence must not be used.
static void requireFence(Ctx &c, const Instr &I, const WgmmaState &g,
                         const Opnd *o, int n) {
  for (int i = 0; i < n; ++i)
    if (!g.fences ||
        (o[i].off >= 0 && g.wroteAt[size_t(o[i].off >> 6)] == g.fences + 1))
      c.violation("async", I, 0, 0,
                  g.fences ? "a register of this wgmma was written after the "
                             "last wgmma.fence"
                           : "the first wgmma is not preceded by wgmma.fence");
}

static void inFlight(Ctx &c, const Instr &I, const WgmmaExt &x) {
  if (!(c.checks & CheckAsync))
    return;
  WgmmaState &g = registers(c);
  const Opnd *a = I.o + x.nD + x.opA;
  requireFence(c, I, g, I.o, x.nD);
  requireFence(c, I, g, a, x.nA);
  for (int i = 0; i < x.nD; ++i)
    g.pending.push_back({I.o[i].off, c.warp->wgmmaSeq, false});
  for (int i = 0; i < x.nA; ++i)
    if (a[i].off >= 0)
      g.pending.push_back({a[i].off, c.warp->wgmmaSeq, true});
  g.refresh();
}

static Act execWgmma(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  const auto &x = *static_cast<const WgmmaExt *>(I.ext);
  const Opnd *S = I.o + x.nD;
  if (c.init &&
      (isTainted(c, S[x.opB], 1) || (!x.nA && isTainted(c, S[x.opA], 1))))
    c.violation("init", I, 0, 0, "a wgmma descriptor is undefined");
  Tile a, b;
  AsyncOp op;
  if (c.checks & CheckRace)
    op = raceAgent(c, *c.block, AgentKind::Wgmma, uint64_t(c.warp->index),
                   c.warp->wgmmaSeq + 1, true);
  readA(c, I, x, a, op);
  readMatrix(c, I, descriptor(c.in<uint64_t>(S[x.opB])[0]), x.transB, 0, x.n,
             x.k, elemBits(x.b) / 8, b, op);
  std::vector<uint16_t> cols;
  if (x.sparse)
    denseColumns(c, I, 16, x.kA, elemBits(x.a), x.selector, x.ordered,
                 c.in<uint32_t>(S[x.opMeta]), cols);
  bool keep = c.pred(S[x.opScale]) & 1;
  std::vector<uint32_t> out(size_t(16 * x.n));
  auto product = isIntElem(x.a) ? integerProduct : floatProduct;
  product(c, I, x, a, b, x.sparse ? cols.data() : nullptr, keep, out.data());
  storeResult(c, I, x, a, b, keep, out.data());
  if (!c.stats->instr.empty())
    c.stats->instr[I.id].flops +=
        2ull * 16 * uint64_t(x.n) * uint64_t(x.bits ? 8 * x.k : x.k);
  inFlight(c, I, x);
  return Act::Next;
}

static bool parseShape(Decoder &D, WgmmaExt &x) {
  int mm;
  for (const std::string &t : D.in->mods)
    if (sscanf(t.c_str(), "m%dn%dk%d", &mm, &x.n, &x.k) == 3) {
      std::string s = t;
      D.take(s.c_str());
      return mm == 64 && x.n >= 8 && x.n <= 256 && x.n % 8 == 0;
    }
  return false;
}

/// The combinations that the ISA has; b1 becomes bytes.
static void checkTypes(Decoder &D, WgmmaExt &x, bool andPopc) {
  bool fp8A = x.a == Elem::E4M3 || x.a == Elem::E5M2;
  bool fp8B = x.b == Elem::E4M3 || x.b == Elem::E5M2;
  bool byteA = x.a == Elem::S8 || x.a == Elem::U8;
  bool byteB = x.b == Elem::S8 || x.b == Elem::U8;
  bool b1 = x.a == Elem::B1 && x.b == Elem::B1 && !x.sparse && andPopc;
  bool ints = (byteA && byteB) || b1;
  bool ok = x.a == Elem::F16    ? x.b == x.a
            : x.a == Elem::BF16 ? x.b == x.a && x.d != Elem::F16
            : x.a == Elem::TF32 ? x.b == x.a && x.d != Elem::F16
                                : (fp8A && fp8B) || ints;
  ok &= ints ? x.d == Elem::S32 : x.d == Elem::F32 || x.d == Elem::F16;
  ok &= !x.satfinite || byteA;
  // Integers have no odd multiples of 8 beyond 24.
  ok &= !ints || x.n <= 24 || x.n % 16 == 0;
  if (!ok || x.k != 256 / elemBits(x.a) * (x.sparse ? 2 : 1))
    D.error("'wgmma.mma_async' has no such shape for these types");
  if (!b1)
    return;
  x.bits = true;
  x.a = x.b = Elem::U8;
  x.k = 32;
}

static void decodeMmaAsync(Decoder &D, Instr &I) {
  WgmmaExt x;
  x.sparse = D.take("sp");
  x.ordered = false;
  D.take("sync");
  D.take("aligned");
  if (!parseShape(D, x))
    D.error("'wgmma.mma_async' needs a shape m64nNkK");
  std::vector<Elem> t;
  x.satfinite = D.take("satfinite");
  bool isAnd = D.take("and"), popc = D.take("popc");
  while (!D.peekMod().empty()) {
    std::string s = D.peekMod();
    if (elemOf(s) == Elem::None)
      D.error("unknown or unsupported modifier '." + s + "' of 'wgmma'");
    D.take(s.c_str());
    t.push_back(elemOf(s));
  }
  if (t.size() != 3)
    D.error("'wgmma.mma_async' needs three types");
  x.d = t[0];
  x.a = t[1];
  x.b = t[2];
  checkTypes(D, x, isAnd && popc);
  int bits = elemBits(x.a);
  x.kA = x.sparse ? x.k / 2 : x.k;
  x.nD = x.d == Elem::F16 ? x.n / 4 : x.n / 2;
  const Operand &d = D.op(0);
  if (d.kind != Operand::Vec || int(d.elems.size()) != x.nD)
    D.error("'wgmma.mma_async' expects " + std::to_string(x.nD) +
            " accumulator registers");
  std::vector<Opnd> ds, ss;
  for (const Operand &e : d.elems)
    ds.push_back(D.dst(e, 4));
  const Operand &a = D.op(1);
  x.nA = a.kind == Operand::Vec ? int(a.elems.size()) : 0;
  x.opA = 0;
  if (x.nA) {
    if (x.nA != 4)
      D.error("'wgmma.mma_async' expects 4 registers of A, got " +
              std::to_string(x.nA));
    for (const Operand &e : a.elems)
      ss.push_back(D.src(e, "b32"));
    x.sa = fragmentA(16, x.kA, bits);
  } else {
    ss.push_back(D.src(a, "b64"));
  }
  x.opB = int(ss.size());
  ss.push_back(D.src(D.op(2), "b64"));
  size_t i = 3;
  if (x.sparse) {
    x.opMeta = int(ss.size());
    ss.push_back(D.src(D.op(i++), "b32"));
    x.selector = int(D.literal(D.op(i++)));
    if (x.selector < 0 || x.selector >= sparseSelectors(x.kA, bits))
      D.error("the sparsity selector of this shape is 0 to " +
              std::to_string(sparseSelectors(x.kA, bits) - 1));
  }
  x.opScale = int(ss.size());
  ss.push_back(D.pred(D.op(i++)));
  bool floats = !isIntElem(x.a);
  if (floats) {
    x.scaleA = int(D.literal(D.op(i++)));
    x.scaleB = int(D.literal(D.op(i++)));
    if (std::abs(x.scaleA) != 1 || std::abs(x.scaleB) != 1)
      D.error("scales of 'wgmma' are 1 or -1");
  }
  if (bits == 16) {
    if (!x.nA)
      x.transA = D.literal(D.op(i++)) != 0;
    x.transB = D.literal(D.op(i++)) != 0;
  }
  if (i != D.count())
    D.error("wrong number of operands of 'wgmma.mma_async'");
  I.ext = D.extra(x);
  I.fn = execWgmma;
  I.cls = OpClass::Mma;
  D.finish(I, ds, ss);
}

static Act execFence(Ctx &c, const Instr &, uint32_t) {
  if (c.checks & CheckAsync)
    ++registers(c).fences;
  return Act::Next;
}
static Act execCommit(Ctx &c, const Instr &, uint32_t) {
  ++c.warp->wgmmaSeq;
  return Act::Next;
}
/// A group is complete when all four warps have issued their part of it: one
/// thread may then tell the producer that the operands are free.
static Act execWait(Ctx &c, const Instr &I, uint32_t) {
  uint32_t target = c.warp->wgmmaSeq - I.a;
  size_t first = size_t(c.warp->index) / 4 * 4;
  for (size_t w = first; w < first + 4 && w < c.block->warps.size(); ++w) {
    const Warp &o = *c.block->warps[w];
    if (!o.done() && int32_t(o.wgmmaSeq - target) < 0) {
      c.split->pc = uint32_t(&I - c.frame->code->instrs.data());
      c.split->state = SplitState::Poll;
      return Act::Wait;
    }
  }
  if ((c.checks & CheckRace) && int32_t(target) > 0)
    for (size_t w = first; w < first + 4 && w < c.block->warps.size(); ++w)
      raceAwait(c, *c.block, AgentKind::Wgmma, w, target);
  if (!c.warp->wgmma)
    return Act::Next;
  WgmmaState &g = *c.warp->wgmma;
  std::erase_if(g.pending, [&](const WgmmaState::Pending &p) {
    return int32_t(p.group - target) < 0;
  });
  g.refresh();
  return Act::Next;
}

void addWgmma(Table &t) {
  t.add("wgmma", [](Decoder &D, Instr &I) {
    I.shadow = nullptr;
    I.matters = true;
    I.aligned = true;
    I.wgmma = true;
    D.needSm(I, 90, true);
    D.program.asyncOps = true;
    if (D.take("mma_async"))
      return decodeMmaAsync(D, I);
    bool commit = D.take("commit_group"), wait = D.take("wait_group");
    if (!commit && !wait && !D.take("fence"))
      D.error("unknown form of 'wgmma'");
    D.take("sync");
    D.take("aligned");
    I.cls = OpClass::Mma; // may stand between in-flight registers
    I.fn = commit ? execCommit : wait ? execWait : execFence;
    if (wait)
      I.a = uint32_t(D.literal(D.op(0)));
    D.finish(I, {}, {});
  });
}

} // namespace kvcache::sim::KVSIM_TIER
