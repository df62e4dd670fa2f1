//===- Race.cpp - Data races by happens-before ----------------------------===//
//
// Every warp has a vector clock over warps: its own entry grows at each
// release, others' entries say up to where their accesses happened before.
// Barriers join the clocks of their participants; a fence followed by a strong
// (relaxed, volatile, atomic) write publishes the clock on the location, a
// strong read followed by a fence takes it over; release and acquire do both at
// once; mbarriers and cluster barriers are objects with a clock. Scopes
// narrower than the distance between two threads order nothing.
//
// Lanes of one warp are ordered by bar.warp.sync and block barriers only, not
// by lockstep; lanes of one instruction never race with each other.
//
// Memory keeps, per 4-byte word, the last write and the last reads of two
// warps; words that were accessed in parts keep them per byte. So no race is
// reported that is none; a race with a third reader may go unseen.
//
//===----------------------------------------------------------------------===//
#include "Race.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>

namespace kvcache::sim {

namespace {
/// A sparse vector clock: per block, a counter per warp.
class Clock {
public:
  uint32_t get(int64_t block, int warp) const {
    for (const Entry &e : entries)
      if (e.block == block)
        return size_t(warp) < e.clocks.size() ? e.clocks[size_t(warp)] : 0;
    return 0;
  }
  uint32_t &at(int64_t block, int warp) {
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
  void join(const Clock &o) {
    for (const Entry &e : o.entries)
      for (size_t w = 0; w < e.clocks.size(); ++w)
        if (e.clocks[w]) {
          uint32_t &mine = at(e.block, int(w));
          if (e.clocks[w] > mine)
            mine = e.clocks[w];
        }
  }
  bool empty() const { return entries.empty(); }
  void clear() { entries.clear(); }

private:
  struct Entry {
    int64_t block;
    std::vector<uint32_t> clocks;
  };
  std::vector<Entry> entries;
};
} // namespace

struct WarpRace {
  Clock clock;
  std::shared_ptr<const Clock> fenced; ///< as of the last fence
  int fencedScope = 0;
  Clock seen; ///< of strong reads, taken over by the next fence
  uint32_t sync = 1, fullSync = 0;
  uint32_t acquiredSelf = 0;      ///< own clock as other lanes published it
  std::vector<uint32_t> pairSync; ///< [32][32], for partial masks
  uint64_t seq = 0;               ///< memory instructions
};
struct BlockRace {
  struct Barrier {
    Clock clock;
    struct Part {
      Warp *warp;
      uint32_t mask;
      bool waits;
    };
    std::vector<Part> parts;
  } barriers[16];
};

namespace {
struct Slot {
  int64_t block = -1;
  uint64_t seq = 0;
  uint32_t lanes = 0, clock = 0, sync = 0;
  int32_t line = 0;
  uint16_t warp = 0;
  bool strong = false;
  uint8_t scope = 0;
};
struct Cell {
  Slot write, read[2];
};
constexpr size_t kPageWords = 512;
struct Page {
  Cell cells[kPageWords];
  std::unordered_map<uint32_t, std::array<Cell, 4>> split;
};
/// What a release left on a location.
struct SyncVar {
  std::shared_ptr<const Clock> clock;
  int scope = 0;
  int64_t block = 0;
};
} // namespace

struct RaceShadow {
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
  std::unordered_map<uint64_t, std::vector<SyncVar>> sync;
};
struct GridRace {
  std::unordered_map<uint64_t, Clock> objects;
};

static WarpRace &state(Ctx &c) {
  if (!c.warp->race) {
    c.warp->race = std::make_shared<WarpRace>();
    c.warp->race->clock.at(c.block->linear, c.warp->index) = 1;
  }
  return *c.warp->race;
}

static uint32_t &ownClock(Ctx &c, WarpRace &w) {
  return w.clock.at(c.block->linear, c.warp->index);
}

/// Scopes reach from one block to another?
static bool scopeCovers(Ctx &c, int scope, int64_t otherBlock) {
  if (otherBlock == c.block->linear)
    return true;
  if (scope >= 2)
    return true;
  if (scope == 1)
    for (auto &b : c.block->cluster->blocks)
      if (b->linear == otherBlock)
        return true;
  return false;
}

/// Whether an earlier access happened before the current one of `lane`.
static bool ordered(Ctx &c, const WarpRace &w, const Slot &s, int lane) {
  if (s.block < 0)
    return true;
  if (s.block != c.block->linear || s.warp != c.warp->index)
    return s.clock <= w.clock.get(s.block, s.warp);
  if (s.seq == w.seq)
    return true; // lanes of one instruction
  if (c.checks & CheckRaceLockstep)
    return true;
  uint32_t others = s.lanes & ~(1u << lane);
  if (!others || s.sync <= w.fullSync || s.clock <= w.acquiredSelf)
    return true;
  if (w.pairSync.empty())
    return false;
  for (uint32_t m = others; m; m &= m - 1)
    if (s.sync > w.pairSync[size_t(std::countr_zero(m)) * 32 + size_t(lane)])
      return false;
  return true;
}

/// Two strong accesses of sufficient scope never race.
static bool bothStrong(Ctx &c, const Slot &s, const MemOrder &o) {
  return s.strong && o.strong && scopeCovers(c, s.scope, s.block) &&
         scopeCovers(c, o.scope, s.block);
}

static Slot makeSlot(Ctx &c, const Instr &I, WarpRace &w, int lane,
                     const MemOrder &o) {
  Slot s;
  s.block = c.block->linear;
  s.warp = uint16_t(c.warp->index);
  s.seq = w.seq;
  s.lanes = 1u << lane;
  s.clock = ownClock(c, w);
  s.sync = w.sync;
  s.line = I.line;
  s.strong = o.strong;
  s.scope = o.scope;
  return s;
}

static std::string otherParty(Ctx &c, const Slot &s, const char *what) {
  int lane = std::countr_zero(s.lanes);
  int64_t t = int64_t(s.warp) * 32 + lane;
  const Dim3 &b = c.grid->launch.block, &g = c.grid->launch.grid;
  auto triple = [](int64_t v, int64_t x, int64_t y) {
    return "(" + std::to_string(v % x) + "," + std::to_string(v / x % y) + "," +
           std::to_string(v / (x * y)) + ")";
  };
  return std::string(what) + " at line " + std::to_string(s.line) +
         " by block " + triple(s.block, g[0], g[1]) + " thread " +
         triple(t, b[0], b[1]);
}

namespace {
struct Access {
  Ctx &c;
  const Instr &I;
  WarpRace &w;
  const Region &region;
  AccessKind kind;
  const MemOrder &order;
};
} // namespace

[[noreturn]] static void report(const Access &a, int lane, uint64_t off,
                                const Slot &s, const char *what) {
  bool isRead = a.kind == AccessKind::Read;
  a.c.violation("race", a.I, lane, a.region.base + off,
                std::string(isRead ? "read" : "write") + " of " +
                    a.region.name + " at byte " + std::to_string(off) +
                    " is not ordered with the " + otherParty(a.c, s, what) +
                    (s.block == a.c.block->linear && s.warp == a.c.warp->index
                         ? ", a lane of the same warp without bar.warp.sync"
                         : ""));
}

static void updateReads(const Access &a, Cell &cell, int lane) {
  Slot now = makeSlot(a.c, a.I, a.w, lane, a.order);
  for (Slot &r : cell.read)
    if (r.block == now.block && r.warp == now.warp) {
      if (r.clock == now.clock && r.sync == now.sync)
        now.lanes |= r.lanes;
      r = now;
      return;
    }
  size_t k = cell.read[0].block < 0                  ? 0
             : cell.read[1].block < 0                ? 1
             : ordered(a.c, a.w, cell.read[0], lane) ? 0
                                                     : 1;
  cell.read[k] = now;
}

/// `same`: the write stores what is there already.
static void touch(const Access &a, Cell &cell, int lane, uint64_t off,
                  bool same) {
  if (!ordered(a.c, a.w, cell.write, lane) &&
      !bothStrong(a.c, cell.write, a.order)) {
    bool isWrite = a.kind == AccessKind::Write;
    bool sameWarp = cell.write.block == a.c.block->linear &&
                    cell.write.warp == a.c.warp->index;
    if (isWrite && same && !sameWarp && !(a.c.checks & CheckRaceStrict))
      a.c.grid->note("line " + std::to_string(a.I.line) +
                     ": equal values are written to " + a.region.name +
                     " by several warps without order");
    else if (!(isWrite && same && !(a.c.checks & CheckRaceStrict)))
      report(a, lane, off, cell.write, "write");
  }
  if (a.kind == AccessKind::Read) {
    updateReads(a, cell, lane);
    return;
  }
  if (!(same && a.kind == AccessKind::Write))
    for (const Slot &r : cell.read)
      if (!ordered(a.c, a.w, r, lane) && !bothStrong(a.c, r, a.order))
        report(a, lane, off, r, "read");
  cell.write = makeSlot(a.c, a.I, a.w, lane, a.order);
  cell.read[0] = cell.read[1] = Slot();
}

static void touchBytes(const Access &a, RaceShadow &sh, int lane, uint64_t off,
                       uint32_t bytes, const uint8_t *value) {
  const uint8_t *now = a.region.host + off;
  uint64_t end = off + bytes;
  while (off < end) {
    uint64_t word = off / 4;
    auto &page = sh.pages[word / kPageWords];
    if (!page)
      page = std::make_unique<Page>();
    auto index = uint32_t(word % kPageWords);
    bool whole = off % 4 == 0 && end - off >= 4;
    auto it = page->split.empty() ? page->split.end() : page->split.find(index);
    if (!whole && it == page->split.end()) {
      const Cell &cell = page->cells[index];
      it = page->split
               .emplace(index, std::array<Cell, 4>{cell, cell, cell, cell})
               .first;
    }
    uint32_t n =
        whole ? 4 : uint32_t(std::min<uint64_t>(4 - off % 4, end - off));
    bool same = value && std::memcmp(value, now, n) == 0;
    if (it == page->split.end())
      touch(a, page->cells[index], lane, off, same);
    else
      for (uint32_t i = 0; i < n; ++i)
        touch(a, it->second[off % 4 + i], lane, off + i, same);
    off += n;
    now += n;
    if (value)
      value += n;
  }
}

/// Strong accesses carry clocks from releases to acquires.
static void synchronise(Ctx &c, WarpRace &w, RaceShadow &sh, uint64_t off,
                        AccessKind kind, const MemOrder &o) {
  auto it = sh.sync.find(off);
  bool reads = kind == AccessKind::Read || kind == AccessKind::Atomic;
  if (reads && it != sh.sync.end())
    for (const SyncVar &v : it->second)
      if (scopeCovers(c, v.scope, v.block) &&
          scopeCovers(c, o.scope, v.block)) {
        if (o.acquire) {
          w.clock.join(*v.clock);
          w.acquiredSelf = std::max(
              w.acquiredSelf, v.clock->get(c.block->linear, c.warp->index));
        } else
          w.seen.join(*v.clock);
      }
  if (kind == AccessKind::Read)
    return;
  SyncVar v;
  v.block = c.block->linear;
  if (o.release) {
    v.clock = std::make_shared<Clock>(w.clock);
    v.scope = o.scope;
    ++ownClock(c, w);
  } else if (w.fenced) {
    v.clock = w.fenced;
    v.scope = std::min<int>(w.fencedScope, o.scope);
  }
  auto &list = it != sh.sync.end() ? it->second : sh.sync[off];
  if (kind == AccessKind::Write)
    list.clear(); // a plain strong write starts anew
  if (v.clock) {
    for (SyncVar &old : list) // one entry per block: the newer covers the older
      if (old.block == v.block && old.scope <= v.scope) {
        auto joined = std::make_shared<Clock>(*old.clock);
        joined->join(*v.clock);
        old.clock = joined;
        old.scope = v.scope;
        return;
      }
    list.push_back(v);
  }
}

void raceAccess(Ctx &c, const Instr &I, const Region &region, Block *owner,
                uint32_t mask, const uint64_t *off, uint32_t bytes,
                AccessKind kind, const MemOrder &order, const uint8_t *values) {
  if (!region.race) {
    if (region.name == "local memory" || region.readOnly || !region.host ||
        region.name.empty())
      return; // private to its thread, or never written
    region.race = std::make_shared<RaceShadow>();
  }
  WarpRace &w = state(c);
  ++w.seq;
  RaceShadow &sh = *region.race;
  AccessKind k = kind == AccessKind::Atomic ? AccessKind::Write : kind;
  Access a{
      c,    I, w, region, kind == AccessKind::Atomic ? AccessKind::Atomic : k,
      order};
  for (uint32_t m = mask; m; m &= m - 1) {
    int l = std::countr_zero(m);
    if (order.strong)
      synchronise(c, w, sh, off[l], kind, order);
    touchBytes(a, sh, l, off[l], bytes,
               values && kind == AccessKind::Write ? values + size_t(l) * bytes
                                                   : nullptr);
  }
}

void raceBarrierArrive(Ctx &c, int index, uint32_t mask, bool waits) {
  WarpRace &w = state(c);
  if (!c.block->race)
    c.block->race = std::make_shared<BlockRace>();
  BlockRace::Barrier &b = c.block->race->barriers[index];
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
  lanesSynced(state(c), mask, c.warp->live);
}

void raceFence(Ctx &c, const Instr &, uint32_t, int scope) {
  WarpRace &w = state(c);
  if (!w.seen.empty()) {
    w.clock.join(w.seen);
    w.acquiredSelf =
        std::max(w.acquiredSelf, w.seen.get(c.block->linear, c.warp->index));
    w.seen.clear();
  }
  w.fenced = std::make_shared<Clock>(w.clock);
  w.fencedScope = scope;
  ++ownClock(c, w);
}

static GridRace &objects(Ctx &c) {
  if (!c.grid->race)
    c.grid->race = std::make_shared<GridRace>();
  return *c.grid->race;
}

void raceRelease(Ctx &c, uint32_t, uint64_t key) {
  WarpRace &w = state(c);
  objects(c).objects[key].join(w.clock);
  ++ownClock(c, w);
}

void raceAcquire(Ctx &c, uint32_t, uint64_t key) {
  auto &o = objects(c).objects;
  auto it = o.find(key);
  if (it == o.end())
    return;
  WarpRace &w = state(c);
  w.clock.join(it->second);
  w.acquiredSelf =
      std::max(w.acquiredSelf, it->second.get(c.block->linear, c.warp->index));
}

} // namespace kvcache::sim
