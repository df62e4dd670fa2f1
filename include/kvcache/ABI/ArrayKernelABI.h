//===- ArrayKernelABI.h - Arguments of kernels on arrays --------*- C -*-===//
//
// The contract between generated attention on plain arrays (not paged caches)
// and its caller. As in KernelABI.h every argument is 8 bytes, and an entry is
//
//   int32_t NAME(const struct NAME_args *, int64_t begin, int64_t end)
//
// which runs the work items [begin, end) serially; items do not depend on each
// other. Item ((seq * heads + head) * chunks + chunk) * tiles + tile covers
// `q_pack` query heads of one kv head (`chunk` of the group) and `q_rows` query
// rows; chunks = ceil(group / q_pack).
//
// Strides count elements (mask of i1: bytes) and may be 0 or negative.
//
//   q, k, v      element (seq, head, row or token, channel) is at
//                seq * X_seq + head * X_head + row * X_row + channel *
//                X_channel
//   row_begin    [seqs] i64, the first query row of each sequence within q, out
//                and lse; null: 0
//   row_count    [seqs] i64, its number of rows; null: `rows`
//   lengths      [seqs] i64, tokens of each sequence; null: `tokens`
//   head_map     [query heads] i64, the kv head of each query head, or null
//                (head / group). With a map `heads` counts query heads and the
//                kernel's group is 1.
//   slopes       [query heads] f32 ALiBi slopes, for kernels that have them
//   sinks        [query heads] f32 sink logits, likewise
//   mask         element (seq, head, row, token), likewise; rows count as in q
//   out          channels next to each other; lse f32
//   shift        row r of sequence s has position shift + r, or
//   bottom_right shift + lengths[s] - row_count[s] + r if this is not 0
//   first        the least position that sees anything: 0 for caches, whose
//                rows before token 0 are empty, else INT32_MIN
//   source       handed to the kernel's functions for keys and values that are
//                not plain arrays; k, v and their strides do not count then
//   tiles        ceil(most rows of a sequence / q_rows)
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_ABI_ARRAYKERNELABI_H
#define KVCACHE_ABI_ARRAYKERNELABI_H

#include <stdint.h>

// C names.
// NOLINTBEGIN(readability-identifier-naming)

#define KVCACHE_ARRAY_ATTEND_ARGS(X)                                           \
  X(PTR, q)                                                                    \
  X(PTR, k)                                                                    \
  X(PTR, v)                                                                    \
  X(PTR, mask)                                                                 \
  X(PTR, row_begin)                                                            \
  X(PTR, row_count)                                                            \
  X(PTR, lengths)                                                              \
  X(PTR, head_map)                                                             \
  X(PTR, slopes)                                                               \
  X(PTR, sinks)                                                                \
  X(PTR, source)                                                               \
  X(PTR, out)                                                                  \
  X(PTR, lse)                                                                  \
  X(I64, q_seq)                                                                \
  X(I64, q_head)                                                               \
  X(I64, q_row)                                                                \
  X(I64, q_channel)                                                            \
  X(I64, k_seq)                                                                \
  X(I64, k_head)                                                               \
  X(I64, k_row)                                                                \
  X(I64, k_channel)                                                            \
  X(I64, v_seq)                                                                \
  X(I64, v_head)                                                               \
  X(I64, v_row)                                                                \
  X(I64, v_channel)                                                            \
  X(I64, mask_seq)                                                             \
  X(I64, mask_head)                                                            \
  X(I64, mask_row)                                                             \
  X(I64, mask_token)                                                           \
  X(I64, out_seq)                                                              \
  X(I64, out_head)                                                             \
  X(I64, out_row)                                                              \
  X(I64, lse_seq)                                                              \
  X(I64, lse_head)                                                             \
  X(I64, lse_row)                                                              \
  X(I64, heads)                                                                \
  X(I64, rows)                                                                 \
  X(I64, tokens)                                                               \
  X(I64, shift)                                                                \
  X(I64, bottom_right)                                                         \
  X(I64, first)                                                                \
  X(I64, tiles)

// NOLINTEND(readability-identifier-naming)

#endif // KVCACHE_ABI_ARRAYKERNELABI_H
