//===- KernelABI.h - Arguments of generated kernels -------------*- C -*-===//
//
// The contract between generated code and whoever calls it (the runtime, the
// JIT, another engine). Plain C, no LLVM, no dependencies.
//
// Every argument is 8 bytes: a pointer or a signed 64-bit integer. So the CPU
// structs below have the field i at byte 8*i, and a GPU kernel takes the same
// fields, in the same order, as its parameters, followed by `begin` and `end`.
// The lists are X-macros because the code generators, the manifest and the
// runtime all walk them: X(kind, name) with kind PTR or I64.
//
// CPU entry points:   int32_t NAME(const struct NAME_args *, int64_t begin,
// int64_t end)
//   run the work items [begin, end) serially and return a KvKernelStatus.
// GPU entry points:   .entry NAME(fields..., begin, end), item = begin +
// %ctaid.x
//   (one block per item for attend, seal, unseal, read; append: see below).
//
// Bytes:
//   sealed page  kv_heads records of sealed_record_bytes, each 128-byte aligned
//   open page    kv_heads records; a record is K [page][head_dim] then V
//                [page][value_dim] in the model's dtype, token-major, rounded
//                up to 128 bytes
// Tables hold page numbers, i32, indexed by the *logical* page of the sequence:
//   table[seq * table_seq_stride + kv_head * table_head_stride + logical_page]
//   (table_head_stride 0: one page list for all kv heads). A logical page is
//   either sealed or open. Entries that no query of the call may see are never
//   read.
// Sequence s has lengths[s] tokens. Its first `sink_pages` logical pages are
// never sealed; logical pages [sink_pages, sink_pages + sealed_pages[s]) are
// sealed; all others are open.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_ABI_KERNELABI_H
#define KVCACHE_ABI_KERNELABI_H

#include <stdint.h>

// C names.
// NOLINTBEGIN(readability-identifier-naming)

#define KVCACHE_ABI_VERSION 1

// attend: rows [row_begin, row_end) of q against the cache.
//   q          [total_q, q_heads, head_dim] in the model's dtype
//   row_seq    [total_q] i32, the sequence (index into tables) of each row
//   q_indptr   [batch + 1] i32: rows of sequence s are
//   q_indptr[s]..q_indptr[s+1]
//              Row r of sequence s has position lengths[s] - q_indptr[s+1] + r;
//              negative positions are empty rows.
//   sealed_pages, lengths  [batch] i32
//   k_scale, v_scale  [kv_heads] f32, only for static (`tensor`) scales
//   positions  reserved for caches with explicit key positions; null
//   slopes     [q_heads] f32 ALiBi slopes, null unless the kernel has alibi
//   out        [total_q, q_heads, value_dim] in the model's dtype
//   lse        [total_q, q_heads] f32, natural log
//   workspace  kvcache_workspace_bytes() bytes, 128-byte aligned, see below
//   max_splits at least the largest kvcache_num_splits() over the batch
// Work items: ((row - row_begin) * kv_heads + kv_head) * chunks + chunk)
//   * max_splits + split, where chunks = ceil(group / q_pack) and a chunk is up
//   to q_pack query heads of one kv head. Each item writes one partial (an item
//   whose split the sequence does not have writes nothing); `merge`
//   (CPU; items = (row - row_begin) * q_heads + q_head) adds partials in index
//   order and writes out and lse. On GPUs the last block of a row's chunk does
//   this in the same launch.
#define KVCACHE_ATTEND_ARGS(X)                                                 \
  X(PTR, q)                                                                    \
  X(PTR, row_seq)                                                              \
  X(PTR, q_indptr)                                                             \
  X(PTR, sealed_table)                                                         \
  X(PTR, open_table)                                                           \
  X(I64, table_seq_stride)                                                     \
  X(I64, table_head_stride)                                                    \
  X(PTR, sealed_pages)                                                         \
  X(PTR, lengths)                                                              \
  X(PTR, sealed_pool)                                                          \
  X(PTR, open_pool)                                                            \
  X(PTR, k_scale)                                                              \
  X(PTR, v_scale)                                                              \
  X(PTR, positions)                                                            \
  X(PTR, slopes)                                                               \
  X(PTR, out)                                                                  \
  X(PTR, lse)                                                                  \
  X(PTR, workspace)                                                            \
  X(I64, row_begin)                                                            \
  X(I64, row_end)                                                              \
  X(I64, max_splits)

// append: writes rows of k and v into open pages, or refuses them.
//   k, v    [rows, kv_heads, dim] in the model's dtype
//   slots   [rows] i64: open_page * page_tokens + offset, or -1 (padding, never
//           read)
//   status  one i64, preset by the caller to INT64_MAX: receives the smallest
//           row whose data cannot be stored (non-finite, or able to overflow
//           the scale type or the element)
// Work items: rows. The CPU entry checks all its rows before it writes any and
// returns KVCACHE_REFUSED; on GPUs (thread = begin + global thread index, one
// row each) the caller reads `status` and, when refused, leaves lengths as they
// were, so that what was written stays past every length and is never read.
#define KVCACHE_APPEND_ARGS(X)                                                 \
  X(PTR, k)                                                                    \
  X(PTR, v)                                                                    \
  X(PTR, slots)                                                                \
  X(PTR, open_pool)                                                            \
  X(PTR, k_scale)                                                              \
  X(PTR, v_scale)                                                              \
  X(PTR, status)

// seal: codes open page src[i] into sealed page dst[i]; unseal: decodes sealed
// page src[i] into open page dst[i], rounding to the model's dtype.
//   src, dst [n] i32 page numbers. Work items: i * kv_heads + kv_head.
#define KVCACHE_SEAL_ARGS(X)                                                   \
  X(PTR, src)                                                                  \
  X(PTR, dst)                                                                  \
  X(PTR, sealed_pool)                                                          \
  X(PTR, open_pool)                                                            \
  X(PTR, k_scale)                                                              \
  X(PTR, v_scale)

// read: decoded contents of pages, for inspection.
//   pages  [n] i32 page numbers, of the sealed pool if is_sealed, else open
//   k, v   [n * page_tokens, kv_heads, dim] f32. Work items: i*kv_heads + head.
#define KVCACHE_READ_ARGS(X)                                                   \
  X(PTR, pages)                                                                \
  X(I64, is_sealed)                                                            \
  X(PTR, sealed_pool)                                                          \
  X(PTR, open_pool)                                                            \
  X(PTR, k_scale)                                                              \
  X(PTR, v_scale)                                                              \
  X(PTR, k)                                                                    \
  X(PTR, v)

#define KVCACHE_FIELD_PTR(name) void *name;
#define KVCACHE_FIELD_I64(name) int64_t name;
#define KVCACHE_FIELD(kind, name) KVCACHE_FIELD_##kind(name)

typedef struct KvAttendArgs {
  KVCACHE_ATTEND_ARGS(KVCACHE_FIELD)
} KvAttendArgs;
typedef struct KvAppendArgs {
  KVCACHE_APPEND_ARGS(KVCACHE_FIELD)
} KvAppendArgs;
typedef struct KvSealArgs {
  KVCACHE_SEAL_ARGS(KVCACHE_FIELD)
} KvSealArgs;
typedef struct KvReadArgs {
  KVCACHE_READ_ARGS(KVCACHE_FIELD)
} KvReadArgs;

typedef enum KvKernelStatus {
  KVCACHE_OK = 0,
  KVCACHE_REFUSED = 1, // append: see `status`
} KvKernelStatus;

// attend and merge (CPU).
typedef int32_t (*KvAttendFn)(const KvAttendArgs *, int64_t, int64_t);
typedef int32_t (*KvAppendFn)(const KvAppendArgs *, int64_t, int64_t);
// seal and unseal.
typedef int32_t (*KvSealFn)(const KvSealArgs *, int64_t, int64_t);
typedef int32_t (*KvReadFn)(const KvReadArgs *, int64_t, int64_t);

//===----------------------------------------------------------------------===//
// Splits. Their length follows from the sequence's own length alone, so that a
// result does not depend on who shares the batch.
//===----------------------------------------------------------------------===//

// Tokens per split for a sequence of n tokens (`split_tokens = auto`).
static inline int64_t kvcache_split_tokens(int64_t n) {
  return n <= 8192 ? 256 : n <= 32768 ? 1024 : 2048;
}

// The number of splits of a sequence. Sink pages, sealed pages and open pages
// form splits of their own, in this order; a split is a run of at most
// max(split_tokens / page, 1) pages of one kind.
static inline int64_t kvcache_num_splits(int64_t length, int64_t sealed_pages,
                                         int64_t page, int64_t sink_pages,
                                         int64_t split_tokens) {
  int64_t pages = (length + page - 1) / page;
  int64_t step = split_tokens / page > 1 ? split_tokens / page : 1;
  int64_t sinks = pages < sink_pages ? pages : sink_pages;
  int64_t open = pages - sinks - sealed_pages;
  return (sinks + step - 1) / step + (sealed_pages + step - 1) / step +
         (open + step - 1) / step;
}

// Workspace: f32 partials [rows][q_heads][max_splits][partial_floats], each
// O[value_dim] (not normalised), then m (base-2 maximum of the scaled scores,
// -inf if nothing was visible), then l (sum of exp2(x - m)); then, for GPUs,
// i32 counters [rows * kv_heads * chunks], zero before the first launch and
// left zero by each.
static inline int64_t kvcache_partial_floats(int64_t value_dim) {
  return (value_dim + 2 + 15) / 16 * 16;
}
static inline int64_t kvcache_workspace_bytes(int64_t rows, int64_t q_heads,
                                              int64_t max_splits,
                                              int64_t value_dim,
                                              int64_t counters) {
  int64_t bytes =
      rows * q_heads * max_splits * kvcache_partial_floats(value_dim) * 4 +
      counters * 4;
  return (bytes + 127) / 128 * 128;
}

// NOLINTEND(readability-identifier-naming)

#endif // KVCACHE_ABI_KERNELABI_H
