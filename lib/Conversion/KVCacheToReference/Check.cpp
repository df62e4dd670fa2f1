//===- Check.cpp - Checks of tables and lengths in generated code ---------===//
#include "kvcache/Conversion/KVCacheToReference/Check.h"

using namespace kvcache;

std::string kvcache::describeCheck(const int64_t *r) {
  auto n = [&](int i) { return std::to_string(r[i]); };
  switch (static_cast<Check>(r[0])) {
  case Check::None:
    return "";
  case Check::PageCount:
    return "sequence " + n(1) + " has " + n(2) + " tokens and needs " + n(3) +
           " pages, its table holds " + n(4);
  case Check::PageNumber:
    return "sequence " + n(1) + ": entry " + n(2) + " of its page table is " +
           n(3) + ", expected a page from 0 to " + std::to_string(r[4] - 1);
  case Check::Length:
    return "sequence " + n(1) + " has length " + n(2) + ", expected 0 or more";
  case Check::SealedPages:
    return "sequence " + n(1) + " has " + n(2) + " sealed pages, its " + n(3) +
           " tokens allow at most " + n(4);
  case Check::AppendValue:
    return "row " + n(1) +
           " of the appended tokens holds a value that is not "
           "finite or that the format cannot store";
  case Check::AppendRow:
    return "row " + n(1) + " of the appended tokens names sequence " + n(2) +
           ", expected -1 (padding) or 0 to " + std::to_string(r[3] - 1);
  case Check::QueryRows:
    return "sequence " + n(1) + " has query rows " + n(2) + " to " + n(3) +
           ", expected a range within the " + n(4) + " rows of q";
  case Check::Room:
    return "sequence " + n(1) + " has " + n(2) +
           " tokens, the tensors have room for " + n(3);
  case Check::Sizes:
    return "shapes do not fit together: a size is " + n(1) + ", expected " +
           n(2);
  case Check::Groups:
    return "scales or zeros have size " + n(1) +
           ", expected one that divides " + n(2);
  }
  return "unknown check " + n(0);
}
