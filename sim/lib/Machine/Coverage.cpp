//===- Coverage.cpp - The table of instructions ---------------------------===//
#include "../Exec/Decoder.h"
#include <set>

namespace kvcache::sim {

std::string coverageTable() {
  std::string out;
  std::set<std::string> names;
  for (auto &[n, fn] : activeTable().byName)
    names.insert(n);
  for (const std::string &n : names)
    out += "| " + n + " |\n";
  return out;
}

} // namespace kvcache::sim
