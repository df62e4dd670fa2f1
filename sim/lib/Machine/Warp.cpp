//===- Warp.cpp - Splits, reconvergence, the instruction loop -------------===//
#include "../Exec/Decoder.h"
#include "ControlTaint.h"
#include "RaceValues.h"
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace kvcache::sim {

static constexpr uint64_t kFairSteps = 20000;

//===----------------------------------------------------------------------===//
// Frames. Memory is kept per thread and size: a warp touches only what it uses.
//===----------------------------------------------------------------------===//

namespace {
struct FramePool {
  std::vector<std::pair<size_t, void *>> free;
  ~FramePool() {
    for (auto &[n, p] : free)
      munmap(p, n);
  }
};
} // namespace
static thread_local FramePool framePool;

static void *mapMemory(size_t bytes) {
  for (size_t i = framePool.free.size(); i-- > 0;)
    if (framePool.free[i].first == bytes) {
      void *p = framePool.free[i].second;
      framePool.free.erase(framePool.free.begin() + i);
      return p;
    }
  void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw PtxError(0, "out of memory for registers");
  return p;
}

static void unmapMemory(void *p, size_t bytes) {
  if (framePool.free.size() < 256)
    framePool.free.emplace_back(bytes, p);
  else
    munmap(p, bytes);
}

/// What frames fill at once, of this thread's blocks; hostile text nests calls
/// with large parameters.
static constexpr size_t kMaxFrames = size_t(4) << 30;
static thread_local size_t frameTouched = 0;

Frame *makeFrame(Ctx &c, const Code *code, Frame *parent, uint32_t returnPc) {
  size_t regs = size_t(code->frameBytes);
  size_t flags = (regs / 64 + 63) / 64 * 64;
  size_t params = (size_t(code->paramBytes) * 32 + 63) / 64 * 64;
  size_t total = regs * 2 + flags + params * 2;
  frameTouched += flags + params;
  if (frameTouched > kMaxFrames)
    throw PtxError(0, "calls need more memory than the simulator gives them");
  auto *f = new Frame;
  f->touched = flags + params;
  f->mapBytes = (total + 4095) / 4096 * 4096;
  auto *p = static_cast<uint8_t *>(mapMemory(f->mapBytes));
  f->parent = parent;
  f->code = code;
  f->returnPc = returnPc;
  f->depth = parent ? parent->depth + 1 : 0;
  f->localBase = parent ? parent->localBase + parent->code->localBytes : 0;
  if (parent)
    f->stackTop = parent->stackTop;
  else
    f->stackTop.fill(~0u);
  f->refs = 1;
  f->regs = p;
  f->shadow = p + regs;
  f->flags = f->shadow + regs;
  f->params = f->flags + flags;
  f->paramUndef = f->params + params;
  if (c.init) {
    std::memset(f->flags, 2, flags);
    std::memset(f->paramUndef, 0xff, params);
  } else {
    std::memset(f->flags, 0, flags);
  }
  if (parent)
    ++parent->refs;
  for (const Code::SpecialReg &s : code->specials) {
    f->flags[s.off >> 6] = 0;
    for (int l = 0; l < 32; ++l) {
      uint64_t v = specialValue(c, s.kind, s.axis, l);
      if (s.bytes == 0) {
        uint32_t m = v ? ~0u : 0;
        std::memcpy(f->regs + s.off, &m, 4);
      } else {
        std::memcpy(f->regs + s.off + l * s.bytes, &v, s.bytes);
      }
    }
  }
  return f;
}

void dropFrame(Frame *f) {
  while (f && --f->refs == 0) {
    Frame *parent = f->parent;
    frameTouched -= f->touched;
    unmapMemory(f->regs, f->mapBytes);
    delete f;
    f = parent;
  }
}

Warp::Warp() = default;
Warp::~Warp() = default;

//===----------------------------------------------------------------------===//
// Waiting inside a warp.
//===----------------------------------------------------------------------===//

static uint32_t pcOf(const Ctx &c, const Instr &I) {
  return uint32_t(&I - c.frame->code->instrs.data());
}

/// After parking the current split: joins it with one parked at the same place.
static bool joinParked(Warp &w) {
  Split &s = w.splits[w.current];
  for (size_t i = 0; i < w.splits.size(); ++i) {
    Split &o = w.splits[i];
    if (i == w.current || o.pc != s.pc || o.frame != s.frame ||
        o.state == SplitState::Barrier)
      continue;
    s.mask |= o.mask;
    s.state = SplitState::Ready;
    s.skipped = false;
    dropFrame(o.frame);
    w.splits.erase(w.splits.begin() + i);
    if (i < w.current)
      --w.current;
    return true;
  }
  return false;
}

bool mergeParked(Warp &w) {
  bool any = false;
  while (joinParked(w))
    any = true;
  return any;
}

bool needWholeWarp(Ctx &c, const Instr &I, uint32_t mask) {
  Warp &w = *c.warp;
  if (mask == w.live || c.split->forced) {
    c.split->forced = false;
    return true;
  }
  if (mask != c.split->mask || w.splits.size() == 1) {
    // Lanes of this very split are predicated off: nobody will come.
    if (c.checks & CheckBarrier) {
      uint32_t absent = w.live & ~mask;
      c.violation("barrier", I, std::countr_zero(mask ? mask : 1u), 0,
                  "instruction for the whole warp is executed by a divergent "
                  "warp; lane " +
                      std::to_string(std::countr_zero(absent)) + " is absent");
    }
    return true;
  }
  c.split->pc = pcOf(c, I);
  c.split->state = SplitState::Aligned;
  mergeParked(w);
  return false;
}

bool needMembers(Ctx &c, const Instr &I, uint32_t mask, uint32_t members,
                 bool isBarrier) {
  Warp &w = *c.warp;
  uint32_t need = members & w.live;
  if ((c.checks & CheckBarrier) && (mask & ~members))
    c.violation("barrier", I, std::countr_zero(mask & ~members), 0,
                "the executing lane is not in the member mask");
  if ((mask & need) == need || c.split->forced) {
    c.split->forced = false;
    return true;
  }
  uint32_t absent = need & ~mask;
  if ((absent & c.split->mask) || w.splits.size() == 1) {
    if (c.checks & CheckBarrier)
      c.violation("barrier", I, std::countr_zero(mask), 0,
                  "lane " + std::to_string(std::countr_zero(absent)) +
                      " is named in the member mask but does not execute this");
    return true;
  }
  c.split->pc = pcOf(c, I);
  c.split->state = SplitState::WarpSync;
  c.split->syncMask = isBarrier ? members : (members | 0);
  mergeParked(w);
  return false;
}

/// No split is ready: releases what can only be released now.
void Warp::wakeSyncs(Ctx &c) {
  uint32_t waiting = 0, alignedMask = 0, other = 0;
  for (Split &s : splits) {
    if (s.state == SplitState::WarpSync)
      waiting |= s.mask;
    else if (s.state == SplitState::Aligned)
      alignedMask |= s.mask;
    else
      other |= s.mask;
  }
  for (Split &s : splits) {
    if (s.state != SplitState::WarpSync)
      continue;
    uint32_t need = s.syncMask & live;
    // Arrived at several places (bar.warp.sync allows it), or others exited.
    if ((need & ~waiting) == 0) {
      for (Split &t : splits)
        if (t.state == SplitState::WarpSync && (t.mask & need)) {
          t.state = SplitState::Ready;
          t.forced = true;
        }
      return;
    }
  }
  for (Split &s : splits)
    if (s.state == SplitState::Aligned && s.mask == live) {
      if (s.skipped && (c.checks & CheckBarrier)) {
        c.split = &s;
        c.frame = s.frame;
        c.violation("barrier", s.frame->code->instrs[s.pc],
                    std::countr_zero(s.mask), 0,
                    "other lanes of the warp went past this instruction, which "
                    "the whole warp must execute");
      }
      s.state = SplitState::Ready;
      return;
    }
  if (alignedMask && !other) {
    for (Split &s : splits)
      if (s.state == SplitState::Aligned) {
        if (c.checks & CheckBarrier) {
          c.split = &s;
          c.frame = s.frame;
          const Instr &I = s.frame->code->instrs[s.pc];
          c.violation("barrier", I, std::countr_zero(s.mask), 0,
                      "instruction for the whole warp is executed by a "
                      "divergent warp; lane " +
                          std::to_string(std::countr_zero(live & ~s.mask)) +
                          " is elsewhere");
        }
        s.state = SplitState::Ready;
        s.forced = true;
        return;
      }
  }
}

bool Warp::choose(Ctx &c) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    size_t best = SIZE_MAX;
    bool fair = clock < stickUntil;
    for (size_t i = 0; i < splits.size(); ++i) {
      Split &s = splits[i];
      if (s.state != SplitState::Ready)
        continue;
      if (best == SIZE_MAX) {
        best = i;
        continue;
      }
      Split &b = splits[best];
      bool better = fair ? s.chosen < b.chosen
                    : s.frame->depth != b.frame->depth
                        ? s.frame->depth > b.frame->depth
                        : s.pc < b.pc;
      if (better)
        best = i;
    }
    if (best != SIZE_MAX) {
      current = best;
      splits[best].chosen = ++clock;
      return true;
    }
    wakeSyncs(c);
  }
  return false;
}

/// At the start of a basic block with several splits alive. True if the
/// current split changed.
bool Warp::reconverge(Ctx &c) {
  Split *s = &splits[current];
  for (size_t i = 0; i < splits.size(); ++i) {
    Split &o = splits[i];
    if (i == current || o.pc != s->pc || o.frame != s->frame ||
        o.state != SplitState::Ready)
      continue;
    s->mask |= o.mask;
    dropFrame(o.frame);
    splits.erase(splits.begin() + i);
    if (i < current)
      --current;
    stickUntil = 0;
    reconverge(c);
    return true;
  }
  ++clock;
  if (clock < stickUntil)
    return false;
  if (clock - s->chosen > kFairSteps) {
    // Others starve: give the least recently chosen a long turn.
    stickUntil = clock + kFairSteps;
    s->chosen = clock;
    choose(c);
    stickUntil = clock + kFairSteps;
    return true;
  }
  for (Split &o : splits)
    if (&o != s && o.state == SplitState::Ready &&
        (o.frame->depth > s->frame->depth ||
         (o.frame->depth == s->frame->depth && o.pc < s->pc))) {
      uint64_t was = s->chosen;
      choose(c);
      splits[current].chosen = was;
      return true;
    }
  return false;
}

//===----------------------------------------------------------------------===//
// The loop.
//===----------------------------------------------------------------------===//

/// Lanes whose guard is undefined: a fault where control or memory depends on
/// it, else their results become undefined.
static uint32_t guardTaint(Ctx &c, const Instr &I) {
  Opnd p{I.pred, 0, false};
  uint32_t t = taintedLanes(c, p, c.split->mask);
  if (t && I.branch && deferBranch(c, I, t))
    return 0;
  if (t && I.matters)
    c.violation("init", I, std::countr_zero(t), 0,
                "control or memory depends on an undefined predicate");
  return t;
}

static void propagate(Ctx &c, const Instr &I, uint32_t m) {
  const uint8_t *flags = c.frame->flags;
  unsigned any = 0;
  const Opnd *o = I.o + I.nd;
  for (int i = 0; i < I.ns; ++i)
    if (o[i].off >= 0)
      any |= flags[o[i].off >> 6];
  if (any) {
    I.shadow(c, I, m);
    return;
  }
  for (int i = 0; i < I.nd; ++i)
    if (flags[I.o[i].off >> 6])
      setDefined(c, I.o[i], m);
}

static bool touchesShared(const Instr &I) {
  return (I.cls == OpClass::Load || I.cls == OpClass::Store ||
          I.cls == OpClass::Atomic) &&
         I.space <= MemSpace::Cluster;
}

/// Lanes store while others of the warp wait at a barrier for all of them: when
/// they exit afterwards, the barrier was divergent. (Lanes that merely return
/// early are no fault: that is how kernels guard their range.)
static void noteSkippers(Warp &w) {
  for (Split &s : w.splits)
    if (s.state == SplitState::Aligned)
      s.skipped = true;
}

/// Marks of wrapped values follow copies, sums and widenings; any other
/// instruction (a mask, a remainder) makes a new value.
static void moveWraps(Ctx &c, const Instr &I, uint32_t m) {
  auto &w = c.frame->wraps;
  if (I.overflow) // it has set its own
    return;
  uint32_t s = 0, u = 0;
  if (I.wrapKind)
    for (int i = 0; i < I.ns; ++i) {
      const Opnd &o = I.o[I.nd + i];
      if (o.off < 0)
        continue;
      const auto &x = w[size_t(o.off >> 6)];
      bool widens = I.wrapKind > 1 && o.sz == 4;
      s |= widens && I.wrapKind == 3 ? x[1] : x[0];
      u |= widens ? (I.wrapKind == 3 ? x[1] : x[0]) : x[1];
    }
  for (int i = 0; i < I.nd; ++i) {
    auto &x = w[size_t(I.o[i].off >> 6)];
    x[0] = (x[0] & ~m) | (s & m);
    x[1] = (x[1] & ~m) | (u & m);
  }
}

void WgmmaState::refresh() {
  std::fill(inFlight.begin(), inFlight.end(), 0);
  for (const Pending &p : pending)
    inFlight[size_t(p.off >> 6)] |= p.input ? 2 : 1;
}

/// Registers of a wgmma that was not waited for must not be touched by others,
/// and those it is to use not be written after the last wgmma.fence. Compilers
/// put plain copies between the wgmma and its wait: such a copy is in flight as
/// its source is.
static void checkInFlight(Ctx &c, const Instr &I) {
  WgmmaState &g = *c.warp->wgmma;
  if (I.wgmma || c.frame != g.frame || !(c.checks & CheckAsync))
    return;
  auto slot = [&](int i) { return size_t(I.o[i].off >> 6); };
  const WgmmaState::Pending *from = nullptr;
  if (I.cls == OpClass::Move && !g.pending.empty())
    for (int i = I.nd; i < I.nd + I.ns; ++i)
      if (I.o[i].off >= 0 && g.inFlight[slot(i)] & 1)
        for (const WgmmaState::Pending &p : g.pending)
          if (p.off >> 6 == I.o[i].off >> 6)
            from = &p;
  for (int i = 0; i < I.nd + I.ns && !from; ++i)
    if (I.o[i].off >= 0 && g.inFlight[slot(i)] & (i < I.nd ? 3 : 1))
      c.violation("async", I, std::countr_zero(c.split->mask), 0,
                  std::string(g.inFlight[slot(i)] & 1
                                  ? "a register of a wgmma in flight is used"
                                  : "a register that a wgmma in flight reads "
                                    "is overwritten") +
                      " before its wait_group");
  for (int i = 0; i < I.nd; ++i)
    g.wroteAt[slot(i)] = g.fences + 1;
  if (!from)
    return;
  uint32_t group = from->group;
  for (int i = 0; i < I.nd; ++i) {
    g.pending.push_back({I.o[i].off, group, false});
    g.inFlight[slot(i)] |= 1;
  }
}

namespace {
/// Counts in registers; added to the worker's totals when the loop returns.
struct Tally {
  WorkerStats &stats;
  uint64_t steps = 0, threads = 0;
  ~Tally() {
    stats.steps += steps;
    stats.threads += threads;
  }
};
} // namespace

template <bool Init, bool Count>
Warp::Status Warp::loop(Ctx &c, uint64_t &budget) {
  Tally tally{*c.stats};
reload:
  if (splits.empty())
    return Status::Done;
  Split *s = &splits[current];
  c.split = s;
  c.frame = s->frame;
  c.regs = s->frame->regs;
  c.consts = s->frame->code->consts;
  const Instr *code = s->frame->code->instrs.data();
  uint32_t pc = s->pc;
  for (;;) {
    const Instr &I = code[pc];
    if (budget == 0) {
      s->pc = pc;
      return Status::Running;
    }
    if (I.leader && splits.size() > 1) [[unlikely]] {
      s->pc = pc;
      if (reconverge(c))
        goto reload;
      s = &splits[current];
      c.split = s;
    }
    --budget;
    ++tally.steps;
    if (Init && !joins.empty()) [[unlikely]]
      reachJoins(c, pc);
    uint32_t m = s->mask;
    uint32_t guardUndef = 0;
    if (I.pred >= 0) {
      uint32_t p = *reinterpret_cast<const uint32_t *>(c.regs + I.pred);
      if (Init && c.frame->flags[I.pred >> 6]) [[unlikely]]
        guardUndef = guardTaint(c, I);
      m &= I.predNeg ? ~p : p;
    }
    if (Count) {
      InstrStats &st = c.stats->instr[I.id];
      st.warps += 1;
      st.threads += std::popcount(m);
    }
    tally.threads += std::popcount(m);
    if (m == 0 && !I.always && !guardUndef) {
      ++pc;
      continue;
    }
    if (Init && wgmma) [[unlikely]]
      checkInFlight(c, I);
    if (Init && I.overflow && (c.checks & CheckOverflow) && m)
      I.overflow(c, I, m);
    if (Init && !c.frame->wraps.empty()) [[unlikely]]
      moveWraps(c, I, m);
    if (Init && !c.frame->origins.empty()) [[unlikely]]
      moveOrigins(c, I);
    if (Init && I.shadow && m)
      propagate(c, I, m);
    if (Init && I.pred >= 0 && I.cls == OpClass::Store && m &&
        (c.checks & CheckRace)) [[unlikely]]
      raceStore(c, I, m);
    Act a = m || I.always ? I.fn(c, I, m) : Act::Next;
    if (Init && guardUndef) [[unlikely]]
      for (int i = 0; i < I.nd; ++i)
        setUndefined(c, I.o[i], guardUndef);
    if (Init && splits.size() > 1 &&
        (I.cls == OpClass::Store || I.cls == OpClass::Atomic)) [[unlikely]]
      noteSkippers(*this);
    if (a == Act::Next) [[likely]] {
      ++pc;
      // With the race check warps take turns at memory accesses, so that the
      // later access in program order is the one that is reported.
      if (Init && (c.checks & CheckRace) && touchesShared(I)) {
        s->pc = pc;
        return Status::Running;
      }
      continue;
    }
    switch (a) {
    case Act::Jump:
      if (splits.size() > 1) {
        if (!choose(c))
          return Status::Blocked;
      }
      goto reload;
    case Act::Yield:
      s = &splits[current];
      s->pc = pc + 1;
      if (splits.size() > 1) {
        s->chosen = ++clock;
        stickUntil = clock + kFairSteps;
        choose(c);
      }
      return Status::Running;
    case Act::Wait:
    case Act::Gone:
      if (splits.empty())
        return Status::Done;
      if (!choose(c))
        return Status::Blocked;
      goto reload;
    default:
      return Status::Blocked;
    }
  }
}

Warp::Status Warp::run(Ctx &c, uint64_t &budget) {
  if (done())
    return Status::Done;
  c.warp = this;
  for (Split &s : splits)
    if (s.state == SplitState::Poll)
      s.state = SplitState::Ready;
  if (current >= splits.size() || splits[current].state != SplitState::Ready) {
    if (!choose(c))
      return Status::Blocked;
  }
  bool count = !c.stats->instr.empty();
  if (c.checks)
    return count ? loop<true, true>(c, budget) : loop<true, false>(c, budget);
  return count ? loop<false, true>(c, budget) : loop<false, false>(c, budget);
}

} // namespace kvcache::sim
