//===- CApi.cpp - The C ABI over the classes ------------------------------===//

#include "Cache.h"
#include "Check.h"
#include "CpuTier.h"
#include "Package.h"
#include "ThreadPool.h"

#include <algorithm>

using namespace kvcache::rt;

KvStatus kvcache_set_num_threads(int64_t threads) {
  return guarded([&]() -> Error {
    if (threads < 0 || threads > 1024)
      return invalid("the number of threads is ", threads,
                     ", expected 1 to 1024, or 0 for the environment's");
    setNumThreads(threads);
    return {};
  });
}

int64_t kvcache_num_threads(void) { return numThreads(); }

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

KvStatus kvcache_kernel_create(const KvKernelInfo *info,
                               const KvKernelEntries *entries,
                               KvKernelRelease release, void *context,
                               KvKernel **kernel) {
  return guarded([&]() -> Error {
    if (!info || !entries || !kernel)
      return invalid("info, entries and kernel must not be null");
    return makeKernel(*info, *entries, release, context, *kernel);
  });
}

KvStatus kvcache_kernel_create_on_device(const KvKernelInfo *info,
                                         KvLaunchFn launch,
                                         KvKernelRelease release, void *context,
                                         KvKernel **kernel) {
  return guarded([&]() -> Error {
    if (!info || !launch || !kernel)
      return invalid("info, launch and kernel must not be null");
    if (Error e = checkKernelInfo(*info))
      return e;
    *kernel = new KvKernel;
    (*kernel)->info = *info;
    (*kernel)->launch = launch;
    (*kernel)->release = release;
    (*kernel)->context = context;
    return {};
  });
}

KvStatus kvcache_kernel_load(const char *path, const char *tier,
                             uint64_t expectedImageHash, KvKernel **kernel) {
  return guarded([&]() -> Error {
    if (!path || !kernel)
      return invalid("path and kernel must not be null");
    return loadPackage(path, tier ? tier : "", expectedImageHash, *kernel);
  });
}

KvStatus kvcache_kernel_info(const KvKernel *kernel, KvKernelInfo *info) {
  return guarded([&]() -> Error {
    if (!kernel || !info)
      return invalid("kernel and info must not be null");
    *info = kernel->info;
    return {};
  });
}

const char *kvcache_kernel_tier(const KvKernel *kernel) {
  return kernel ? kernel->tier.c_str() : "";
}

void kvcache_kernel_retain(KvKernel *kernel) {
  if (kernel)
    kernel->references.fetch_add(1);
}

void kvcache_kernel_release(KvKernel *kernel) {
  if (!kernel || kernel->references.fetch_sub(1) != 1)
    return;
  if (kernel->release)
    kernel->release(kernel->context);
  delete kernel;
}

const char *kvcache_host_tier(void) {
  static const std::string tier = hostTier();
  return tier.c_str();
}

//===----------------------------------------------------------------------===//
// Caches
//===----------------------------------------------------------------------===//

KvStatus kvcache_create(KvKernel *kernel, const KvCacheOptions *options,
                        KvCache **cache) {
  return guarded([&]() -> Error {
    if (!kernel || !options || !cache)
      return invalid("kernel, options and cache must not be null");
    auto made = std::make_unique<KvCache>(kernel);
    if (Error e = made->init(*options))
      return e;
    *cache = made.release();
    return {};
  });
}

void kvcache_destroy(KvCache *cache) { delete cache; }

// Runs a method of a cache under its lock.
template <typename Fn>
static KvStatus locked(KvCache *cache, Fn &&fn) {
  return guarded([&]() -> Error {
    if (!cache)
      return invalid("cache must not be null");
    std::lock_guard lock(cache->mutex);
    return fn(*cache);
  });
}

KvStatus kvcache_sequence_new(KvCache *cache, int64_t *sequence) {
  return locked(cache, [&](KvCache &c) { return c.newSequence(*sequence); });
}

KvStatus kvcache_sequence_fork(KvCache *cache, int64_t sequence,
                               int64_t *child) {
  return locked(cache, [&](KvCache &c) { return c.fork(sequence, *child); });
}

KvStatus kvcache_sequence_free(KvCache *cache, int64_t sequence) {
  return locked(cache, [&](KvCache &c) { return c.free(sequence); });
}

KvStatus kvcache_sequence_length(KvCache *cache, int64_t sequence,
                                 int64_t *length) {
  return locked(cache, [&](KvCache &c) { return c.length(sequence, *length); });
}

KvStatus kvcache_sequence_sealed(KvCache *cache, int64_t sequence,
                                 int64_t *tokens) {
  return locked(cache,
                [&](KvCache &c) { return c.sealedTokens(sequence, *tokens); });
}

KvStatus kvcache_sequence_truncate(KvCache *cache, int64_t sequence,
                                   int64_t length) {
  return locked(cache,
                [&](KvCache &c) { return c.truncate(sequence, length); });
}

KvStatus kvcache_append(KvCache *cache, int64_t sequence, const void *k,
                        const void *v, int64_t tokens, int64_t *refusedRow) {
  int64_t row = -1;
  KvStatus status = locked(
      cache, [&](KvCache &c) { return c.append(sequence, k, v, tokens, row); });
  if (refusedRow)
    *refusedRow = row;
  return status;
}

KvStatus kvcache_attend(KvCache *cache, const void *q, const int64_t *sequences,
                        const int64_t *qLens, int64_t batch,
                        const float *slopes, void *out, float *lse) {
  return locked(cache, [&](KvCache &c) {
    return c.attend(q, sequences, qLens, batch, slopes, out, lse);
  });
}

KvStatus kvcache_read(KvCache *cache, int64_t sequence, float *k, float *v) {
  return locked(cache, [&](KvCache &c) { return c.read(sequence, k, v); });
}

KvStatus kvcache_dump(KvCache *cache, int64_t sequence, void *buffer,
                      size_t bufferBytes, size_t *size) {
  return locked(cache, [&](KvCache &c) {
    return c.dump(sequence, buffer, bufferBytes, *size);
  });
}

KvStatus kvcache_stats(KvCache *cache, KvCacheStats *stats) {
  return locked(cache, [&](KvCache &c) -> Error {
    *stats = c.stats();
    return {};
  });
}

//===----------------------------------------------------------------------===//
// The caller's own pools and tables
//===----------------------------------------------------------------------===//

KvStatus kvcache_check_tables(const KvKernelInfo *info,
                              const KvAttendArgs *args,
                              const KvTableSizes *sizes, int64_t extraTokens) {
  return guarded([&]() -> Error {
    if (!info || !args || !sizes)
      return invalid("info, args and sizes must not be null");
    return checkTables(*info, *args, *sizes, extraTokens);
  });
}

KvStatus kvcache_attend_tables(KvKernel *kernel, const KvAttendArgs *args,
                               const KvTableSizes *sizes) {
  return guarded([&]() -> Error {
    if (!kernel || !args || !sizes)
      return invalid("kernel, args and sizes must not be null");
    const KvKernelInfo &info = kernel->info;
    if (info.alibi && !args->slopes)
      return invalid("this kernel has alibi: slopes are needed");
    if (Error e = checkTables(info, *args, *sizes, 0))
      return e;
    const auto *lengths = static_cast<const int32_t *>(args->lengths);
    const auto *sealed = static_cast<const int32_t *>(args->sealed_pages);
    const auto *indptr = static_cast<const int32_t *>(args->q_indptr);
    int64_t rows = indptr[sizes->batch], splits = 1, tokens = 0;
    for (int64_t s = 0; s < sizes->batch; ++s) {
      tokens += int64_t(lengths[s]) * (indptr[s + 1] - indptr[s]);
      splits =
          std::max(splits, kvcache_num_splits(lengths[s], sealed[s],
                                              info.page_tokens, info.sink_pages,
                                              kernel->splitTokens(lengths[s])));
    }
    if (rows == 0)
      return {};
    AttendPlan plan = planAttend(*kernel, rows, splits);
    AlignedBuffer workspace;
    return runAttend(
        *kernel, *args, plan, workspace.ensure(plan.workspaceBytes), tokens,
        sizes->batch,
        {sizes->sealed_pool_pages * info.kv_heads * info.sealed_record_bytes,
         sizes->open_pool_pages * info.kv_heads * info.open_record_bytes});
  });
}

KvStatus kvcache_append_slots(KvKernel *kernel, const KvAppendArgs *args,
                              int64_t rows, int64_t openPoolPages,
                              int64_t *refusedRow) {
  return guarded([&]() -> Error {
    if (!kernel || !args)
      return invalid("kernel and args must not be null");
    const auto *slots = static_cast<const int64_t *>(args->slots);
    int64_t count = openPoolPages * kernel->info.page_tokens;
    for (int64_t r = 0; r < rows; ++r)
      if (slots[r] < -1 || slots[r] >= count)
        return invalid("slot ", slots[r], " at position ", r,
                       ", expected -1 (padding) or 0 to ", count - 1);
    int64_t row = -1;
    const KvKernelInfo &info = kernel->info;
    PoolBytes pools{0, openPoolPages * info.kv_heads * info.open_record_bytes};
    if (Error e = runAppend(*kernel, *args, rows, pools, row))
      return e;
    if (refusedRow)
      *refusedRow = row;
    if (row >= 0)
      return invalid("row ", row,
                     " cannot be stored: a key or value is not "
                     "finite or is so large that its scale would overflow");
    return {};
  });
}
