//===- Cache.h - A paged cache ----------------------------------*- C++ -*-===//
//
// Sequences are lists of pages; a page is a slot in one of two pools. Pages are
// shared by reference count. Rules that keep sharing right:
//   * an open page is written only by its sole holder; a shared one is copied
//     first, so bytes below any holder's length never change;
//   * sealed pages never change;
//   * a shared open page that one holder has sealed remembers the image
//   (`twin`)
//     until it is written or freed, and later holders take that image.
// The number of pages in use never exceeds `capacity` when a call returns.
// Within a call the open pool may hold more (pages waiting to be released), for
// which it has spare slots.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNTIME_LIB_CACHE_H
#define KVCACHE_RUNTIME_LIB_CACHE_H

#include "Kernel.h"
#include "PagePool.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kvcache::rt {

struct Sequence {
  int64_t length = 0;
  int64_t sealed = 0; ///< logical pages [sinkPages, sinkPages + sealed)
  /// Per logical page: its slot in the pool of its state, -1 in the other.
  std::vector<int32_t> sealedTable, openTable;

  int64_t pages() const { return int64_t(openTable.size()); }
};

/// Memory of the attend workspace, 128-byte aligned.
class AlignedBuffer {
public:
  void *ensure(int64_t bytes);

private:
  std::unique_ptr<char[]> memory;
  int64_t capacity = 0;
};

} // namespace kvcache::rt

/// Opaque to C. Every public method checks its arguments, then does all or
/// nothing.
struct KvCache {
public:
  using Error = kvcache::rt::Error;

  explicit KvCache(KvKernel *kernel);
  ~KvCache();

  Error init(const KvCacheOptions &options);

  Error newSequence(int64_t &id);
  Error fork(int64_t id, int64_t &child);
  Error free(int64_t id);
  Error length(int64_t id, int64_t &tokens);
  Error sealedTokens(int64_t id, int64_t &tokens);
  Error truncate(int64_t id, int64_t length);
  Error append(int64_t id, const void *k, const void *v, int64_t tokens,
               int64_t &refusedRow);
  Error attend(const void *q, const int64_t *ids, const int64_t *qLens,
               int64_t batch, const float *slopes, void *out, float *lse);
  Error read(int64_t id, float *k, float *v);
  Error dump(int64_t id, void *buffer, size_t bytes, size_t &size);
  KvCacheStats stats();

  std::mutex mutex;

private:
  friend class AppendTransaction;
  using Sequence = kvcache::rt::Sequence;

  Error find(int64_t id, Sequence *&sequence);
  const KvKernelInfo &info() const { return kernel->info; }
  int64_t page() const { return kernel->info.page_tokens; }
  int64_t pagesFor(int64_t tokens) const {
    return (tokens + page() - 1) / page();
  }
  int64_t inUse() const { return open.inUse() + sealed.inUse(); }
  Error checkRoom(int64_t extraPages, const char *what, int64_t tokens) const;

  void releaseOpen(int32_t slot);
  void releaseSealed(int32_t slot);
  void releasePage(const Sequence &s, int64_t logicalPage);
  /// Forgets that an open page has an image (before it is written).
  void unlink(int32_t openSlot);

  kvcache::rt::PoolBytes poolBytes() const {
    return {sealed.touchedBytes(), open.touchedBytes()};
  }
  KvSealArgs sealArgs(const int32_t *src, const int32_t *dst) const;
  void zeroUnused(char *page, int64_t tokens) const;

  KvKernel *kernel;
  int64_t capacity = 0;
  kvcache::rt::PagePool open, sealed;
  std::vector<float> kScale, vScale;
  std::unordered_map<int64_t, Sequence> sequences;
  int64_t nextSequence = 0;
  kvcache::rt::AlignedBuffer workspace;
};

#endif // KVCACHE_RUNTIME_LIB_CACHE_H
