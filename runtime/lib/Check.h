//===- Check.h - Lengths and tables before a launch -------------*- C++ -*-===//
#ifndef KVCACHE_RUNTIME_LIB_CHECK_H
#define KVCACHE_RUNTIME_LIB_CHECK_H

#include "Status.h"

namespace kvcache::rt {

/// Logical pages [begin, end) that the last `queries` tokens of a sequence of
/// `length` tokens may see.
struct PageRange {
  int64_t begin = 0, end = 0;
};
PageRange visiblePages(const KvKernelInfo &info, int64_t length,
                       int64_t queries);

/// See kvcache_check_tables.
Error checkTables(const KvKernelInfo &info, const KvAttendArgs &args,
                  const KvTableSizes &sizes, int64_t extraTokens);

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_CHECK_H
