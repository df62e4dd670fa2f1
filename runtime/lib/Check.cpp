//===- Check.cpp - Lengths and tables before a launch ---------------------===//
//
// Generated code trusts its tables; this is where a caller's are checked. Only
// entries that some query of the call may see are looked at: what lies past a
// length or behind a window may be anything.
//
//===----------------------------------------------------------------------===//

#include "Check.h"

#include <algorithm>

using namespace kvcache::rt;

PageRange kvcache::rt::visiblePages(const KvKernelInfo &info, int64_t length,
                                    int64_t queries) {
  if (length <= 0 || queries <= 0)
    return {};
  int64_t first = 0, last = length - 1;
  int64_t firstQuery = std::max<int64_t>(0, length - queries);
  if (info.window_left >= 0)
    first = std::max<int64_t>(0, firstQuery - info.window_left);
  // The newest query stands on the last token, so nothing bounds the right
  // side.
  return {first / info.page_tokens, last / info.page_tokens + 1};
}

static Error checkEntry(const KvAttendArgs &args, const KvTableSizes &sizes,
                        int64_t sequence, int64_t head, int64_t page,
                        bool isSealed) {
  const auto *table = static_cast<const int32_t *>(isSealed ? args.sealed_table
                                                            : args.open_table);
  int64_t index =
      sequence * args.table_seq_stride + head * args.table_head_stride + page;
  int64_t pool = isSealed ? sizes.sealed_pool_pages : sizes.open_pool_pages;
  int32_t entry = table[index];
  if (entry >= 0 && entry < pool)
    return {};
  const char *kind = isSealed ? "sealed" : "open";
  return invalid(kind, "_table of sequence ", sequence, " has page number ",
                 entry, " at position ", page, ", expected 0 to ", pool - 1,
                 " (the ", kind, " pool has ", pool, " pages)");
}

static Error checkSequence(const KvKernelInfo &info, const KvAttendArgs &args,
                           const KvTableSizes &sizes, int64_t s,
                           int64_t extraTokens) {
  int64_t length = static_cast<const int32_t *>(args.lengths)[s];
  int64_t sealed = static_cast<const int32_t *>(args.sealed_pages)[s];
  int64_t page = info.page_tokens;
  if (length < 0)
    return invalid("length of sequence ", s, " is ", length,
                   ", expected 0 or more");
  int64_t pages = (length + extraTokens + page - 1) / page;
  if (pages > sizes.table_pages)
    return invalid("sequence ", s, " of ", length, " tokens",
                   extraTokens ? " and " : "",
                   extraTokens ? std::to_string(extraTokens) + " more" : "",
                   " needs ", pages, " pages of ", page,
                   " tokens, its table has ", sizes.table_pages);
  int64_t most = std::max<int64_t>(0, length / page - info.sink_pages);
  if (sealed < 0 || sealed > most)
    return invalid("sequence ", s, " has ", sealed,
                   " sealed pages, expected 0 "
                   "to ",
                   most, " for ", length, " tokens and ", info.sink_pages,
                   " sink pages");
  const auto *indptr = static_cast<const int32_t *>(args.q_indptr);
  PageRange seen = visiblePages(info, length, indptr[s + 1] - indptr[s]);
  int64_t heads = args.table_head_stride ? info.kv_heads : 1;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t p = seen.begin; p < seen.end; ++p) {
      bool isSealed = p >= info.sink_pages && p < info.sink_pages + sealed;
      if (Error e = checkEntry(args, sizes, s, h, p, isSealed))
        return e;
    }
  return {};
}

Error kvcache::rt::checkTables(const KvKernelInfo &info,
                               const KvAttendArgs &args,
                               const KvTableSizes &sizes, int64_t extraTokens) {
  if (sizes.batch < 0 || sizes.table_pages < 0 || extraTokens < 0)
    return invalid("sizes must not be negative, got batch ", sizes.batch,
                   ", table pages ", sizes.table_pages, ", extra tokens ",
                   extraTokens);
  if (!args.lengths || !args.sealed_pages || !args.q_indptr ||
      !args.sealed_table || !args.open_table)
    return invalid(
        "lengths, sealed_pages, q_indptr and both tables are needed");
  for (const void *pool : {args.sealed_pool, args.open_pool})
    if (reinterpret_cast<uintptr_t>(pool) % 128)
      return invalid("pools must be aligned to 128 bytes, got address ", pool);
  const auto *indptr = static_cast<const int32_t *>(args.q_indptr);
  if (indptr[0] != 0)
    return invalid("q_indptr starts with ", indptr[0], ", expected 0");
  for (int64_t s = 0; s < sizes.batch; ++s) {
    if (indptr[s + 1] < indptr[s])
      return invalid("q_indptr falls from ", indptr[s], " to ", indptr[s + 1],
                     " at position ", s + 1);
    if (Error e = checkSequence(info, args, sizes, s, extraTokens))
      return e;
  }
  const auto *rowSeq = static_cast<const int32_t *>(args.row_seq);
  for (int64_t r = 0; rowSeq && r < indptr[sizes.batch]; ++r)
    if (rowSeq[r] < 0 || rowSeq[r] >= sizes.batch || r < indptr[rowSeq[r]] ||
        r >= indptr[rowSeq[r] + 1])
      return invalid("row_seq[", r, "] is ", rowSeq[r],
                     ", which is not the sequence of this row in q_indptr");
  return {};
}
