//===- Approx.h - Errors of the approximate functions -----------*- C++ -*-===//
//
// The ISA bounds the errors of its approximate functions. They are computed
// correctly rounded here; --perturb moves results as far as a bound allows, by
// a hash of the result and the seed: not at all, to either end, or in between.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_APPROX_H
#define KVCACHE_SIM_EXEC_APPROX_H

#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

/// The unit in the last place of a number of a format.
inline double ulpOf(double v, int mant = 23, int emin = -126) {
  int e;
  std::frexp(v, &e);
  return std::ldexp(1.0, (e - 1 < emin ? emin : e - 1) - mant);
}

/// A number of a format within `limit` of v, rounded toward v.
inline double perturbed(double v, double limit, uint32_t seed, int mant = 23,
                        int emin = -126) {
  uint64_t h = (bitcast<uint64_t>(v) ^ seed) * 0x9e3779b97f4a7c15ull;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9ull;
  double share[] = {0.0, 1.0, -1.0, double(int32_t(h >> 8)) * 0x1p-31};
  double t = v + limit * share[h >> 62];
  if (h >> 62 == 0)
    return roundTo(v, mant, emin, Round::Nearest);
  return roundTo(t, mant, emin, t > v ? Round::Down : Round::Up);
}

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_APPROX_H
