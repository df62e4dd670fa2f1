//===- Counters.h - Totals of a run as JSON ---------------------*- C++ -*-===//
#ifndef KVCACHE_SIM_MACHINE_COUNTERS_H
#define KVCACHE_SIM_MACHINE_COUNTERS_H

#include "Machine.h"

namespace kvcache::sim {

std::string countersJson(const Grid &g);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_COUNTERS_H
