//===- CallArrays.cpp - Calling kernels on arrays -------------------------===//
//
// The caller's part of ABI/ArrayKernelABI.h: operands as they lie (a dimension
// of size 1 of a mask has stride 0), checked lengths and rows, and all work
// items, spread over threads by `kvcache_parallel_for` of whoever runs the
// code.
//
//===----------------------------------------------------------------------===//
#include "AbiArguments.h"
#include "CallKernel.h"
#include "kvcache/ABI/ArrayKernelABI.h"
#include "kvcache/Conversion/KVCacheToReference/Queries.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"
#include "kvcache/Target/X86/ParallelFor.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <cmath>
#include <limits>

using namespace kvcache;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Specs
//===----------------------------------------------------------------------===//

static constexpr int64_t kMostChannels = 2048;

static Type elementOfTensor(Value v) {
  return cast<RankedTensorType>(v.getType()).getElementType();
}

/// A head map that is not just h / group.
static bool needsMap(AttentionOp op) {
  auto map = op.getHeadMap();
  if (!map)
    return false;
  int64_t q = op.getQHeads(), kv = op.getKvHeads();
  if (q % kv)
    return true;
  for (auto [head, from] : llvm::enumerate(*map))
    if (from != static_cast<int64_t>(head) / (q / kv))
      return true;
  return false;
}

static tile::EmptyRows emptyRowsOf(AttentionOp op) {
  switch (op.getEmptyRows()) {
  case EmptyRows::Zero:
    return tile::EmptyRows::Zero;
  case EmptyRows::NaN:
    return tile::EmptyRows::NaN;
  case EmptyRows::MeanAll:
    return tile::EmptyRows::MeanAll;
  }
  llvm_unreachable("unknown empty_rows");
}

tile::ArraysAttr kvcache::arraysSpecOf(AttentionOp op) {
  for (int64_t size :
       {op.getQHeads(), op.getKvHeads(), op.getHeadDim(), op.getValueDim()})
    if (ShapedType::isDynamic(size) || size < 1)
      return {};
  // The kernels' page numbers end with the lengths; a mean runs past them.
  if (op.hasCache() && op.getEmptyRows() == EmptyRows::MeanAll)
    return {};
  // Tiles lie on the stack.
  if (op.getPositions() || op.getHeadDim() > kMostChannels ||
      op.getValueDim() > kMostChannels)
    return {};
  MLIRContext *context = op.getContext();
  Builder b(context);
  double scale = op.getScale() ? op.getScale()->convertToDouble()
                               : 1 / std::sqrt(double(op.getHeadDim()));
  tile::MaskAttr mask;
  if (op.getCausal() || op.getWindow()) {
    int64_t left = -1, right = -1;
    if (WindowAttr window = op.getWindowAttr()) {
      left = window.getLeft().value_or(-1);
      right = window.getRight().value_or(-1);
    }
    mask =
        tile::MaskAttr::get(context, op.getCausal().has_value(), left, right);
  }
  FloatAttr softcap;
  if (op.getSoftcap())
    softcap = b.getF64FloatAttr(op.getSoftcap()->convertToDouble());
  int64_t group = needsMap(op) ? 1 : op.getQHeads() / op.getKvHeads();
  // Rows of caches arrive as f32.
  bool cache = op.hasCache();
  Type f32 = b.getF32Type();
  return tile::ArraysAttr::get(
      context, group, op.getHeadDim(), op.getValueDim(),
      elementOfTensor(op.getQ()), cache ? f32 : elementOfTensor(op.getK()),
      cache ? f32 : elementOfTensor(op.getV()), elementOfTensor(op.getOut()),
      b.getF64FloatAttr(scale), mask,
      op.getMask() ? elementOfTensor(op.getMask()) : Type(), softcap,
      op.getSlopes() || op.getAlibi(), bool(op.getSinkLogits()),
      emptyRowsOf(op));
}

int64_t kvcache::columnsOf(AttentionOp op, tile::ArraysAttr spec) {
  auto q = cast<RankedTensorType>(op.getQ().getType());
  if (q.getRank() == 3)
    return op.getQIndptr() ? 0 : spec.getGroup();
  int64_t rows = q.getDimSize(layoutDims(op.getLayout(), 4).token);
  return ShapedType::isDynamic(rows) ? 0 : rows * spec.getGroup();
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

namespace {
class ArrayCall {
public:
  ArrayCall(Emitter &e, AttentionOp op, Source &source,
            const GeneratedArrayKernel &kernel)
      : e(e), op(op), source(source), kernel(kernel), queries(op),
        dims(layoutDims(op.getLayout(), 4)) {}

  Values run();

private:
  bool isRagged();
  void sequences();
  Value firstToken(Value seq, bool topLeft);
  void operands();
  /// Strides of [seq, head, row] of an array shaped like the queries.
  void rowStrides(StringRef name, ArrayRef<Value> strides);
  void mask();
  void perHead();
  Value result(StringRef name, Value opResult, TypedAttr value);
  void call();

  Value i64(Value index) { return toI64(e, index); }
  Value contiguous(Value tensor) { return pointerTo(e, bufferOf(e, tensor)); }

  Emitter &e;
  AttentionOp op;
  Source &source;
  const GeneratedArrayKernel &kernel;
  Queries queries;
  LayoutDims dims;
  AbiFields fields;
  Value seqs, mostRows;
};
} // namespace

/// Whether rows of sequences are found, and checked, one sequence at a time:
/// q_indptr, or one row a sequence where sizes do not show that all exist.
bool ArrayCall::isRagged() {
  if (queries.rank == 4)
    return false;
  auto sizeOf = [](Value tensor) {
    return cast<RankedTensorType>(tensor.getType()).getDimSize(0);
  };
  return op.getQIndptr() || op.hasCache() ||
         ShapedType::isDynamic(sizeOf(op.getQ())) ||
         ShapedType::isDynamic(sizeOf(op.getK())) ||
         ShapedType::isDynamic(sizeOf(op.getV()));
}

/// Rows and lengths of sequences, checked.
void ArrayCall::sequences() {
  seqs = queries.fitting(e, source.sequences(e));
  mostRows = queries.rank == 4 ? e.dim(op.getQ(), dims.token) : e.index(1);
  fields["rows"] = i64(mostRows);
  fields["tokens"] = i64(op.hasCache() ? source.capacity(e, e.index(0))
                                       : e.dim(op.getK(), dims.token));
  bool topLeft = op.getCausal() && *op.getCausal() == Causal::TopLeft;
  fields["shift"] = i64(e.index(0));
  fields["bottom_right"] = i64(e.index(!topLeft));
  fields["first"] =
      i64(e.index(op.hasCache() ? 0 : std::numeric_limits<int32_t>::min()));
  if (op.getLengths() || op.hasCache()) {
    Value lengths = numbersOf(e, seqs);
    e.loop(e.index(0), seqs, {}, [&](Value seq, ValueRange) -> Values {
      Value n = source.checkedLength(e, seq, firstToken(seq, topLeft));
      memref::StoreOp::create(e, i64(n), lengths, seq);
      return {};
    });
    fields["lengths"] = pointerTo(e, lengths);
  }
  if (!isRagged())
    return;
  Value begins = numbersOf(e, seqs), counts = numbersOf(e, seqs);
  mostRows = e.loop(e.index(0), seqs, e.index(0),
                    [&](Value seq, ValueRange most) -> Values {
                      auto [begin, end] = queries.rows(e, seq);
                      Value count = e.sub(end, begin);
                      memref::StoreOp::create(e, i64(begin), begins, seq);
                      memref::StoreOp::create(e, i64(count), counts, seq);
                      return {e.maxS(most[0], count)};
                    })[0];
  fields["row_begin"] = pointerTo(e, begins);
  fields["row_count"] = pointerTo(e, counts);
}

/// The first token that any row of a sequence may see: entries of a page table
/// before it are not looked at.
Value ArrayCall::firstToken(Value seq, bool topLeft) {
  WindowAttr window = op.getWindowAttr();
  if (!op.hasCache() || !window || !window.getLeft())
    return e.index(0);
  auto [begin, end] = queries.rows(e, seq);
  Value position =
      topLeft ? e.index(0) : e.sub(source.length(e, seq), e.sub(end, begin));
  return e.maxS(e.sub(position, e.index(*window.getLeft())), e.index(0));
}

void ArrayCall::rowStrides(StringRef name, ArrayRef<Value> strides) {
  std::string prefix = name.str() + "_";
  Value zero = e.index(0);
  if (queries.rank == 3) {
    // Rows of all sequences in a row, or one row a sequence.
    bool ragged = isRagged();
    fields[prefix + "seq"] = i64(ragged ? zero : strides[0]);
    fields[prefix + "row"] = i64(ragged ? strides[0] : zero);
    fields[prefix + "head"] = i64(strides[1]);
    return;
  }
  fields[prefix + "seq"] = i64(strides[0]);
  fields[prefix + "head"] = i64(strides[dims.head]);
  fields[prefix + "row"] = i64(strides[dims.token]);
}

void ArrayCall::operands() {
  StridedArray q = stridedArrayOf(e, op.getQ());
  fields["q"] = q.pointer;
  rowStrides("q", q.strides);
  fields["q_channel"] = i64(q.strides.back());
  if (op.hasCache()) {
    fields["source"] =
        packSource(e, static_cast<ExternalSource &>(source), seqs);
    return;
  }
  for (auto [name, tensor] :
       {std::pair<std::string, Value>{"k", op.getK()}, {"v", op.getV()}}) {
    StridedArray array = stridedArrayOf(e, tensor);
    fields[name] = array.pointer;
    fields[name + "_seq"] = i64(array.strides[0]);
    fields[name + "_head"] = i64(array.strides[dims.head]);
    fields[name + "_row"] = i64(array.strides[dims.token]);
    fields[name + "_channel"] = i64(array.strides[dims.channel]);
  }
}

void ArrayCall::mask() {
  if (!op.getMask())
    return;
  StridedArray mask = stridedArrayOf(e, op.getMask());
  Value one = e.index(1);
  for (auto [size, stride] : llvm::zip(mask.sizes, mask.strides))
    stride = e.select(e.cmp(arith::CmpIPredicate::eq, size, one), e.index(0),
                      stride);
  fields["mask"] = mask.pointer;
  rowStrides("mask", mask.strides);
  fields["mask_token"] = i64(mask.strides.back());
}

/// Slopes, sink logits and the head map.
void ArrayCall::perHead() {
  int64_t heads = op.getQHeads();
  auto constant = [&](auto values, Type element) -> Value {
    auto type =
        RankedTensorType::get({static_cast<int64_t>(values.size())}, element);
    return contiguous(arith::ConstantOp::create(
        e, DenseElementsAttr::get(type, ArrayRef(values))));
  };
  if (op.getSlopes()) {
    fields["slopes"] = contiguous(op.getSlopes());
  } else if (op.getAlibi()) {
    SmallVector<float> slopes(op.getAlibi()->begin(), op.getAlibi()->end());
    if (slopes.empty())
      llvm::append_range(slopes, usualAlibiSlopes(heads));
    fields["slopes"] = constant(slopes, e.getF32Type());
  }
  if (op.getSinkLogits())
    fields["sinks"] = contiguous(op.getSinkLogits());
  bool mapped = needsMap(op);
  if (mapped)
    fields["head_map"] =
        constant(SmallVector<int64_t>(*op.getHeadMap()), e.getI64Type());
  fields["heads"] = i64(e.index(mapped ? heads : op.getKvHeads()));
}

/// A new buffer for a result. Rows that no sequence has (an uneven q_indptr)
/// keep `value`.
Value ArrayCall::result(StringRef name, Value opResult, TypedAttr value) {
  auto type = cast<RankedTensorType>(opResult.getType());
  Values sizes = e.sizesOf(op.getQ()), dynamic;
  sizes.pop_back();
  if (type.getRank() == queries.rank)
    sizes.push_back(e.index(op.getValueDim()));
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (type.isDynamicDim(i))
      dynamic.push_back(sizes[i]);
  Value buffer = memref::AllocOp::create(
      e, MemRefType::get(type.getShape(), type.getElementType()), dynamic,
      e.getI64IntegerAttr(128));
  if (isRagged()) {
    Value v = arith::ConstantOp::create(e, value);
    e.loops(sizes, {}, [&](ValueRange at, ValueRange) -> Values {
      memref::StoreOp::create(e, v, buffer, at);
      return {};
    });
  }
  Values strides(sizes.size(), e.index(1));
  for (size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = e.mul(strides[i], sizes[i]);
  fields[name.str()] = pointerTo(e, buffer);
  rowStrides(name, strides);
  return buffer;
}

/// The declaration of `kvcache_parallel_for(fn, args, items)`.
static func::FuncOp parallelFor(Emitter &e) {
  if (auto known = e.module.lookupSymbol<func::FuncOp>(x86::kParallelFor))
    return known;
  OpBuilder::InsertionGuard guard(e);
  e.setInsertionPointToEnd(e.module.getBody());
  Type ptr = LLVM::LLVMPointerType::get(e.getContext());
  auto function = func::FuncOp::create(
      e, x86::kParallelFor, e.getFunctionType({ptr, ptr, e.getI64Type()}, {}));
  function.setPrivate();
  return function;
}

void ArrayCall::call() {
  SmallVector<StringRef> names;
#define KVCACHE_NAME(kind, name) names.push_back(#name);
  KVCACHE_ARRAY_ATTEND_ARGS(KVCACHE_NAME)
#undef KVCACHE_NAME
  int64_t rows = kernel.schedule.getQRows();
  int64_t chunks =
      llvm::divideCeil(kernel.spec.getGroup(), kernel.schedule.getQPack());
  Value tiles = e.div(e.add(mostRows, e.index(rows - 1)), rows);
  fields["tiles"] = i64(tiles);
  Value args = packArguments(e, names, fields);
  Value items =
      e.mul(i64(e.mul(e.mul(seqs, tiles), e.index(chunks))), fields["heads"]);
  Type ptr = LLVM::LLVMPointerType::get(e.getContext());
  auto type = e.getFunctionType({ptr, e.getI64Type(), e.getI64Type()},
                                {e.getI32Type()});
  Value entry = func::ConstantOp::create(e, type, kernel.attend);
  Value address =
      UnrealizedConversionCastOp::create(e, ptr, entry).getResult(0);
  func::CallOp::create(e, parallelFor(e), ValueRange{address, args, items});
}

Values ArrayCall::run() {
  sequences();
  operands();
  mask();
  perHead();
  Value out = result("out", op.getOut(),
                     e.getFloatAttr(elementOfTensor(op.getOut()), 0.0));
  Value lse =
      result("lse", op.getLse(),
             e.getF32FloatAttr(-std::numeric_limits<float>::infinity()));
  call();
  return {tensorOf(e, out), tensorOf(e, lse)};
}

Values kvcache::callArrayAttend(Emitter &e, AttentionOp op, Source &source,
                                const GeneratedArrayKernel &kernel) {
  return ArrayCall(e, op, source, kernel).run();
}
