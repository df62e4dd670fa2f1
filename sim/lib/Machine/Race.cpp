//===- Race.cpp - Happens-before ------------------------------------------===//
#include "Race.h"
namespace kvcache::sim {
void raceAccess(Ctx &, const Instr &, const Region &, Block *, uint32_t,
                const uint64_t *, uint32_t, AccessKind, const MemOrder &,
                const uint8_t *) {}
void raceBarrierArrive(Ctx &, int, uint32_t, bool) {}
void raceBarrierRelease(Ctx &, int) {}
void raceWarpSync(Ctx &, uint32_t) {}
void raceFence(Ctx &, const Instr &, uint32_t, int) {}
void raceRelease(Ctx &, uint32_t, uint64_t) {}
void raceAcquire(Ctx &, uint32_t, uint64_t) {}
} // namespace kvcache::sim
