//===- AppendTest.cpp - Sealing rules, full pools, refused rows -----------===//

#include "TestCache.h"

#include <cmath>

using namespace kvcache::test;

// The number of coded tokens is a function of the length (C36's rule).
TEST(Append, SealsByLengthAlone) {
  for (int64_t recent : {0, 1, 4, 6})
    for (int64_t sinks : {0, 2}) {
      TestCache whole(64, sinks, recent);
      std::mt19937 rng(1);
      Rows k = randomRows(rng, 50), v = k;
      for (float &x : v)
        x = -x;
      int64_t a = whole.make(), b = whole.make(), c = whole.make();
      ASSERT_EQ(whole.append(a, k, v), KV_OK);
      for (auto [id, step] : {std::pair{b, 1}, std::pair{c, 7}})
        for (int64_t t = 0; t < 50; t += step) {
          int64_t n = std::min<int64_t>(step, 50 - t);
          auto slice = [&](const Rows &x) {
            return Rows(x.begin() + t * rowFloats,
                        x.begin() + (t + n) * rowFloats);
          };
          ASSERT_EQ(whole.append(id, slice(k), slice(v)), KV_OK);
          int64_t length = t + n;
          int64_t pages = std::max<int64_t>(0, length - recent) / page;
          EXPECT_EQ(whole.sealedTokens(id),
                    std::max<int64_t>(0, pages - sinks) * page);
        }
      EXPECT_EQ(whole.dump(a), whole.dump(b));
      EXPECT_EQ(whole.dump(a), whole.dump(c));
      Rows got = whole.read(a);
      int64_t sealedEnd = sinks * page + whole.sealedTokens(a);
      for (int64_t t = 0; t < 50; ++t) {
        bool isCoded = t >= sinks * page && t < sealedEnd;
        float x = k[size_t(t * rowFloats)];
        EXPECT_EQ(got[size_t(t * rowFloats)], isCoded ? coded(x) : x);
      }
    }
}

TEST(Append, UsesEveryPage) {
  for (int64_t recent : {0, 8, 100}) {
    TestCache c(10, 0, recent);
    int64_t a = c.make();
    EXPECT_EQ(c.appendRandom(a, 40), KV_OK) << kvcache_last_error();
    EXPECT_EQ(c.pagesInUse(), 10);
    EXPECT_EQ(c.appendRandom(a, 1), KV_CACHE_FULL);
    EXPECT_EQ(c.length(a), 40);
    EXPECT_EQ(c.truncate(a, 39), KV_OK);
    EXPECT_EQ(c.appendRandom(a, 1), KV_OK);
  }
}

TEST(Append, FullPoolChangesNothing) {
  TestCache c(8, 0, 4);
  int64_t a = c.make();
  ASSERT_EQ(c.appendRandom(a, 18), KV_OK);
  int64_t b = c.fork(a);
  std::string before = c.dump(a);
  int64_t used = c.pagesInUse();
  // Four new pages, a copy of the cut one, and an image of page 3, which `a`
  // keeps open.
  EXPECT_EQ(c.appendRandom(b, 15), KV_CACHE_FULL);
  EXPECT_STREQ(kvcache_last_error(),
               "appending 15 tokens needs 6 more pages of 4 tokens, 3 of 8 are "
               "free");
  EXPECT_EQ(c.dump(a), before);
  EXPECT_EQ(c.dump(b), before);
  EXPECT_EQ(c.length(b), 18);
  EXPECT_EQ(c.pagesInUse(), used);
  EXPECT_EQ(c.free(a), KV_OK);
  EXPECT_EQ(c.dump(b), before);
  EXPECT_EQ(c.appendRandom(b, 14), KV_OK) << kvcache_last_error();
}

TEST(Append, RefusedRowChangesNothing) {
  TestCache c(600, 1, 4);
  int64_t a = c.make();
  Rows keys;
  ASSERT_EQ(c.appendRandom(a, 11, &keys), KV_OK);
  int64_t b = c.fork(a);
  std::string before = c.dump(a);
  KvCacheStats stats = c.stats();
  for (int64_t tokens : {1, 7, 2000})
    for (int64_t id : {a, b}) {
      Rows k = randomRows(c.rng, tokens), v = k;
      int64_t row = tokens - 1, refused = -7;
      v[size_t(row * rowFloats + 3)] = NAN;
      EXPECT_EQ(c.append(id, k, v, &refused), KV_INVALID_ARGUMENT);
      EXPECT_EQ(refused, row);
      EXPECT_EQ(c.dump(a), before);
      EXPECT_EQ(c.dump(b), before);
      EXPECT_EQ(c.stats().bytes_held, stats.bytes_held);
      EXPECT_EQ(c.pagesInUse(), stats.open_pages + stats.sealed_pages);
    }
  EXPECT_EQ(c.appendRandom(a, 5), KV_OK);
  EXPECT_EQ(c.dump(b), before);
}

TEST(Append, WrongArguments) {
  TestCache c(4);
  int64_t a = c.make();
  EXPECT_EQ(kvcache_append(c.cache, a, nullptr, nullptr, 1, nullptr),
            KV_INVALID_ARGUMENT);
  EXPECT_EQ(kvcache_append(c.cache, a, nullptr, nullptr, 0, nullptr), KV_OK);
  EXPECT_EQ(kvcache_append(c.cache, 99, nullptr, nullptr, 0, nullptr),
            KV_INVALID_ARGUMENT);
  EXPECT_STREQ(kvcache_last_error(),
               "there is no sequence 99, 1 were made so far");
  EXPECT_EQ(c.truncate(a, 1), KV_INVALID_ARGUMENT);
  EXPECT_STREQ(kvcache_last_error(),
               "cannot truncate to 1 tokens: sequence 0 has 0");
}
