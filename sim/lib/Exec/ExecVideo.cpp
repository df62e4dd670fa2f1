//===- ExecVideo.cpp - Scalar and SIMD video instructions -----------------===//
//
// All follow one scheme: parts of the sources are selected and extended, an
// operation gives a wide result, which is optionally clamped to the
// destination, then combined with operand c or merged into parts of it.
//
//===----------------------------------------------------------------------===//
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

namespace {
enum class VideoOp { Add, Sub, Avrg, AbsDiff, Min, Max, Shl, Shr, Mad, Set };
enum class Second { None, Add, Min, Max };
enum class Cmp { Eq, Ne, Lt, Le, Gt, Ge };

/// Bits [low, low + bits) of a register.
struct Part {
  int low = 0, bits = 32;
};

struct VideoExt {
  VideoOp op;
  Second second = Second::None;
  Cmp cmp = Cmp::Eq;
  bool dSigned = false, aSigned = false, bSigned = false;
  bool sat = false, wrap = false, plusOne = false;
  bool negProduct = false, negC = false;
  int shift = 0;        ///< of vmad
  bool merge = false;   ///< into parts of c
  Part a, b, d;         ///< scalar forms
  int lanes = 1;        ///< SIMD: 2 or 4
  int selA[4], selB[4]; ///< SIMD: which of the parts of {b, a}
  uint32_t mask = 0;    ///< SIMD: parts of d that are written
};
} // namespace

static int64_t select(uint64_t v, Part p, bool isSigned) {
  uint64_t x = v >> p.low & ((uint64_t(1) << p.bits) - 1);
  return isSigned ? int64_t(x << (64 - p.bits)) >> (64 - p.bits) : int64_t(x);
}

static bool compare(Cmp c, int64_t a, int64_t b) {
  switch (c) {
  case Cmp::Eq:
    return a == b;
  case Cmp::Ne:
    return a != b;
  case Cmp::Lt:
    return a < b;
  case Cmp::Le:
    return a <= b;
  case Cmp::Gt:
    return a > b;
  default:
    return a >= b;
  }
}

static int64_t operate(const VideoExt &x, int64_t a, int64_t b) {
  switch (x.op) {
  case VideoOp::Add:
    return a + b;
  case VideoOp::Sub:
    return a - b;
  case VideoOp::Avrg:
    return (a + b + (a + b >= 0 ? 1 : 0)) >> 1;
  case VideoOp::AbsDiff:
    return a > b ? a - b : b - a;
  case VideoOp::Min:
    return a < b ? a : b;
  case VideoOp::Max:
    return a > b ? a : b;
  case VideoOp::Set:
    return compare(x.cmp, a, b);
  default: {
    int64_t n = x.wrap ? b & 31 : b > 32 ? 32 : b;
    return x.op == VideoOp::Shl ? int64_t(uint64_t(a) << n) : a >> n;
  }
  }
}

static int64_t clamp(int64_t v, bool isSigned, int bits) {
  int64_t hi =
      isSigned ? (int64_t(1) << (bits - 1)) - 1 : (int64_t(1) << bits) - 1;
  int64_t lo = isSigned ? -hi - 1 : 0;
  return v > hi ? hi : v < lo ? lo : v;
}

static uint32_t multiplyAdd(const VideoExt &x, int64_t a, int64_t b,
                            uint32_t c) {
  bool isSigned = x.aSigned || x.bSigned || x.negProduct || x.negC;
  __int128 t = __int128(a) * b;
  __int128 addend = isSigned ? __int128(int32_t(c)) : __int128(c);
  if (x.negProduct)
    t = -t;
  if (x.negC)
    addend = -addend;
  t += addend + (x.plusOne ? 1 : 0);
  auto r = int64_t(t >> x.shift);
  return uint32_t(x.sat ? clamp(r, isSigned, 32) : r);
}

static uint32_t scalar(const VideoExt &x, uint32_t a, uint32_t b, uint32_t c) {
  int64_t p = select(a, x.a, x.aSigned), q = select(b, x.b, x.bSigned);
  if (x.op == VideoOp::Mad)
    return multiplyAdd(x, p, q, c);
  int64_t t = operate(x, p, q);
  if (x.sat)
    t = clamp(t, x.dSigned, x.merge ? x.d.bits : 32);
  if (x.merge) {
    uint32_t m = uint32_t(((uint64_t(1) << x.d.bits) - 1) << x.d.low);
    return (c & ~m) | (uint32_t(t) << x.d.low & m);
  }
  int64_t tt = x.dSigned ? int64_t(int32_t(t)) : int64_t(uint32_t(t));
  int64_t cc = x.dSigned ? int64_t(int32_t(c)) : int64_t(c);
  switch (x.second) {
  case Second::Add:
    return uint32_t(t) + c;
  case Second::Min:
    return uint32_t(tt < cc ? tt : cc);
  case Second::Max:
    return uint32_t(tt > cc ? tt : cc);
  default:
    return uint32_t(t);
  }
}

static uint32_t simd(const VideoExt &x, uint32_t a, uint32_t b, uint32_t c) {
  int bits = 32 / x.lanes;
  uint64_t both = uint64_t(b) << 32 | a;
  uint32_t field = bits == 16 ? 0xffffu : 0xffu, r = c;
  for (int i = 0; i < x.lanes; ++i) {
    if (!(x.mask >> i & 1))
      continue;
    int64_t t = operate(x, select(both, {x.selA[i] * bits, bits}, x.aSigned),
                        select(both, {x.selB[i] * bits, bits}, x.bSigned));
    if (x.sat)
      t = clamp(t, x.dSigned, bits);
    if (x.second == Second::Add)
      r += uint32_t(t);
    else
      r = (r & ~(field << (i * bits))) | (uint32_t(t) & field) << (i * bits);
  }
  return r;
}

static Act execVideo(Ctx &c, const Instr &I, uint32_t m) {
  const auto &x = *static_cast<const VideoExt *>(I.ext);
  uint32_t *d = c.reg<uint32_t>(I.o[0]);
  const uint32_t *a = c.in<uint32_t>(I.o[1]), *b = c.in<uint32_t>(I.o[2]),
                 *e = c.in<uint32_t>(I.o[3]);
  KVSIM_EACH(m)
  d[l] = x.lanes > 1 ? simd(x, a[l], b[l], e[l]) : scalar(x, a[l], b[l], e[l]);
  return Act::Next;
}

/// .b0 ... .b3, .h0, .h1; the whole register without one.
static Part scalarPart(Decoder &D, const std::string &s) {
  if (s.empty())
    return {};
  int i = s.size() == 2 ? s[1] - '0' : 9;
  if (s[0] == 'b' && i >= 0 && i < 4)
    return {8 * i, 8};
  if (s[0] == 'h' && i >= 0 && i < 2)
    return {16 * i, 16};
  D.error("unknown part '." + s + "', expected .b0 to .b3, .h0 or .h1");
}

/// .hxy or .bwxyz, the highest part first; 0 to 2 * lanes - 1 of {b, a}.
static void simdParts(Decoder &D, const std::string &s, int lanes, int first,
                      int *sel) {
  bool ok = s.empty() ||
            (int(s.size()) == lanes + 1 && s[0] == (lanes == 2 ? 'h' : 'b'));
  for (int i = 0; i < lanes && ok; ++i) {
    sel[i] = s.empty() ? first + i : s[size_t(lanes - i)] - '0';
    ok = sel[i] >= 0 && sel[i] < 2 * lanes;
  }
  if (!ok)
    D.error("unknown parts '." + s + "' of '" + D.in->op + "'");
}

static uint32_t simdMask(Decoder &D, const std::string &s, int lanes) {
  if (s.empty())
    return (1u << lanes) - 1;
  uint32_t m = 0;
  for (size_t i = 1; i < s.size(); ++i) {
    int n = s[i] - '0';
    if (n < 0 || n >= lanes)
      D.error("unknown mask '." + s + "' of '" + D.in->op + "'");
    m |= 1u << n;
  }
  return m;
}

static VideoOp operation(const std::string &name) {
  static const std::map<std::string, VideoOp> ops = {
      {"vadd", VideoOp::Add},   {"vsub", VideoOp::Sub},
      {"vavrg", VideoOp::Avrg}, {"vabsdiff", VideoOp::AbsDiff},
      {"vmin", VideoOp::Min},   {"vmax", VideoOp::Max},
      {"vshl", VideoOp::Shl},   {"vshr", VideoOp::Shr},
      {"vmad", VideoOp::Mad},   {"vset", VideoOp::Set}};
  return ops.at(name);
}

static void takeModifiers(Decoder &D, VideoExt &x) {
  static const char *const cmps[] = {"eq", "ne", "lt", "le", "gt", "ge"};
  if (x.op == VideoOp::Set) {
    bool any = false;
    for (int i = 0; i < 6 && !any; ++i)
      if (D.take(cmps[i])) {
        x.cmp = Cmp(i);
        any = true;
      }
    if (!any)
      D.error("'" + D.in->op + "' needs a comparison");
  } else {
    x.dSigned = D.type() == "s32";
  }
  x.aSigned = D.type() == "s32";
  x.bSigned = D.type() == "s32";
  x.sat = D.take("sat");
  if (x.op == VideoOp::Shl || x.op == VideoOp::Shr)
    x.wrap = D.oneOf({"clamp", "wrap"}) == "wrap";
  if (x.op == VideoOp::Mad) {
    x.plusOne = D.take("po");
    x.shift = D.take("shr7") ? 7 : D.take("shr15") ? 15 : 0;
    return;
  }
  x.second = D.take("add")   ? Second::Add
             : D.take("min") ? Second::Min
             : D.take("max") ? Second::Max
                             : Second::None;
}

static void decodeVideo(Decoder &D, Instr &I) {
  VideoExt x;
  std::string name = D.in->op;
  int last = name.back() - '0';
  if (last == 2 || last == 4) {
    x.lanes = last;
    name.pop_back();
  }
  x.op = operation(name);
  takeModifiers(D, x);
  D.needOps(3, 4);
  const std::string &pd = D.op(0).part, &pa = D.op(1).part, &pb = D.op(2).part;
  bool withC = D.count() == 4;
  if (x.lanes > 1) {
    simdParts(D, pa, x.lanes, 0, x.selA);
    simdParts(D, pb, x.lanes, x.lanes, x.selB);
    x.mask = simdMask(D, pd, x.lanes);
  } else {
    x.a = scalarPart(D, pa);
    x.b = scalarPart(D, pb);
    x.d = scalarPart(D, pd);
    x.merge = !pd.empty();
  }
  bool needC = x.lanes > 1 || x.merge || x.second != Second::None ||
               x.op == VideoOp::Mad;
  if (needC && !withC)
    D.error("'" + D.in->op + "' needs an operand c");
  if (x.op == VideoOp::Mad) {
    x.negProduct = D.op(1).minus != D.op(2).minus;
    x.negC = D.op(3).minus;
    if (x.negProduct && x.negC)
      D.error("'vmad' negates the product or c, not both");
  }
  I.ext = D.extra(x);
  I.fn = execVideo;
  I.cls = OpClass::Int;
  D.finish(I, {D.dst(D.op(0), 4)},
           {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"),
            withC ? D.src(D.op(3), "b32") : D.zero(4)});
}

void addVideo(Table &t) {
  for (const char *n :
       {"vadd",  "vsub",   "vabsdiff", "vmin",      "vmax",      "vshl",
        "vshr",  "vmad",   "vset",     "vadd2",     "vadd4",     "vsub2",
        "vsub4", "vavrg2", "vavrg4",   "vabsdiff2", "vabsdiff4", "vmin2",
        "vmin4", "vmax2",  "vmax4",    "vset2",     "vset4"})
    t.add(n, decodeVideo);
}

} // namespace kvcache::sim::KVSIM_TIER
