//===- PagePool.cpp - Slots of one page size ------------------------------===//

#include "PagePool.h"

#include <sys/mman.h>

#include <cassert>
#include <cerrno>
#include <cstring>

using namespace kvcache::rt;

PagePool::~PagePool() {
  if (memory)
    munmap(memory, size_t(limit * bytesPerPage));
}

Error PagePool::reserve(int64_t slots, int64_t pageBytes) {
  int64_t bytes;
  if (__builtin_mul_overflow(slots, pageBytes, &bytes) || bytes >= int64_t(1)
                                                                       << 46)
    return makeError(KV_OUT_OF_MEMORY, "a pool of ", slots, " pages of ",
                     pageBytes, " bytes does not fit the address space");
  void *p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return makeError(KV_OUT_OF_MEMORY, "cannot reserve ", bytes, " bytes for ",
                     slots, " pages: ", std::strerror(errno));
  // Large pages halve the time of streaming through a long cache, where
  // allowed.
  madvise(p, size_t(bytes), MADV_HUGEPAGE);
  memory = static_cast<char *>(p);
  limit = slots;
  bytesPerPage = pageBytes;
  return {};
}

int32_t PagePool::allocate() {
  ++used;
  if (!freed.empty()) {
    int32_t slot = freed.back();
    freed.pop_back();
    references[slot] = 1;
    return slot;
  }
  assert(int64_t(references.size()) < limit && "the caller counts free pages");
  references.push_back(1);
  twin.push_back(-1);
  return int32_t(references.size() - 1);
}

bool PagePool::release(int32_t slot) {
  assert(references[slot] > 0 && "a page is released once per holder");
  if (--references[slot] > 0)
    return false;
  freed.push_back(slot);
  --used;
  return true;
}
