//===- CallStorage.cpp - append and seal by generated kernels -------------===//
//
// The caller finds pages and checks tables; the kernels move and code bytes. A
// refused append changes nothing: lengths stay as they were.
//
//===----------------------------------------------------------------------===//
#include "AbiArguments.h"
#include "CallKernel.h"
#include "kvcache/ABI/KernelABI.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <limits>

using namespace kvcache;
using namespace mlir;

bool kvcache::hasOneList(const PagedSource &source) {
  return llvm::all_of(source.parts.tables, [](Value table) {
    auto type = cast<RankedTensorType>(table.getType());
    return type.getRank() == 2 || type.getDimSize(1) == 1;
  });
}

/// Pools and static scales, by their names in the structs.
static AbiFields storageFields(Emitter &e, PagedSource &source, Value sealed,
                               Value open) {
  AbiFields fields;
  if (sealed)
    fields["sealed_pool"] = pointerTo(e, sealed);
  fields["open_pool"] = pointerTo(e, open);
  bool keyHasOne = source.image.key.encoding.scale == ScaleKind::Tensor;
  auto scale = [&](int64_t i) {
    return pointerTo(e, bufferOf(e, source.parts.scales[i]));
  };
  if (keyHasOne)
    fields["k_scale"] = scale(0);
  if (source.image.value.encoding.scale == ScaleKind::Tensor)
    fields["v_scale"] = scale(keyHasOne ? 1 : 0);
  return fields;
}

/// Calls an entry point for the items [0, count); its status.
static Value callEntry(Emitter &e, StringRef symbol, Value args, Value count) {
  auto function = e.module.lookupSymbol<LLVM::LLVMFuncOp>(symbol);
  return LLVM::CallOp::create(
             e, function,
             ValueRange{args, toI64(e, e.index(0)), toI64(e, count)})
      .getResult();
}

/// ok, the new lengths, and the slot of every row.
static Values findSlots(Emitter &e, AppendOp op, PagedSource &source) {
  Value rowSeq = op.getRowSeq(), zero = e.index(0), one = e.index(1);
  Value rows = e.dim(rowSeq, 0), seqs = source.sequences(e);
  Value fit = checkSizes(e, e.boolean(true), e.dim(op.getK(), 0), rows);
  fit = checkSizes(e, fit, e.dim(op.getV(), 0), rows);
  auto nType = cast<RankedTensorType>(source.parts.lengths.getType());
  Value slots = tensor::EmptyOp::create(
      e, RankedTensorType::get({ShapedType::kDynamic}, e.getI64Type()),
      ValueRange{rows});
  return e.loop(
      zero, e.select(fit, rows, zero), {fit, source.parts.lengths, slots},
      [&](Value row, ValueRange a) -> Values {
        Value seq = e.toIndex(e.extract(rowSeq, row));
        Value padding = e.cmp(arith::CmpIPredicate::eq, seq, e.index(-1));
        Value none = e.insert(toI64(e, e.index(-1)), a[2], row);
        Value known = e.both(e.le(zero, seq), e.lt(seq, seqs));
        emitCheck(e, e.either(known, padding), Check::AppendRow,
                  {row, seq, seqs});
        Values skipped = {e.both(a[0], e.either(known, padding)), a[1], none};
        return e.when(known, skipped, [&]() -> Values {
          Value token = e.toIndex(e.extract(a[1], seq));
          Value room = checkRoom(e, source, seq, token);
          return e.branch(
              room,
              [&]() -> Values {
                Value number = source.pageNumber(e, 1, seq, zero,
                                                 e.div(token, source.page));
                Value slot = e.add(e.mul(number, e.index(source.page)),
                                   e.mod(token, source.page));
                Value next = arith::IndexCastOp::create(
                    e, nType.getElementType(), e.add(token, one));
                return {a[0], e.insert(next, a[1], seq),
                        e.insert(toI64(e, slot), none, row)};
              },
              [&]() -> Values { return {e.boolean(false), a[1], none}; });
        });
      });
}

CacheParts kvcache::callAppend(Emitter &e, AppendOp op, PagedSource &source,
                               const StorageSymbols &kernels) {
  // Lengths before, in case the kernel refuses.
  Value old = source.parts.lengths;
  auto nType = cast<RankedTensorType>(old.getType());
  Value kept = e.loop(e.index(0), e.dim(old, 0), e.empty(nType, e.dim(old, 0)),
                      [&](Value i, ValueRange a) -> Values {
                        return {e.insert(e.extract(old, i), a[0], i)};
                      })[0];
  Values found = findSlots(e, op, source);
  Value rows = e.dim(op.getK(), 0), zero = e.index(0);
  Value open = bufferOf(e, source.parts.pools[1], /*readOnly=*/false);
  Value status =
      memref::AllocOp::create(e, MemRefType::get({1}, e.getI64Type()));
  Value most = arith::ConstantOp::create(
      e, e.getI64IntegerAttr(std::numeric_limits<int64_t>::max()));
  memref::StoreOp::create(e, most, status, zero);

  AbiFields fields = storageFields(e, source, Value(), open);
  fields["k"] = pointerTo(e, bufferOf(e, op.getK()));
  fields["v"] = pointerTo(e, bufferOf(e, op.getV()));
  fields["slots"] = pointerTo(e, bufferOf(e, found[2]));
  fields["status"] = pointerTo(e, status);
  SmallVector<StringRef> names;
#define KVCACHE_NAME(kind, name) names.push_back(#name);
  KVCACHE_APPEND_ARGS(KVCACHE_NAME)
#undef KVCACHE_NAME
  Value result = callEntry(e, kernels.append, packArguments(e, names, fields),
                           e.select(found[0], rows, zero));
  Value fine = e.cmp(arith::CmpIPredicate::eq, result,
                     arith::ConstantOp::create(e, e.getI32IntegerAttr(0)));
  emitCheck(e, fine, Check::AppendValue,
            ValueRange{memref::LoadOp::create(e, status, zero)});
  CacheParts parts = source.parts;
  parts.pools[1] = tensorOf(e, open);
  parts.lengths =
      arith::SelectOp::create(e, e.both(fine, found[0]), found[1], kept);
  return parts;
}

CacheParts kvcache::callSeal(Emitter &e, SealOp op, PagedSource &source,
                             const StorageSymbols &kernels) {
  Value zero = e.index(0), seqs = source.sequences(e);
  auto nType = cast<RankedTensorType>(source.parts.sealedPages.getType());
  auto indices =
      RankedTensorType::get({ShapedType::kDynamic}, e.getIndexType());
  Value sinks = e.index(source.image.format.sinkPages());
  // How many pages each sequence has to seal.
  Values due = e.loop(zero, seqs, {e.empty(indices, seqs), zero},
                      [&](Value seq, ValueRange a) -> Values {
                        auto [first, end] = pagesDue(e, source, seq);
                        return {e.insert(end, a[0], seq),
                                e.add(a[1], e.sub(end, first))};
                      });
  auto pages = RankedTensorType::get({ShapedType::kDynamic}, e.getI32Type());
  Value src = e.empty(pages, due[1]), dst = e.empty(pages, due[1]);
  Values lists = e.loop(
      zero, seqs, {src, dst, source.parts.sealedPages, zero, e.boolean(true)},
      [&](Value seq, ValueRange a) -> Values {
        Value sealed = e.toIndex(e.extract(a[2], seq));
        Value end = e.extract(due[0], seq);
        Values inner =
            e.loop(e.add(sinks, sealed), end, {a[0], a[1], a[3], a[4]},
                   [&](Value logical, ValueRange b) -> Values {
                     Value good = source.checkPage(e, 0, seq, zero, logical);
                     auto number = [&](int which) -> Value {
                       return arith::IndexCastOp::create(
                           e, e.getI32Type(),
                           source.pageNumber(e, which, seq, zero, logical));
                     };
                     return {e.insert(number(1), b[0], b[2]),
                             e.insert(number(0), b[1], b[2]),
                             e.add(b[2], e.index(1)), e.both(b[3], good)};
                   });
        Value count = e.maxS(e.sub(end, sinks), sealed);
        Value stored =
            arith::IndexCastOp::create(e, nType.getElementType(), count);
        return {inner[0], inner[1], e.insert(stored, a[2], seq), inner[2],
                inner[3]};
      });
  Value pool = bufferOf(e, source.parts.pools[0], /*readOnly=*/false);
  AbiFields fields =
      storageFields(e, source, pool, bufferOf(e, source.parts.pools[1]));
  fields["src"] = pointerTo(e, bufferOf(e, lists[0]));
  fields["dst"] = pointerTo(e, bufferOf(e, lists[1]));
  SmallVector<StringRef> names;
#define KVCACHE_NAME(kind, name) names.push_back(#name);
  KVCACHE_SEAL_ARGS(KVCACHE_NAME)
#undef KVCACHE_NAME
  Value items = e.mul(lists[3], e.index(source.kv));
  callEntry(e, kernels.seal, packArguments(e, names, fields),
            e.select(lists[4], items, zero));
  CacheParts parts = source.parts;
  parts.pools[0] = tensorOf(e, pool);
  parts.sealedPages = lists[2];
  return parts;
}
