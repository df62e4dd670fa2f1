//===- ExecVideo.cpp - SIMD video instructions ----------------------------===//
//
// vadd2/4, vsub2/4, vavrg2/4, vabsdiff2/4, vmin2/4, vmax2/4 without lane masks
// and selectors.
//
//===----------------------------------------------------------------------===//
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

enum VideoOp : uint32_t { VAdd, VSub, VAvrg, VAbsDiff, VMin, VMax };

/// a: op | lanes << 4; b: dst signed 1, a signed 2, b signed 4, sat 8, add 16.
static Act execVideo(Ctx &c, const Instr &I, uint32_t m) {
  uint32_t *d = c.reg<uint32_t>(I.o[0]);
  const uint32_t *a = c.in<uint32_t>(I.o[1]), *b = c.in<uint32_t>(I.o[2]),
                 *e = c.in<uint32_t>(I.o[3]);
  int lanes = int(I.a >> 4), bits = 32 / lanes;
  auto part = [&](uint32_t v, int i, bool s) {
    uint32_t x = v >> (i * bits);
    int sh = 32 - bits;
    return s ? int32_t(x << sh) >> sh : int32_t(x << sh >> sh);
  };
  KVSIM_EACH(m) {
    uint32_t r = 0, sum = e[l];
    for (int i = 0; i < lanes; ++i) {
      int32_t x = part(a[l], i, I.b & 2), y = part(b[l], i, I.b & 4), v;
      switch (VideoOp(I.a & 15)) {
      case VAdd:
        v = x + y;
        break;
      case VSub:
        v = x - y;
        break;
      case VAvrg:
        v = (x + y + (x + y >= 0 ? 1 : 0)) >> 1;
        break;
      case VAbsDiff:
        v = x > y ? x - y : y - x;
        break;
      case VMin:
        v = x < y ? x : y;
        break;
      default:
        v = x > y ? x : y;
      }
      if (I.b & 8) {
        int32_t hi = I.b & 1 ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
        int32_t lo = I.b & 1 ? -(1 << (bits - 1)) : 0;
        v = v > hi ? hi : v < lo ? lo : v;
      }
      sum += uint32_t(v);
      r |= (uint32_t(v) & (bits == 16 ? 0xffffu : 0xffu)) << (i * bits);
    }
    d[l] = I.b & 16 ? sum : r;
  }
  return Act::Next;
}

static void decodeVideo(Decoder &D, Instr &I) {
  static const char *const names[] = {"vadd",     "vsub", "vavrg",
                                      "vabsdiff", "vmin", "vmax"};
  std::string op = D.in->op;
  uint32_t lanes = uint32_t(op.back() - '0');
  op.pop_back();
  for (uint32_t i = 0; i < 6; ++i)
    if (op == names[i])
      I.a = i | lanes << 4;
  std::string dt = D.type(), at = D.type(), bt = D.type();
  I.b = (dt == "s32" ? 1 : 0) | (at == "s32" ? 2 : 0) | (bt == "s32" ? 4 : 0) |
        (D.take("sat") ? 8 : 0) | (D.take("add") ? 16 : 0);
  D.needOps(4, 4);
  I.fn = execVideo;
  I.cls = OpClass::Int;
  D.finish(
      I, {D.dst(D.op(0), 4)},
      {D.src(D.op(1), "b32"), D.src(D.op(2), "b32"), D.src(D.op(3), "b32")});
}

void addVideo(Table &t) {
  for (const char *n :
       {"vadd2", "vadd4", "vsub2", "vsub4", "vavrg2", "vavrg4", "vabsdiff2",
        "vabsdiff4", "vmin2", "vmin4", "vmax2", "vmax4"})
    t.add(n, decodeVideo);
}

} // namespace kvcache::sim::KVSIM_TIER
