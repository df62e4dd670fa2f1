//===- Attend.cpp - Plans and runs attention over a batch -----------------===//
//
// A plan is: the tables of the batch side by side, the largest number of
// splits, and row blocks whose partials fit the workspace. Splits depend on
// each sequence's own length alone (kvcache/ABI/KernelABI.h), so a batch
// changes which thread does what, never what is computed.
//
//===----------------------------------------------------------------------===//

#include "Cache.h"
#include "Check.h"

#include <algorithm>

using namespace kvcache::rt;

namespace {

/// The arrays that KvAttendArgs points to.
struct BatchTables {
  std::vector<int32_t> rowSeq, indptr, sealedTable, openTable, sealedPages,
      lengths;
  int64_t stride = 1, maxSplits = 1, tokens = 0;

  void fill(KvAttendArgs &args) {
    args.row_seq = rowSeq.data();
    args.q_indptr = indptr.data();
    args.sealed_table = sealedTable.data();
    args.open_table = openTable.data();
    args.table_seq_stride = stride;
    args.table_head_stride = 0;
    args.sealed_pages = sealedPages.data();
    args.lengths = lengths.data();
  }
};

} // namespace

static void addSequence(const KvKernel &kernel, const Sequence &s,
                        int64_t queries, BatchTables &t) {
  int64_t row = int64_t(t.lengths.size());
  t.rowSeq.insert(t.rowSeq.end(), size_t(queries), int32_t(row));
  t.indptr.push_back(int32_t(t.rowSeq.size()));
  t.lengths.push_back(int32_t(s.length));
  t.sealedPages.push_back(int32_t(s.sealed));
  std::ranges::copy(s.sealedTable, t.sealedTable.begin() + row * t.stride);
  std::ranges::copy(s.openTable, t.openTable.begin() + row * t.stride);
  t.maxSplits = std::max(
      t.maxSplits,
      kvcache_num_splits(s.length, s.sealed, kernel.info.page_tokens,
                         kernel.info.sink_pages, kernel.splitTokens(s.length)));
  t.tokens += s.length * queries;
}

Error KvCache::attend(const void *q, const int64_t *ids, const int64_t *qLens,
                      int64_t batch, const float *slopes, void *out,
                      float *lse) {
  if (batch < 0 || batch > INT32_MAX)
    return invalid("batch is ", batch, ", expected 0 or more");
  if (info().alibi && !slopes)
    return invalid("this kernel has alibi: slopes are needed");
  std::vector<Sequence *> batchSequences(static_cast<size_t>(batch));
  BatchTables tables;
  int64_t rows = 0;
  for (int64_t b = 0; b < batch; ++b) {
    if (Error e = find(ids[b], batchSequences[size_t(b)]))
      return e;
    int64_t queries = qLens ? qLens[b] : 1;
    if (queries < 0 || queries > INT32_MAX - rows)
      return invalid("q_lens[", b, "] is ", queries, ", expected 0 to ",
                     INT32_MAX - rows);
    if (kernel->launch && queries > 1)
      return invalid("q_lens[", b, "] is ", queries,
                     ", but kernels for GPUs take one query per sequence");
    rows += queries;
    tables.stride = std::max(tables.stride, batchSequences[size_t(b)]->pages());
  }
  if (rows == 0)
    return {};
  if (!q || !out || !lse)
    return invalid("q, out and lse must not be null");
  tables.indptr.push_back(0);
  tables.sealedTable.assign(size_t(batch * tables.stride), -1);
  tables.openTable.assign(size_t(batch * tables.stride), -1);
  for (int64_t b = 0; b < batch; ++b)
    addSequence(*kernel, *batchSequences[size_t(b)], qLens ? qLens[b] : 1,
                tables);
  KvAttendArgs args{};
  tables.fill(args);
  args.q = const_cast<void *>(q);
  args.sealed_pool = sealed.base();
  args.open_pool = open.base();
  args.k_scale = kScale.data();
  args.v_scale = vScale.data();
  args.slopes = const_cast<float *>(slopes);
  args.out = out;
  args.lse = lse;
  AttendPlan plan = planAttend(*kernel, rows, tables.maxSplits);
  void *memory = workspace.ensure(plan.workspaceBytes);
  return runAttend(*kernel, args, plan, memory, tables.tokens, batch,
                   poolBytes());
}
