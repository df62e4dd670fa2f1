//===- CoverageForms.h - The forms of the coverage table --------*- C++ -*-===//
#ifndef KVCACHE_SIM_MACHINE_COVERAGEFORMS_H
#define KVCACHE_SIM_MACHINE_COVERAGEFORMS_H

#include <string>
#include <vector>

namespace kvcache::sim {

/// An instruction with `$` where each of the types goes.
struct CoverageForm {
  std::string pattern;
  std::vector<std::string> types;
};

const std::vector<CoverageForm> &coverageForms();

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_COVERAGEFORMS_H
