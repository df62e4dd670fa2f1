//===- Queries.h - Where the query rows of attention are --------*- C++ -*-===//
//
// Queries are [rows, heads, d] with q_indptr (or one row a sequence), or rank 4
// with one batch entry a sequence. Lowerings that walk sequences and rows take
// both through this class, with the checks that keep every index within q.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_QUERIES_H
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_QUERIES_H

#include "kvcache/Conversion/KVCacheToReference/Source.h"

namespace kvcache {

/// Where query rows of a sequence are, in q, out and lse.
class Queries {
public:
  explicit Queries(AttentionOp op)
      : q(op.getQ()), indptr(op.getQIndptr()),
        dims(layoutDims(op.getLayout(), 4)),
        rank(mlir::cast<mlir::RankedTensorType>(q.getType()).getRank()) {}

  /// Rows [begin, end) of a sequence; within q whatever q_indptr holds.
  std::pair<mlir::Value, mlir::Value> rows(Emitter &e, mlir::Value seq) {
    if (rank == 4)
      return {e.index(0), e.dim(q, dims.token)};
    mlir::Value begin = seq, end = e.add(seq, e.index(1));
    if (indptr) {
      begin = e.toIndex(e.extract(indptr, seq));
      end = e.toIndex(e.extract(indptr, end));
    }
    mlir::Value all = e.dim(q, 0);
    mlir::Value ok = e.both(e.both(e.le(e.index(0), begin), e.le(begin, end)),
                            e.le(end, all));
    emitCheck(e, ok, Check::QueryRows, {seq, begin, end, all});
    return {e.select(ok, begin, e.index(0)), e.select(ok, end, e.index(0))};
  }
  /// The sequences to attend to: none if q or q_indptr do not fit them.
  mlir::Value fitting(Emitter &e, mlir::Value sequences) {
    mlir::Value ok = e.boolean(true);
    if (rank == 4)
      ok = checkSizes(e, ok, e.dim(q, 0), sequences);
    else if (indptr)
      ok = checkSizes(e, ok, e.dim(indptr, 0), e.add(sequences, e.index(1)));
    return e.select(ok, sequences, e.index(0));
  }
  /// Indices without the channel: of lse, and (reordered) of out and q.
  Values at(mlir::Value seq, mlir::Value row, mlir::Value head) const {
    if (rank == 3)
      return {row, head};
    Values v(3);
    v[0] = seq;
    v[dims.head] = head;
    v[dims.token] = row;
    return v;
  }

  mlir::Value q, indptr;
  LayoutDims dims;
  int64_t rank;
};

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_QUERIES_H
