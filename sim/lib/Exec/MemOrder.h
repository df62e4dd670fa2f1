//===- MemOrder.h - Memory order modifiers, overflow marks ------*- C++ -*-===//
#ifndef KVCACHE_SIM_EXEC_MEMORDER_H
#define KVCACHE_SIM_EXEC_MEMORDER_H

#include "Access.h"

namespace kvcache::sim::KVSIM_TIER {

/// Packed into an instruction: 1 strong, 2 acquire, 4 release, scope << 4.
inline uint32_t takeMemOrder(Decoder &D, bool atomic = false) {
  uint32_t r = atomic ? 1 : 0;
  if (D.take("volatile") || D.take("relaxed"))
    r |= 1;
  if (D.take("mmio"))
    r |= 1;
  if (D.take("weak"))
    r |= 0;
  if (D.take("acquire"))
    r |= 3;
  if (D.take("release"))
    r |= 5;
  if (D.take("acq_rel"))
    r |= 7;
  uint32_t scope = D.take("cta")       ? 0
                   : D.take("cluster") ? 1
                   : D.take("sys")     ? 3
                   : D.take("gpu")     ? 2
                   : atomic            ? 2
                                       : 3;
  return r | scope << 4;
}

inline MemOrder memOrder(uint32_t packed) {
  MemOrder o;
  o.strong = packed & 1;
  o.acquire = packed & 2;
  o.release = packed & 4;
  o.scope = uint8_t(packed >> 4);
  return o;
}

/// The overflow check: see ExecOverflow.cpp.
void wrappedAddress(Ctx &c, const Instr &I, const Opnd &base, uint32_t mask);
inline void checkWrapped(Ctx &c, const Instr &I, const Opnd &base,
                         uint32_t mask) {
  if (c.checks & CheckOverflow)
    wrappedAddress(c, I, base, mask);
}

/// A strong load or atomic that a warp repeats gives others a turn.
inline Act polled(Ctx &c, const Instr &I, uint64_t address) {
  Warp &w = *c.warp;
  w.polls = w.pollsAt == &I || w.pollsBefore == &I ? w.polls + 1 : 0;
  if (w.pollsAt != &I) {
    w.pollsBefore = w.pollsAt;
    w.pollsAt = &I;
  }
  w.pollsAddress = address;
  return w.polls > 16 ? Act::Yield : Act::Next;
}

// ExecAsync.cpp.
void decodeStAsync(Decoder &D, Instr &I);
void decodeRedAsync(Decoder &D, Instr &I);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_MEMORDER_H
