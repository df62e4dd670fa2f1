//===- RaceState.h - What the race check remembers --------------*- C++ -*-===//
#ifndef KVCACHE_SIM_MACHINE_RACESTATE_H
#define KVCACHE_SIM_MACHINE_RACESTATE_H

#include "Race.h"
#include <array>
#include <map>
#include <unordered_map>

namespace kvcache::sim {

/// A sparse vector clock: per block, a counter per warp. Agents of asynchronous
/// operations stand under the block's key, see agentKey.
class Clock {
public:
  uint32_t get(int64_t block, int warp) const {
    for (const Entry &e : entries)
      if (e.block == block)
        return size_t(warp) < e.clocks.size() ? e.clocks[size_t(warp)] : 0;
    return 0;
  }
  uint32_t &at(int64_t block, int warp);
  void raise(int64_t block, int warp, uint32_t to) {
    uint32_t &mine = at(block, warp);
    if (to > mine)
      mine = to;
  }
  void join(const Clock &o);
  bool empty() const { return entries.empty(); }
  void clear() { entries.clear(); }

private:
  struct Entry {
    int64_t block;
    std::vector<uint32_t> clocks;
  };
  std::vector<Entry> entries;
};

/// The key of a block's agents in clocks: never a block's own number.
inline int64_t agentKey(const Block &b) { return -2 - b.linear; }

struct WarpRace {
  Clock clock;
  std::shared_ptr<const Clock> fenced; ///< as of the last fence
  int fencedScope = 0;
  Clock seen; ///< of strong reads, taken over by the next fence
  uint32_t sync = 1, fullSync = 0;
  uint32_t acquiredSelf = 0;      ///< own clock as other lanes published it
  std::vector<uint32_t> pairSync; ///< [32][32], for partial masks
  uint64_t seq = 0;               ///< memory instructions
  /// fence.proxy.async: own clocks at each, and what the last one covers.
  std::vector<uint32_t> proxyFences;
  Clock proxyCovers;
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
  std::map<std::pair<AgentKind, uint64_t>, uint16_t> agents;
  std::vector<uint32_t> mbarrierOps; ///< by agent: operations so far
};

/// One access: who, when, how.
struct RaceSlot {
  int64_t block = -1; ///< of agents: their key
  uint64_t seq = 0;
  uint32_t lanes = 0, clock = 0, sync = 0;
  uint32_t id = 0;   ///< of the instruction
  uint16_t warp = 0; ///< or agent
  uint16_t issuer = 0;
  bool strong = false;
  bool asyncProxy = false;
  bool mixed = false; ///< reads of several instructions
  uint8_t scope = 0;

  bool isAgent() const { return block < -1; }
  int64_t ofBlock() const { return isAgent() ? -2 - block : block; }
};

/// Readers beyond the two that a cell holds. Words that were read by the same
/// instructions share their chain.
struct RaceReaders {
  RaceSlot slot;
  RaceReaders *older = nullptr;
  RaceReaders *child = nullptr; ///< the chain that was last built upon this
  uint32_t refs = 0, length = 1;
};

/// Counts references to a chain.
class ReaderChain {
public:
  ReaderChain() = default;
  ReaderChain(const ReaderChain &o) : top(o.top) { hold(top); }
  ReaderChain &operator=(const ReaderChain &o) {
    hold(o.top);
    drop(top);
    top = o.top;
    return *this;
  }
  ~ReaderChain() { drop(top); }
  void add(const RaceSlot &s);
  void clear() {
    drop(top);
    top = nullptr;
  }
  const RaceReaders *first() const { return top; }

private:
  static void hold(RaceReaders *r) {
    if (r)
      ++r->refs;
  }
  static void drop(RaceReaders *r);
  static RaceReaders *push(RaceReaders *onto, const RaceSlot &s);
  RaceReaders *top = nullptr;
};

struct RaceCell {
  RaceSlot write, read[2];
  ReaderChain more;
};
constexpr size_t kRacePageWords = 512;
struct RacePage {
  RaceCell cells[kRacePageWords];
  std::unordered_map<uint32_t, std::array<RaceCell, 4>> split;
};
/// What a release left on a location.
struct SyncVar {
  std::shared_ptr<const Clock> clock;
  int scope = 0;
  int64_t block = 0;
};

struct RaceShadow {
  std::unordered_map<uint64_t, std::unique_ptr<RacePage>> pages;
  std::unordered_map<uint64_t, std::vector<SyncVar>> sync;
};

struct GridRace {
  struct Object {
    Clock done, current;
  };
  std::unordered_map<uint64_t, Object> objects;
  /// Warps by block * 32 + index, also of blocks that ended.
  std::unordered_map<int64_t, std::shared_ptr<WarpRace>> warps;
  std::unordered_map<uint64_t, Clock> tensormaps; ///< acquired, by address
};

WarpRace &raceState(Ctx &c);
GridRace &raceGrid(Ctx &c);
inline uint32_t &ownClock(Ctx &c, WarpRace &w) {
  return w.clock.at(c.block->linear, c.warp->index);
}

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_RACESTATE_H
