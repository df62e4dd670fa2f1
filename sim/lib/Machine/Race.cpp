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
// What asynchronous operations read and write counts as accesses of agents, one
// per warp or mbarrier, whose clock only waiting raises: a barrier reached
// before the wait does not order them, whatever order this run happened to
// take.
//
// Memory keeps, per 4-byte word, the last write and all reads since that are
// not ordered before a later one: two in place, more in a chain that words
// share; words that were accessed in parts keep them per byte.
//
//===----------------------------------------------------------------------===//
#include "RaceState.h"
#include "RaceValues.h"
#include <algorithm>
#include <bit>
#include <cstring>

namespace kvcache::sim {

using Slot = RaceSlot;
using Cell = RaceCell;

//===----------------------------------------------------------------------===//
// Chains of readers.
//===----------------------------------------------------------------------===//

/// A chain this long is searched for the same reader's earlier entries.
static constexpr uint32_t kCompactLength = 64;

/// Where chains of one reader are found again, as a node's child is. The race
/// check has one worker, so this needs no lock.
static RaceReaders *&rootOf(const Slot &s) {
  static thread_local RaceReaders *roots[256] = {};
  return roots[(s.id * 33 + s.warp) % 256];
}

void ReaderChain::drop(RaceReaders *r) {
  while (r && --r->refs == 0) {
    RaceReaders *older = r->older;
    if (!older && rootOf(r->slot) == r)
      rootOf(r->slot) = nullptr;
    if (older && older->child == r)
      older->child = nullptr;
    delete r;
    r = older;
  }
}

static bool sameReader(const Slot &a, const Slot &b) {
  return a.block == b.block && a.warp == b.warp;
}

RaceReaders *ReaderChain::push(RaceReaders *onto, const Slot &s) {
  RaceReaders *&known = onto ? onto->child : rootOf(s);
  if (known && sameReader(known->slot, s) && known->slot.clock == s.clock &&
      known->slot.sync == s.sync && known->slot.id == s.id)
    return known;
  auto *r = new RaceReaders;
  r->slot = s;
  r->older = onto;
  known = r;
  if (onto) {
    r->length = onto->length + 1;
    ++onto->refs;
  }
  return r;
}

void ReaderChain::add(const Slot &s) {
  for (const RaceReaders *r = top; r && r->length + 4 > top->length;
       r = r->older)
    if (sameReader(r->slot, s) && r->slot.clock == s.clock &&
        r->slot.sync == s.sync)
      return;
  RaceReaders *made = push(top, s);
  hold(made);
  drop(top);
  top = made;
  if (top->length % kCompactLength)
    return;
  // Of each reader the latest entry says all.
  std::vector<const Slot *> kept;
  for (const RaceReaders *r = top; r; r = r->older)
    if (std::none_of(kept.begin(), kept.end(),
                     [&](const Slot *k) { return sameReader(*k, r->slot); }))
      kept.push_back(&r->slot);
  if (kept.size() * 2 > top->length)
    return;
  RaceReaders *compact = nullptr;
  for (size_t i = kept.size(); i-- > 0;)
    compact = push(compact, *kept[i]);
  hold(compact);
  drop(top);
  top = compact;
}

//===----------------------------------------------------------------------===//
// Accesses.
//===----------------------------------------------------------------------===//

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

namespace {
struct Access {
  Ctx &c;
  const Instr &I;
  WarpRace &w;
  const Region &region;
  AccessKind kind;
  const MemOrder &order;
  const AsyncOp *op;
};
} // namespace

/// Whether an earlier access happened before the current one of `lane`.
static bool ordered(const Access &a, const Slot &s, int lane) {
  const Ctx &c = a.c;
  const WarpRace &w = a.w;
  if (s.block == -1)
    return true;
  if (s.isAgent())
    return (a.op && a.op->id == s.seq && a.op->agent == s.warp &&
            a.op->block == s.block) ||
           s.clock <= w.clock.get(s.block, s.warp);
  if (s.block != c.block->linear || s.warp != c.warp->index)
    return s.clock <= w.clock.get(s.block, s.warp);
  if (s.seq == w.seq && !a.op)
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

static Slot makeSlot(const Access &a, int lane) {
  Ctx &c = a.c;
  WarpRace &w = a.w;
  const MemOrder &o = a.order;
  Slot s;
  s.block = c.block->linear;
  s.warp = uint16_t(c.warp->index);
  s.seq = w.seq;
  s.lanes = 1u << lane;
  s.clock = ownClock(c, w);
  s.sync = w.sync;
  s.id = a.I.id;
  s.issuer = s.warp;
  s.strong = o.strong;
  s.scope = o.scope;
  if (a.op) {
    s.block = a.op->block;
    s.warp = a.op->agent;
    s.seq = a.op->id;
    s.clock = a.op->serial;
    s.asyncProxy = a.op->asyncProxy;
  }
  return s;
}

static std::string otherParty(Ctx &c, const Slot &s, const char *what) {
  int lane = std::countr_zero(s.lanes);
  int64_t t = int64_t(s.issuer) * 32 + lane;
  const Dim3 &b = c.grid->launch.block, &g = c.grid->launch.grid;
  auto triple = [](int64_t v, int64_t x, int64_t y) {
    return "(" + std::to_string(v % x) + "," + std::to_string(v / x % y) + "," +
           std::to_string(v / (x * y)) + ")";
  };
  const Instr *at = raceInstr(c, s.id);
  return std::string(what) + " at line " + std::to_string(at ? at->line : 0) +
         " by block " + triple(s.ofBlock(), g[0], g[1]) + " thread " +
         triple(t, b[0], b[1]);
}

/// Kind "async" where the earlier access belongs to an operation in flight.
static void report(const Access &a, int lane, uint64_t off, const Slot &s,
                   const char *what) {
  bool isRead = a.kind == AccessKind::Read;
  bool async = s.isAgent() && (a.c.checks & CheckAsync);
  if (!async && !a.c.grid->reportRaces)
    return;
  std::string text =
      std::string(a.op ? "asynchronous " : "") + (isRead ? "read" : "write") +
      " of " + a.region.name + " at byte " + std::to_string(off) +
      " is not ordered with the " + (s.isAgent() ? "asynchronous " : "") +
      otherParty(a.c, s, what);
  if (s.isAgent())
    text += ", whose completion was not waited for";
  else if (!a.op && s.block == a.c.block->linear && s.warp == a.c.warp->index)
    text += ", a lane of the same warp without bar.warp.sync";
  a.c.violation(async ? "async" : "race", a.I, lane, a.region.base + off, text);
}

/// A read and a write race, one of them just made: reported now, or when the
/// value that was read is used (RaceValues.h).
static void reportRead(const Access &a, int lane, uint64_t off, const Slot &s,
                       const char *what) {
  bool now = a.kind == AccessKind::Read;
  bool near = !a.op && !s.isAgent() && s.block == a.c.block->linear;
  uint32_t lanes = now ? 1u << lane : s.lanes;
  if (!now && s.warp == a.c.warp->index)
    lanes &= ~(1u << lane);
  auto make = [&] { report(a, lane, off, s, what); };
  if (!near || s.mixed ||
      !raceIsIdle(a.c, now ? *a.c.warp : *a.c.block->warps[s.warp],
                  now ? a.I.id : s.id, now ? s.id : a.I.id, lanes, make))
    make();
}

/// Ordinary stores reach the async proxy through a proxy fence, of the writer
/// or of somebody after it, that happened before.
static bool proxyFenced(const Access &a, const Slot &s) {
  if (s.clock <= a.w.proxyCovers.get(s.block, s.warp))
    return true;
  auto &warps = raceGrid(a.c).warps;
  auto seen = [&](int64_t key, const WarpRace &x, uint32_t from) {
    auto f = std::lower_bound(x.proxyFences.begin(), x.proxyFences.end(), from);
    if (f == x.proxyFences.end())
      return false;
    bool own = &x == &a.w;
    return own || *f <= a.w.clock.get(key / 32, int(key % 32));
  };
  auto it = warps.find(s.block * 32 + s.warp);
  if (it != warps.end() && seen(it->first, *it->second, s.clock))
    return true;
  for (auto &[key, x] : warps)
    if (s.clock <= x->proxyCovers.get(s.block, s.warp) &&
        seen(key, *x, x->proxyFences.back()))
      return true;
  return false;
}

static void checkProxy(const Access &a, const Cell &cell, int lane,
                       uint64_t off) {
  const Slot &s = cell.write;
  if (s.block < 0 || !(a.c.checks & CheckAsync) || proxyFenced(a, s))
    return;
  a.c.violation("async", a.I, lane, a.region.base + off,
                a.region.name + " at byte " + std::to_string(off) +
                    " was written by an ordinary " +
                    otherParty(a.c, s, "store") +
                    " and is read by the async proxy without "
                    "fence.proxy.async");
}

static void updateReads(const Access &a, Cell &cell, int lane) {
  Slot now = makeSlot(a, lane);
  for (Slot &r : cell.read)
    if (sameReader(r, now)) {
      if (r.clock == now.clock && r.sync == now.sync)
        now.lanes |= r.lanes, now.mixed = r.mixed || r.id != now.id;
      r = now;
      return;
    }
  for (Slot &r : cell.read)
    if (r.block == -1 || (!a.op && ordered(a, r, lane))) {
      r = now;
      return;
    }
  cell.more.add(cell.read[0]);
  cell.read[0] = cell.read[1];
  cell.read[1] = now;
}

/// `same`: the write stores what is there already.
static void touch(const Access &a, Cell &cell, int lane, uint64_t off,
                  bool same) {
  if (!ordered(a, cell.write, lane) && !bothStrong(a.c, cell.write, a.order)) {
    bool isWrite = a.kind == AccessKind::Write;
    bool sameWarp = !a.op && cell.write.block == a.c.block->linear &&
                    cell.write.warp == a.c.warp->index;
    if (isWrite && same && !sameWarp && !(a.c.checks & CheckRaceStrict))
      a.c.grid->note("line " + std::to_string(a.I.line) +
                     ": equal values are written to " + a.region.name +
                     " by several warps without order");
    else if (!(isWrite && same && !(a.c.checks & CheckRaceStrict)))
      (a.kind == AccessKind::Read ? reportRead : report)(a, lane, off,
                                                         cell.write, "write");
  }
  if (a.kind == AccessKind::Read) {
    if (a.op && a.op->asyncProxy)
      checkProxy(a, cell, lane, off);
    updateReads(a, cell, lane);
    return;
  }
  if (!(same && a.kind == AccessKind::Write)) {
    auto check = [&](const Slot &r) {
      if (!ordered(a, r, lane) && !bothStrong(a.c, r, a.order))
        reportRead(a, lane, off, r, "read");
    };
    for (const Slot &r : cell.read)
      check(r);
    for (const RaceReaders *r = cell.more.first(); r; r = r->older)
      check(r->slot);
  }
  cell.write = makeSlot(a, lane);
  cell.read[0] = cell.read[1] = Slot();
  cell.more.clear();
}

static void touchBytes(const Access &a, RaceShadow &sh, int lane, uint64_t off,
                       uint32_t bytes, const uint8_t *value) {
  const uint8_t *now = a.region.host + off;
  uint64_t end = off + bytes;
  while (off < end) {
    uint64_t word = off / 4;
    auto &page = sh.pages[word / kRacePageWords];
    if (!page)
      page = std::make_unique<RacePage>();
    auto index = uint32_t(word % kRacePageWords);
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
                AccessKind kind, const MemOrder &order, const uint8_t *values,
                const AsyncOp *op) {
  if (!region.race) {
    if (region.name == "local memory" || region.readOnly || !region.host ||
        region.name.empty())
      return; // private to its thread, or never written
    region.race = std::make_shared<RaceShadow>();
  }
  WarpRace &w = raceState(c);
  ++w.seq;
  RaceShadow &sh = *region.race;
  Access a{c, I, w, region, kind, order, op};
  for (uint32_t m = mask; m; m &= m - 1) {
    int l = std::countr_zero(m);
    if (order.strong)
      synchronise(c, w, sh, off[l], kind, order);
    touchBytes(a, sh, l, off[l], bytes,
               values && kind == AccessKind::Write ? values + size_t(l) * bytes
                                                   : nullptr);
  }
}

void raceTensormapUse(Ctx &c, const Instr &I, int lane, const Region &region,
                      uint64_t offset) {
  if (!region.race)
    return;
  auto page = region.race->pages.find(offset / 4 / kRacePageWords);
  if (page == region.race->pages.end())
    return;
  const Clock &have = raceGrid(c).tensormaps[region.base + offset];
  for (uint64_t word = offset / 4; word < offset / 4 + 32; ++word) {
    const Slot &s = page->second->cells[word % kRacePageWords].write;
    if (s.block >= 0 && s.clock > have.get(s.block, s.warp))
      c.violation("async", I, lane, region.base + offset,
                  "the tensor map was changed by the " +
                      otherParty(c, s, "store") +
                      " and is used without fence.proxy.tensormap acquire");
  }
}

} // namespace kvcache::sim
