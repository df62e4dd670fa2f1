//===- Machine.h - Memory, warps, blocks, grid ------------------*- C++ -*-===//
//
// A warp is a set of *splits*: lanes at the same place (pc and call frame). A
// divergent branch makes two splits; splits that meet again merge. The split
// with the smallest pc runs first, which reconverges at post-dominators for
// the block orders compilers emit, and every split gets its turn, so lanes that
// wait for each other through memory make progress. Blocks are resumable: a
// worker thread runs a unit (the blocks of one cluster) until it ends or its
// budget is spent, then may continue another.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_MACHINE_MACHINE_H
#define KVCACHE_SIM_MACHINE_MACHINE_H

#include "Instr.h"
#include "kvcache/sim.h"
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

namespace kvcache::sim {

struct Warp;
struct Block;
struct Grid;
struct RaceShadow;

/// Windows of the generic address space: bits 40..47.
constexpr uint64_t kWindow = uint64_t(1) << 40;
constexpr uint64_t kSharedWindow = 1 * kWindow, kLocalWindow = 2 * kWindow,
                   kParamWindow = 3 * kWindow, kFParamWindow = 4 * kWindow,
                   kGlobalBase = 0x70 * kWindow, kCodeBase = 0x60 * kWindow;
/// shared::cluster addresses name the block by rank + 1 in these bits; 0 is
/// the executing block itself.
constexpr int kRankShift = 24;

/// A contiguous piece of simulated memory.
struct Region {
  uint64_t base = 0, size = 0;
  uint8_t *host = nullptr;
  uint8_t *undef =
      nullptr; ///< per byte, 0xff bits undefined; null: all defined
  mutable std::shared_ptr<RaceShadow> race; ///< made when first needed
  bool readOnly = false;
  std::string name;
};

struct SimViolation {
  Violation v;
};

/// Registers of one activation of a function by a warp.
struct Frame {
  Frame *parent = nullptr;
  const Code *code = nullptr;
  uint32_t returnPc = 0;
  int refs = 0;
  uint8_t *regs = nullptr;
  uint8_t *shadow = nullptr; ///< as regs; valid where flags say 1
  uint8_t *flags =
      nullptr; ///< per 64 bytes: 0 defined, 1 see shadow, 2 undefined
  uint8_t *params = nullptr, *paramUndef = nullptr; ///< lane-major
  uint32_t localBase = 0;
  /// Of alloca, per lane; ~0: nothing allocated yet.
  std::array<uint32_t, 32> stackTop;
  int depth = 0;
  const Instr *callSite = nullptr;
  size_t mapBytes = 0, touched = 0;
  /// The overflow check: per 64 bytes of `regs`, lanes whose value wrapped as a
  /// signed and as an unsigned number; empty until something does.
  std::vector<std::array<uint32_t, 2>> wraps;
  /// Per 64 bytes of `regs`, the branch that made it undefined (ControlTaint).
  std::vector<const Instr *> origins;
};

enum class SplitState : uint8_t {
  Ready,
  Barrier,  ///< in a block barrier
  WarpSync, ///< waits for the lanes of `syncMask`
  Aligned,  ///< at an instruction that needs the whole warp
  Poll,     ///< re-executes its instruction when asked again
};

struct Split {
  uint32_t pc = 0, mask = 0;
  Frame *frame = nullptr;
  SplitState state = SplitState::Ready;
  uint32_t syncMask = 0;
  uint64_t chosen = 0;  ///< Warp::clock when it was last chosen
  bool forced = false;  ///< executes an aligned instruction although divergent
  bool skipped = false; ///< others stored while it waited
};

/// What executors see. One per running warp; `regs` and `consts` of the split.
struct Ctx {
  uint8_t *regs = nullptr;
  const uint8_t *consts = nullptr;
  Frame *frame = nullptr;
  Warp *warp = nullptr;
  Block *block = nullptr;
  Grid *grid = nullptr;
  Split *split = nullptr;
  uint32_t checks = 0;
  bool init = false;
  struct WorkerStats *stats = nullptr;

  template <class T>
  T *reg(const Opnd &o) const {
    return reinterpret_cast<T *>(regs + o.off);
  }
  template <class T>
  const T *in(const Opnd &o) const {
    return reinterpret_cast<const T *>(o.off >= 0 ? regs + o.off
                                                  : consts + ~o.off);
  }
  uint32_t pred(const Opnd &o) const {
    uint32_t m = *in<uint32_t>(o);
    return o.neg ? ~m : m;
  }
  [[noreturn]] void violation(const char *kind, const Instr &I, int lane,
                              uint64_t address, const std::string &text);
};

struct InstrStats {
  uint64_t warps = 0, threads = 0;
  uint64_t bytes = 0, sectors = 0, requests = 0; ///< of global memory
  uint64_t sharedBytes = 0, sharedRequests = 0, conflicts = 0;
  uint64_t otherBytes = 0;   ///< of parameters, local and constant memory
  bool storesGlobal = false; ///< a copy towards global memory
  uint64_t flops = 0, divergent = 0;
};
struct WorkerStats {
  std::vector<InstrStats> instr; ///< by Instr::id; empty: counters off
  uint64_t steps = 0, threads = 0;
  uint64_t starts = 0; ///< what starting blocks costs, in steps
  /// Stores that changed memory, barriers that completed, blocks that ended:
  /// while it stands still on all workers, spinning warps spin for ever.
  uint64_t changes = 0;
  std::atomic<uint64_t> published{0}, stuckAt{kNotStuck};
  static constexpr uint64_t kNotStuck = ~uint64_t(0), kDone = kNotStuck - 1;
  const Region *lastGlobal = nullptr;
};

/// A copy in flight: which bytes of shared memory it covers and, per thread,
/// in which group it is.
struct PendingCopy {
  uint32_t addr, bytes;
  uint8_t lane;
  uint32_t seq;
  uint32_t serial = 0; ///< of the instruction, counted per warp
};

/// Registers of wgmma that were not waited for, and what orders accesses to
/// registers: a write after the last wgmma.fence must not reach a wgmma.
struct WgmmaState {
  struct Pending {
    int32_t off;
    uint32_t group;
    bool input; ///< a fragment of A: may be read
  };
  Frame *frame = nullptr; ///< whose registers these are
  std::vector<Pending> pending;
  std::vector<uint8_t> inFlight; ///< per 64 bytes of the frame: 1 D, 2 A
  std::vector<uint32_t> wroteAt; ///< per 64 bytes: fence count at the write
  uint32_t fences = 0;
  void refresh();
};

/// cp.async or bulk copies of one warp that were not waited for. Groups are
/// counted per thread.
struct AsyncCopies {
  std::vector<PendingCopy> copies;
  uint32_t issued = 0;   ///< instructions so far
  uint32_t seq[32] = {}; ///< groups committed
};

struct Warp {
  Warp();
  ~Warp();
  Block *block = nullptr;
  int index = 0;
  uint32_t live = 0; ///< lanes that have not exited
  uint32_t all = 0;  ///< lanes that exist
  std::vector<Split> splits;
  size_t current = 0;
  uint8_t *local = nullptr, *localUndef = nullptr;
  size_t localMap = 0;
  Region localRegion;
  uint64_t tid[3][32];
  AsyncCopies cpAsync;
  uint32_t clusterArrived = 0; ///< lanes between cluster arrive and wait
  uint64_t clusterPhase[32] = {};
  std::shared_ptr<struct WarpRace> race;
  std::shared_ptr<struct ReadValues> readValues; ///< RaceValues.cpp
  /// The same strong loads or atomics again and again: it spins.
  const Instr *pollsAt = nullptr, *pollsBefore = nullptr;
  uint64_t pollsAddress = 0;
  uint32_t polls = 0;
  std::vector<struct PendingJoin> joins; ///< selections under way
  uint32_t failedWaits = 0; ///< mbarrier waits in a row that found no phase
  const Instr *waitsAt = nullptr;
  uint64_t waitsFor = 0;                    ///< the mbarrier's address
  std::shared_ptr<struct WgmmaState> wgmma; ///< made by the first wgmma
  uint32_t wgmmaSeq = 0;                    ///< groups committed
  uint32_t bulkSeq = 0;
  std::vector<PendingCopy> bulkReads; ///< shared memory that bulk stores read

  enum class Status : uint8_t { Running, Blocked, Done };
  /// Runs at most `budget` instructions.
  Status run(Ctx &c, uint64_t &budget);
  bool done() const { return live == 0; }

private:
  template <bool Init, bool Count>
  Status loop(Ctx &c, uint64_t &budget);
  bool choose(Ctx &c);
  bool reconverge(Ctx &c);
  void wakeSyncs(Ctx &c);
  uint64_t clock = 0;      ///< for least-recently-run
  uint64_t stickUntil = 0; ///< steps for which fairness keeps the split
};

struct BarrierState {
  int64_t expected = 0; ///< threads; 0: not in use
  bool wholeBlock = false;
  int64_t arrived = 0;
  uint32_t popc = 0;
  bool andAcc = true, orAcc = false;
  uint64_t generation = 0;
  int reduction = 0; ///< 0 none 1 popc 2 and 3 or
  struct Waiter {
    Warp *warp;
    Frame *frame;
    const Instr *instr;
    uint32_t mask;
  };
  std::vector<Waiter> waiters;
  std::vector<std::pair<int, uint32_t>> arrivals; ///< warp, lanes (race check)
};

struct Cluster;

struct Block {
  Grid *grid = nullptr;
  Cluster *cluster = nullptr;
  int64_t id[3] = {0, 0, 0};
  int64_t linear = 0;
  uint32_t rank = 0; ///< in the cluster
  std::vector<std::unique_ptr<Warp>> warps;
  BarrierState barriers[16];
  Region shared;
  std::vector<uint8_t> sharedBytes, sharedUndef;
  std::vector<uint8_t> sharedPending; ///< async check: copies not waited for
  /// The mbarriers that were initialised: offset and expected arrivals.
  std::map<uint32_t, int32_t> mbarriers;
  int64_t liveThreads = 0, threads = 0;
  int liveWarps = 0;
  std::shared_ptr<struct BlockRace> race;

  void start(Grid &g, Cluster &c, int64_t linearId, uint32_t rank);
  ~Block();
  /// Completes barriers that became complete when threads exited.
  void threadsExited(Ctx &c, int n);
  /// True when the barrier completed with this arrival.
  bool barrierArrive(Ctx &c, int index, int64_t add);
  void release(Ctx &c, int index);
};

/// Blocks that run together on one worker.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  uint64_t phase = 0;
  int64_t arrived = 0, liveThreads = 0, exited = 0;
  bool started = false;
  uint64_t turns = 0;
  void arrive(Ctx &c, int n);
  /// True when a phase ended.
  bool check();
  uint64_t raceKey() const {
    return uint64_t(1) << 63 | uint64_t(blocks[0]->linear);
  }
};

struct Unmap {
  size_t bytes = 0;
  void operator()(uint8_t *p) const;
};
using Pages = std::unique_ptr<uint8_t, Unmap>;

/// One launch.
struct Grid {
  const struct ModuleImpl *module = nullptr;
  const Code *entry = nullptr;
  std::vector<std::unique_ptr<Code>> *codes = nullptr;
  std::string fileName;
  Launch launch;
  int64_t blocks = 0, threadsPerBlock = 0, warpsPerBlock = 0;
  int64_t clusterSize = 1;
  Dim3 clusterDim{1, 1, 1};
  std::vector<std::unique_ptr<Region>> globals; ///< sorted by base
  Region kparam;
  std::vector<uint8_t> params;
  int64_t sharedTotal = 0, sharedStatic = 0;
  int64_t localBytes = 0;
  std::vector<std::unique_ptr<uint8_t[]>> storage;
  std::vector<Pages> variables; ///< of the module
  int smVersion = 80;
  bool archSpecific = false;
  bool reportRaces = true; ///< false: accesses are tracked for the async check
  uint32_t instrCount = 0;
  std::mutex noteMutex;
  std::vector<std::string> notes;
  int64_t residentBlocks = 1; ///< what the chip holds at once
  std::atomic<int64_t> liveUnits{0}, startedUnits{0};
  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<WorkerStats>> stats;
  std::shared_ptr<struct GridRace> race;
  std::shared_ptr<struct ValueUses> valueUses;

  /// The global allocation that holds `address`, or null.
  const Region *find(uint64_t address) const;
  void note(const std::string &text);
  void run(Result &result);
  /// The sum over the workers of WorkerStats::published.
  uint64_t changes() const;
  bool allStuckAt(uint64_t changes) const;
  const Code *function(uint64_t address) const;
};

Frame *makeFrame(Ctx &c, const Code *code, Frame *parent, uint32_t returnPc);
void dropFrame(Frame *f);
/// Kind of a special register by name ("%tid.x"), -1 if unknown.
int specialKind(const std::string &name, int &axis);
uint64_t specialValue(const Ctx &c, int kind, int axis, int lane);
/// Merges the current split with parked ones at the same place.
bool mergeParked(Warp &w);
/// The whole warp must be here: parks the split and returns false if not.
bool needWholeWarp(Ctx &c, const Instr &I, uint32_t mask);
/// The lanes of `members` must be here; false: the split was parked.
bool needMembers(Ctx &c, const Instr &I, uint32_t mask, uint32_t members,
                 bool isBarrier = false);
std::string describeThread(const Ctx &c, int lane);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_MACHINE_H
