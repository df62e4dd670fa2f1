//===- Append.cpp - Appending as a transaction ----------------------------===//
//
// 1. Count the pages that the append needs in the end, from lengths and
//    reference counts alone; refuse if they are not there.
// 2. Write the new rows chunk by chunk and seal every page that fills and is
// old
//    enough, so that a long prompt has few pages open at a time. Whatever is
//    written is either new or lies past the sequence's length.
// 3. Seal (or adopt the image of) older pages that the new length makes old
//    enough.
// 4. Commit: enter the new pages in the tables and release the replaced ones.
// If
//    the kernel refused a row, release the new pages instead.
//
//===----------------------------------------------------------------------===//

#include "Cache.h"

#include <algorithm>
#include <cstring>

using namespace kvcache::rt;

// Open bytes written before their pages are sealed: small enough to be still in
// the second-level cache, large enough to share among threads.
static constexpr int64_t chunkBytes = 1 << 20;

class AppendTransaction {
public:
  AppendTransaction(KvCache &cache, Sequence &s, int64_t tokens)
      : cache(cache), s(s), first(s.length), last(s.length + tokens),
        page(cache.page()), sinks(cache.info().sink_pages) {
    int64_t old = last - cache.info().recent_tokens;
    sealedAfter = std::max(s.sealed, old > 0 ? old / page - sinks : int64_t(0));
    cutPage = first % page ? first / page : -1;
    copyCut = cutPage >= 0 && cache.open.shared(s.openTable[cutPage]);
  }

  /// Pages in use after the commit minus pages in use now.
  int64_t extraPages() const;
  /// Steps 2 and 3; on failure everything new has been given back.
  Error run(const void *k, const void *v, int64_t &refusedRow);
  void commit();

private:
  bool willSeal(int64_t p) const {
    return p >= sinks && p < sinks + sealedAfter;
  }
  void startPage(int64_t p);
  Error writeChunk(const char *k, const char *v, int64_t begin, int64_t end,
                   int64_t &refusedRow);
  Error sealFilled(int64_t begin, int64_t end);
  Error sealOlder();
  void rollBack();

  /// What the table entry of a page becomes.
  struct Entry {
    int64_t page;
    int32_t openSlot, sealedSlot;
    bool adopted; ///< an image that exists already: take a reference
  };

  KvCache &cache;
  Sequence &s;
  int64_t first, last, page, sinks;
  int64_t sealedAfter, cutPage;
  bool copyCut;
  std::vector<Entry> entries;    ///< pages [firstTouched, ...) in order, then
                                 ///< older ones
  std::vector<int64_t> slotRows; ///< the kernel's slots argument
};

int64_t AppendTransaction::extraPages() const {
  int64_t extra = cache.pagesFor(last) - cache.pagesFor(first);
  extra += copyCut;
  for (int64_t p = sinks + s.sealed; p < sinks + sealedAfter; ++p) {
    if (p >= first / page)
      break; // written by this append: replaced one for one
    int32_t slot = s.openTable[p];
    bool shared = cache.open.shared(slot);
    bool hasImage = cache.open.twin[slot] >= 0;
    extra += shared && !hasImage;
    extra -= !shared && hasImage;
  }
  return extra;
}

// Gives page `p` an open slot that is ours to write.
void AppendTransaction::startPage(int64_t p) {
  if (p == cutPage && !copyCut) {
    int32_t slot = s.openTable[p];
    cache.unlink(slot);
    entries.push_back({p, slot, -1, false});
    return;
  }
  int32_t slot = cache.open.allocate();
  if (p == cutPage)
    std::memcpy(cache.open.page(slot), cache.open.page(s.openTable[p]),
                size_t(cache.open.pageBytes()));
  entries.push_back({p, slot, -1, false});
}

Error AppendTransaction::writeChunk(const char *k, const char *v, int64_t begin,
                                    int64_t end, int64_t &refusedRow) {
  size_t firstEntry = entries.size();
  for (int64_t p = begin / page; p * page < end; ++p)
    startPage(p);
  slotRows.resize(size_t(end - begin));
  for (int64_t t = begin; t < end; ++t) {
    const Entry &e = entries[firstEntry + size_t(t / page - begin / page)];
    slotRows[size_t(t - begin)] = e.openSlot * page + t % page;
  }
  KvAppendArgs args{};
  args.k = const_cast<char *>(k);
  args.v = const_cast<char *>(v);
  args.slots = slotRows.data();
  args.open_pool = cache.open.base();
  args.k_scale = cache.kScale.data();
  args.v_scale = cache.vScale.data();
  int64_t row = -1;
  if (Error e =
          runAppend(*cache.kernel, args, end - begin, cache.poolBytes(), row))
    return e;
  if (row < 0)
    return {};
  refusedRow = begin - first + row;
  return invalid("token ", refusedRow, " of the ", last - first,
                 " to append cannot be stored: a key or value is not finite or "
                 "is so large that its scale would overflow");
}

// Seals the pages of the last chunk that are full and old enough.
Error AppendTransaction::sealFilled(int64_t begin, int64_t end) {
  std::vector<int32_t> src, dst;
  std::vector<Entry *> changed;
  for (Entry &e : entries) {
    if (e.page < begin / page || (e.page + 1) * page > end || !willSeal(e.page))
      continue;
    src.push_back(e.openSlot);
    e.sealedSlot = cache.sealed.allocate();
    dst.push_back(e.sealedSlot);
    changed.push_back(&e);
  }
  if (src.empty())
    return {};
  KvSealArgs args = cache.sealArgs(src.data(), dst.data());
  if (Error e = runPages(*cache.kernel, KV_ENTRY_SEAL, args,
                         int64_t(src.size()), cache.poolBytes()))
    return e;
  for (Entry *e : changed) {
    // The page that was there before is released at the commit.
    if (e->page != cutPage || copyCut)
      cache.releaseOpen(e->openSlot);
    e->openSlot = -1;
  }
  return {};
}

Error AppendTransaction::sealOlder() {
  std::vector<int32_t> src, dst;
  int64_t end = std::min(sinks + sealedAfter, first / page);
  for (int64_t p = sinks + s.sealed; p < end; ++p) {
    int32_t slot = s.openTable[p], image = cache.open.twin[slot];
    bool adopt = image >= 0;
    if (!adopt) {
      image = cache.sealed.allocate();
      src.push_back(slot);
      dst.push_back(image);
    }
    entries.push_back({p, -1, image, adopt});
  }
  KvSealArgs args = cache.sealArgs(src.data(), dst.data());
  return runPages(*cache.kernel, KV_ENTRY_SEAL, args, int64_t(src.size()),
                  cache.poolBytes());
}

Error AppendTransaction::run(const void *k, const void *v,
                             int64_t &refusedRow) {
  const KvKernelInfo &info = cache.info();
  const int64_t elementBytes = cache.kernel->dtypeBytes();
  const int64_t kRow = info.kv_heads * info.head_dim * elementBytes;
  const int64_t vRow = info.kv_heads * info.value_dim * elementBytes;
  const int64_t chunk =
      std::max<int64_t>(1, chunkBytes / cache.open.pageBytes()) * page;
  for (int64_t begin = first; begin < last;) {
    int64_t end = std::min(last, begin / page * page + chunk);
    const char *kChunk = static_cast<const char *>(k) + (begin - first) * kRow;
    const char *vChunk = static_cast<const char *>(v) + (begin - first) * vRow;
    Error e = writeChunk(kChunk, vChunk, begin, end, refusedRow);
    if (!e)
      e = sealFilled(begin, end);
    if (e) {
      rollBack();
      return e;
    }
    begin = end;
  }
  Error e = sealOlder();
  if (e)
    rollBack();
  return e;
}

void AppendTransaction::rollBack() {
  for (const Entry &e : entries) {
    bool existed = e.page == cutPage && !copyCut;
    if (e.openSlot >= 0 && !existed)
      cache.releaseOpen(e.openSlot);
    if (e.sealedSlot >= 0 && !e.adopted)
      cache.releaseSealed(e.sealedSlot);
  }
}

void AppendTransaction::commit() {
  size_t pages = size_t(cache.pagesFor(last));
  s.openTable.resize(pages, -1);
  s.sealedTable.resize(pages, -1);
  for (const Entry &e : entries) {
    int32_t before = s.openTable[size_t(e.page)];
    if (e.adopted)
      cache.sealed.retain(e.sealedSlot);
    if (before >= 0 && before != e.openSlot) {
      // Others that still hold the open page take this image later. The cut
      // page's copy holds tokens that the others do not have.
      if (e.sealedSlot >= 0 && !e.adopted && e.page != cutPage &&
          cache.open.shared(before)) {
        cache.open.twin[before] = e.sealedSlot;
        cache.sealed.twin[e.sealedSlot] = before;
      }
      cache.releaseOpen(before);
    }
    s.openTable[size_t(e.page)] = e.openSlot;
    s.sealedTable[size_t(e.page)] = e.sealedSlot;
  }
  s.sealed = sealedAfter;
  s.length = last;
}

Error KvCache::append(int64_t id, const void *k, const void *v, int64_t tokens,
                      int64_t &refusedRow) {
  Sequence *s = nullptr;
  if (Error e = find(id, s))
    return e;
  if (tokens < 0 || tokens > INT32_MAX - s->length)
    return invalid("cannot append ", tokens, " tokens to ", s->length,
                   ": expected 0 to ", INT32_MAX - s->length);
  if (tokens == 0)
    return {};
  if (!k || !v)
    return invalid("k and v must not be null");
  AppendTransaction transaction(*this, *s, tokens);
  if (Error e = checkRoom(transaction.extraPages(), "appending", tokens))
    return e;
  if (Error e = transaction.run(k, v, refusedRow))
    return e;
  transaction.commit();
  return {};
}
