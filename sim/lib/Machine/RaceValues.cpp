//===- RaceValues.cpp - Racing reads whose value goes nowhere -------------===//
#include "RaceValues.h"
#include <algorithm>
#include <unordered_map>

namespace kvcache::sim {

namespace {
/// The guarded stores that a loaded value can reach.
struct Uses {
  bool onlyStores = true;
  bool crossesLanes = false; ///< through a shuffle or vote
  std::vector<uint32_t> stores;
};
/// A race that waits for a use: `v` is reported when `lanes` store.
struct Waiting {
  const Uses *uses;
  uint32_t lanes;
  Violation v;
};
} // namespace

struct ReadValues {
  std::unordered_map<uint32_t, uint32_t> stored; ///< lanes, by Instr::id
  std::vector<Waiting> waiting;
};
struct ValueUses {
  std::unordered_map<uint32_t, Uses> byLoad;
};

/// The places after the instruction at `pc`; none where it has effects.
static std::vector<uint32_t> waysFrom(const Code &code, uint32_t pc) {
  const Instr &I = code.instrs[pc];
  bool pure =
      I.branch || (!I.always && !I.aligned &&
                   (I.cls <= OpClass::Compare || I.cls == OpClass::Load ||
                    I.cls == OpClass::Special));
  std::vector<uint32_t> ways;
  if (!pure)
    return ways;
  if (I.branch)
    ways.push_back(I.target);
  if (!I.branch || I.pred >= 0)
    ways.push_back(pc + 1);
  return ways;
}

/// What lies between `from` and `join`, in the order of the search; with `ends`
/// false when a way does not come to `join`.
static std::vector<uint32_t> between(const Code &code,
                                     std::vector<uint32_t> from, uint32_t join,
                                     bool &ends) {
  constexpr size_t kMaxRegion = 256;
  std::vector<uint32_t> found;
  ends = true;
  for (size_t i = 0; i < from.size(); ++i) {
    uint32_t pc = from[i];
    if (pc == join || std::find(found.begin(), found.end(), pc) != found.end())
      continue;
    if (pc >= code.instrs.size() || found.size() == kMaxRegion) {
      ends = false;
      break;
    }
    found.push_back(pc);
    std::vector<uint32_t> ways = waysFrom(code, pc);
    ends &= !ways.empty();
    from.insert(from.end(), ways.begin(), ways.end());
  }
  return found;
}

/// A branch on a marked value: what its ways write depends on it, if they meet
/// again without other effects.
static bool followBranch(const Code &code, const Instr &J,
                         std::vector<bool> &marked, Uses &uses) {
  auto pc = uint32_t(&J - code.instrs.data());
  std::vector<uint32_t> ways = waysFrom(code, pc);
  bool ends;
  for (uint32_t join : between(code, ways, ~0u, ends)) {
    std::vector<uint32_t> region = between(code, ways, join, ends);
    if (!ends)
      continue;
    bool changed = false;
    for (uint32_t at : region)
      for (int i = 0; i < code.instrs[at].nd; ++i) {
        size_t reg = size_t(code.instrs[at].o[i].off >> 6);
        changed |= !marked[reg];
        marked[reg] = true;
      }
    return changed;
  }
  uses.onlyStores = false;
  return false;
}

/// Marks what `J` makes of marked registers; whether anything new was marked.
static bool follow(const Code &code, const Instr &J, std::vector<bool> &marked,
                   Uses &uses) {
  bool guard = J.pred >= 0 && marked[size_t(J.pred >> 6)], used = guard;
  for (int i = J.nd; i < J.nd + J.ns; ++i) {
    if (J.o[i].off < 0 || !marked[size_t(J.o[i].off >> 6)])
      continue;
    used = true;
    if (J.cls == OpClass::Store && i == J.nd)
      uses.onlyStores = false; // an address
  }
  if (!used)
    return false;
  if (J.branch)
    return followBranch(code, J, marked, uses);
  if (J.cls == OpClass::Store) {
    uses.onlyStores &= J.pred >= 0 && !guard;
    for (uint32_t id : uses.stores)
      if (id == J.id)
        return false;
    uses.stores.push_back(J.id);
    return false;
  }
  uses.crossesLanes |= J.cls == OpClass::WarpOp;
  uses.onlyStores &= J.cls <= OpClass::Compare || J.cls == OpClass::Special ||
                     J.cls == OpClass::WarpOp;
  bool changed = false;
  for (int i = 0; i < J.nd; ++i) {
    size_t reg = size_t(J.o[i].off >> 6);
    changed |= !marked[reg];
    marked[reg] = true;
  }
  return changed;
}

static Uses findUses(const Code &code, const Instr &load) {
  Uses uses;
  std::vector<bool> marked(size_t(code.frameBytes / 64 + 1));
  for (int i = 0; i < load.nd; ++i)
    marked[size_t(load.o[i].off >> 6)] = true;
  bool changed = load.cls == OpClass::Load;
  uses.onlyStores = changed;
  while (changed && uses.onlyStores) {
    changed = false;
    for (const Instr &J : code.instrs)
      changed |= follow(code, J, marked, uses);
  }
  return uses;
}

/// The instruction of this number and its function.
static std::pair<const Code *, const Instr *> find(Ctx &c, uint32_t id) {
  for (auto &code : *c.grid->codes)
    for (const Instr &I : code->instrs)
      if (I.id == id)
        return {code.get(), &I};
  return {};
}

const Instr *raceInstr(Ctx &c, uint32_t id) { return find(c, id).second; }

static const Uses &usesOf(Ctx &c, uint32_t id) {
  if (!c.grid->valueUses)
    c.grid->valueUses = std::make_shared<ValueUses>();
  auto [it, isNew] = c.grid->valueUses->byLoad.try_emplace(id);
  if (isNew) {
    auto [code, load] = find(c, id);
    it->second.onlyStores = false;
    if (code == c.grid->entry) // a function may return the value
      it->second = findUses(*code, *load);
  }
  return it->second;
}

static ReadValues &valuesOf(Warp &w) {
  if (!w.readValues)
    w.readValues = std::make_shared<ReadValues>();
  return *w.readValues;
}

bool raceIsIdle(Ctx &c, Warp &reader, uint32_t id, uint32_t write,
                uint32_t lanes, const std::function<void()> &makeViolation) {
  const Uses &uses = usesOf(c, id);
  auto &stores = uses.stores;
  if (!uses.onlyStores ||
      std::find(stores.begin(), stores.end(), write) == stores.end())
    return false;
  if (uses.crossesLanes)
    lanes = ~0u;
  ReadValues &v = valuesOf(reader);
  for (uint32_t store : stores)
    if (auto it = v.stored.find(store);
        it != v.stored.end() && it->second & lanes)
      return false;
  Waiting *found = nullptr;
  for (Waiting &w : v.waiting)
    if (w.uses == &uses)
      found = &w;
  if (found) {
    found->lanes |= lanes;
    return true;
  }
  try {
    makeViolation();
  } catch (SimViolation &made) {
    v.waiting.push_back({&uses, lanes, made.v});
  }
  return true;
}

void raceStore(Ctx &c, const Instr &I, uint32_t m) {
  ReadValues &v = valuesOf(*c.warp);
  v.stored[I.id] |= m;
  for (const Waiting &w : v.waiting)
    for (uint32_t store : w.uses->stores)
      if (store == I.id && w.lanes & m) {
        SimViolation made;
        made.v = w.v;
        throw made;
      }
}

} // namespace kvcache::sim
