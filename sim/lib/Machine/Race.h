//===- Race.h - Hooks of the race and async checks --------------*- C++ -*-===//
//
// Called by executors only when the race check is on (the async check turns it
// on for programs with asynchronous operations). Race.cpp explains the order
// that is tracked.
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

/// Asynchronous operations are carried out by agents of their own, whose clock
/// counts operations: who waited for operation n has seen it and all before.
enum class AgentKind : uint8_t {
  Wgmma,     ///< of a warp; operations are groups
  CpAsync,   ///< of a warp; operations are instructions
  BulkRead,  ///< of a warp: bulk stores reading shared memory, by groups
  BulkWrite, ///< of a warp: bulk stores writing, by groups
  Mbarrier,  ///< of an mbarrier: what completes on it
};
struct AsyncOp {
  int64_t block = 0; ///< key of the agents in clocks
  uint16_t agent = 0;
  uint32_t serial = 0;
  uint64_t id = 0;         ///< of the instruction's execution
  bool asyncProxy = false; ///< needs proxy fences against ordinary stores
};
/// The operation numbered `serial` of an agent; `which`: warp, or the offset of
/// the mbarrier, in the block that owns it.
AsyncOp raceAgent(Ctx &c, Block &owner, AgentKind kind, uint64_t which,
                  uint32_t serial, bool asyncProxy);
/// The next operation that completes on an mbarrier.
AsyncOp raceMbarrierOp(Ctx &c, Block &owner, uint64_t offset);
/// The warp has waited for all operations up to `serial`.
void raceAwait(Ctx &c, Block &owner, AgentKind kind, uint64_t which,
               uint32_t serial);

/// `values`: what a write stores, per lane, to tell equal values (may be null).
/// `op`: the access is part of an asynchronous operation that the warp issues.
void raceAccess(Ctx &c, const Instr &I, const Region &region, Block *owner,
                uint32_t mask, const uint64_t *off, uint32_t bytes,
                AccessKind kind, const MemOrder &order,
                const uint8_t *values = nullptr, const AsyncOp *op = nullptr);
void raceBarrierArrive(Ctx &c, int index, uint32_t mask, bool waits);
void raceBarrierRelease(Ctx &c, int index);
void raceWarpSync(Ctx &c, uint32_t mask);
void raceFence(Ctx &c, const Instr &I, uint32_t mask, int scope);
/// fence.proxy.async: the warp's view of ordinary stores reaches the async
/// proxy.
void raceProxyFence(Ctx &c);
/// fence.proxy.tensormap acquire of the map at an address.
void raceTensormapFence(Ctx &c, uint64_t address);
/// A tensor map in global memory is used: stores to it need the fence.
void raceTensormapUse(Ctx &c, const Instr &I, int lane, const Region &region,
                      uint64_t offset);

/// Synchronisation objects (mbarrier, cluster barrier, warpgroup), by a key.
/// What arrives belongs to the current phase; waiters take over the phases that
/// are complete.
void raceArrive(Ctx &c, uint64_t key, bool relaxed = false);
void raceArriveOp(Ctx &c, uint64_t key, const AsyncOp &op);
void racePhase(Ctx &c, uint64_t key);
void raceWait(Ctx &c, uint64_t key);
void raceForget(Ctx &c, uint64_t key);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_RACE_H
