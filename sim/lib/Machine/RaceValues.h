//===- RaceValues.h - Racing reads whose value goes nowhere -----*- C++ -*-===//
//
// Compilers for blocks of values let every thread load an element although one
// thread owns it: the others' copies are never stored, as the store is guarded
// by who owns. In an update in place such a copy is read while the owner
// writes. That is a race only if the copy is used, so it is kept until one of
// the stores that its value can reach is executed by a lane that read it.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_MACHINE_RACEVALUES_H
#define KVCACHE_SIM_MACHINE_RACEVALUES_H

#include "Machine.h"
#include <functional>

namespace kvcache::sim {

/// A guarded store is executed by `m`: throws a violation that waited for it.
void raceStore(Ctx &c, const Instr &I, uint32_t m);

/// The instruction of this number.
const Instr *raceInstr(Ctx &c, uint32_t id);

/// Whether the value that `lanes` of `reader` read at instruction `id` can only
/// go into guarded stores, the racing one (`write`) among them, and has gone
/// nowhere yet. Then `makeViolation` (which throws it) is called once and what
/// it throws is kept.
bool raceIsIdle(Ctx &c, Warp &reader, uint32_t id, uint32_t write,
                uint32_t lanes, const std::function<void()> &makeViolation);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_RACEVALUES_H
