//===- Cache.cpp - Sequences, sharing and truncation ----------------------===//

#include "Cache.h"
#include "ThreadPool.h"

#include <algorithm>
#include <cmath>

using namespace kvcache::rt;

void *AlignedBuffer::ensure(int64_t bytes) {
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    memory.reset(new char[size_t(bytes) + 128]);
    capacity = bytes;
  }
  auto address = reinterpret_cast<uintptr_t>(memory.get());
  return reinterpret_cast<void *>((address + 127) / 128 * 128);
}

KvCache::KvCache(KvKernel *kernel) : kernel(kernel) {
  kvcache_kernel_retain(kernel);
}

KvCache::~KvCache() { kvcache_kernel_release(kernel); }

static Error copyScales(const float *given, int64_t heads, bool used,
                        const char *name, std::vector<float> &scales) {
  if (given && !used)
    return invalid(name, " was given, but the format has no static scale "
                         "(`tensor`) there");
  scales.assign(size_t(heads), 1.0f);
  if (given)
    scales.assign(given, given + heads);
  for (int64_t h = 0; h < heads; ++h)
    if (!std::isfinite(scales[h]) || scales[h] <= 0)
      return invalid(name, "[", h, "] is ", scales[h],
                     ", expected a finite number above 0");
  return {};
}

Error KvCache::init(const KvCacheOptions &options) {
  if (Error e = checkThreadsFromEnvironment())
    return e;
  int64_t tokens = options.capacity_tokens;
  if (tokens < 1 || pagesFor(tokens) > (int64_t(1) << 30))
    return invalid("capacity_tokens is ", tokens, ", expected 1 to ",
                   page() << 30);
  if (Error e = copyScales(options.k_scale, info().kv_heads,
                           info().static_k_scale, "k_scale", kScale))
    return e;
  if (Error e = copyScales(options.v_scale, info().kv_heads,
                           info().static_v_scale, "v_scale", vScale))
    return e;
  capacity = pagesFor(tokens);
  // Within an append all pages may be open before the first is released.
  if (Error e = open.reserve(2 * capacity + 1,
                             info().kv_heads * info().open_record_bytes))
    return e;
  return sealed.reserve(capacity + 1,
                        info().kv_heads * info().sealed_record_bytes);
}

Error KvCache::find(int64_t id, Sequence *&sequence) {
  auto it = sequences.find(id);
  if (it == sequences.end())
    return id >= 0 && id < nextSequence
               ? invalid("sequence ", id, " was freed before")
               : invalid("there is no sequence ", id, ", ", nextSequence,
                         " were made so far");
  sequence = &it->second;
  return {};
}

Error KvCache::checkRoom(int64_t extraPages, const char *what,
                         int64_t tokens) const {
  if (inUse() + extraPages <= capacity)
    return {};
  return makeError(KV_CACHE_FULL, what, " ", tokens, " tokens needs ",
                   extraPages, " more pages of ", page(), " tokens, ",
                   capacity - inUse(), " of ", capacity, " are free");
}

Error KvCache::newSequence(int64_t &id) {
  id = nextSequence++;
  sequences.emplace(id, Sequence());
  return {};
}

Error KvCache::fork(int64_t id, int64_t &child) {
  Sequence *parent = nullptr;
  if (Error e = find(id, parent))
    return e;
  Sequence copy = *parent;
  for (int64_t p = 0; p < copy.pages(); ++p)
    if (copy.openTable[p] >= 0)
      open.retain(copy.openTable[p]);
    else
      sealed.retain(copy.sealedTable[p]);
  child = nextSequence++;
  sequences.emplace(child, std::move(copy));
  return {};
}

Error KvCache::free(int64_t id) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  for (int64_t p = 0; p < s->pages(); ++p)
    releasePage(*s, p);
  sequences.erase(id);
  return {};
}

Error KvCache::length(int64_t id, int64_t &tokens) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  tokens = s->length;
  return {};
}

Error KvCache::sealedTokens(int64_t id, int64_t &tokens) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  tokens = s->sealed * page();
  return {};
}

void KvCache::unlink(int32_t openSlot) {
  int32_t image = open.twin[openSlot];
  if (image < 0)
    return;
  sealed.twin[image] = -1;
  open.twin[openSlot] = -1;
}

void KvCache::releaseOpen(int32_t slot) {
  if (open.release(slot))
    unlink(slot);
}

void KvCache::releaseSealed(int32_t slot) {
  if (!sealed.release(slot))
    return;
  if (int32_t origin = sealed.twin[slot]; origin >= 0)
    unlink(origin);
}

void KvCache::releasePage(const Sequence &s, int64_t logicalPage) {
  if (s.openTable[logicalPage] >= 0)
    releaseOpen(s.openTable[logicalPage]);
  else
    releaseSealed(s.sealedTable[logicalPage]);
}

KvSealArgs KvCache::sealArgs(const int32_t *src, const int32_t *dst) const {
  KvSealArgs args{};
  args.src = const_cast<int32_t *>(src);
  args.dst = const_cast<int32_t *>(dst);
  args.sealed_pool = sealed.base();
  args.open_pool = open.base();
  args.k_scale = const_cast<float *>(kScale.data());
  args.v_scale = const_cast<float *>(vScale.data());
  return args;
}

Error KvCache::truncate(int64_t id, int64_t length) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  if (length < 0 || length > s->length)
    return invalid("cannot truncate to ", length, " tokens: sequence ", id,
                   " has ", s->length);
  int64_t keep = pagesFor(length), cut = length / page();
  bool decode = length % page() != 0 && s->sealedTable[cut] >= 0;
  if (decode) {
    int32_t image = s->sealedTable[cut];
    // Pages behind the new length may be all ours: they come free first.
    int64_t freed = 0;
    for (int64_t p = cut; p < s->pages(); ++p)
      freed += s->openTable[p] >= 0 ? !open.shared(s->openTable[p])
                                    : !sealed.shared(s->sealedTable[p]);
    if (Error e = checkRoom(1 - freed, "truncating to", length))
      return e;
    int32_t slot = open.allocate();
    KvSealArgs args = sealArgs(&image, &slot);
    if (Error e = runPages(*kernel, KV_ENTRY_UNSEAL, args, 1, poolBytes())) {
      open.release(slot);
      return e;
    }
    releaseSealed(image);
    s->sealedTable[cut] = -1;
    s->openTable[cut] = slot;
  }
  for (int64_t p = keep; p < s->pages(); ++p)
    releasePage(*s, p);
  s->openTable.resize(size_t(keep));
  s->sealedTable.resize(size_t(keep));
  s->sealed =
      std::min(s->sealed, std::max<int64_t>(0, cut - info().sink_pages));
  s->length = length;
  return {};
}
