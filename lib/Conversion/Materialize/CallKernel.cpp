//===- CallKernel.cpp - Calling generated kernels -------------------------===//
//
// The caller's part of the ABI: rows of queries by sequence, one table shape
// for both page classes, checked lengths, a workspace large enough for the
// sequence with the most splits, and all work items of one call. A sequence
// that fails a check has length 0, so that no kernel ever looks at its table.
//
//===----------------------------------------------------------------------===//
#include "CallKernel.h"
#include "AbiArguments.h"
#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <limits>

using namespace kvcache;
using namespace mlir;

namespace {
/// Emits one call of `attend` and `merge`.
class AttendCall {
public:
  AttendCall(Emitter &e, AttentionOp op, PagedSource &source,
             const GeneratedKernel &kernel)
      : e(e), op(op), source(source), kernel(kernel),
        rank(cast<RankedTensorType>(op.getQ().getType()).getRank()),
        dims(layoutDims(op.getLayout(), 4)), i32(e.getI32Type()),
        element(cast<RankedTensorType>(op.getQ().getType()).getElementType()) {}

  Values run();

private:
  Value queryRows();
  void rowsOfSequences();
  void checkSequences();
  void commonTables();
  Value slopes();
  Value splits(Value seq);
  Values readBack(Value out, Value lse);

  Value pointerOf(Value tensor) { return pointerTo(e, bufferOf(e, tensor)); }
  Value i64(Value index) { return toI64(e, index); }
  Value toI32(Value index) { return arith::IndexCastOp::create(e, i32, index); }
  Value vectorOf(Value size, Value init);

  Emitter &e;
  AttentionOp op;
  PagedSource &source;
  const GeneratedKernel &kernel;
  int64_t rank;
  LayoutDims dims;
  Type i32, element;

  Value seqs, rows, first, last;
  Value indptr, rowSeq, lengths, sealed, sealedTable, openTable, maxSplits;
};
} // namespace

/// tensor<?xi32> of `size`, all `init`.
Value AttendCall::vectorOf(Value size, Value init) {
  auto type = RankedTensorType::get({ShapedType::kDynamic}, i32);
  return e.loop(e.index(0), size, e.empty(type, size),
                [&](Value i, ValueRange a) -> Values {
                  return {e.insert(init, a[0], i)};
                })[0];
}

/// The queries as [rows, heads, d].
Value AttendCall::queryRows() {
  Value q = op.getQ();
  if (rank == 3)
    return q;
  Values sizes = e.sizesOf(q);
  Value perSeq = sizes[dims.token];
  int64_t d = kernel.spec.headDim;
  auto type = RankedTensorType::get(
      {ShapedType::kDynamic, kernel.spec.qHeads, d}, element);
  Value total = e.mul(sizes[0], perSeq);
  return e.loops(
      sizes, e.empty(type, {total, {}, {}}),
      [&](ValueRange at, ValueRange a) -> Values {
        Value row = e.add(e.mul(at[0], perSeq), at[dims.token]);
        return {e.insert(e.extract(q, at), a[0], {row, at[dims.head], at[3]})};
      })[0];
}

/// q_indptr, row_seq and the range of rows that belong to sequences.
void AttendCall::rowsOfSequences() {
  Value zero = e.index(0), one = e.index(1);
  seqs = source.sequences(e);
  Value given = op.getQIndptr(), all = rows, ok = e.boolean(true);
  if (rank == 4)
    ok = checkSizes(e, ok, e.dim(op.getQ(), 0), seqs);
  if (given)
    ok = checkSizes(e, ok, e.dim(given, 0), e.add(seqs, one));
  seqs = e.select(ok, seqs, zero);
  Value perSeq = rank == 4 ? e.dim(op.getQ(), dims.token) : one;
  Values built = e.loop(
      zero, seqs,
      {vectorOf(e.add(seqs, one), toI32(zero)), vectorOf(rows, toI32(zero)),
       ok},
      [&](Value seq, ValueRange a) -> Values {
        Value begin = e.mul(seq, perSeq), end = e.add(begin, perSeq);
        Value good = e.boolean(true);
        if (given) {
          begin = e.toIndex(e.extract(given, seq));
          end = e.toIndex(e.extract(given, e.add(seq, one)));
        }
        good =
            e.both(e.both(e.le(zero, begin), e.le(begin, end)), e.le(end, all));
        emitCheck(e, good, Check::QueryRows, {seq, begin, end, all});
        Value indptr = e.insert(toI32(begin), a[0], seq);
        indptr = e.insert(toI32(end), indptr, e.add(seq, one));
        Value rowSeq =
            e.loop(e.select(good, begin, zero), e.select(good, end, zero), a[1],
                   [&](Value row, ValueRange inner) -> Values {
                     return {e.insert(toI32(seq), inner[0], row)};
                   })[0];
        return {indptr, rowSeq, e.both(a[2], good)};
      });
  indptr = built[0];
  rowSeq = built[1];
  // A bad q_indptr runs nothing at all.
  first = e.select(built[2], e.toIndex(e.extract(indptr, zero)), zero);
  last = e.select(built[2], e.toIndex(e.extract(indptr, seqs)), zero);
}

/// Splits of a sequence, as kvcache_num_splits counts them.
Value AttendCall::splits(Value seq) {
  int64_t page = kernel.spec.format.page;
  Value zero = e.index(0);
  Value n = e.toIndex(e.extract(lengths, seq));
  Value tokens = kernel.splitTokens
                     ? e.index(kernel.splitTokens)
                     : e.select(e.le(n, e.index(8192)), e.index(256),
                                e.select(e.le(n, e.index(32768)), e.index(1024),
                                         e.index(2048)));
  Value step = e.maxS(e.div(tokens, page), e.index(1));
  Value pages = e.div(e.add(n, e.index(page - 1)), page);
  Value sinks = e.minS(pages, e.index(kernel.spec.format.sinkPages()));
  Value inner = e.toIndex(e.extract(sealed, seq));
  Value open = e.sub(e.sub(pages, sinks), inner);
  Value total = zero;
  for (Value part : {sinks, inner, open})
    total = e.add(total, e.createOrFold<arith::CeilDivUIOp>(part, step));
  return total;
}

/// Lengths and sealed pages with failed sequences empty, and the most splits.
void AttendCall::checkSequences() {
  Value zero = e.index(0);
  WindowAttr window = op.getWindowAttr();
  Values built = e.loop(
      zero, seqs, {vectorOf(seqs, toI32(zero)), vectorOf(seqs, toI32(zero))},
      [&](Value seq, ValueRange a) -> Values {
        Value begin = e.toIndex(e.extract(indptr, seq));
        Value end = e.toIndex(e.extract(indptr, e.add(seq, e.index(1))));
        Value firstToken = zero;
        if (window && window.getLeft())
          firstToken =
              e.maxS(e.sub(e.add(source.length(e, seq), e.sub(begin, end)),
                           e.index(*window.getLeft())),
                     zero);
        Value n = source.checkedLength(e, seq, firstToken);
        Value count = e.toIndex(e.extract(source.parts.sealedPages, seq));
        count = e.select(e.lt(zero, n), count, zero);
        return {e.insert(toI32(n), a[0], seq),
                e.insert(toI32(count), a[1], seq)};
      });
  lengths = built[0];
  sealed = built[1];
  maxSplits = e.loop(zero, seqs, zero, [&](Value seq, ValueRange a) -> Values {
    return {e.maxS(a[0], splits(seq))};
  })[0];
}

/// Both tables as i32 [seq, lists, columns] of one shape.
void AttendCall::commonTables() {
  Value lists = e.maxS(source.lists(e, 0), source.lists(e, 1));
  Value columns = source.columns(e);
  auto type = RankedTensorType::get(
      {ShapedType::kDynamic, ShapedType::kDynamic, ShapedType::kDynamic}, i32);
  auto copy = [&](int which) {
    Values sizes = {seqs, lists, columns};
    return e.loops(sizes, e.empty(type, sizes),
                   [&](ValueRange at, ValueRange a) -> Values {
                     Value number =
                         source.pageNumber(e, which, at[0], at[1], at[2]);
                     return {e.insert(toI32(number), a[0], at)};
                   })[0];
  };
  sealedTable = copy(0);
  openTable = copy(1);
}

/// The slopes tensor, or null.
Value AttendCall::slopes() {
  if (!kernel.spec.alibi)
    return {};
  if (op.getSlopes())
    return op.getSlopes();
  SmallVector<float> values(op.getAlibi()->begin(), op.getAlibi()->end());
  if (values.empty())
    llvm::append_range(values, usualAlibiSlopes(kernel.spec.qHeads));
  auto type = RankedTensorType::get({static_cast<int64_t>(values.size())},
                                    e.getF32Type());
  return arith::ConstantOp::create(
      e, DenseElementsAttr::get(type, ArrayRef<float>(values)));
}

/// out and lse in the shapes of the op.
Values AttendCall::readBack(Value out, Value lse) {
  if (rank == 3)
    return {out, lse};
  Values sizes = e.sizesOf(op.getQ());
  Value perSeq = sizes[dims.token];
  auto spread = [&](Value flat, Value result, bool hasChannel) {
    auto type = cast<RankedTensorType>(result.getType());
    Values to = sizes;
    if (hasChannel)
      to[3] = e.index(kernel.spec.valueDim);
    else
      to.pop_back();
    return e.loops(to, e.empty(type, to),
                   [&](ValueRange at, ValueRange a) -> Values {
                     Values from = {e.add(e.mul(at[0], perSeq), at[dims.token]),
                                    at[dims.head]};
                     if (hasChannel)
                       from.push_back(at[3]);
                     return {e.insert(e.extract(flat, from), a[0], at)};
                   })[0];
  };
  return {spread(out, op.getOut(), true), spread(lse, op.getLse(), false)};
}

/// A new buffer filled with `value`.
static Value filled(Emitter &e, MemRefType type, ValueRange sizes,
                    TypedAttr value) {
  Values dynamic;
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (type.isDynamicDim(i))
      dynamic.push_back(sizes[i]);
  Value buffer =
      memref::AllocOp::create(e, type, dynamic, e.getI64IntegerAttr(128));
  Value v = arith::ConstantOp::create(e, value);
  e.loops(sizes, {}, [&](ValueRange at, ValueRange) -> Values {
    memref::StoreOp::create(e, v, buffer, at);
    return {};
  });
  return buffer;
}

Values AttendCall::run() {
  const KernelSpec &spec = kernel.spec;
  Value q = queryRows();
  rows = e.dim(q, 0);
  rowsOfSequences();
  checkSequences();
  commonTables();

  int64_t dyn = ShapedType::kDynamic;
  Values outSizes = {rows, e.index(spec.qHeads), e.index(spec.valueDim)};
  Value out =
      filled(e, MemRefType::get({dyn, spec.qHeads, spec.valueDim}, element),
             outSizes, e.getFloatAttr(element, 0.0));
  outSizes.pop_back();
  Value lse =
      filled(e, MemRefType::get({dyn, spec.qHeads}, e.getF32Type()), outSizes,
             e.getF32FloatAttr(-std::numeric_limits<float>::infinity()));
  Value count = e.sub(last, first);
  int64_t partial = kvcache_partial_floats(spec.valueDim);
  Value items = e.mul(e.mul(count, e.index(spec.qHeads)), maxSplits);
  Value workspace = memref::AllocOp::create(
      e, MemRefType::get({dyn}, e.getF32Type()),
      ValueRange{e.mul(items, e.index(partial))}, e.getI64IntegerAttr(128));

  AbiFields fields;
  fields["q"] = pointerOf(q);
  fields["row_seq"] = pointerOf(rowSeq);
  fields["q_indptr"] = pointerOf(indptr);
  fields["sealed_table"] = pointerOf(sealedTable);
  fields["open_table"] = pointerOf(openTable);
  Value lists = e.dim(sealedTable, 1), columns = e.dim(sealedTable, 2);
  fields["table_seq_stride"] = i64(e.mul(lists, columns));
  Value several = e.lt(e.index(1), lists);
  fields["table_head_stride"] = i64(e.select(several, columns, e.index(0)));
  fields["sealed_pages"] = pointerOf(sealed);
  fields["lengths"] = pointerOf(lengths);
  fields["sealed_pool"] = pointerOf(source.parts.pools[0]);
  fields["open_pool"] = pointerOf(source.parts.pools[1]);
  Values statics = source.parts.scales;
  bool keyHasOne = spec.format.key.scale == ScaleKind::Tensor;
  if (keyHasOne)
    fields["k_scale"] = pointerOf(statics[0]);
  if (spec.format.value.scale == ScaleKind::Tensor)
    fields["v_scale"] = pointerOf(statics[keyHasOne ? 1 : 0]);
  if (Value s = slopes())
    fields["slopes"] = pointerOf(s);
  fields["out"] = pointerTo(e, out);
  fields["lse"] = pointerTo(e, lse);
  fields["workspace"] = pointerTo(e, workspace);
  fields["max_splits"] = i64(maxSplits);
  fields["row_begin"] = i64(first);
  fields["row_end"] = i64(last);

  SmallVector<StringRef> names;
#define KVCACHE_NAME(kind, name) names.push_back(#name);
  KVCACHE_ATTEND_ARGS(KVCACHE_NAME)
#undef KVCACHE_NAME
  Value args = packArguments(e, names, fields);
  int64_t chunks = (spec.group() + kernel.qPack - 1) / kernel.qPack;
  Value attendItems =
      e.mul(e.mul(count, e.index(spec.kvHeads * chunks)), maxSplits);
  Value zero = i64(e.index(0));
  if (kernel.device) {
    auto bytes = [&](int which) {
      return i64(e.dim(source.parts.pools[size_t(which)], 0));
    };
    Value handle =
        arith::ConstantOp::create(e, e.getI64IntegerAttr(kernel.device));
    func::CallOp::create(
        e, kernel.attend, i32,
        ValueRange{args, i64(attendItems), bytes(0), bytes(1), handle});
    return readBack(tensorOf(e, out), tensorOf(e, lse));
  }
  func::CallOp::create(e, kernel.attend, i32,
                       ValueRange{args, zero, i64(attendItems)});
  func::CallOp::create(
      e, kernel.merge, i32,
      ValueRange{args, zero, i64(e.mul(count, e.index(spec.qHeads)))});
  return readBack(tensorOf(e, out), tensorOf(e, lse));
}

Values kvcache::callAttend(Emitter &e, AttentionOp op, PagedSource &source,
                           const GeneratedKernel &kernel) {
  return AttendCall(e, op, source, kernel).run();
}
