//===- RaceSync.cpp - What orders accesses --------------------------------===//
//
// Barriers, fences, synchronisation objects and the agents of asynchronous
// operations move clocks between warps; Race.cpp compares them.
//
//===----------------------------------------------------------------------===//
#include "RaceState.h"
#include <algorithm>
#include <bit>

namespace kvcache::sim {

uint32_t &Clock::at(int64_t block, int warp) {
  Entry *found = nullptr;
  for (Entry &e : entries)
    if (e.block == block)
      found = &e;
  if (!found) {
    entries.push_back({block, {}});
    found = &entries.back();
  }
  if (found->clocks.size() <= size_t(warp))
    found->clocks.resize(size_t(warp) + 1, 0);
  return found->clocks[size_t(warp)];
}

void Clock::join(const Clock &o) {
  for (const Entry &e : o.entries)
    for (size_t w = 0; w < e.clocks.size(); ++w)
      if (e.clocks[w])
        raise(e.block, int(w), e.clocks[w]);
}

GridRace &raceGrid(Ctx &c) {
  if (!c.grid->race)
    c.grid->race = std::make_shared<GridRace>();
  return *c.grid->race;
}

WarpRace &raceState(Ctx &c) {
  if (!c.warp->race) {
    c.warp->race = std::make_shared<WarpRace>();
    c.warp->race->clock.at(c.block->linear, c.warp->index) = 1;
  }
  return *c.warp->race;
}

static BlockRace &blockRace(Block &b) {
  if (!b.race)
    b.race = std::make_shared<BlockRace>();
  return *b.race;
}

//===----------------------------------------------------------------------===//
// Barriers of a block and of a warp.
//===----------------------------------------------------------------------===//

void raceBarrierArrive(Ctx &c, int index, uint32_t mask, bool waits) {
  WarpRace &w = raceState(c);
  BlockRace::Barrier &b = blockRace(*c.block).barriers[index];
  // A strong read followed by a block barrier is how CUDA code takes over what
  // the last block's counter published: accepted as an acquire.
  w.clock.join(w.seen);
  w.seen.clear();
  b.clock.join(w.clock);
  ++ownClock(c, w);
  b.parts.push_back({c.warp, mask, waits});
}

static void lanesSynced(WarpRace &w, uint32_t mask, uint32_t all) {
  if (mask == all) {
    w.fullSync = w.sync++;
    return;
  }
  w.pairSync.resize(1024, 0);
  for (uint32_t m = mask; m; m &= m - 1)
    for (uint32_t n = mask; n; n &= n - 1)
      w.pairSync[size_t(std::countr_zero(m)) * 32 +
                 size_t(std::countr_zero(n))] = w.sync;
  ++w.sync;
}

void raceBarrierRelease(Ctx &c, int index) {
  if (!c.block->race)
    return;
  BlockRace::Barrier &b = c.block->race->barriers[index];
  for (const BlockRace::Barrier::Part &p : b.parts) {
    if (!p.waits || !p.warp->race)
      continue;
    WarpRace &w = *p.warp->race;
    w.clock.join(b.clock);
    lanesSynced(w, p.mask, p.warp->live);
  }
  b.clock.clear();
  b.parts.clear();
}

void raceWarpSync(Ctx &c, uint32_t mask) {
  lanesSynced(raceState(c), mask, c.warp->live);
}

//===----------------------------------------------------------------------===//
// Fences.
//===----------------------------------------------------------------------===//

/// The warp takes over a clock; what its own lanes published comes back too.
static void acquire(Ctx &c, WarpRace &w, const Clock &from) {
  w.clock.join(from);
  w.acquiredSelf =
      std::max(w.acquiredSelf, from.get(c.block->linear, c.warp->index));
}

void raceFence(Ctx &c, const Instr &, uint32_t, int scope) {
  WarpRace &w = raceState(c);
  if (!w.seen.empty()) {
    acquire(c, w, w.seen);
    w.seen.clear();
  }
  w.fenced = std::make_shared<Clock>(w.clock);
  w.fencedScope = scope;
  ++ownClock(c, w);
}

void raceProxyFence(Ctx &c) {
  WarpRace &w = raceState(c);
  if (w.proxyFences.empty())
    raceGrid(c).warps[c.block->linear * 32 + c.warp->index] = c.warp->race;
  w.proxyFences.push_back(ownClock(c, w));
  w.proxyCovers.join(w.clock);
  ++ownClock(c, w);
}

void raceTensormapFence(Ctx &c, uint64_t address) {
  raceGrid(c).tensormaps[address].join(raceState(c).clock);
}

//===----------------------------------------------------------------------===//
// Agents.
//===----------------------------------------------------------------------===//

static uint16_t agentIndex(Block &b, AgentKind kind, uint64_t which) {
  BlockRace &r = blockRace(b);
  auto [it, isNew] =
      r.agents.try_emplace({kind, which}, uint16_t(r.mbarrierOps.size()));
  if (isNew)
    r.mbarrierOps.push_back(0);
  return it->second;
}

AsyncOp raceAgent(Ctx &c, Block &owner, AgentKind kind, uint64_t which,
                  uint32_t serial, bool asyncProxy) {
  AsyncOp op;
  op.block = agentKey(owner);
  op.agent = agentIndex(owner, kind, which);
  op.serial = serial;
  op.id = ++raceState(c).seq;
  op.asyncProxy = asyncProxy;
  return op;
}

AsyncOp raceMbarrierOp(Ctx &c, Block &owner, uint64_t offset) {
  uint16_t agent = agentIndex(owner, AgentKind::Mbarrier, offset);
  uint32_t serial = ++blockRace(owner).mbarrierOps[agent];
  return raceAgent(c, owner, AgentKind::Mbarrier, offset, serial, true);
}

void raceAwait(Ctx &c, Block &owner, AgentKind kind, uint64_t which,
               uint32_t serial) {
  if (serial)
    raceState(c).clock.raise(agentKey(owner), agentIndex(owner, kind, which),
                             serial);
}

//===----------------------------------------------------------------------===//
// Objects with phases.
//===----------------------------------------------------------------------===//

/// `relaxed`: publishes only what an earlier fence covers.
void raceArrive(Ctx &c, uint64_t key, bool relaxed) {
  WarpRace &w = raceState(c);
  Clock &current = raceGrid(c).objects[key].current;
  if (!relaxed) {
    current.join(w.clock);
    ++ownClock(c, w);
  } else if (w.fenced && w.fencedScope >= 1) {
    current.join(*w.fenced);
  }
}

void raceArriveOp(Ctx &c, uint64_t key, const AsyncOp &op) {
  raceGrid(c).objects[key].current.raise(op.block, op.agent, op.serial);
}

void racePhase(Ctx &c, uint64_t key) {
  GridRace::Object &o = raceGrid(c).objects[key];
  o.done.join(o.current);
  o.current.clear();
}

void raceWait(Ctx &c, uint64_t key) {
  auto &objects = raceGrid(c).objects;
  auto it = objects.find(key);
  if (it != objects.end())
    acquire(c, raceState(c), it->second.done);
}

void raceForget(Ctx &c, uint64_t key) { raceGrid(c).objects.erase(key); }

} // namespace kvcache::sim
