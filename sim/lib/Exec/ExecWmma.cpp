//===- ExecWmma.cpp - wmma.load, wmma.store, wmma.mma ---------------------===//
//
// The layout of a fragment is opaque in PTX. Here it is the one of sm_80 and
// sm_90, as their compilers address memory for it: the fragments of mma.sync,
// m16 or n8 tiles one after the other; m8n32k16 is computed transposed. A and B
// of f16 always have 8 registers, which repeat the fragment.
//
//===----------------------------------------------------------------------===//
#include "Bulk.h"
#include "Mma.h"
#include <algorithm>

namespace kvcache::sim::KVSIM_TIER {

namespace {
struct Shape {
  int m = 0, n = 0, k = 0;
};
struct WmmaExt {
  Shape s;
  char which = 'a'; ///< a b c d
  bool rowMajor = true;
  Elem e;
  int regs, period; ///< registers, and how many until they repeat
  std::vector<Slot> slots;
};
} // namespace

static void dims(const Shape &s, char which, int &rows, int &cols) {
  rows = which == 'b' ? s.k : s.m;
  cols = which == 'a' ? s.k : s.n;
}

static int registerCount(const std::vector<Slot> &slots) {
  int n = 0;
  for (const Slot &s : slots)
    n = std::max(n, s.reg + 1);
  return n;
}

/// Where element (row, column) of a matrix lies.
static std::vector<Slot> wmmaSlots(const Shape &s, char which, int bits) {
  // m8n32: the product of the transposed matrices.
  bool swap = s.m == 8 && s.n == 32;
  int m = swap ? s.n : s.m, n = swap ? s.m : s.n, tile = m >= 16 ? 16 : 8;
  bool isA = which == (swap ? 'b' : 'a'), isB = which == (swap ? 'a' : 'b');
  std::vector<Slot> one = isA   ? fragmentA(tile, s.k, bits)
                          : isB ? fragmentB(s.k, 8, bits)
                                : fragmentC(tile, 8, bits);
  int rows = isB ? s.k : m, cols = isA ? s.k : n, per = registerCount(one);
  int tileRows = isB ? s.k : tile, tileCols = isA ? s.k : 8;
  std::vector<Slot> out(size_t(rows * cols));
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c) {
      int t = r / tileRows * (cols / tileCols) + c / tileCols;
      Slot v = one[size_t(r % tileRows * tileCols + c % tileCols)];
      v.reg = uint8_t(v.reg + t * per);
      out[size_t(swap ? c * rows + r : r * cols + c)] = v;
    }
  return out;
}

/// Copies one element between memory and its register; `j` counts repetitions.
static void moveElement(Ctx &c, const WmmaExt &x, const Opnd *regs,
                        const Slot &s, int bits, const Bytes &b, int shift,
                        bool load, uint8_t *undef) {
  uint64_t bytes = uint64_t(bits < 8 ? 1 : bits / 8);
  if (!load) {
    const Opnd &o = regs[s.reg];
    std::memcpy(b.host, c.reg<uint8_t>(o) + s.lane * o.sz + s.shift / 8, bytes);
    return;
  }
  uint32_t mask = bits < 8 ? (1u << bits) - 1 : 0;
  for (int r = s.reg; r < x.regs; r += x.period) {
    const Opnd &o = regs[r];
    uint8_t *reg = c.reg<uint8_t>(o) + s.lane * o.sz;
    uint8_t *sh = undef + (r * 32 + s.lane) * 8;
    if (mask == 0) {
      std::memcpy(reg + s.shift / 8, b.host, bytes);
      if (b.undef)
        std::memcpy(sh + s.shift / 8, b.undef, bytes);
      continue;
    }
    uint32_t v;
    std::memcpy(&v, reg, 4);
    v = (v & ~(mask << s.shift)) | (uint32_t(*b.host >> shift) & mask)
                                       << s.shift;
    std::memcpy(reg, &v, 4);
    if (b.undef && (*b.undef >> shift & mask))
      sh[s.shift / 8] = uint8_t(sh[s.shift / 8] | mask << s.shift % 8);
  }
}

/// The init check of a stored element.
static void storeShadow(Ctx &c, const Instr &I, const Opnd &o, const Slot &s,
                        const Bytes &b, uint64_t bytes, uint64_t address) {
  const uint8_t *sh = shadowIn<uint8_t>(c, o) + s.lane * o.sz + s.shift / 8;
  for (uint64_t k = 0; k < bytes; ++k) {
    if (sh[k] && b.space == MemSpace::Global)
      c.violation("init", I, s.lane, address,
                  "an undefined value is stored to global memory");
    if (b.undef)
      b.undef[k] = sh[k];
  }
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
  int rows, cols, bits = elemBits(x.e), lane0 = std::countr_zero(m);
  dims(x.s, x.which, rows, cols);
  int64_t ld = c.in<int32_t>(stride)[lane0];
  uint64_t bytes = uint64_t(bits < 8 ? 1 : bits / 8);
  std::vector<uint8_t> shadow(size_t(x.regs) * 256, 0);
  for (int i = 0; i < rows * cols; ++i) {
    int row = i / cols, col = i % cols;
    const Slot &s = x.slots[size_t(i)];
    int64_t at = (x.rowMajor ? row * ld + col : col * ld + row) * bits;
    uint64_t a = addr[lane0] + uint64_t(at >> 3);
    Bytes b = resolveBytes(c, I, s.lane, I.space, a, bytes);
    const Opnd &o = regs[s.reg];
    bulkAccess(
        c, I, s.lane, b, bytes, load ? AccessKind::Read : AccessKind::Write,
        load ? nullptr : c.reg<uint8_t>(o) + s.lane * o.sz + s.shift / 8);
    if (!load && c.init)
      storeShadow(c, I, o, s, b, bytes, a);
    moveElement(c, x, regs, s, bits, b, int(at & 7), load, shadow.data());
  }
  for (int r = 0; load && c.init && r < x.regs; ++r) {
    uint8_t sh[256];
    int sz = regs[r].sz;
    for (int l = 0; l < 32; ++l)
      std::memcpy(sh + l * sz, &shadow[size_t(r * 32 + l) * 8], size_t(sz));
    setShadow(c, regs[r], ~0u, sh);
  }
  return Act::Next;
}

/// Whether the ISA has this shape for elements of A (or B).
static bool shapeExists(const Shape &s, Elem e) {
  auto is = [&](int m, int n, int k) {
    return s.m == m && s.n == n && s.k == k;
  };
  switch (e) {
  case Elem::F16:
  case Elem::BF16:
  case Elem::S8:
  case Elem::U8:
    return is(16, 16, 16) || is(32, 8, 16) || is(8, 32, 16);
  case Elem::TF32:
    return is(16, 16, 8);
  case Elem::F64:
    return is(8, 8, 4);
  case Elem::S4:
  case Elem::U4:
    return is(8, 8, 32);
  case Elem::B1:
    return is(8, 8, 128);
  default:
    return false;
  }
}

/// The same for accumulators.
static bool accumulatorExists(const Shape &s, Elem e) {
  bool k16 = shapeExists(s, Elem::F16);
  return e == Elem::F16   ? k16
         : e == Elem::F32 ? k16 || shapeExists(s, Elem::TF32)
         : e == Elem::F64
             ? shapeExists(s, Elem::F64)
             : e == Elem::S32 && (k16 || shapeExists(s, Elem::S4) ||
                                  shapeExists(s, Elem::B1));
}

static Shape takeShape(Decoder &D) {
  Shape s;
  for (const std::string &t : D.in->mods)
    if (sscanf(t.c_str(), "m%dn%dk%d", &s.m, &s.n, &s.k) == 3) {
      std::string text = t;
      D.take(text.c_str());
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

/// Checks the registers of a fragment; returns after how many they repeat.
static int checkSize(Decoder &D, char which, Elem e, size_t regs,
                     const std::vector<Slot> &slots) {
  int period = registerCount(slots);
  bool eight = e == Elem::F16 && (which == 'a' || which == 'b');
  int want = eight ? 8 : period;
  if (int(regs) != want)
    D.error("expected " + std::to_string(want) +
            " registers for this fragment, got " + std::to_string(regs));
  return period;
}

static Elem takeElem(Decoder &D) {
  std::string t = D.peekMod();
  Elem e = elemOf(t);
  if (e == Elem::None)
    D.error("unknown or unsupported modifier '." + t + "' of 'wmma'");
  D.take(t.c_str());
  return e;
}

static void needChip(Decoder &D, Instr &I, Elem e) {
  bool since80 = e == Elem::BF16 || e == Elem::TF32 || e == Elem::F64;
  bool since75 = e == Elem::S4 || e == Elem::U4 || e == Elem::B1;
  bool since72 = e == Elem::S8 || e == Elem::U8 || e == Elem::S32;
  D.needSm(I, since80 ? 80 : since75 ? 75 : since72 ? 72 : 70);
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
  bool input = x.which == 'a' || x.which == 'b';
  if (!(input ? shapeExists(x.s, x.e) : accumulatorExists(x.s, x.e)) ||
      load == (x.which == 'd') || (input && !load))
    D.error("'wmma' has no such matrix for this shape and type");
  needChip(D, I, x.e);
  int rows, cols;
  dims(x.s, x.which, rows, cols);
  x.slots = wmmaSlots(x.s, x.which, elemBits(x.e));
  std::vector<Opnd> regs = registers(D, D.op(load ? 0 : 1), x.e, load);
  x.period = checkSize(D, x.which, x.e, regs.size(), x.slots);
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

/// The types of d, a, b and c; two are those of f16 inputs.
static void takeTypes(Decoder &D, MmaExt &x) {
  std::vector<Elem> types;
  while (!D.peekMod().empty() && D.peekMod() != "satfinite")
    types.push_back(takeElem(D));
  x.satfinite |= D.take("satfinite");
  if (types.size() == 2)
    types = {types[0], Elem::F16, Elem::F16, types[1]};
  if (types.size() != 4)
    D.error("'wmma.mma' needs two or four types");
  x.d = types[0];
  x.a = types[1];
  x.b = types[2];
  x.c = types[3];
  Shape s{x.m, x.n, x.k};
  bool f16 = x.a == Elem::F16, ints = isIntElem(x.a);
  Elem acc = ints ? Elem::S32 : x.a == Elem::F64 ? Elem::F64 : Elem::F32;
  auto okAcc = [&](Elem e) { return e == acc || (f16 && e == Elem::F16); };
  if (x.a != x.b || !shapeExists(s, x.a) || !okAcc(x.c) || !okAcc(x.d))
    D.error("'wmma.mma' does not accept these types together");
}

static void decodeMma(Decoder &D, Instr &I) {
  MmaExt x;
  D.take("xor");
  x.andPopc = D.take("and");
  D.take("popc");
  D.take("sync");
  D.take("aligned");
  // Layouts are a matter of loading only.
  for (int i = 0; i < 2; ++i)
    if (!D.take("row") && !D.take("col"))
      D.error("'wmma.mma' needs two layouts");
  Shape s = takeShape(D);
  x.m = s.m;
  x.n = s.n;
  x.k = x.kA = s.k;
  if (!D.take("rn") && !D.take("rz") && !D.take("rm"))
    D.take("rp");
  x.satfinite = D.take("satfinite");
  takeTypes(D, x);
  needChip(D, I, x.a);
  if (x.andPopc)
    D.needSm(I, 80);
  D.needOps(4, 4);
  std::vector<Opnd> d = registers(D, D.op(0), x.d, true), ss;
  auto add = [&](char which, size_t op, Elem e, std::vector<Slot> &slots) {
    slots = wmmaSlots(s, which, elemBits(e));
    std::vector<Opnd> r = registers(D, D.op(op), e, false);
    checkSize(D, which, e, r.size(), slots);
    ss.insert(ss.end(), r.begin(), r.end());
    return int(r.size());
  };
  x.nD = int(d.size());
  x.sd = wmmaSlots(s, 'd', elemBits(x.d));
  checkSize(D, 'd', x.d, d.size(), x.sd);
  x.nA = add('a', 1, x.a, x.sa);
  x.nB = add('b', 2, x.b, x.sb);
  x.nC = add('c', 3, x.c, x.sc);
  finishMma(D, I, std::move(x), d, ss);
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
