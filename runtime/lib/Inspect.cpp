//===- Inspect.cpp - read, dump and statistics of a cache -----------------===//

#include "Cache.h"

#include <algorithm>
#include <cstring>

using namespace kvcache::rt;

// Decodes pages of one state into k and v, which hold whole pages.
static Error readPages(const KvKernel &kernel, KvReadArgs args,
                       const int32_t *pages, int64_t count, bool isSealed,
                       float *k, float *v, const PoolBytes &pools) {
  args.pages = const_cast<int32_t *>(pages);
  args.is_sealed = isSealed;
  args.k = k;
  args.v = v;
  return runRead(kernel, args, count, pools);
}

Error KvCache::read(int64_t id, float *k, float *v) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  if (s->length == 0)
    return {};
  if (!k || !v)
    return invalid("k and v must not be null");
  KvReadArgs args{};
  args.sealed_pool = sealed.base();
  args.open_pool = open.base();
  args.k_scale = kScale.data();
  args.v_scale = vScale.data();
  const int64_t kRow = info().kv_heads * info().head_dim;
  const int64_t vRow = info().kv_heads * info().value_dim;
  const int64_t whole = s->length / page();
  // Runs of whole pages in one state go straight to the result.
  for (int64_t p = 0; p < whole;) {
    bool isSealed = s->sealedTable[size_t(p)] >= 0;
    const auto &table = isSealed ? s->sealedTable : s->openTable;
    int64_t end = p;
    while (end < whole && table[size_t(end)] >= 0)
      ++end;
    if (Error e = readPages(*kernel, args, &table[size_t(p)], end - p, isSealed,
                            k + p * page() * kRow, v + p * page() * vRow,
                            poolBytes()))
      return e;
    p = end;
  }
  int64_t rest = s->length - whole * page();
  if (rest == 0)
    return {};
  std::vector<float> kPage(size_t(page() * kRow)), vPage(size_t(page() * vRow));
  if (Error e = readPages(*kernel, args, &s->openTable[size_t(whole)], 1, false,
                          kPage.data(), vPage.data(), poolBytes()))
    return e;
  std::copy_n(kPage.begin(), rest * kRow, k + whole * page() * kRow);
  std::copy_n(vPage.begin(), rest * vRow, v + whole * page() * vRow);
  return {};
}

// Zeroes what an open page (a copy of it) holds behind its first `tokens`.
void KvCache::zeroUnused(char *bytes, int64_t tokens) const {
  const int64_t element = kernel->dtypeBytes();
  const int64_t kRow = info().head_dim * element;
  const int64_t vRow = info().value_dim * element;
  for (int64_t h = 0; h < info().kv_heads; ++h) {
    char *record = bytes + h * info().open_record_bytes;
    char *values = record + page() * kRow;
    std::memset(record + tokens * kRow, 0, size_t((page() - tokens) * kRow));
    std::memset(
        values + tokens * vRow, 0,
        size_t(record + info().open_record_bytes - (values + tokens * vRow)));
  }
}

Error KvCache::dump(int64_t id, void *buffer, size_t bytes, size_t &size) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  int64_t total = 0;
  for (int64_t p = 0; p < s->pages(); ++p)
    total +=
        s->openTable[size_t(p)] >= 0 ? open.pageBytes() : sealed.pageBytes();
  size = size_t(total);
  if (!buffer)
    return {};
  if (bytes < size)
    return invalid("the buffer has ", bytes, " bytes, ", size, " are needed");
  char *out = static_cast<char *>(buffer);
  for (int64_t p = 0; p < s->pages(); ++p) {
    if (int32_t slot = s->openTable[size_t(p)]; slot >= 0) {
      std::memcpy(out, open.page(slot), size_t(open.pageBytes()));
      zeroUnused(out, std::min(page(), s->length - p * page()));
      out += open.pageBytes();
    } else {
      std::memcpy(out, sealed.page(s->sealedTable[size_t(p)]),
                  size_t(sealed.pageBytes()));
      out += sealed.pageBytes();
    }
  }
  return {};
}

KvCacheStats KvCache::stats() {
  KvCacheStats out{};
  out.capacity_pages = capacity;
  out.open_pages = open.inUse();
  out.sealed_pages = sealed.inUse();
  out.open_page_bytes = open.pageBytes();
  out.sealed_page_bytes = sealed.pageBytes();
  out.bytes_held =
      open.inUse() * open.pageBytes() + sealed.inUse() * sealed.pageBytes();
  out.sequences = int64_t(sequences.size());
  // How far the fullest holder fills each open page.
  std::unordered_map<int32_t, int64_t> openFill, sealedSeen;
  for (const auto &[id, s] : sequences) {
    out.sequence_tokens += s.length;
    for (int64_t p = 0; p < s.pages(); ++p) {
      int64_t fill = std::min(page(), s.length - p * page());
      if (int32_t slot = s.openTable[size_t(p)]; slot >= 0)
        openFill[slot] = std::max(openFill[slot], fill);
      else
        sealedSeen[s.sealedTable[size_t(p)]] = fill;
    }
  }
  const int64_t tokenBytes = info().kv_heads * kernel->dtypeBytes() *
                             (info().head_dim + info().value_dim);
  for (const auto &[slot, fill] : openFill) {
    out.stored_tokens += fill;
    out.wasted_bytes += open.pageBytes() - fill * tokenBytes;
    out.shared_pages += open.shared(slot);
  }
  for (const auto &[slot, fill] : sealedSeen) {
    out.stored_tokens += fill;
    out.shared_pages += sealed.shared(slot);
  }
  return out;
}
