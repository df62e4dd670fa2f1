//===- ParallelFor.cpp - Threads for generated code -----------------------===//
#include "kvcache/Target/X86/ParallelFor.h"

#include "ThreadPool.h"

using namespace kvcache;

void x86::parallelFor(int32_t (*entry)(void *, int64_t, int64_t), void *args,
                      int64_t items) {
  // One item at a time: they are large, and unequal under causal masks.
  rt::parallelFor(items, 1,
                  [&](int64_t begin, int64_t end) { entry(args, begin, end); });
}

std::string x86::threadsError() {
  rt::Error error = rt::checkThreadsFromEnvironment();
  return error ? error.message : std::string();
}
