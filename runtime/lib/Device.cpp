//===- Device.cpp - Entry points that a device launches -------------------===//
//
// A device sees the same arguments as the CPU's entry points. What it needs
// besides is how many bytes lie behind each pointer; that follows from the
// call.
//
//===----------------------------------------------------------------------===//

#include "Kernel.h"

#include <cstring>

using namespace kvcache::rt;

template <size_t N>
static Error launch(const KvKernel &kernel, KvEntry entry, const void *args,
                    const int64_t (&fieldBytes)[N], int64_t items) {
  // A null pointer has nothing behind it, whatever its size would be.
  int64_t bytes[N];
  const auto *fields = static_cast<const int64_t *>(args);
  for (size_t i = 0; i < N; ++i)
    bytes[i] = fields[i] ? fieldBytes[i] : 0;
  KvLaunchRequest request{entry, args, bytes, int64_t(N), items};
  const char *message = "";
  KvStatus status = kernel.launch(kernel.context, &request, &message);
  if (status != KV_OK)
    return makeError(status, message);
  return {};
}

Error kvcache::rt::launchAttend(const KvKernel &kernel,
                                const KvAttendArgs &args, int64_t rows,
                                int64_t totalRows, int64_t batch,
                                const PoolBytes &pools) {
  const KvKernelInfo &i = kernel.info;
  const int64_t heads = totalRows * i.q_heads, element = kernel.dtypeBytes();
  const int64_t table = batch * args.table_seq_stride * 4;
  const int64_t counters = rows * i.kv_heads * kernel.chunks();
  const int64_t partials = rows * i.q_heads * args.max_splits * 4 *
                           kvcache_partial_floats(i.value_dim);
  // Counters are zero before a launch and left zero by it; the buffer is reused
  // for other sizes.
  std::memset(static_cast<char *>(args.workspace) + partials, 0,
              size_t(counters * 4));
  const int64_t bytes[] = {heads * i.head_dim * element,
                           totalRows * 4,
                           (batch + 1) * 4,
                           table,
                           table,
                           0,
                           0,
                           batch * 4,
                           batch * 4,
                           pools.sealed,
                           pools.open,
                           i.kv_heads * 4,
                           i.kv_heads * 4,
                           0,
                           i.q_heads * 4,
                           heads * i.value_dim * element,
                           heads * 4,
                           partials + counters * 4,
                           0,
                           0,
                           0};
  static_assert(sizeof bytes == sizeof(KvAttendArgs));
  return launch(kernel, KV_ENTRY_ATTEND, &args, bytes,
                rows * i.kv_heads * kernel.chunks() * args.max_splits);
}

Error kvcache::rt::launchAppend(const KvKernel &kernel, KvAppendArgs args,
                                int64_t rows, const PoolBytes &pools,
                                int64_t &refused) {
  const KvKernelInfo &i = kernel.info;
  const int64_t row = rows * i.kv_heads * kernel.dtypeBytes();
  const int64_t scales = i.kv_heads * 4;
  int64_t status = INT64_MAX;
  args.status = &status;
  const int64_t bytes[] = {row * i.head_dim,
                           row * i.value_dim,
                           rows * 8,
                           pools.open,
                           scales,
                           scales,
                           8};
  static_assert(sizeof bytes == sizeof(KvAppendArgs));
  Error e = launch(kernel, KV_ENTRY_APPEND, &args, bytes, rows);
  refused = status == INT64_MAX ? -1 : status;
  return e;
}

Error kvcache::rt::launchPages(const KvKernel &kernel, KvEntry entry,
                               const KvSealArgs &args, int64_t pages,
                               const PoolBytes &pools) {
  const int64_t scales = kernel.info.kv_heads * 4;
  const int64_t bytes[] = {pages * 4,  pages * 4, pools.sealed,
                           pools.open, scales,    scales};
  static_assert(sizeof bytes == sizeof(KvSealArgs));
  return launch(kernel, entry, &args, bytes, pages * kernel.info.kv_heads);
}

Error kvcache::rt::launchRead(const KvKernel &kernel, const KvReadArgs &args,
                              int64_t pages, const PoolBytes &pools) {
  const KvKernelInfo &i = kernel.info;
  const int64_t rows = pages * i.page_tokens * i.kv_heads * 4;
  const int64_t scales = i.kv_heads * 4;
  const int64_t bytes[] = {
      pages * 4, 0,      pools.sealed,      pools.open,
      scales,    scales, rows * i.head_dim, rows * i.value_dim};
  static_assert(sizeof bytes == sizeof(KvReadArgs));
  return launch(kernel, KV_ENTRY_READ, &args, bytes, pages * i.kv_heads);
}
