//===- TestCache.h - A cache of the test kernel with checked calls --------===//
#ifndef KVCACHE_TEST_TESTCACHE_H
#define KVCACHE_TEST_TESTCACHE_H

#include "TestKernel.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvcache::test {

using Rows = std::vector<float>; ///< [tokens][kvHeads][dim]
constexpr int64_t rowFloats = kvHeads * headDim;

/// Random rows, not multiples of 1/4.
inline Rows randomRows(std::mt19937 &rng, int64_t tokens) {
  std::uniform_real_distribution<float> dist(-2, 2);
  Rows rows(size_t(tokens * rowFloats));
  for (float &x : rows)
    x = dist(rng);
  return rows;
}

class TestCache {
public:
  explicit TestCache(int64_t pages, int64_t sinkPages = 0, int64_t recent = 0,
                     int64_t windowLeft = -1) {
    info = testInfo(sinkPages, recent, windowLeft);
    configure(info);
    KvKernelEntries entries = testEntries();
    EXPECT_EQ(kvcache_kernel_create(&info, &entries, nullptr, nullptr, &kernel),
              KV_OK);
    KvCacheOptions options{pages * page, nullptr, nullptr};
    EXPECT_EQ(kvcache_create(kernel, &options, &cache), KV_OK)
        << kvcache_last_error();
  }
  ~TestCache() {
    kvcache_destroy(cache);
    kvcache_kernel_release(kernel);
  }

  int64_t make() {
    int64_t id = -1;
    EXPECT_EQ(kvcache_sequence_new(cache, &id), KV_OK);
    return id;
  }
  int64_t fork(int64_t id) {
    int64_t child = -1;
    EXPECT_EQ(kvcache_sequence_fork(cache, id, &child), KV_OK);
    return child;
  }
  KvStatus free(int64_t id) { return kvcache_sequence_free(cache, id); }
  KvStatus truncate(int64_t id, int64_t n) {
    return kvcache_sequence_truncate(cache, id, n);
  }
  KvStatus append(int64_t id, const Rows &k, const Rows &v,
                  int64_t *refused = nullptr) {
    return kvcache_append(cache, id, k.data(), v.data(),
                          int64_t(k.size()) / rowFloats, refused);
  }
  /// Appends random rows (the values are the negated keys).
  KvStatus appendRandom(int64_t id, int64_t tokens, Rows *keys = nullptr) {
    Rows k = randomRows(rng, tokens), v = k;
    for (float &x : v)
      x = -x;
    KvStatus status = append(id, k, v);
    if (keys && status == KV_OK)
      keys->insert(keys->end(), k.begin(), k.end());
    return status;
  }
  int64_t length(int64_t id) {
    int64_t n = -1;
    EXPECT_EQ(kvcache_sequence_length(cache, id, &n), KV_OK);
    return n;
  }
  int64_t sealedTokens(int64_t id) {
    int64_t n = -1;
    EXPECT_EQ(kvcache_sequence_sealed(cache, id, &n), KV_OK);
    return n;
  }
  /// Decoded keys; checks that values are their negatives.
  Rows read(int64_t id) {
    size_t n = size_t(length(id) * rowFloats);
    Rows k(n), v(n);
    EXPECT_EQ(kvcache_read(cache, id, k.data(), v.data()), KV_OK);
    for (size_t i = 0; i < n; ++i)
      EXPECT_EQ(v[i], -k[i]);
    return k;
  }
  std::string dump(int64_t id) {
    size_t size = 0;
    EXPECT_EQ(kvcache_dump(cache, id, nullptr, 0, &size), KV_OK);
    std::string bytes(size, '\1');
    EXPECT_EQ(kvcache_dump(cache, id, bytes.data(), size, &size), KV_OK);
    return bytes;
  }
  KvCacheStats stats() {
    KvCacheStats s{};
    EXPECT_EQ(kvcache_stats(cache, &s), KV_OK);
    return s;
  }
  int64_t pagesInUse() {
    KvCacheStats s = stats();
    return s.open_pages + s.sealed_pages;
  }

  KvKernelInfo info{};
  KvKernel *kernel = nullptr;
  KvCache *cache = nullptr;
  std::mt19937 rng{42};
};

} // namespace kvcache::test

#endif // KVCACHE_TEST_TESTCACHE_H
