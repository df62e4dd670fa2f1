//===- ControlTaint.cpp - Branches on undefined predicates ----------------===//
#include "ControlTaint.h"
#include "../Exec/Decoder.h"
#include <algorithm>
#include <set>

namespace kvcache::sim {

/// Longer regions are not what a mask of a few values compiles to.
static constexpr size_t kMaxRegion = 4096;

static bool onlyWritesRegisters(const Instr &I) {
  switch (I.cls) {
  case OpClass::Int:
  case OpClass::Float:
  case OpClass::Double:
  case OpClass::Half:
  case OpClass::Convert:
  case OpClass::Move:
  case OpClass::Compare:
  case OpClass::Special:
    return !I.always;
  case OpClass::Load:
    return !I.aligned && !I.always;
  default:
    return I.branch;
  }
}

/// Follows both ways, always the one that is behind: when only one place is
/// left, the ways have met there. Backward branches (loops) are not followed.
static BranchRegion findRegion(const Code &code, uint32_t pc) {
  BranchRegion r;
  std::set<uint32_t> open{pc + 1, code.instrs[pc].target};
  if (*open.begin() <= pc)
    return r;
  std::set<int32_t> seen;
  for (size_t n = 0; n < kMaxRegion; ++n) {
    uint32_t at = *open.begin();
    open.erase(open.begin());
    if (open.empty()) {
      r.join = at;
      r.pure = true;
      return r;
    }
    if (at >= code.instrs.size())
      return r;
    const Instr &I = code.instrs[at];
    if (!onlyWritesRegisters(I))
      return r;
    for (int i = 0; i < I.nd; ++i)
      if (seen.insert(I.o[i].off).second)
        r.writes.push_back(I.o[i]);
    if (I.branch) {
      if (I.target <= at)
        return r;
      open.insert(I.target);
    }
    if (!I.branch || I.pred >= 0)
      open.insert(at + 1);
  }
  return r;
}

static const BranchRegion &regionOf(const Code &code, uint32_t pc) {
  std::lock_guard<std::mutex> lock(code.regions->mutex);
  auto &slot = code.regions->byPc[pc];
  if (!slot)
    slot = std::make_shared<BranchRegion>(findRegion(code, pc));
  return *slot;
}

bool deferBranch(Ctx &c, const Instr &branch, uint32_t lanes) {
  const Code &code = *c.frame->code;
  const BranchRegion &r =
      regionOf(code, uint32_t(&branch - code.instrs.data()));
  if (!r.pure)
    return false;
  c.warp->joins.push_back({c.frame, &r, &branch, lanes});
  return true;
}

void reachJoins(Ctx &c, uint32_t pc) {
  auto &joins = c.warp->joins;
  for (size_t i = joins.size(); i-- > 0;) {
    PendingJoin &j = joins[i];
    uint32_t here = j.lanes & c.split->mask;
    if (j.frame != c.frame || j.region->join != pc || !here)
      continue;
    Frame &f = *c.frame;
    f.origins.resize(size_t(f.code->frameBytes) / 64 + 1);
    for (const Opnd &o : j.region->writes) {
      setUndefined(c, o, here);
      f.origins[size_t(o.off >> 6)] = j.branch;
    }
    j.lanes &= ~here;
    if (!j.lanes)
      joins.erase(joins.begin() + std::ptrdiff_t(i));
  }
}

static const Instr *originAt(const Frame &f, int32_t off) {
  auto slot = size_t(off >> 6);
  return off >= 0 && f.flags[slot] && slot < f.origins.size() ? f.origins[slot]
                                                              : nullptr;
}

const Instr *originOf(const Ctx &c, const Instr &I) {
  if (!c.frame || c.frame->origins.empty())
    return nullptr;
  const Instr *from = originAt(*c.frame, I.pred);
  for (int i = 0; i < I.ns && !from; ++i)
    from = originAt(*c.frame, I.o[I.nd + i].off);
  return from;
}

void moveOrigins(Ctx &c, const Instr &I) {
  const Instr *from = originOf(c, I);
  for (int i = 0; i < I.nd; ++i)
    c.frame->origins[size_t(I.o[i].off >> 6)] = from;
}

} // namespace kvcache::sim
