//===- PagePool.h - Slots of one page size ----------------------*- C++ -*-===//
//
// Address space for a fixed number of pages, memory committed by the system as
// pages are first touched (and zero until then), and a reference count for
// each.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNTIME_LIB_PAGEPOOL_H
#define KVCACHE_RUNTIME_LIB_PAGEPOOL_H

#include "Status.h"

#include <cstdint>
#include <vector>

namespace kvcache::rt {

class PagePool {
public:
  PagePool() = default;
  PagePool(const PagePool &) = delete;
  PagePool &operator=(const PagePool &) = delete;
  ~PagePool();

  Error reserve(int64_t slots, int64_t pageBytes);

  /// A free slot with one reference. The caller has counted: one is free.
  int32_t allocate();
  void retain(int32_t slot) { ++references[slot]; }
  /// Drops a reference; true if the slot became free.
  bool release(int32_t slot);

  int64_t refs(int32_t slot) const { return references[slot]; }
  bool shared(int32_t slot) const { return references[slot] > 1; }
  int64_t inUse() const { return used; }
  int64_t slots() const { return limit; }
  int64_t pageBytes() const { return bytesPerPage; }
  /// Bytes of the slots that were ever in use, from the start.
  int64_t touchedBytes() const {
    return int64_t(references.size()) * bytesPerPage;
  }
  char *base() const { return memory; }
  char *page(int32_t slot) const { return memory + slot * bytesPerPage; }

  /// The slot of the other pool that holds the same tokens in the other state,
  /// or -1: from a shared open page to the image made of it and back.
  std::vector<int32_t> twin;

private:
  char *memory = nullptr;
  int64_t limit = 0, bytesPerPage = 0, used = 0;
  std::vector<int32_t> freed; // a stack: what was warm is used again first
  std::vector<uint32_t> references;
};

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_PAGEPOOL_H
