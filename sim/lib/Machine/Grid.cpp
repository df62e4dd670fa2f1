//===- Grid.cpp - Workers, violations, progress ---------------------------===//
//
// Workers take clusters (mostly of one block) from a counter and run each to
// its end. A cluster that uses up its turn, for it spins on another's flag,
// goes to the back of the line, and the next is started: as on a GPU, blocks up
// to the number that a chip holds are alive at once.
//
// A grid whose blocks all spin is found by its state: when the registers of a
// cluster come back to what they were and no memory changed anywhere meanwhile,
// it will do the same for ever.
//
//===----------------------------------------------------------------------===//
#include "../Exec/Decoder.h"
#include "ControlTaint.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

namespace kvcache::sim {

static constexpr uint64_t kWarpQuantum = 4000;
static constexpr uint64_t kTurn = uint64_t(1) << 21; ///< warp instructions
static constexpr uint32_t kSpinPolls = 64;
static constexpr uint32_t kStuckWaits = 1000;
static constexpr uint64_t kStartSteps = 256; ///< of a block, for the limit

const Region *Grid::find(uint64_t address) const {
  auto it = std::upper_bound(
      globals.begin(), globals.end(), address,
      [](uint64_t a, const std::unique_ptr<Region> &r) { return a < r->base; });
  if (it == globals.begin())
    return nullptr;
  const Region *r = (it - 1)->get();
  return address - r->base < r->size ? r : nullptr;
}

void Grid::note(const std::string &text) {
  std::lock_guard<std::mutex> lock(noteMutex);
  if (notes.size() < 20 &&
      std::find(notes.begin(), notes.end(), text) == notes.end())
    notes.push_back(text);
}

const Code *Grid::function(uint64_t address) const {
  if (address < kCodeBase || (address - kCodeBase) % 16)
    return nullptr;
  uint64_t i = (address - kCodeBase) / 16;
  const PtxModule &p = *module->ptx;
  if (i >= p.functions.size())
    return nullptr;
  for (auto &c : *codes)
    if (c->fn == p.functions[i].get())
      return c.get();
  return nullptr;
}

std::string describeThread(const Ctx &c, int lane) {
  const Block &b = *c.block;
  auto triple = [](auto x, auto y, auto z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," +
           std::to_string(z) + ")";
  };
  return "block " + triple(b.id[0], b.id[1], b.id[2]) + " thread " +
         triple(c.warp->tid[0][lane], c.warp->tid[1][lane],
                c.warp->tid[2][lane]);
}

static std::string hex(uint64_t v) {
  char buf[32];
  snprintf(buf, sizeof buf, "0x%llx", static_cast<unsigned long long>(v));
  return buf;
}

static std::string trimmed(const std::string &s) {
  size_t b = s.find_first_not_of(" \t"), e = s.find_last_not_of(" \t\r");
  return b == std::string::npos ? "" : s.substr(b, e - b + 1);
}

void Ctx::violation(const char *kind, const Instr &I, int lane,
                    uint64_t address, const std::string &text) {
  const Instr *from =
      std::string_view(kind) == "init" ? originOf(*this, I) : nullptr;
  if (from && from != &I) {
    frame->origins.clear();
    violation(kind, *from, lane, 0,
              "a branch on an undefined predicate decides what line " +
                  std::to_string(I.line) + " needs: " + text);
  }
  SimViolation v;
  v.v.kind = kind;
  v.v.line = I.line;
  v.v.address = address;
  for (int d = 0; d < 3; ++d) {
    v.v.block[d] = block->id[d];
    v.v.thread[d] = int64_t(warp->tid[d][lane]);
  }
  const PtxModule &p = *grid->module->ptx;
  std::string m =
      std::string(kind) + ": " + text + "; " + describeThread(*this, lane);
  if (address || std::string(kind) == "bounds")
    m += " address " + hex(address);
  if (I.line > 0 && size_t(I.line) <= p.lines.size())
    m += "; in '" + trimmed(p.lines[I.line - 1]) + "'";
  if (I.loc) {
    const SourceLoc &l = p.locs[I.loc];
    auto f = p.files.find(l.file);
    m += "; source " +
         (f == p.files.end() ? "file " + std::to_string(l.file) : f->second) +
         ":" + std::to_string(l.line);
  }
  v.v.message = m;
  throw v;
}

namespace {
/// One cluster being run by one worker.
class Unit {
public:
  Unit(Grid &g, int64_t first, WorkerStats &stats) : grid(g), stats(stats) {
    const Dim3 &cd = g.clusterDim;
    Dim3 perAxis{g.launch.grid[0] / cd[0], g.launch.grid[1] / cd[1],
                 g.launch.grid[2] / cd[2]};
    int64_t base[3] = {first % perAxis[0] * cd[0],
                       first / perAxis[0] % perAxis[1] * cd[1],
                       first / (perAxis[0] * perAxis[1]) * cd[2]};
    for (int64_t r = 0; r < g.clusterSize; ++r) {
      auto b = std::make_unique<Block>();
      int64_t o[3] = {r % cd[0], r / cd[0] % cd[1], r / (cd[0] * cd[1])};
      for (int d = 0; d < 3; ++d)
        b->id[d] = base[d] + o[d];
      int64_t linear = b->id[0] + g.launch.grid[0] *
                                      (b->id[1] + g.launch.grid[1] * b->id[2]);
      b->start(g, cluster, linear, uint32_t(r));
      cluster.liveThreads += b->liveThreads;
      cluster.blocks.push_back(std::move(b));
    }
    for (auto &b : cluster.blocks) {
      Ctx c = context(*b);
      for (auto &w : b->warps) {
        c.warp = w.get();
        Split s;
        s.mask = w->live;
        s.frame = makeFrame(c, g.entry, nullptr, 0);
        w->splits.push_back(s);
      }
    }
  }

  /// True when all blocks ended.
  bool run(uint64_t turn);
  /// After a turn: true when the cluster repeats a state it had before while
  /// nothing else changed.
  bool repeats(uint64_t changes);
  [[noreturn]] void spinsForEver();
  /// Reports the step limit when it is reached.
  void checkLimit();

private:
  Ctx context(Block &b) {
    Ctx c;
    c.block = &b;
    c.grid = &grid;
    c.checks = grid.launch.checks;
    c.init = c.checks & CheckInit;
    c.stats = &stats;
    return c;
  }
  Ctx context(Block &b, Warp &w);
  [[noreturn]] void deadlock();
  void neverCompletes();
  uint64_t hash() const;

  Grid &grid;
  WorkerStats &stats;
  Cluster cluster;
  /// Brent's search for a cycle of states, since memory last changed.
  uint64_t seenChanges = ~uint64_t(0), savedHash = 0, turns = 0, power = 1;
  bool cycles = false;
};
} // namespace

/// For a message about a warp that stands at its current split.
Ctx Unit::context(Block &b, Warp &w) {
  Ctx c = context(b);
  c.warp = &w;
  Split &s = w.splits[w.current < w.splits.size() ? w.current : 0];
  c.split = &s;
  c.frame = s.frame;
  return c;
}

static uint64_t mix(uint64_t h, uint64_t v) {
  return (h ^ v) * 0x9e3779b97f4a7c15ull + (h >> 29);
}

static uint64_t hashBytes(uint64_t h, const uint8_t *p, size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    h = mix(h, v);
  }
  return h;
}

/// Where the warps are and what their registers hold.
uint64_t Unit::hash() const {
  uint64_t h = 1;
  for (auto &b : cluster.blocks)
    for (auto &w : b->warps)
      for (const Split &s : w->splits) {
        h = mix(h, uint64_t(s.pc) << 32 | s.mask);
        for (const Frame *f = s.frame; f; f = f->parent)
          h = hashBytes(h, f->regs, size_t(f->code->frameBytes));
        if (s.frame->params)
          h = hashBytes(h, s.frame->params,
                        size_t(s.frame->code->paramBytes) * 32);
      }
  return h;
}

bool Unit::repeats(uint64_t changes) {
  if (changes != seenChanges) {
    seenChanges = changes;
    savedHash = 0;
    turns = 0;
    power = 1;
    cycles = false;
    return false;
  }
  uint64_t now = hash();
  if (now == savedHash)
    cycles = true;
  if (++turns == power) {
    power *= 2;
    turns = 0;
    if (!cycles)
      savedHash = now;
  }
  return cycles;
}

void Unit::spinsForEver() {
  Block *block = nullptr;
  Warp *warp = nullptr;
  for (auto &b : cluster.blocks)
    for (auto &w : b->warps)
      if (!w->done() && (!warp || w->polls > warp->polls)) {
        block = b.get();
        warp = w.get();
      }
  Ctx c = context(*block, *warp);
  const Instr &I = warp->polls && warp->pollsAt
                       ? *warp->pollsAt
                       : c.frame->code->instrs[c.split->pc];
  std::string text =
      "deadlock: no warp of the grid can continue; this one spins on a value "
      "that nobody changes";
  int64_t units = grid.blocks / grid.clusterSize,
          live = grid.liveUnits.load() * grid.clusterSize;
  if (grid.startedUnits.load() < units)
    text += "; " + std::to_string(live) + " of " + std::to_string(grid.blocks) +
            " blocks are alive, sm_" + std::to_string(grid.smVersion) +
            " holds no more at once";
  c.violation(grid.launch.checks & CheckBarrier ? "barrier" : "steps", I,
              std::countr_zero(c.split->mask ? c.split->mask : 1u),
              warp->polls ? warp->pollsAddress : 0, text);
}

void Unit::checkLimit() {
  uint64_t max = grid.launch.maxSteps;
  if (stats.steps + stats.starts <= max)
    return;
  for (auto &b : cluster.blocks)
    for (auto &w : b->warps)
      if (!w->done()) {
        Ctx c = context(*b, *w);
        c.violation("steps", c.frame->code->instrs[c.split->pc],
                    std::countr_zero(c.split->mask ? c.split->mask : 1u), 0,
                    "the limit of " + std::to_string(max) +
                        " warp instructions is reached (--max-steps)");
      }
}

void Unit::deadlock() {
  for (auto &b : cluster.blocks)
    for (auto &w : b->warps) {
      if (w->done())
        continue;
      Ctx c = context(*b);
      c.warp = w.get();
      Split &s = w->splits[0];
      c.split = &s;
      c.frame = s.frame;
      const Instr &I = s.frame->code->instrs[s.pc];
      std::string text = "deadlock: no warp of the block can continue; warp " +
                         std::to_string(w->index) + " waits here";
      if (s.state == SplitState::Barrier)
        for (int i = 0; i < 16; ++i)
          for (auto &x : b->barriers[i].waiters)
            if (x.warp == w.get())
              text += " at barrier " + std::to_string(i) + " with " +
                      std::to_string(b->barriers[i].arrived) + " of " +
                      std::to_string(b->barriers[i].wholeBlock
                                         ? b->liveThreads
                                         : b->barriers[i].expected) +
                      " threads arrived";
      c.violation("barrier", I, std::countr_zero(s.mask ? s.mask : 1u), 0,
                  text);
    }
  throw PtxError(0, "internal: deadlock without a waiting warp");
}

/// What an mbarrier still expects; see ExecMbarrier.cpp for its bits.
static std::string missing(const Block &b, uint64_t address) {
  address &= (uint64_t(1) << kRankShift) - 1;
  uint64_t v = 0;
  if (address + 8 > b.shared.size)
    return "";
  std::memcpy(&v, b.shared.host + address, 8);
  int64_t pending = int64_t(v >> 23 & 0xfffff),
          all = int64_t(v >> 43 & 0xfffff);
  int64_t tx = int32_t(uint32_t(v << 9)) >> 9;
  return std::to_string(pending) + " of " + std::to_string(all) +
         " arrivals and " + std::to_string(tx) + " bytes are missing";
}

/// All warps wait, some of them in loops on mbarriers whose phase cannot end.
void Unit::neverCompletes() {
  Block *block = nullptr;
  Warp *first = nullptr;
  std::string others;
  int waiting = 0;
  for (auto &b : cluster.blocks)
    for (auto &w : b->warps) {
      if (w->done() || w->failedWaits <= kStuckWaits)
        continue;
      if (!first) {
        first = w.get();
        block = b.get();
      } else if (++waiting <= 4) {
        others += (waiting > 1 ? ", " : "; so do ") + std::string("warp ") +
                  std::to_string(w->index) + " of block rank " +
                  std::to_string(b->rank) + " at line " +
                  std::to_string(w->waitsAt->line);
      }
    }
  if (!first)
    return;
  if (waiting > 4)
    others += " and " + std::to_string(waiting - 4) + " more warps";
  Ctx c = context(*block, *first);
  std::string what = missing(*block, first->waitsFor);
  c.violation("async", *first->waitsAt,
              std::countr_zero(c.split->mask ? c.split->mask : 1u),
              first->waitsFor,
              "the mbarrier's phase never completes: " +
                  (what.empty() ? std::string() : what + " and ") +
                  "no warp can supply them" + others);
}

bool Unit::run(uint64_t turn) {
  int idle = 0;
  for (;;) {
    bool progress = false, alive = false, stuck = true, spins = true;
    for (auto &b : cluster.blocks) {
      if (b->liveWarps == 0)
        continue;
      Ctx c = context(*b);
      for (auto &w : b->warps) {
        if (w->done())
          continue;
        alive = true;
        uint64_t budget = std::min(kWarpQuantum, turn), before = budget;
        uint64_t phase = cluster.phase;
        Warp::Status st = w->run(c, budget);
        turn -= std::min(turn, before - budget);
        // A warp that only polls again executes one instruction.
        if (st != Warp::Status::Blocked || before - budget > 1 ||
            phase != cluster.phase)
          progress = true;
        stuck &= st == Warp::Status::Blocked || w->failedWaits > kStuckWaits;
        spins &= st == Warp::Status::Blocked || w->polls > kSpinPolls;
        if (grid.stop.load(std::memory_order_relaxed))
          return true;
      }
    }
    if (!alive)
      return true;
    if (stuck)
      neverCompletes();
    idle = progress ? 0 : idle + 1;
    if (idle > 2)
      deadlock();
    spins &= progress;
    checkLimit();
    if (turn == 0 || spins)
      return false;
  }
}

uint64_t Grid::changes() const {
  uint64_t sum = 0;
  for (auto &s : stats)
    sum += s->published.load();
  return sum;
}

bool Grid::allStuckAt(uint64_t changes) const {
  return std::all_of(stats.begin(), stats.end(), [&](auto &s) {
    uint64_t at = s->stuckAt.load();
    return at == changes || at == WorkerStats::kDone;
  });
}

namespace {
/// One host thread and the clusters that it runs in turns.
class Worker {
public:
  Worker(Grid &g, WorkerStats &st, int64_t units)
      : grid(g), stats(st), units(units),
        resident(std::max<int64_t>(1, g.residentBlocks / g.clusterSize)) {}

  void run() {
    while (!grid.stop.load() && (startOne() || !active.empty()))
      turn();
    stats.stuckAt = WorkerStats::kDone;
  }

private:
  /// Starts a cluster when none is active, or when each active one has had a
  /// turn and none ended, as far as the chip has room.
  bool startOne() {
    if (!active.empty() && sinceStart < active.size())
      return false;
    if (grid.startedUnits.load() >= units)
      return false;
    if (grid.liveUnits.fetch_add(1) >= resident) {
      --grid.liveUnits;
      if (!active.empty())
        return false;
      // Other workers' clusters fill the chip: this one can only wait.
      stats.stuckAt = grid.changes();
      std::this_thread::yield();
      return true;
    }
    int64_t u = grid.startedUnits.fetch_add(1);
    if (u >= units) {
      --grid.liveUnits;
      return false;
    }
    stats.starts += kStartSteps * uint64_t(grid.clusterSize);
    active.push_front(std::make_unique<Unit>(grid, u, stats));
    active.front()->checkLimit(); // blocks that end at once count as well
    sinceStart = 0;
    stats.stuckAt = WorkerStats::kNotStuck;
    return true;
  }

  void turn() {
    if (active.empty())
      return;
    std::unique_ptr<Unit> unit = std::move(active.front());
    active.pop_front();
    ++sinceStart;
    bool ended = unit->run(kTurn);
    if (ended) {
      ++stats.changes;
      --grid.liveUnits;
    }
    stats.published = stats.changes;
    if (ended)
      return;
    uint64_t now = grid.changes();
    stuck = unit->repeats(now) ? stuck + 1 : 0;
    active.push_back(std::move(unit));
    if (stuck < active.size() || canStart())
      return;
    stats.stuckAt = now;
    if (grid.allStuckAt(now) && grid.changes() == now)
      active.back()->spinsForEver();
  }
  bool canStart() const {
    return grid.startedUnits.load() < units && grid.liveUnits.load() < resident;
  }

  Grid &grid;
  WorkerStats &stats;
  int64_t units, resident;
  std::deque<std::unique_ptr<Unit>> active;
  size_t sinceStart = 0, stuck = 0;
};
} // namespace

void Grid::run(Result &result) {
  int64_t units = blocks / clusterSize;
  int n = launch.threads > 0 ? launch.threads
                             : int(std::thread::hardware_concurrency());
  n = std::min(n, 256);
  if (launch.checks & CheckRace)
    n = 1; // one order of events, and no locks on the access histories
  n = int(std::max<int64_t>(1, std::min<int64_t>(n, units)));
  std::mutex resultMutex;
  std::string userError;
  for (int i = 0; i < n; ++i) {
    stats.push_back(std::make_unique<WorkerStats>());
    if (launch.counters)
      stats.back()->instr.resize(instrCount);
  }
  auto worker = [&](int index) {
    try {
      Worker(*this, *stats[size_t(index)], units).run();
    } catch (SimViolation &v) {
      std::lock_guard<std::mutex> lock(resultMutex);
      stop = true;
      if (!result.violation)
        result.violation = v.v;
    } catch (const std::exception &e) {
      std::lock_guard<std::mutex> lock(resultMutex);
      stop = true;
      userError = e.what();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < n; ++i)
    threads.emplace_back(worker, i);
  worker(0);
  for (std::thread &t : threads)
    t.join();
  if (!userError.empty())
    throw Error("error: " + userError);
}

} // namespace kvcache::sim
