//===- ExternalRows.cpp - Rows of caches that others lay out --------------===//
//
// A kernel on arrays takes keys and values of an external cache from functions
// that decode them, tile by tile, through the maps of the layout. Such a
// function gets one struct of 8-byte slots:
//
//   for each array: its address, then its strides in elements
//   the page numbers, i64 [seq, list, column], their rules applied; the
//   strides of sequences and of heads (0: one list for all)
//
// Sizes that types know are constants of the code, not loads.
//
//===----------------------------------------------------------------------===//
#include "AbiArguments.h"
#include "CallKernel.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace kvcache;
using namespace mlir;

static size_t arraysOf(const ExternalSource &source) {
  return source.parts.pools.size() + source.parts.scales.size();
}

static RankedTensorType typeOfArray(const ExternalSource &source, size_t i) {
  return cast<RankedTensorType>(source.array(i).getType());
}

SmallVector<Type> kvcache::rowTypesOf(const ExternalSource &source) {
  SmallVector<Type> types = {source.parts.type};
  for (size_t i = 0; i < arraysOf(source); ++i)
    types.push_back(source.array(i).getType());
  return types;
}

//===----------------------------------------------------------------------===//
// The caller's part
//===----------------------------------------------------------------------===//

/// Page numbers, i64 [seq, list, column], as the table's rule makes them, and
/// the strides of sequences and of heads.
static Values pageNumbers(Emitter &e, ExternalSource &source, Value seqs) {
  Value table = source.parts.tables[0];
  int64_t rank = cast<RankedTensorType>(table.getType()).getRank();
  Value lists = rank == 3 ? e.dim(table, 1) : e.index(1);
  Value columns = e.dim(table, rank - 1), perSeq = e.mul(lists, columns);
  Value numbers = numbersOf(e, e.mul(seqs, perSeq));
  e.loops({seqs, lists, columns}, {}, [&](ValueRange at, ValueRange) -> Values {
    Value token = e.mul(at[2], e.index(source.page));
    Value number = source.locate(e, at[0], at[1], token)[0];
    Value place = e.add(e.mul(at[0], perSeq), e.mul(at[1], columns));
    memref::StoreOp::create(e, toI64(e, number), numbers, e.add(place, at[2]));
    return {};
  });
  Value several = e.lt(e.index(1), lists);
  return {pointerTo(e, numbers), toI64(e, perSeq),
          toI64(e, e.select(several, columns, e.index(0)))};
}

Value kvcache::packSource(Emitter &e, ExternalSource &source, Value seqs) {
  Values slots;
  for (size_t i = 0; i < arraysOf(source); ++i) {
    StridedArray array = stridedArrayOf(e, source.array(i));
    slots.push_back(array.pointer);
    for (Value stride : array.strides)
      slots.push_back(toI64(e, stride));
  }
  if (source.hasTable())
    llvm::append_range(slots, pageNumbers(e, source, seqs));
  Type ptr = LLVM::LLVMPointerType::get(e.getContext());
  auto count = e.getI64IntegerAttr(static_cast<int64_t>(slots.size()));
  Value memory = LLVM::AllocaOp::create(e, ptr, e.getI64Type(),
                                        arith::ConstantOp::create(e, count));
  for (auto [i, value] : llvm::enumerate(slots)) {
    Value place = LLVM::GEPOp::create(e, ptr, e.getI64Type(), memory,
                                      LLVM::GEPArg(static_cast<int32_t>(i)));
    LLVM::StoreOp::create(e, value, place);
  }
  return memory;
}

//===----------------------------------------------------------------------===//
// The functions
//===----------------------------------------------------------------------===//

namespace {
class RowsFunction {
public:
  RowsFunction(Emitter &e, const ExternalSource &source, bool isValue)
      : e(e), source(source), isValue(isValue),
        ptr(LLVM::LLVMPointerType::get(e.getContext())) {}

  /// (source, seq, kv head, first, count, destination)
  void build(ValueRange args);

private:
  Value slot(Type type);
  void loadSlots(Value memory);
  Value pageOf(Value seq, Value head, Value token);
  Value loadElement(int64_t array, ValueRange at);
  Value address(Value base, Value element, Type type);

  Emitter &e;
  const ExternalSource &source;
  bool isValue;
  Type ptr;
  Value memory;
  int32_t next = 0;
  struct Array {
    Value pointer;
    Values strides;
  };
  SmallVector<Array> arrays;
  Value table, sequenceStride, headStride;
};
} // namespace

/// The next slot of the source, as an index if it is an integer.
Value RowsFunction::slot(Type type) {
  Value place =
      LLVM::GEPOp::create(e, ptr, e.getI64Type(), memory, LLVM::GEPArg(next++));
  Value value = LLVM::LoadOp::create(e, type, place);
  return type.isInteger(64) ? e.toIndex(value) : value;
}

void RowsFunction::loadSlots(Value from) {
  memory = from;
  Type i64 = e.getI64Type();
  for (size_t i = 0; i < arraysOf(source); ++i) {
    RankedTensorType type = typeOfArray(source, i);
    Array array{slot(ptr), {}};
    for (int64_t d = 0; d < type.getRank(); ++d)
      array.strides.push_back(slot(i64));
    arrays.push_back(std::move(array));
  }
  if (!source.hasTable())
    return;
  table = slot(ptr);
  sequenceStride = slot(i64);
  headStride = slot(i64);
}

Value RowsFunction::address(Value base, Value element, Type type) {
  return LLVM::GEPOp::create(e, ptr, type, base,
                             ArrayRef<LLVM::GEPArg>{toI64(e, element)});
}

Value RowsFunction::pageOf(Value seq, Value head, Value token) {
  if (!source.hasTable())
    return seq;
  Value at = e.add(e.mul(seq, sequenceStride), e.mul(head, headStride));
  at = e.add(at, e.div(token, source.page));
  return e.toIndex(LLVM::LoadOp::create(e, e.getI64Type(),
                                        address(table, at, e.getI64Type())));
}

/// An element of an array; narrow integers and fp8 have a byte each.
Value RowsFunction::loadElement(int64_t number, ValueRange at) {
  const Array &array = arrays[number];
  Type element = typeOfArray(source, number).getElementType();
  Value offset = e.index(0);
  for (auto [i, stride] : llvm::zip(at, array.strides))
    offset = e.add(offset, e.mul(i, stride));
  unsigned bits = element.getIntOrFloatBitWidth();
  Type stored = e.getIntegerType(std::max(bits, 8u));
  Value raw =
      LLVM::LoadOp::create(e, stored, address(array.pointer, offset, stored),
                           bits < 8 ? 1 : bits / 8);
  if (bits < 8)
    raw = arith::TruncIOp::create(e, e.getIntegerType(bits), raw);
  if (raw.getType() != element)
    raw = arith::BitcastOp::create(e, element, raw);
  return raw;
}

void RowsFunction::build(ValueRange args) {
  loadSlots(args[0]);
  Value seq = e.toIndex(args[1]), head = e.toIndex(args[2]);
  Value first = e.toIndex(args[3]), count = e.toIndex(args[4]);
  const CacheType &type = source.parts.type;
  int64_t channels = isValue ? type.getValueDim() : type.getHeadDim();
  int64_t pad = llvm::alignTo(channels, 16);
  e.loop(e.index(0), count, {}, [&](Value t, ValueRange) -> Values {
    Value token = e.add(first, t), page = pageOf(seq, head, token);
    if (source.hasTable())
      token = e.mod(token, source.page);
    Values row = {page, token, head};
    Value to = e.mul(t, e.index(pad));
    e.loop(e.index(0), e.index(channels), {},
           [&](Value c, ValueRange) -> Values {
             Value x = source.decode(e, row, isValue, c,
                                     [&](int64_t array, ValueRange at) {
                                       return loadElement(array, at);
                                     });
             LLVM::StoreOp::create(
                 e, x, address(args[5], e.add(to, c), e.getF32Type()), 4);
             return {};
           });
    return {};
  });
}

void kvcache::buildRowsFunction(ModuleOp module, StringRef name,
                                const ExternalSource &source, bool isValue) {
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  Type ptr = LLVM::LLVMPointerType::get(module.getContext());
  Type i64 = builder.getI64Type();
  auto function = func::FuncOp::create(
      builder, module.getLoc(), name,
      builder.getFunctionType({ptr, i64, i64, i64, i64, ptr}, {}));
  function.setPrivate();
  function.setNoInline(true);
  // Rows are scratch memory of the kernel: loads of scales may leave the loop.
  function.setArgAttr(5, LLVM::LLVMDialect::getNoAliasAttrName(),
                      builder.getUnitAttr());
  Block *body = function.addEntryBlock();
  builder.setInsertionPointToStart(body);
  auto end = func::ReturnOp::create(builder, module.getLoc());
  Emitter e(module.getLoc(), end);
  RowsFunction(e, source, isValue).build(body->getArguments());
}
