//===- Kernel.cpp - Checks a kernel's numbers and runs its entries --------===//

#include "Kernel.h"
#include "ThreadPool.h"

#include <algorithm>

using namespace kvcache::rt;

// Partials of one block of rows stay within this, unless one row needs more.
static constexpr int64_t workspaceBound = int64_t(64) << 20;
// Below this many bytes of cache a call is not worth waking a thread.
static constexpr int64_t serialBytes = 64 << 10;

Error kvcache::rt::checkKernelInfo(const KvKernelInfo &info) {
  struct Range {
    const char *name;
    int64_t value, low, high;
  };
  constexpr int64_t many = int64_t(1) << 20;
  constexpr int64_t big = int64_t(1) << 40;
  const Range ranges[] = {
      {"q_heads", info.q_heads, 1, many},
      {"kv_heads", info.kv_heads, 1, many},
      {"head_dim", info.head_dim, 1, many},
      {"value_dim", info.value_dim, 1, many},
      {"dtype", info.dtype, KV_F32, KV_BF16},
      {"page_tokens", info.page_tokens, 1, many},
      {"sink_pages", info.sink_pages, 0, INT32_MAX},
      {"recent_tokens", info.recent_tokens, 0, INT32_MAX},
      {"sealed_record_bytes", info.sealed_record_bytes, 128, big},
      {"open_record_bytes", info.open_record_bytes, 128, big},
      {"q_pack", info.q_pack, 1, many},
      {"split_tokens", info.split_tokens, 0, INT32_MAX},
      {"causal", info.causal, 0, 1},
      {"window_left", info.window_left, -1, INT32_MAX},
      {"window_right", info.window_right, -1, INT32_MAX},
      {"alibi", info.alibi, 0, 1},
      {"static_k_scale", info.static_k_scale, 0, 1},
      {"static_v_scale", info.static_v_scale, 0, 1},
  };
  for (const Range &r : ranges)
    if (r.value < r.low || r.value > r.high)
      return invalid("kernel's ", r.name, " is ", r.value, ", expected ", r.low,
                     " to ", r.high);
  if (info.q_heads % info.kv_heads)
    return invalid(info.q_heads, " query heads cannot share ", info.kv_heads,
                   " key/value heads: the first must be a multiple of the "
                   "second");
  if (info.sealed_record_bytes % 128 || info.open_record_bytes % 128)
    return invalid("record sizes must be multiples of 128 bytes, got sealed ",
                   info.sealed_record_bytes, " and open ",
                   info.open_record_bytes);
  int64_t elements = info.page_tokens * (info.head_dim + info.value_dim);
  int64_t need = elements * (info.dtype == KV_F32 ? 4 : 2);
  need = (need + 127) / 128 * 128;
  if (info.open_record_bytes != need)
    return invalid("open_record_bytes is ", info.open_record_bytes,
                   ", expected ", need, " for ", info.page_tokens,
                   " tokens of ", info.head_dim, " + ", info.value_dim,
                   " channels");
  return {};
}

Error kvcache::rt::makeKernel(const KvKernelInfo &info,
                              const KvKernelEntries &entries,
                              KvKernelRelease release, void *context,
                              KvKernel *&kernel) {
  if (Error e = checkKernelInfo(info))
    return e;
  if (!entries.attend || !entries.merge || !entries.append || !entries.seal ||
      !entries.unseal || !entries.read)
    return invalid("a kernel needs the entry points attend, merge, append, "
                   "seal, unseal and read");
  kernel = new KvKernel;
  kernel->info = info;
  kernel->entries = entries;
  kernel->release = release;
  kernel->context = context;
  return {};
}

AttendPlan kvcache::rt::planAttend(const KvKernel &kernel, int64_t rows,
                                   int64_t maxSplits) {
  AttendPlan plan;
  plan.rows = rows;
  plan.maxSplits = std::max<int64_t>(1, maxSplits);
  int64_t rowBytes = kernel.info.q_heads * plan.maxSplits * 4 *
                     kvcache_partial_floats(kernel.info.value_dim);
  plan.rowsPerBlock = std::clamp<int64_t>(workspaceBound / rowBytes, 1,
                                          std::max<int64_t>(rows, 1));
  plan.workspaceBytes = kvcache_workspace_bytes(
      plan.rowsPerBlock, kernel.info.q_heads, plan.maxSplits,
      kernel.info.value_dim,
      plan.rowsPerBlock * kernel.info.kv_heads * kernel.chunks());
  return plan;
}

// Enough ranges for an even end, few enough for a cheap counter.
static int64_t grainFor(int64_t items) {
  return std::clamp<int64_t>(items / (numThreads() * 16), 1, 256);
}

template <typename Args>
static Error runItems(int32_t (*fn)(const Args *, int64_t, int64_t),
                      const Args &args, int64_t items, bool parallel,
                      const char *what) {
  std::atomic<int32_t> status{0};
  parallelFor(items, parallel ? grainFor(items) : items,
              [&](int64_t begin, int64_t end) {
                if (int32_t s = fn(&args, begin, end))
                  status.store(s, std::memory_order_relaxed);
              });
  if (int32_t s = status.load())
    return makeError(KV_INTERNAL_ERROR, "the kernel's ", what,
                     " returned status ", s);
  return {};
}

Error kvcache::rt::runAttend(const KvKernel &kernel, KvAttendArgs args,
                             const AttendPlan &plan, void *workspace,
                             int64_t tokens, int64_t batch,
                             const PoolBytes &pools) {
  const KvKernelInfo &info = kernel.info;
  args.workspace = workspace;
  args.max_splits = plan.maxSplits;
  int64_t tokenBytes = info.sealed_record_bytes / info.page_tokens + 1;
  bool parallel = tokens * info.kv_heads * tokenBytes > serialBytes ||
                  plan.rows * info.q_heads > 1024;
  for (int64_t row = 0; row < plan.rows; row += plan.rowsPerBlock) {
    args.row_begin = row;
    args.row_end = std::min(row + plan.rowsPerBlock, plan.rows);
    int64_t rows = args.row_end - row;
    if (kernel.launch) {
      if (Error e = launchAttend(kernel, args, rows, plan.rows, batch, pools))
        return e;
      continue;
    }
    int64_t items = rows * info.kv_heads * kernel.chunks() * plan.maxSplits;
    if (Error e =
            runItems(kernel.entries.attend, args, items, parallel, "attend"))
      return e;
    if (Error e = runItems(kernel.entries.merge, args, rows * info.q_heads,
                           parallel, "merge"))
      return e;
  }
  return {};
}

Error kvcache::rt::runAppend(const KvKernel &kernel, const KvAppendArgs &given,
                             int64_t rows, const PoolBytes &pools,
                             int64_t &refusedRow) {
  if (kernel.launch)
    return launchAppend(kernel, given, rows, pools, refusedRow);
  const KvKernelInfo &info = kernel.info;
  int64_t rowBytes =
      info.kv_heads * (info.head_dim + info.value_dim) * kernel.dtypeBytes();
  int64_t grain = std::max<int64_t>(1, serialBytes / rowBytes);
  std::atomic<int64_t> refused{INT64_MAX};
  parallelFor(rows, grain, [&](int64_t begin, int64_t end) {
    int64_t status = INT64_MAX;
    KvAppendArgs args = given;
    args.status = &status;
    if (kernel.entries.append(&args, begin, end) == KVCACHE_OK)
      return;
    int64_t row = status == INT64_MAX ? begin : status;
    int64_t seen = refused.load();
    while (row < seen && !refused.compare_exchange_weak(seen, row)) {
    }
  });
  int64_t row = refused.load();
  refusedRow = row == INT64_MAX ? -1 : row;
  return {};
}

Error kvcache::rt::runPages(const KvKernel &kernel, KvEntry entry,
                            const KvSealArgs &args, int64_t pages,
                            const PoolBytes &pools) {
  if (pages == 0)
    return {};
  if (kernel.launch)
    return launchPages(kernel, entry, args, pages, pools);
  int64_t items = pages * kernel.info.kv_heads;
  bool parallel = items * kernel.info.open_record_bytes > serialBytes;
  bool sealing = entry == KV_ENTRY_SEAL;
  return runItems(sealing ? kernel.entries.seal : kernel.entries.unseal, args,
                  items, parallel, sealing ? "seal" : "unseal");
}

Error kvcache::rt::runRead(const KvKernel &kernel, const KvReadArgs &args,
                           int64_t pages, const PoolBytes &pools) {
  if (kernel.launch)
    return launchRead(kernel, args, pages, pools);
  int64_t items = pages * kernel.info.kv_heads;
  bool parallel = items * kernel.info.open_record_bytes > serialBytes;
  return runItems(kernel.entries.read, args, items, parallel, "read");
}
