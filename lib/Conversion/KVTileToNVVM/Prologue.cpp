//===- Prologue.cpp - Arguments and the work item -------------------------===//
//
// Turns begin + %ctaid.x into (row, kv head, chunk, split) and the split into a
// range of pages of one class and the tokens that the row may see, as
// kvcache/ABI/KernelABI.h defines them.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

#include "kvcache/ABI/KernelABI.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

namespace {
struct Field {
  llvm::StringRef name;
  bool isPointer;
};
constexpr bool isPTR = true, isI64 = false;
} // namespace

static llvm::ArrayRef<Field> attendFields() {
#define KVCACHE_ARGUMENT(kind, name) Field{#name, is##kind},
  static const Field fields[] = {KVCACHE_ATTEND_ARGS(KVCACHE_ARGUMENT)
                                     Field{"begin", false},
                                 Field{"end", false}};
#undef KVCACHE_ARGUMENT
  return fields;
}

/// State of one warp in shared memory, in floats: O of each head, padded
/// against bank conflicts, then m and l.
static int64_t sharedFloats(const Plan &plan) {
  return plan.warps * plan.heads * (plan.spec.valueDim + 4 + 2);
}

void Kernel::createFunction() {
  MLIRContext *context = e.builder.getContext();
  llvm::SmallVector<Type> types;
  for (const Field &field : attendFields())
    types.push_back(field.isPointer ? e.global : e.i64);
  auto type =
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(context), types);
  auto function =
      LLVM::LLVMFuncOp::create(e.builder, e.loc, source.getSymName(), type);
  function->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(),
                    UnitAttr::get(context));
  function->setAttr(
      NVVM::NVVMDialect::getReqntidAttrName(),
      DenseI32ArrayAttr::get(context, {int32_t(plan.warps * 32)}));
  // Otherwise ptxas spills a few registers for one more block per SM.
  function->setAttr(NVVM::NVVMDialect::getMaxnregAttrName(),
                    e.builder.getI32IntegerAttr(255));

  auto bytes = LLVM::LLVMArrayType::get(e.i8, sharedFloats(plan) * 4 + 16);
  auto state = LLVM::GlobalOp::create(
      e.builder, e.loc, bytes, /*isConstant=*/false, LLVM::Linkage::Internal,
      (source.getSymName() + "_shared").str(), Attribute(), /*alignment=*/16,
      /*addrSpace=*/3);

  Block *entry = function.addEntryBlock(e.builder);
  for (auto [field, value] : llvm::zip(attendFields(), entry->getArguments()))
    arguments[field.name] = value;
  e.builder.setInsertionPointToStart(entry);
  e.ret();
  e.builder.setInsertionPoint(&entry->back());
  sharedState = LLVM::AddressOfOp::create(e.builder, e.loc, state);
  sharedFlag = e.gep(sharedState, sharedFloats(plan) * 4);

  Value thread = e.threadId();
  lane = e.bitAnd(thread, e.i32c(31));
  warp = e.lshr(thread, 5);
  g = e.lshr(lane, 2);
  t = e.bitAnd(lane, e.i32c(3));
}

Value Kernel::loadIndex(llvm::StringRef array, Value index) {
  return e.load(e.i32, e.gep(argument(array), e.shl(index, 2)), 4);
}

void Kernel::decodeItem() {
  Value item = e.add(argument("begin"), e.sext64(e.blockId()));
  Value maxSplits = argument("max_splits");
  split = e.trunc32(e.srem(item, maxSplits));
  Value rest = e.sdiv(item, maxSplits);
  chunk = e.i64c(0);
  if (plan.chunks() > 1) {
    chunk = e.urem(rest, plan.chunks());
    rest = e.udiv(rest, plan.chunks());
  }
  kvHead = e.urem(rest, plan.spec.kvHeads);
  localRow = e.udiv(rest, plan.spec.kvHeads);
  row = e.add(localRow, argument("row_begin"));
  Value left = e.sub(e.i64c(plan.spec.group()), e.muli(chunk, plan.heads));
  validHeads = e.smin(e.trunc32(left), e.i32c(plan.heads));

  Value sequence32 = loadIndex("row_seq", row);
  sequence = e.sext64(sequence32);
  length = loadIndex("lengths", sequence);
  Value rowsEnd = loadIndex("q_indptr", e.add(sequence, e.i64c(1)));
  position = e.add(e.sub(length, rowsEnd), e.trunc32(row));
}

void Kernel::decodeSplit() {
  int64_t page = plan.spec.format.page;
  Value step = e.i32c(0);
  auto pagesOf = [&](int64_t tokens) {
    return e.i32c(std::max<int64_t>(tokens / page, 1));
  };
  if (int64_t pinned = plan.schedule.getSplitTokens())
    step = pagesOf(pinned);
  else // kvcache_split_tokens
    step = e.select(
        e.sle(length, e.i32c(8192)), pagesOf(256),
        e.select(e.sle(length, e.i32c(32768)), pagesOf(1024), pagesOf(2048)));
  auto ceilDiv = [&](Value a) {
    return e.sdiv(e.addi(e.add(a, step), -1), step);
  };
  Value pages = e.udiv(e.addi(length, page - 1), page);
  Value sinks = e.smin(pages, e.i32c(plan.spec.format.sinkPages()));
  Value sealed = loadIndex("sealed_pages", sequence);
  Value sealedEnd = e.add(sinks, sealed);
  Value sinkSplits = ceilDiv(sinks), sealedSplits = ceilDiv(sealed);
  Value openStart = e.add(sinkSplits, sealedSplits);
  Value total = e.add(openStart, ceilDiv(e.sub(pages, sealedEnd)));
  // A sequence without tokens still has its empty row to write.
  splits = e.smax(total, e.i32c(1));
  e.exitIf(e.sge(split, splits));

  Value inSinks = e.slt(split, sinkSplits);
  Value beforeOpen = e.slt(split, openStart);
  isSealed = e.select(inSinks, e.boolc(false), beforeOpen);
  auto first = [&](Value base, Value start) {
    return e.add(base, e.mul(e.sub(split, start), step));
  };
  Value zero = e.i32c(0);
  firstPage = e.select(inSinks, first(zero, zero),
                       e.select(beforeOpen, first(sinks, sinkSplits),
                                first(sealedEnd, openStart)));
  Value end = e.select(inSinks, sinks, e.select(beforeOpen, sealedEnd, pages));
  endPage = e.smin(e.add(firstPage, step), end);
}

void Kernel::findVisible() {
  firstVisible = e.i32c(0);
  endVisible = length;
  if (plan.spec.causal)
    endVisible = e.smin(endVisible, e.addi(position, 1));
  if (plan.spec.windowRight)
    endVisible =
        e.smin(endVisible, e.addi(position, *plan.spec.windowRight + 1));
  if (plan.spec.windowLeft)
    firstVisible =
        e.smax(firstVisible, e.addi(position, -*plan.spec.windowLeft));
  // A row before the first token sees nothing (not: all keys to its right).
  endVisible = e.select(e.slt(position, e.i32c(0)), e.i32c(0), endVisible);
}

Value Kernel::firstHead() {
  return e.add(e.muli(kvHead, plan.spec.group()), e.muli(chunk, plan.heads));
}

Value Kernel::headOfColumn(Value column) {
  Value head = plan.packed() ? e.bitAnd(column, e.i32c(3)) : column;
  return e.smin(head, e.addi(validHeads, -1));
}
