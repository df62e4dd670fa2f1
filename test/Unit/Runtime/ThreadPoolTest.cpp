//===- ThreadPoolTest.cpp - Coverage of ranges, and fork() ----------------===//

#include "ThreadPool.h"
#include "TestCache.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

using namespace kvcache::rt;

static void coverOnce(int64_t items, int64_t grain) {
  std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
  parallelFor(items, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      seen[size_t(i)].fetch_add(1);
  });
  for (auto &n : seen)
    ASSERT_EQ(n.load(), 1);
}

TEST(ThreadPool, EachItemOnce) {
  for (int64_t threads : {1, 2, 5, 3}) {
    setNumThreads(threads);
    for (int64_t items : {0, 1, 7, 1000})
      for (int64_t grain : {1, 3, 5000})
        coverOnce(items, grain);
  }
  setNumThreads(0);
}

TEST(ThreadPool, TwoCallersAtOnce) {
  setNumThreads(3);
  std::thread other([] {
    for (int i = 0; i < 300; ++i)
      coverOnce(100, 1);
  });
  for (int i = 0; i < 300; ++i)
    coverOnce(100, 1);
  other.join();
  setNumThreads(0);
}

// A forked child has no helper threads: it must make its own and work.
TEST(ThreadPool, WorksInAForkedChild) {
  setNumThreads(3);
  coverOnce(1000, 1);
  kvcache::test::TestCache cache(100);
  int64_t a = cache.make();
  ASSERT_EQ(cache.appendRandom(a, 300), KV_OK);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    coverOnce(1000, 1);
    bool good = cache.appendRandom(a, 40) == KV_OK && cache.length(a) == 340;
    _exit(good && !testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  coverOnce(1000, 1);
  setNumThreads(0);
}
