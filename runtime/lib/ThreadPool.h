//===- ThreadPool.h - Ranges of work items over threads ---------*- C++ -*-===//
//
// One pool per process, made on first use. Threads do not survive fork(), so a
// child forgets its parent's pool (see ThreadPool.cpp) and makes a new one.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNTIME_LIB_THREADPOOL_H
#define KVCACHE_RUNTIME_LIB_THREADPOOL_H

#include "Status.h"

#include <cstdint>
#include <type_traits>

namespace kvcache::rt {

/// The number of threads that work is spread over (the caller included).
int64_t numThreads();
/// What is wrong with KVCACHE_NUM_THREADS, if it is set.
Error checkThreadsFromEnvironment();
/// 0: as the environment says.
void setNumThreads(int64_t threads);

/// Calls fn(context, begin, end) until [0, items) is covered, ranges of at most
/// `grain` items, from several threads at once. Which thread gets which range
/// is not fixed: work items must not depend on each other. Runs in the calling
/// thread alone when the pool is busy with another caller.
void parallelForRaw(int64_t items, int64_t grain,
                    void (*fn)(void *, int64_t, int64_t), void *context);

template <typename Fn>
void parallelFor(int64_t items, int64_t grain, Fn &&fn) {
  using Function = std::remove_reference_t<Fn>;
  parallelForRaw(
      items, grain,
      [](void *context, int64_t begin, int64_t end) {
        (*static_cast<Function *>(context))(begin, end);
      },
      &fn);
}

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_THREADPOOL_H
