//===- runtime.h - Paged caches and kernel packages, C API ------*- C -*-===//
//
// libKVCacheRuntime owns pages, reference counts, block tables, plans and
// threads. It never looks inside a page image: what it knows of a kernel is the
// numbers in KvKernelInfo and the entry points of kvcache/ABI/KernelABI.h.
//
// Every function returns a KvStatus; on anything but KV_OK a message that says
// what was given and what is accepted is in kvcache_last_error() (of the
// calling thread) and nothing has changed. No exception leaves the library.
//
// A cache has capacity_pages pages in any mixture of two states:
//   open    the newest tokens, in the model's dtype; copied when written while
//           shared
//   sealed  coded, immutable, shared by reference
// A page of a sequence is sealed as soon as it is full, all its tokens are
// older than the newest `recent_tokens`, and it is not one of the first
// `sink_pages`. The first to seal a shared page makes the image, later holders
// adopt it.
//
// A cache may be used from several threads; calls on one cache run one after
// the other. Work inside a call is spread over a thread pool of the process
// (KVCACHE_NUM_THREADS, else OMP_NUM_THREADS, else the cores), which a forked
// child makes anew. Results do not depend on the number of threads.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNTIME_H
#define KVCACHE_RUNTIME_H

#include "kvcache/ABI/KernelABI.h"

#include <stddef.h>
#include <stdint.h>

// C names.
// NOLINTBEGIN(readability-identifier-naming)

#if defined(_WIN32)
#define KVCACHE_API
#else
#define KVCACHE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum KvStatus {
  KV_OK = 0,
  KV_INVALID_ARGUMENT = 1, ///< a wrong value; the message names it
  KV_CACHE_FULL = 2,       ///< not enough free pages
  KV_DEVICE_ERROR = 3,     ///< the machine lacks or failed something
  KV_PACKAGE_ERROR = 4,    ///< a kernel package is damaged or does not fit
  KV_OUT_OF_MEMORY = 5,
  KV_INTERNAL_ERROR = 6
} KvStatus;

/// The message of the last failed call on this thread; never null.
KVCACHE_API const char *kvcache_last_error(void);

/// Sets the number of threads of this process; 0: from the environment again.
KVCACHE_API KvStatus kvcache_set_num_threads(int64_t threads);
KVCACHE_API int64_t kvcache_num_threads(void);

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

typedef enum KvDtype { KV_F32 = 0, KV_F16 = 1, KV_BF16 = 2 } KvDtype;

/// What the runtime knows of a kernel (the numbers of a manifest).
typedef struct KvKernelInfo {
  int64_t q_heads, kv_heads;
  int64_t head_dim, value_dim;
  int64_t dtype; ///< KvDtype of q, k, v, out and open pages
  int64_t page_tokens;
  int64_t sink_pages;
  int64_t recent_tokens;
  int64_t sealed_record_bytes; ///< one page of one kv head, multiple of 128
  int64_t open_record_bytes;   ///< likewise
  int64_t q_pack;              ///< query heads per work item
  int64_t split_tokens;        ///< 0: kvcache_split_tokens()
  int64_t causal;
  int64_t window_left;  ///< -1: unbounded
  int64_t window_right; ///< -1: unbounded (but for `causal`)
  int64_t alibi;
  int64_t static_k_scale, static_v_scale; ///< `tensor` scales are arguments
  uint64_t image_hash;                    ///< of the page image's definition
} KvKernelInfo;

/// Entry points; all are needed.
typedef struct KvKernelEntries {
  KvAttendFn attend, merge;
  KvAppendFn append;
  KvSealFn seal, unseal;
  KvReadFn read;
} KvKernelEntries;

typedef struct KvKernel KvKernel;

/// Called when the last reference to a kernel goes (to free the JIT's code).
typedef void (*KvKernelRelease)(void *context);

/// A kernel from entry points in this process.
KVCACHE_API KvStatus kvcache_kernel_create(const KvKernelInfo *info,
                                           const KvKernelEntries *entries,
                                           KvKernelRelease release,
                                           void *context, KvKernel **kernel);

/// One launch on a device: an entry point, its arguments with host addresses,
/// and how many bytes lie behind each field (0: a number, or null). Work items
/// are [0, items).
typedef enum KvEntry {
  KV_ENTRY_ATTEND = 0,
  KV_ENTRY_APPEND = 1,
  KV_ENTRY_SEAL = 2,
  KV_ENTRY_UNSEAL = 3,
  KV_ENTRY_READ = 4
} KvEntry;
typedef struct KvLaunchRequest {
  KvEntry entry;
  const void *args; ///< KvAttendArgs, KvAppendArgs, KvSealArgs or KvReadArgs
  const int64_t *field_bytes;
  int64_t fields;
  int64_t items;
} KvLaunchRequest;

/// Runs a launch to its end; on failure *message (valid until the next call)
/// says what the device reported.
typedef KvStatus (*KvLaunchFn)(void *context, const KvLaunchRequest *request,
                               const char **message);

/// A kernel that a device runs: a launch covers what `attend` and `merge` do on
/// the CPU, and takes one query per sequence.
KVCACHE_API KvStatus kvcache_kernel_create_on_device(const KvKernelInfo *info,
                                                     KvLaunchFn launch,
                                                     KvKernelRelease release,
                                                     void *context,
                                                     KvKernel **kernel);

/// Loads a kernel package: a folder with manifest.json and one shared object
/// per CPU tier. `tier` (v2, avx2, avx512) picks one; null: KVCACHE_CPU, else
/// the best this machine runs. `expected_image_hash` 0: any.
KVCACHE_API KvStatus kvcache_kernel_load(const char *path, const char *tier,
                                         uint64_t expected_image_hash,
                                         KvKernel **kernel);
KVCACHE_API KvStatus kvcache_kernel_info(const KvKernel *kernel,
                                         KvKernelInfo *info);
/// The tier of a loaded kernel, "" for one made from entry points.
KVCACHE_API const char *kvcache_kernel_tier(const KvKernel *kernel);
KVCACHE_API void kvcache_kernel_retain(KvKernel *kernel);
KVCACHE_API void kvcache_kernel_release(KvKernel *kernel);

/// The best CPU tier of this machine: "avx512", "avx2", "v2" or "" (none).
KVCACHE_API const char *kvcache_host_tier(void);

//===----------------------------------------------------------------------===//
// Caches
//===----------------------------------------------------------------------===//

typedef struct KvCache KvCache;

typedef struct KvCacheOptions {
  int64_t capacity_tokens; ///< ceil(capacity_tokens / page_tokens) pages
  /// [kv_heads] each, for static scales; null: 1. Copied.
  const float *k_scale, *v_scale;
} KvCacheOptions;

KVCACHE_API KvStatus kvcache_create(KvKernel *kernel,
                                    const KvCacheOptions *options,
                                    KvCache **cache);
KVCACHE_API void kvcache_destroy(KvCache *cache);

/// Sequences are numbers that are never used again.
KVCACHE_API KvStatus kvcache_sequence_new(KvCache *cache, int64_t *sequence);
/// A sequence that shares every page of `sequence`.
KVCACHE_API KvStatus kvcache_sequence_fork(KvCache *cache, int64_t sequence,
                                           int64_t *child);
KVCACHE_API KvStatus kvcache_sequence_free(KvCache *cache, int64_t sequence);
KVCACHE_API KvStatus kvcache_sequence_length(KvCache *cache, int64_t sequence,
                                             int64_t *length);
/// How many leading tokens after the sinks are coded.
KVCACHE_API KvStatus kvcache_sequence_sealed(KvCache *cache, int64_t sequence,
                                             int64_t *tokens);
/// Keeps the first `length` tokens. Whole sealed pages stay sealed; a sealed
/// page that is cut is decoded into an open one.
KVCACHE_API KvStatus kvcache_sequence_truncate(KvCache *cache, int64_t sequence,
                                               int64_t length);

/// Appends `tokens` rows of k [tokens, kv_heads, head_dim] and v [tokens,
/// kv_heads, value_dim], contiguous, in the model's dtype. If a row cannot be
/// stored KV_INVALID_ARGUMENT is returned and *refused_row is its number (-1
/// otherwise; the pointer may be null).
KVCACHE_API KvStatus kvcache_append(KvCache *cache, int64_t sequence,
                                    const void *k, const void *v,
                                    int64_t tokens, int64_t *refused_row);

/// Attention of the newest q_lens[i] tokens of sequences[i] (null: one each).
///   q [sum of q_lens, q_heads, head_dim], slopes [q_heads] f32 or null,
///   out [.., q_heads, value_dim] in the model's dtype, lse [.., q_heads] f32.
KVCACHE_API KvStatus kvcache_attend(KvCache *cache, const void *q,
                                    const int64_t *sequences,
                                    const int64_t *q_lens, int64_t batch,
                                    const float *slopes, void *out, float *lse);

/// Decoded contents: k [length, kv_heads, head_dim], v [length, kv_heads,
/// value_dim], f32.
KVCACHE_API KvStatus kvcache_read(KvCache *cache, int64_t sequence, float *k,
                                  float *v);

/// The stored bytes, page by page in order, sealed pages as they are, open ones
/// with the bytes past the length zeroed. With a null buffer only *size is set.
KVCACHE_API KvStatus kvcache_dump(KvCache *cache, int64_t sequence,
                                  void *buffer, size_t buffer_bytes,
                                  size_t *size);

typedef struct KvCacheStats {
  int64_t capacity_pages, open_pages, sealed_pages, shared_pages;
  int64_t open_page_bytes, sealed_page_bytes;
  int64_t bytes_held;      ///< of open and sealed pages in use
  int64_t sequences;       ///< alive
  int64_t sequence_tokens; ///< sum of their lengths
  int64_t stored_tokens;   ///< each shared token once
  int64_t wasted_bytes;    ///< of open pages, behind the last token held
} KvCacheStats;
KVCACHE_API KvStatus kvcache_stats(KvCache *cache, KvCacheStats *stats);

//===----------------------------------------------------------------------===//
// Attention on pools and tables that the caller owns
//===----------------------------------------------------------------------===//

/// Sizes that KvAttendArgs does not carry.
typedef struct KvTableSizes {
  int64_t batch;
  int64_t table_pages; ///< entries of one sequence's row in either table
  int64_t sealed_pool_pages, open_pool_pages;
} KvTableSizes;

/// Checks lengths, sealed counts and every table entry that a query of the call
/// may see; `extra_tokens` more tokens per sequence must fit the table.
KVCACHE_API KvStatus kvcache_check_tables(const KvKernelInfo *info,
                                          const KvAttendArgs *args,
                                          const KvTableSizes *sizes,
                                          int64_t extra_tokens);

/// Checks, then attends rows [0, q_indptr[batch]) with a workspace of its own
/// (args' workspace, row range and max_splits are not read).
KVCACHE_API KvStatus kvcache_attend_tables(KvKernel *kernel,
                                           const KvAttendArgs *args,
                                           const KvTableSizes *sizes);

/// Appends rows by slot (open_page * page_tokens + offset, or -1: padding).
KVCACHE_API KvStatus kvcache_append_slots(KvKernel *kernel,
                                          const KvAppendArgs *args,
                                          int64_t rows, int64_t open_pool_pages,
                                          int64_t *refused_row);

#ifdef __cplusplus
}
#endif

// NOLINTEND(readability-identifier-naming)

#endif // KVCACHE_RUNTIME_H
