//===- RunMemory.cpp - Memory of one call of generated code ---------------===//
#include "RunMemory.h"

#include "kvcache/Runner/Executable.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

using namespace kvcache;

/// Before each block; blocks of a call form a list in both directions.
struct RunMemory::Header {
  Header *next, *previous;
  void *start; ///< what malloc gave
  RunMemory *owner;
};

static constexpr size_t kAlignment = 128; // what kernels expect of pools

static thread_local RunMemory *current = nullptr;

static RunMemory::Header *headerOf(void *block) {
  return static_cast<RunMemory::Header *>(block) - 1;
}

static void unlink(RunMemory::Header *h) {
  if (!h->owner)
    return;
  (h->previous ? h->previous->next : h->owner->first) = h->next;
  if (h->next)
    h->next->previous = h->previous;
}

static void *take(size_t size) {
  size_t room = size + kAlignment + sizeof(RunMemory::Header);
  void *start = room < size ? nullptr : std::malloc(room);
  if (!start) {
    // Code has no way to go on without memory, and no way to say so.
    std::fprintf(stderr, "kvcache: out of memory (%zu bytes)\n", size);
    std::abort();
  }
  auto at = reinterpret_cast<uintptr_t>(start) + sizeof(RunMemory::Header);
  at = (at + kAlignment - 1) / kAlignment * kAlignment;
  auto *block = reinterpret_cast<void *>(at);
  RunMemory *owner = current; // none in threads that only help
  *headerOf(block) = {owner ? owner->first : nullptr, nullptr, start, owner};
  if (!owner)
    return block;
  if (owner->first)
    owner->first->previous = headerOf(block);
  owner->first = headerOf(block);
  return block;
}

static void *takeAligned(size_t, size_t size) { return take(size); }

static void give(void *block) {
  if (!block)
    return;
  unlink(headerOf(block));
  std::free(headerOf(block)->start);
}

RunMemory::RunMemory() : outer(current) { current = this; }

RunMemory::~RunMemory() {
  while (first) {
    Header *h = first;
    first = h->next;
    std::free(h->start);
  }
  current = outer;
}

bool RunMemory::release(void *block) {
  for (Header *h = first; h; h = h->next)
    if (h + 1 == block) {
      unlink(h);
      return true;
    }
  return false;
}

x86::JitSymbols RunMemory::symbols() {
  static const std::pair<llvm::StringRef, void *> names[] = {
      {"kvcache_run_malloc", reinterpret_cast<void *>(&take)},
      {"kvcache_run_aligned_alloc", reinterpret_cast<void *>(&takeAligned)},
      {"kvcache_run_free", reinterpret_cast<void *>(&give)}};
  return names;
}

llvm::StringRef RunMemory::replacementOf(llvm::StringRef name) {
  for (auto [ours, address] : symbols())
    if (ours.substr(sizeof("kvcache_run_") - 1) == name)
      return ours;
  return "";
}

void kvcache::freeRunBlock(std::byte *owner) {
  if (owner)
    std::free(headerOf(owner)->start);
}
