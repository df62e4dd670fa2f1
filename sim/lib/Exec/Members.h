//===- Members.h - Member masks that differ between lanes -------*- C++ -*-===//
//
// `.sync` instructions take a member mask per lane. Groups of lanes with masks
// of their own (tiles of a warp) execute one after another: the first goes on
// in the current split, the others stay at the instruction in another.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_MEMBERS_H
#define KVCACHE_SIM_EXEC_MEMBERS_H

#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

class Members {
public:
  /// Narrows `m` to the lanes that share the first lane's mask.
  Members(Ctx &c, const Instr &I, const Opnd &o, uint32_t &m) : c(c), I(I) {
    if (c.init && isTainted(c, o, m))
      c.violation("init", I, std::countr_zero(m), 0,
                  "the member mask is undefined");
    const uint32_t *v = c.in<uint32_t>(o);
    mask = v[std::countr_zero(m)];
    uint32_t group = 0;
    for (int l = 0; l < 32; ++l)
      group |= uint32_t((m >> l & 1) && v[l] == mask) << l;
    if (group == m)
      return;
    forked = true;
    Split rest = *c.split;
    rest.mask = m & ~group;
    rest.pc = pc();
    rest.state = SplitState::Ready;
    rest.forced = rest.skipped = false;
    ++rest.frame->refs;
    c.split->mask &= ~rest.mask;
    c.warp->splits.push_back(rest);
    c.split = &c.warp->splits[c.warp->current];
    m = group;
  }
  /// What the executor returns at its end.
  Act next() const {
    if (!forked)
      return Act::Next;
    c.split->pc = pc() + 1;
    return Act::Jump;
  }
  uint32_t mask = 0;

private:
  uint32_t pc() const { return uint32_t(&I - c.frame->code->instrs.data()); }
  Ctx &c;
  const Instr &I;
  bool forked = false;
};

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_MEMBERS_H
