//===- ExecMatrix.cpp - ldmatrix, stmatrix, movmatrix ---------------------===//
//
// An 8x8 matrix of 16-bit elements: lane t holds row t/4, columns 2(t%4) and
// the next; transposed, column t/4, rows 2(t%4) and the next.
//
//===----------------------------------------------------------------------===//
#include "Access.h"
#include "MemOrder.h"

namespace kvcache::sim::KVSIM_TIER {

/// rows[32*16 bytes]: row r of matrix i at (8i + r)*16 -> register i.
static void distribute(const uint8_t *rows, int matrix, bool trans,
                       uint32_t *out) {
  for (int t = 0; t < 32; ++t) {
    uint16_t e[2];
    for (int j = 0; j < 2; ++j) {
      int r = trans ? 2 * (t % 4) + j : t / 4;
      int col = trans ? t / 4 : 2 * (t % 4) + j;
      std::memcpy(&e[j], rows + (8 * matrix + r) * 16 + col * 2, 2);
    }
    out[t] = e[0] | uint32_t(e[1]) << 16;
  }
}
static void collect(const uint32_t *in, int matrix, bool trans, uint8_t *rows) {
  for (int t = 0; t < 32; ++t)
    for (int j = 0; j < 2; ++j) {
      int r = trans ? 2 * (t % 4) + j : t / 4;
      int col = trans ? t / 4 : 2 * (t % 4) + j;
      uint16_t e = uint16_t(in[t] >> (16 * j));
      std::memcpy(rows + (8 * matrix + r) * 16 + col * 2, &e, 2);
    }
}

/// Addresses come from the first 8 * count lanes.
static uint32_t addressLanes(int count) {
  return count == 4 ? ~0u : (1u << (8 * count)) - 1;
}

static Act execLdmatrix(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  int count = I.vec;
  uint32_t lanes = addressLanes(count);
  const Opnd &base = I.o[count];
  alignas(64) uint64_t addr[32];
  checkAddressInit(c, I, base, lanes);
  checkWrapped(c, I, base, lanes);
  laneAddresses(c, base, I.imm, addr);
  if (c.checks & CheckAlign)
    checkAlign(c, I, lanes, addr, 16);
  alignas(64) uint8_t rows[512], undef[512] = {};
  forGroups(c, I, I.space, lanes, addr, 16, [&](const Group &g) {
    if (g.space != MemSpace::Shared)
      c.violation("bounds", I, std::countr_zero(g.mask),
                  addr[std::countr_zero(g.mask)],
                  "'ldmatrix' reads the block's shared memory only");
    KVSIM_EACH(g.mask) std::memcpy(rows + l * 16, g.host + g.off[l], 16);
    if (c.init && g.undef)
      KVSIM_EACH(g.mask) std::memcpy(undef + l * 16, g.undef + g.off[l], 16);
    if (c.checks & CheckAsync)
      checkPending(c, I, g, 16, false);
    if (c.checks & CheckRace)
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, 16, AccessKind::Read,
                 MemOrder());
    if (!c.stats->instr.empty())
      countAccess(c, I, g, 16);
  });
  for (int i = 0; i < count; ++i) {
    alignas(64) uint32_t out[32];
    distribute(rows, i, I.a, out);
    std::memcpy(c.reg<uint32_t>(I.o[i]), out, sizeof out);
    if (c.init) {
      distribute(undef, i, I.a, out);
      setShadow(c, I.o[i], ~0u, out);
    }
  }
  return Act::Next;
}

static Act execStmatrix(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  int count = I.vec;
  uint32_t lanes = addressLanes(count);
  const Opnd &base = I.o[0];
  alignas(64) uint64_t addr[32];
  checkAddressInit(c, I, base, lanes);
  checkWrapped(c, I, base, lanes);
  laneAddresses(c, base, I.imm, addr);
  if (c.checks & CheckAlign)
    checkAlign(c, I, lanes, addr, 16);
  alignas(64) uint8_t rows[512], undef[512];
  for (int i = 0; i < count; ++i) {
    collect(c.in<uint32_t>(I.o[1 + i]), i, I.a, rows);
    if (c.init)
      collect(shadowIn<uint32_t>(c, I.o[1 + i]), i, I.a, undef);
  }
  forGroups(c, I, I.space, lanes, addr, 16, [&](const Group &g) {
    if (g.space != MemSpace::Shared)
      c.violation("bounds", I, std::countr_zero(g.mask),
                  addr[std::countr_zero(g.mask)],
                  "'stmatrix' writes the block's shared memory only");
    if (c.checks & CheckAsync)
      checkPending(c, I, g, 16, true);
    if (c.checks & CheckRace)
      raceAccess(c, I, *g.region, g.owner, g.mask, g.off, 16, AccessKind::Write,
                 MemOrder(), rows);
    KVSIM_EACH(g.mask) std::memcpy(g.host + g.off[l], rows + l * 16, 16);
    if (c.init && g.undef)
      KVSIM_EACH(g.mask) std::memcpy(g.undef + g.off[l], undef + l * 16, 16);
    if (!c.stats->instr.empty())
      countAccess(c, I, g, 16);
  });
  return Act::Next;
}

static void decodeMatrix(Decoder &D, Instr &I) {
  bool load = D.in->op == "ldmatrix";
  D.take("sync");
  D.take("aligned");
  if (!D.take("m8n8"))
    D.error("'" + D.in->op + "' needs .m8n8");
  I.vec = D.take("x4") ? 4 : D.take("x2") ? 2 : 1;
  D.take("x1");
  I.a = D.take("trans");
  I.space = D.space();
  if (D.type() != "b16")
    D.error("'" + D.in->op + "' needs .b16");
  D.needOps(2, 2);
  I.shadow = nullptr;
  I.matters = true;
  I.aligned = true;
  I.cls = load ? OpClass::Load : OpClass::Store;
  I.elem = 16;
  const Operand &regs = D.op(load ? 0 : 1);
  std::vector<Opnd> list;
  auto add = [&](const Operand &e) {
    list.push_back(load ? D.dst(e, 4) : D.src(e, "b32"));
  };
  if (regs.kind == Operand::Vec) {
    if (regs.elems.size() != I.vec)
      D.error("expected " + std::to_string(I.vec) + " registers in braces");
    for (const Operand &e : regs.elems)
      add(e);
  } else {
    add(regs);
  }
  if (list.size() != I.vec)
    D.error("expected " + std::to_string(I.vec) + " registers in braces");
  int64_t offset;
  Opnd base = D.address(D.op(load ? 1 : 0), I.space, offset);
  I.imm = offset;
  if (load) {
    I.fn = execLdmatrix;
    D.finish(I, list, {base});
  } else {
    I.fn = execStmatrix;
    D.needSm(I, 90);
    list.insert(list.begin(), base);
    D.finish(I, {}, list);
  }
}

static void transpose(const uint32_t *in, uint32_t *out) {
  uint8_t rows[128];
  collect(in, 0, false, rows);
  distribute(rows, 0, true, out);
}

static Act execMovmatrix(Ctx &c, const Instr &I, uint32_t m) {
  if (!needWholeWarp(c, I, m))
    return Act::Wait;
  alignas(64) uint32_t out[32], sh[32];
  if (c.init) {
    transpose(shadowIn<uint32_t>(c, I.o[1]), sh);
    setShadow(c, I.o[0], ~0u, sh);
  }
  transpose(c.in<uint32_t>(I.o[1]), out);
  std::memcpy(c.reg<uint32_t>(I.o[0]), out, sizeof out);
  return Act::Next;
}

void addMatrix(Table &t) {
  t.add("ldmatrix", decodeMatrix);
  t.add("stmatrix", decodeMatrix);
  t.add("movmatrix", [](Decoder &D, Instr &I) {
    D.take("sync");
    D.take("aligned");
    D.take("m8n8");
    D.take("trans");
    D.type();
    D.needOps(2, 2);
    I.fn = execMovmatrix;
    I.shadow = nullptr;
    I.matters = true;
    I.aligned = true;
    I.cls = OpClass::WarpOp;
    D.finish(I, {D.dst(D.op(0), 4)}, {D.src(D.op(1), "b32")});
  });
}

} // namespace kvcache::sim::KVSIM_TIER
