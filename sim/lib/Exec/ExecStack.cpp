//===- ExecStack.cpp - alloca, stacksave, stackrestore --------------------===//
//
// The stack of a thread grows down from the end of its local memory; a frame
// remembers its pointer, so that returning gives the memory back.
//
//===----------------------------------------------------------------------===//
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

static uint64_t top(const Ctx &c, int lane) {
  uint32_t t = c.frame->stackTop[size_t(lane)];
  return t == ~0u ? uint64_t(c.grid->localBytes) : t;
}

static void store(Ctx &c, const Opnd &o, int lane, uint64_t v) {
  if (o.sz == 8)
    c.reg<uint64_t>(o)[lane] = v;
  else
    c.reg<uint32_t>(o)[lane] = uint32_t(v);
}

static uint64_t load(Ctx &c, const Opnd &o, int lane) {
  return o.sz == 8 ? c.in<uint64_t>(o)[lane] : c.in<uint32_t>(o)[lane];
}

/// imm: alignment.
static Act execAlloca(Ctx &c, const Instr &I, uint32_t m) {
  uint64_t low = c.frame->localBase + uint64_t(c.frame->code->localBytes);
  KVSIM_EACH(m) {
    uint64_t size = load(c, I.o[1], int(l)), t = top(c, int(l));
    uint64_t at = size <= t ? (t - size) & ~uint64_t(I.imm - 1) : 0;
    if (size > t || at < low)
      c.violation("bounds", I, int(l), t,
                  "the stack overflows: 'alloca' of " + std::to_string(size) +
                      " bytes");
    c.frame->stackTop[l] = uint32_t(at);
    store(c, I.o[0], int(l), at);
    if (c.init && c.warp->localRegion.undef)
      std::memset(c.warp->localRegion.undef + uint64_t(c.grid->localBytes) * l +
                      at,
                  0xff, size);
  }
  return Act::Next;
}

static Act execSave(Ctx &c, const Instr &I, uint32_t m) {
  KVSIM_EACH(m) store(c, I.o[0], int(l), top(c, int(l)));
  return Act::Next;
}

static Act execRestore(Ctx &c, const Instr &I, uint32_t m) {
  KVSIM_EACH(m) {
    uint64_t v = load(c, I.o[0], int(l));
    if (v < top(c, int(l)) || v > uint64_t(c.grid->localBytes))
      c.violation("bounds", I, int(l), v,
                  "'stackrestore' of a pointer that 'stacksave' did not give");
    c.frame->stackTop[l] = uint32_t(v);
  }
  return Act::Next;
}

static void decodeStack(Decoder &D, Instr &I) {
  const std::string &op = D.in->op;
  std::string t = D.type();
  if (t != "u32" && t != "u64")
    D.error("'" + op + "' needs .u32 or .u64");
  D.program.dynamicStack = true;
  I.matters = true;
  I.cls = OpClass::Other;
  if (op == "alloca") {
    D.needOps(2, 3);
    I.imm = D.count() == 3 ? D.literal(D.op(2)) : 8;
    if (I.imm < 1 || I.imm > 1 << 23 || (I.imm & (I.imm - 1)))
      D.error("the alignment of 'alloca' is a power of two up to 2^23");
    I.imm = I.imm < 8 ? 8 : I.imm;
    I.fn = execAlloca;
    D.finish(I, {D.dst(D.op(0), typeSize(t))}, {D.src(D.op(1), t)});
  } else if (op == "stacksave") {
    D.needOps(1, 1);
    I.fn = execSave;
    D.finish(I, {D.dst(D.op(0), typeSize(t))}, {});
  } else {
    D.needOps(1, 1);
    I.fn = execRestore;
    D.finish(I, {}, {D.src(D.op(0), t)});
  }
}

void addStack(Table &t) {
  t.add("alloca", decodeStack);
  t.add("stacksave", decodeStack);
  t.add("stackrestore", decodeStack);
}

} // namespace kvcache::sim::KVSIM_TIER
