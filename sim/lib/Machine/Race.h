//===- Race.h - Hooks of the race check -------------------------*- C++ -*-===//
//
// Called by executors only when the race check is on. Race.cpp explains the
// order that is tracked.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_MACHINE_RACE_H
#define KVCACHE_SIM_MACHINE_RACE_H

#include "Machine.h"

namespace kvcache::sim {

enum class AccessKind : uint8_t {
  Read,
  Write,
  AtomicRead,
  Atomic,
  AtomicWrite
};

/// Memory order of an access, as its modifiers say.
struct MemOrder {
  bool strong = false; ///< relaxed, volatile, acquire, ...: no data race among
                       ///< themselves
  bool acquire = false, release = false;
  uint8_t scope = 0; ///< 0 cta, 1 cluster, 2 gpu, 3 sys
};

/// `values`: what a write stores, per lane, to tell equal values (may be null).
void raceAccess(Ctx &c, const Instr &I, const Region &region, Block *owner,
                uint32_t mask, const uint64_t *off, uint32_t bytes,
                AccessKind kind, const MemOrder &order,
                const uint8_t *values = nullptr);
void raceBarrierArrive(Ctx &c, int index, uint32_t mask, bool waits);
void raceBarrierRelease(Ctx &c, int index);
void raceWarpSync(Ctx &c, uint32_t mask);
void raceFence(Ctx &c, const Instr &I, uint32_t mask, int scope);
/// Release to and acquire from a synchronisation object (mbarrier, cluster
/// barrier) named by a key.
void raceRelease(Ctx &c, uint32_t mask, uint64_t key);
void raceAcquire(Ctx &c, uint32_t mask, uint64_t key);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_RACE_H
