//===- Block.cpp - Blocks, barriers, clusters -----------------------------===//
#include "../Exec/Decoder.h"
#include "Race.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <sys/mman.h>

namespace kvcache::sim {

void Block::start(Grid &g, Cluster &cl, int64_t linearId, uint32_t rankIn) {
  grid = &g;
  cluster = &cl;
  linear = linearId;
  rank = rankIn;
  const Dim3 &b = g.launch.block;
  threads = liveThreads = g.threadsPerBlock;
  liveWarps = int(g.warpsPerBlock);
  sharedBytes.assign(size_t(g.sharedTotal), 0);
  shared.size = uint64_t(g.sharedTotal);
  shared.host = sharedBytes.data();
  shared.name = "shared memory";
  if (g.launch.checks & CheckInit) {
    sharedUndef.assign(size_t(g.sharedTotal), 0xff);
    shared.undef = sharedUndef.data();
  }
  if (g.launch.checks & CheckAsync)
    sharedPending.assign(size_t(g.sharedTotal), 0);
  for (int64_t i = 0; i < g.warpsPerBlock; ++i) {
    auto w = std::make_unique<Warp>();
    w->block = this;
    w->index = int(i);
    for (int l = 0; l < 32; ++l) {
      int64_t t = i * 32 + l;
      w->tid[0][l] = t % b[0];
      w->tid[1][l] = t / b[0] % b[1];
      w->tid[2][l] = t / (b[0] * b[1]);
      if (t < threads)
        w->live |= 1u << l;
    }
    w->all = w->live;
    if (g.localBytes) {
      bool init = g.launch.checks & CheckInit;
      w->localMap = size_t(g.localBytes) * 32 * (init ? 2 : 1);
      void *p = mmap(nullptr, w->localMap, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED)
        throw PtxError(0, "out of memory for local memory");
      w->local = static_cast<uint8_t *>(p);
      w->localRegion.size = uint64_t(g.localBytes) * 32;
      w->localRegion.host = w->local;
      w->localRegion.name = "local memory";
      if (init) {
        w->localRegion.undef = w->local + g.localBytes * 32;
        std::memset(w->localRegion.undef, 0xff, size_t(g.localBytes) * 32);
      }
    }
    warps.push_back(std::move(w));
  }
}

Block::~Block() {
  for (auto &w : warps) {
    for (Split &s : w->splits)
      dropFrame(s.frame);
    if (w->local)
      munmap(w->local, w->localMap);
  }
}

static void writeReduction(Ctx &c, const BarrierState &b,
                           const BarrierState::Waiter &w) {
  if (!b.reduction)
    return;
  uint8_t *slot = w.frame->regs + w.instr->o[0].off;
  if (b.reduction == 1) {
    for (int l = 0; l < 32; ++l)
      if (w.mask >> l & 1)
        reinterpret_cast<uint32_t *>(slot)[l] = b.popc;
  } else {
    bool v = b.reduction == 2 ? b.andAcc : b.orAcc;
    auto *p = reinterpret_cast<uint32_t *>(slot);
    *p = v ? *p | w.mask : *p & ~w.mask;
  }
}

void Block::release(Ctx &c, int index) {
  BarrierState &b = barriers[index];
  for (BarrierState::Waiter &w : b.waiters) {
    writeReduction(c, b, w);
    for (Split &s : w.warp->splits)
      if (s.state == SplitState::Barrier && s.frame == w.frame &&
          s.mask == w.mask) {
        s.state = SplitState::Ready;
        ++s.pc;
        break;
      }
  }
  ++c.stats->changes;
  uint64_t generation = b.generation + 1;
  b = BarrierState();
  b.generation = generation;
}

bool Block::barrierArrive(Ctx &c, int index, int64_t add) {
  BarrierState &b = barriers[index];
  b.arrived += add;
  int64_t expected = b.wholeBlock ? liveThreads : b.expected;
  return b.arrived >= expected;
}

void Block::threadsExited(Ctx &c, int n) {
  liveThreads -= n;
  if (liveThreads > 0)
    for (int i = 0; i < 16; ++i) {
      BarrierState &b = barriers[i];
      if (b.wholeBlock && b.arrived > 0 && b.arrived >= liveThreads) {
        raceBarrierRelease(c, i);
        release(c, i);
      }
    }
  cluster->liveThreads -= n;
  if (cluster->check() && (c.checks & CheckRace))
    racePhase(c, cluster->raceKey());
}

void Cluster::arrive(Ctx &c, int n) {
  arrived += n;
  if (check() && (c.checks & CheckRace))
    racePhase(c, raceKey());
}

/// The cluster barrier's phase ends when all threads that live have arrived.
bool Cluster::check() {
  if (arrived <= 0 || arrived < liveThreads)
    return false;
  arrived = 0;
  ++phase;
  return true;
}

} // namespace kvcache::sim
