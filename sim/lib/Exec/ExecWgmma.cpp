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

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct WgmmaExt {
  int n, k, kA;
  Elem a, b, d;
  int nD, nA; ///< nA 0: A by descriptor
  bool sparse = false, satfinite = false;
  int scaleA = 1, scaleB = 1;
  bool transA = false, transB = false;
  int selector = 0;
  std::vector<Slot> sa;
  // Operand indices among the sources.
  int opA, opB, opMeta = -1, opScale;
};

struct Matrix {
  uint64_t start, lbo, sbo;
  int swizzle; ///< width in bytes, 0 none
};
} // namespace

static Matrix descriptor(uint64_t d) {
  static const int widths[] = {0, 128, 64, 32};
  return {(d & 0x3fff) << 4, (d >> 16 & 0x3fff) << 4, (d >> 32 & 0x3fff) << 4,
          widths[d >> 62]};
}

/// The shared address of element (row, column k), `bytes` per element.
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
  return a ^ ((a >> 7 & mask) << 4);
}

/// Reads rows x cols elements; undefined ones mark their row.
static void readMatrix(Ctx &c, const Instr &I, const Matrix &m, bool mnMajor,
                       int row0, int rows, int cols, Elem e,
                       std::vector<uint32_t> &out,
                       std::vector<uint8_t> &undef) {
  int bytes = elemBits(e) / 8;
  Block &b = *c.block;
  out.resize(size_t(rows * cols));
  undef.assign(size_t(rows), 0);
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < cols; ++k) {
      uint64_t a = elementAddress(m, mnMajor, row0 + r, k, bytes);
      if (a + uint64_t(bytes) > b.shared.size)
        c.violation("bounds", I, 0, a,
                    "the wgmma descriptor reaches outside shared memory");
      uint32_t v = 0;
      std::memcpy(&v, b.shared.host + a, size_t(bytes));
      out[size_t(r * cols + k)] = v;
      if (b.shared.undef)
        for (int i = 0; i < bytes; ++i)
          undef[size_t(r)] |= b.shared.undef[a + uint64_t(i)];
      if (c.checks & (CheckAsync | CheckRace)) {
        Bytes x;
        x.region = &b.shared;
        x.owner = &b;
        x.offset = a;
        checkProxy(c, I, 0, x, uint64_t(bytes));
        if (!b.sharedPending.empty() && b.sharedPending[a])
          c.violation("async", I, 0, a,
                      "wgmma reads shared memory that an asynchronous copy "
                      "still writes");
        if (a % 4 == 0)
          bulkAccess(c, I, 0, x, 4, AccessKind::Read, nullptr);
      }
    }
}

static void inFlight(Ctx &c, const Instr &I, const WgmmaExt &x) {
  if (!(c.checks & CheckAsync))
    return;
  for (int i = 0; i < x.nD; ++i)
    c.warp->wgmmaPending.push_back({I.o[i].off, c.warp->wgmmaSeq});
}

static Act execWgmma(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  const auto &x = *static_cast<const WgmmaExt *>(I.ext);
  const Opnd *S = I.o + x.nD;
  int warp = c.warp->index % 4;
  std::vector<uint32_t> a, b;
  std::vector<uint8_t> undefA, undefB;
  uint64_t dB = c.in<uint64_t>(S[x.opB])[0];
  if (c.init &&
      (isTainted(c, S[x.opB], 1) || (!x.nA && isTainted(c, S[x.opA], 1))))
    c.violation("init", I, 0, 0, "a wgmma descriptor is undefined");
  if (x.nA) {
    a.resize(size_t(16 * x.kA));
    undefA.assign(16, 0);
    int bits = elemBits(x.a);
    for (int i = 0; i < 16 * x.kA; ++i) {
      const Slot &s = x.sa[size_t(i)];
      uint32_t mask = bits >= 32 ? ~0u : (1u << bits) - 1;
      a[size_t(i)] = c.in<uint32_t>(S[x.opA + s.reg])[s.lane] >> s.shift & mask;
      if (c.init &&
          (shadowIn<uint32_t>(c, S[x.opA + s.reg])[s.lane] >> s.shift & mask))
        undefA[size_t(i / x.kA)] = 1;
    }
  } else {
    readMatrix(c, I, descriptor(c.in<uint64_t>(S[x.opA])[0]), x.transA,
               warp * 16, 16, x.kA, x.a, a, undefA);
  }
  readMatrix(c, I, descriptor(dB), x.transB, 0, x.n, x.k, x.b, b, undefB);
  std::vector<uint16_t> cols;
  if (x.sparse)
    denseColumns(c, I, 16, x.kA, elemBits(x.a), x.selector,
                 c.in<uint32_t>(S[x.opMeta]), cols);
  bool keep = c.pred(S[x.opScale]) & 1;
  std::vector<Slot> sd = fragmentC(16, x.n, elemBits(x.d) == 16 ? 16 : 32);
  auto slot = [&](int r, int n) { // as m16n8 tiles side by side
    int j = n / 8, half = elemBits(x.d) == 16;
    int reg = half ? j * 2 + r / 8 : j * 4 + r / 8 * 2 + n % 2;
    return Slot{uint8_t(reg), uint8_t(r % 8 * 4 + n % 8 / 2),
                uint8_t(half ? n % 2 * 16 : 0)};
  };
  bool isInt = isIntElem(x.a);
  std::vector<float> fa(size_t(16 * x.k), 0.0f), fb(size_t(x.k * x.n)),
      acc(size_t(16 * x.n), 0.0f);
  std::vector<int64_t> iacc(isInt ? size_t(16 * x.n) : 0, 0);
  bool fl = c.grid->launch.flushSubnormals;
  for (int r = 0; r < 16; ++r)
    for (int i = 0; i < x.kA; ++i) {
      int k = x.sparse ? cols[size_t(r * x.kA + i)] : i;
      uint32_t v = a[size_t(r * x.kA + i)];
      fa[size_t(r * x.k + k)] = isInt
                                    ? float(decodeInt(x.a, v))
                                    : float(x.scaleA) * decodeElem(x.a, v, fl);
    }
  for (int n = 0; n < x.n; ++n)
    for (int k = 0; k < x.k; ++k) {
      uint32_t v = b[size_t(n * x.k + k)];
      fb[size_t(k * x.n + n)] = isInt
                                    ? float(decodeInt(x.b, v))
                                    : float(x.scaleB) * decodeElem(x.b, v, fl);
    }
  if (keep)
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < x.n; ++n) {
        Slot s = slot(r, n);
        uint32_t v = c.in<uint32_t>(I.o[s.reg])[s.lane] >> s.shift;
        if (isInt)
          iacc[size_t(r * x.n + n)] = int32_t(v);
        else
          acc[size_t(r * x.n + n)] =
              x.d == Elem::F16 ? f16ToF32(uint16_t(v)) : bitcast<float>(v);
      }
  if (isInt) {
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < x.n; ++n) {
        int64_t s = iacc[size_t(r * x.n + n)];
        for (int k = 0; k < x.k; ++k)
          s += int64_t(fa[size_t(r * x.k + k)]) *
               int64_t(fb[size_t(k * x.n + n)]);
        if (x.satfinite)
          s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        iacc[size_t(r * x.n + n)] = int32_t(s);
      }
  } else {
    productF32(accModel(c.grid->launch.mmaModel, x.a, true), fa.data(),
               fb.data(), acc.data(), 16, x.n, x.k);
  }
  std::vector<std::array<uint32_t, 32>> shadow(c.init ? size_t(x.nD) : 0);
  for (auto &s : shadow)
    s.fill(0);
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < x.n; ++n) {
      Slot s = slot(r, n);
      uint32_t width = x.d == Elem::F16 ? 0xffffu : ~0u;
      if (c.init) {
        uint32_t old =
            keep ? shadowIn<uint32_t>(c, I.o[s.reg])[s.lane] >> s.shift & width
                 : 0;
        if (old || undefA[size_t(r)] || undefB[size_t(n)])
          shadow[s.reg][s.lane] |= width << s.shift;
      }
      uint32_t &d = c.reg<uint32_t>(I.o[s.reg])[s.lane];
      if (isInt)
        d = uint32_t(iacc[size_t(r * x.n + n)]);
      else if (x.d == Elem::F16)
        d = (d & ~(0xffffu << s.shift)) |
            uint32_t(f32ToF16(acc[size_t(r * x.n + n)])) << s.shift;
      else
        d = bitcast<uint32_t>(acc[size_t(r * x.n + n)]);
    }
  if (c.init)
    for (int i = 0; i < x.nD; ++i)
      setShadow(c, I.o[i], ~0u, shadow[size_t(i)].data());
  if (!c.stats->instr.empty())
    c.stats->instr[I.id].flops += 2ull * 16 * uint64_t(x.n) * uint64_t(x.k);
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

static void decodeMmaAsync(Decoder &D, Instr &I) {
  WgmmaExt x;
  x.sparse = D.take("sp") || D.take("sp::ordered_metadata");
  D.take("sync");
  D.take("aligned");
  if (!parseShape(D, x))
    D.error("'wgmma.mma_async' needs a shape m64nNkK");
  std::vector<Elem> t;
  x.satfinite = D.take("satfinite");
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
  int bits = elemBits(x.a);
  if (bits < 8 || bits > 32 || elemBits(x.b) != bits ||
      x.k != 256 / bits * (x.sparse ? 2 : 1))
    D.error("'wgmma.mma_async' has no such shape for these types");
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
      D.error("'wgmma.mma_async' expects 4 registers of A");
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

static Act execNothing(Ctx &, const Instr &, uint32_t) { return Act::Next; }
/// The four warps of the warpgroup, as a synchronisation object.
static uint64_t groupKey(Ctx &c) {
  size_t first = size_t(c.warp->index) / 4 * 4;
  return uint64_t(reinterpret_cast<uintptr_t>(c.block->warps[first].get()));
}
static Act execCommit(Ctx &c, const Instr &, uint32_t m) {
  ++c.warp->wgmmaSeq;
  if (c.checks & CheckRace)
    raceRelease(c, m, groupKey(c));
  return Act::Next;
}
/// A group is complete when all four warps have issued their part of it: one
/// thread may then tell the producer that the operands are free.
static Act execWait(Ctx &c, const Instr &I, uint32_t m) {
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
  if (c.checks & CheckRace)
    raceAcquire(c, m, groupKey(c));
  auto &v = c.warp->wgmmaPending;
  size_t keep = 0;
  for (auto &p : v)
    if (int32_t(p.second - (c.warp->wgmmaSeq - I.a)) >= 0)
      v[keep++] = p;
  v.resize(keep);
  return Act::Next;
}

void addWgmma(Table &t) {
  t.add("wgmma", [](Decoder &D, Instr &I) {
    I.shadow = nullptr;
    I.matters = true;
    I.aligned = true;
    D.needSm(I, 90, true);
    D.program.asyncProxy = true;
    if (D.take("mma_async"))
      return decodeMmaAsync(D, I);
    bool commit = D.take("commit_group"), wait = D.take("wait_group");
    if (!commit && !wait && !D.take("fence"))
      D.error("unknown form of 'wgmma'");
    D.take("sync");
    D.take("aligned");
    I.cls = OpClass::Mma; // may stand between in-flight registers
    I.fn = commit ? execCommit : wait ? execWait : execNothing;
    if (wait)
      I.a = uint32_t(D.literal(D.op(0)));
    D.finish(I, {}, {});
  });
}

} // namespace kvcache::sim::KVSIM_TIER
