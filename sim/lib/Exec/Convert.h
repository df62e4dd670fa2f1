//===- Convert.h - What the files of cvt share ------------------*- C++ -*-===//
#ifndef KVCACHE_SIM_EXEC_CONVERT_H
#define KVCACHE_SIM_EXEC_CONVERT_H

#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

/// Pairs and quads of 4, 6 and 8-bit floats ("e2m1x2").
bool isNarrow(const std::string &type);

/// cvt to or from them, and stochastic rounding to pairs of halves.
void narrowConvert(Decoder &D, Instr &I, const std::string &d,
                   const std::string &s, bool relu, bool satfinite);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_CONVERT_H
