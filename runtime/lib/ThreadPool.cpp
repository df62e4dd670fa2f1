//===- ThreadPool.cpp - Ranges of work items over threads -----------------===//
//
// The caller posts a job (a counter of items and a function) and works on it
// itself; helpers wake, take ranges off the counter until it is empty and go
// back to sleep. A helper that comes too late finds nothing and does no harm.
//
// fork(): the child has one thread and a copy of locks in unknown states. A
// pthread_atfork handler makes the child drop the pointer to the parent's pool
// (its memory is leaked on purpose), so that the next call makes a fresh one.
//
//===----------------------------------------------------------------------===//

#include "ThreadPool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

using namespace kvcache::rt;

namespace {

struct Job {
  void (*fn)(void *, int64_t, int64_t);
  void *context;
  int64_t items, grain;
  int64_t helpers; // at most so many besides the caller
  std::atomic<int64_t> next{0};

  void work() {
    for (;;) {
      int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= items)
        return;
      fn(context, begin, std::min(begin + grain, items));
    }
  }
};

class Pool {
public:
  explicit Pool(int64_t threads) {
    helpers.reserve(threads - 1);
    for (int64_t i = 1; i < threads; ++i)
      helpers.emplace_back([this] { helperLoop(); });
  }

  // Never destroyed: helpers may outlive static destructors.
  ~Pool() = delete;

  int64_t size() const { return int64_t(helpers.size()) + 1; }

  /// False if another thread's job is running.
  bool run(Job &job) {
    std::unique_lock owner(busy, std::try_to_lock);
    if (!owner.owns_lock())
      return false;
    {
      std::lock_guard lock(mutex);
      current = &job;
      generation.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
    job.work();
    std::unique_lock lock(mutex);
    current = nullptr; // late helpers find no job
    done.wait(lock, [this] { return active == 0; });
    return true;
  }

private:
  // A decode step posts several jobs in a row: look for the next one for a few
  // microseconds before going to sleep.
  static constexpr int spinRounds = 2000;

  void helperLoop() {
    int64_t seen = 0;
    for (;;) {
      for (int i = 0; i < spinRounds; ++i) {
        if (generation.load(std::memory_order_acquire) != seen)
          break;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return generation.load() != seen; });
      seen = generation.load();
      Job *job = current;
      if (!job || active >= job->helpers)
        continue;
      ++active;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active == 0)
        done.notify_one();
    }
  }

  std::vector<std::thread> helpers;
  std::mutex busy;  // held by the caller whose job runs
  std::mutex mutex; // guards what follows
  std::condition_variable wake, done;
  std::atomic<int64_t> generation{0};
  Job *current = nullptr;
  int64_t active = 0;
};

} // namespace

// The pool in use, the number asked for, and the lock that guards both.
static std::mutex &poolMutex() {
  static auto *mutex = new std::mutex;
  return *mutex;
}
static Pool *thePool = nullptr;
static int64_t requested = 0;

// The whole text as a number from 1, or 0.
static int64_t threadCount(const char *text) {
  char *end = nullptr;
  long n = std::strtol(text, &end, 10);
  return end != text && *end == 0 && n > 0 ? std::min<long>(n, 1024) : 0;
}

Error kvcache::rt::checkThreadsFromEnvironment() {
  const char *text = std::getenv("KVCACHE_NUM_THREADS");
  if (!text || threadCount(text))
    return {};
  return invalid("KVCACHE_NUM_THREADS is '", text,
                 "', expected a number of threads from 1");
}

static int64_t threadsFromEnvironment() {
  if (const char *text = std::getenv("KVCACHE_NUM_THREADS"))
    if (int64_t n = threadCount(text))
      return n;
  // OpenMP's own may be a list, one number per level of nesting.
  if (const char *text = std::getenv("OMP_NUM_THREADS"))
    if (long n = std::strtol(text, nullptr, 10); n > 0)
      return std::min<long>(n, 1024);
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

static void registerForkHandlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { poolMutex().lock(); }, [] { poolMutex().unlock(); },
                   [] {
                     thePool = nullptr;
                     poolMutex().unlock();
                   });
  });
}

static Pool *getPool(int64_t threads) {
  registerForkHandlers();
  std::lock_guard lock(poolMutex());
  // A pool that is too small is left to its helpers, which sleep from now on:
  // another thread may be inside it.
  if (!thePool || thePool->size() < threads)
    thePool = new Pool(threads);
  return thePool;
}

int64_t kvcache::rt::numThreads() {
  std::lock_guard lock(poolMutex());
  return requested ? requested : threadsFromEnvironment();
}

void kvcache::rt::setNumThreads(int64_t threads) {
  std::lock_guard lock(poolMutex());
  requested = threads;
}

void kvcache::rt::parallelForRaw(int64_t items, int64_t grain,
                                 void (*fn)(void *, int64_t, int64_t),
                                 void *context) {
  if (items <= 0)
    return;
  grain = std::max<int64_t>(1, grain);
  int64_t threads = items > grain ? numThreads() : 1;
  if (threads > 1) {
    Job job{fn, context, items, grain, threads - 1};
    if (getPool(threads)->run(job))
      return;
  }
  fn(context, 0, items);
}
