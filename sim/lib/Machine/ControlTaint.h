//===- ControlTaint.h - Branches on undefined predicates --------*- C++ -*-===//
//
// Library kernels compute on rows that do not exist (a tile's tail) and mask
// the results: `if (m != -inf) d = 1 / d` with an undefined m is no fault when
// nothing but d depends on it. A branch whose two ways meet again without any
// effect (store, barrier, call, exit, loop) is therefore taken as a selection:
// what its ways write becomes undefined where they meet. If such a value
// matters later, the branch is what is reported.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_MACHINE_CONTROLTAINT_H
#define KVCACHE_SIM_MACHINE_CONTROLTAINT_H

#include "Machine.h"

namespace kvcache::sim {

/// What lies between a branch and the place where its ways meet.
struct BranchRegion {
  bool pure = false; ///< no effects but on registers, no loops
  uint32_t join = 0;
  std::vector<Opnd> writes;
};

/// A selection under way: `lanes` have yet to reach its end.
struct PendingJoin {
  Frame *frame;
  const BranchRegion *region;
  const Instr *branch;
  uint32_t lanes;
};

/// The branch's predicate is undefined in `lanes`. True if it may be taken as
/// a selection; the warp then remembers it.
bool deferBranch(Ctx &c, const Instr &branch, uint32_t lanes);
/// Before the instruction at `pc`, with selections under way.
void reachJoins(Ctx &c, uint32_t pc);
/// Destinations inherit the branch that made a source undefined.
void moveOrigins(Ctx &c, const Instr &I);
/// The branch that made an operand of `I` undefined, or null.
const Instr *originOf(const Ctx &c, const Instr &I);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_CONTROLTAINT_H
