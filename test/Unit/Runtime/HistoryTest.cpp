//===- HistoryTest.cpp - Random histories against a simple model ----------===//
//
// The model keeps each sequence as a list of (value, coded so far?) and knows
// nothing of pages being shared. The cache must read back the same, hold no
// more than its capacity, refuse only when it must, and end empty.
//
//===----------------------------------------------------------------------===//

#include "TestCache.h"

#include <map>

using namespace kvcache::test;

namespace {

struct ModelSequence {
  std::vector<float> values; ///< of channel 0, head 0
  int64_t sealed = 0;        ///< pages
};

struct History {
  History(unsigned seed, int64_t pages, int64_t sinks, int64_t recent)
      : cache(pages, sinks, recent), sinks(sinks), recent(recent) {
    cache.rng.seed(seed);
  }

  int64_t pick(int64_t n) {
    return int64_t(cache.rng() % uint64_t(std::max<int64_t>(1, n)));
  }
  std::map<int64_t, ModelSequence>::iterator any() {
    return std::next(model.begin(), pick(int64_t(model.size())));
  }

  void append() {
    auto [id, m] = *any();
    int64_t n = 1 + pick(pick(4) ? 3 : 30);
    Rows keys;
    int64_t used = cache.pagesInUse();
    KvStatus status = cache.appendRandom(id, n, &keys);
    if (status != KV_OK) {
      ASSERT_EQ(status, KV_CACHE_FULL) << kvcache_last_error();
      EXPECT_EQ(cache.pagesInUse(), used);
      return;
    }
    ModelSequence &s = model[id];
    for (int64_t t = 0; t < n; ++t)
      s.values.push_back(keys[size_t(t * rowFloats)]);
    int64_t old = std::max<int64_t>(0, int64_t(s.values.size()) - recent);
    for (; (sinks + s.sealed + 1) * page <= old; ++s.sealed)
      for (int64_t t = 0; t < page; ++t) {
        float &x = s.values[size_t((sinks + s.sealed) * page + t)];
        x = coded(x);
      }
  }

  void truncate() {
    auto it = any();
    int64_t n = pick(int64_t(it->second.values.size()) + 1);
    KvStatus status = cache.truncate(it->first, n);
    if (status != KV_OK) {
      ASSERT_EQ(status, KV_CACHE_FULL) << kvcache_last_error();
      return;
    }
    it->second.values.resize(size_t(n));
    it->second.sealed =
        std::min(it->second.sealed, std::max<int64_t>(0, n / page - sinks));
  }

  void step() {
    int64_t what = pick(10);
    if (model.empty() || what == 0)
      model[cache.make()] = {};
    else if (what == 1 && model.size() < 12) {
      auto it = any();
      model[cache.fork(it->first)] = ModelSequence(it->second);
    } else if (what == 2) {
      auto it = any();
      ASSERT_EQ(cache.free(it->first), KV_OK);
      model.erase(it);
    } else if (what == 3)
      truncate();
    else
      append();
  }

  void check() {
    KvCacheStats stats = cache.stats();
    ASSERT_LE(stats.open_pages + stats.sealed_pages, stats.capacity_pages);
    for (auto &[id, m] : model) {
      Rows got = cache.read(id);
      ASSERT_EQ(got.size(), m.values.size() * rowFloats);
      for (size_t t = 0; t < m.values.size(); ++t)
        ASSERT_EQ(got[t * rowFloats], m.values[t])
            << "sequence " << id << ", token " << t;
      ASSERT_EQ(cache.sealedTokens(id), m.sealed * page);
    }
  }

  TestCache cache;
  int64_t sinks, recent;
  std::map<int64_t, ModelSequence> model;
};

} // namespace

TEST(History, RandomOnesEqualTheModel) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History h(seed, 8 + seed % 5 * 10, seed % 3, seed % 4 * 3);
    for (int i = 0; i < 300; ++i) {
      ASSERT_NO_FATAL_FAILURE(h.step());
      if (i % 10 == 0)
        ASSERT_NO_FATAL_FAILURE(h.check());
    }
    ASSERT_NO_FATAL_FAILURE(h.check());
    for (auto &[id, m] : h.model)
      ASSERT_EQ(h.cache.free(id), KV_OK);
    EXPECT_EQ(h.cache.pagesInUse(), 0);
  }
}

// A full pool is refused only when the pages really are not there: after
// freeing everything else the same append succeeds.
TEST(History, EveryPageComesBack) {
  History h(7, 10, 1, 5);
  for (int i = 0; i < 500; ++i)
    ASSERT_NO_FATAL_FAILURE(h.step());
  for (auto &[id, m] : h.model)
    ASSERT_EQ(h.cache.free(id), KV_OK);
  int64_t id = h.cache.make();
  EXPECT_EQ(h.cache.appendRandom(id, 40), KV_OK);
}
