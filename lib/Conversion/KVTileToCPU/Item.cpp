//===- Item.cpp - Work items and page loops -------------------------------===//
//
// From the number of a work item to its row, kv head, chunk and run of pages,
// and the loops over these pages.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"
#include "kvcache/ABI/KernelABI.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

void Fields::loadAttend(CpuBuilder &b, Value args) {
  int64_t offset = 0;
  auto field = [&](StringRef kind, StringRef name) {
    Type type = kind == "PTR" ? b.ptrType() : Type(b.getI64Type());
    values[name] = b.load(type, b.at(args, offset));
    offset += 8;
  };
#define KVCACHE_LOAD(kind, name) field(#kind, #name);
  KVCACHE_ATTEND_ARGS(KVCACHE_LOAD)
#undef KVCACHE_LOAD
}

func::FuncOp kvcache::openEntry(CpuBuilder &b, StringRef name) {
  auto type = b.getFunctionType({b.ptrType(), b.getI64Type(), b.getI64Type()},
                                {b.getI32Type()});
  auto function = func::FuncOp::create(b, name, type);
  b.setInsertionPointToStart(function.addEntryBlock());
  return function;
}

/// kvcache_num_splits and its parts, for one sequence.
SequenceSplits kvcache::computeSplits(CpuBuilder &b, const KernelSpec &spec,
                                      int64_t splitTokens, const Fields &fields,
                                      Value seq) {
  SequenceSplits s;
  int64_t page = spec.format.page;
  s.length = b.loadIndex(fields["lengths"], seq);
  s.sealed = b.loadIndex(fields["sealed_pages"], seq);
  s.pages = b.div(b.add(s.length, page - 1), page);
  auto pagesOf = [&](int64_t splitTokens) {
    return b.i64(std::max<int64_t>(splitTokens / page, 1));
  };
  if (splitTokens) {
    s.step = pagesOf(splitTokens);
  } else {
    // kvcache_split_tokens.
    Value longest = b.select(b.lessEqual(s.length, b.i64(32768)),
                             pagesOf(kvcache_split_tokens(32768)),
                             pagesOf(kvcache_split_tokens(32769)));
    s.step = b.select(b.lessEqual(s.length, b.i64(8192)),
                      pagesOf(kvcache_split_tokens(8192)), longest);
  }
  s.sinks = b.min(s.pages, b.i64(spec.format.sinkPages()));
  Value open = b.sub(b.sub(s.pages, s.sinks), s.sealed);
  s.sinkSplits = b.ceilDiv(s.sinks, s.step);
  s.sealedSplits = b.ceilDiv(s.sealed, s.step);
  s.openSplits = b.ceilDiv(open, s.step);
  s.count = b.add(b.add(s.sinkSplits, s.sealedSplits), s.openSplits);
  return s;
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

AttendLowering::AttendLowering(KernelOp kernel, const PageImage &image)
    : TileEvaluator(kernel.getLoc(), kernel.getSchedule()->getVectorBits()),
      kernel(kernel), spec(kernel.getSpec().getKernelSpec()),
      schedule(*kernel.getSchedule()), image(image),
      dtype(toType(kernel.getContext(), spec.dtype)), n(schedule.getQPack()),
      tokens(schedule.getTileTokens()), d(spec.headDim), v(spec.valueDim),
      npad(llvm::PowerOf2Ceil(n)), dpad(llvm::alignTo(d, 16)),
      vpad(llvm::alignTo(v, 16)) {}

LogicalResult AttendLowering::run() {
  b.setInsertionPoint(kernel);
  func::FuncOp function = openEntry(b, kernel.getSymName());
  fields.loadAttend(b, function.getArgument(0));
  query = b.scratch(n * dpad * 4);
  out = b.scratch(n * vpad * 4);
  // A reduction of few vectors writes whole registers.
  foldedQuery = b.scratch(n * dpad * 4);
  foldedZeros = b.scratch(128);
  foldedP = b.scratch(n * tokens * 4);
  pSums = b.scratch(128);
  querySums = b.scratch((d / 4 + 1) * npad * 4);
  if (usesIntegers(image.key))
    integerKeys = makeIntegerRows(image.key);
  if (usesIntegers(image.value))
    integerValues = makeIntegerRows(image.value);
  bool failed = false;
  b.loop(function.getArgument(1), function.getArgument(2), 1,
         [&](Value item) { failed |= mlir::failed(emitItem(item)); });
  func::ReturnOp::create(b, b.i32(KVCACHE_OK));
  return failure(failed);
}

LogicalResult AttendLowering::emitItem(Value item) {
  int64_t chunks = llvm::divideCeil(spec.group(), n);
  Value maxSplits = fields["max_splits"];
  Value rest = b.div(item, maxSplits);
  split = b.sub(item, b.mul(rest, maxSplits));
  chunk = b.rem(rest, chunks);
  rest = b.div(rest, chunks);
  kvHead = b.rem(rest, spec.kvHeads);
  row = b.add(fields["row_begin"], b.div(rest, spec.kvHeads));
  seq = b.loadIndex(fields["row_seq"], row);
  SequenceSplits splits =
      computeSplits(b, spec, schedule.getSplitTokens(), fields, seq);
  length = splits.length;
  Value endRow = b.loadIndex(fields["q_indptr"], b.add(seq, 1));
  position = b.add(b.sub(length, endRow), row);
  bool failed = false;
  b.when(b.less(split, splits.count), [&] {
    findRun(splits);
    for (Operation &op : kernel.getBody().front())
      failed |= mlir::failed(emitOp(&op));
  });
  return failure(failed);
}

/// The pages [firstPage, endPage) of the item's split and their class.
void AttendLowering::findRun(const SequenceSplits &s) {
  Value afterSinks = b.sub(split, s.sinkSplits);
  Value afterSealed = b.sub(afterSinks, s.sealedSplits);
  Value isSink = b.less(split, s.sinkSplits);
  Value isTail = b.lessEqual(b.i64(0), afterSealed);
  Value sealedEnd = b.add(s.sinks, s.sealed);
  // Start and end of the region, and the split's number within it.
  Value number =
      b.select(isSink, split, b.select(isTail, afterSealed, afterSinks));
  Value start =
      b.select(isSink, b.i64(0), b.select(isTail, sealedEnd, s.sinks));
  Value end = b.select(isSink, s.sinks, b.select(isTail, s.pages, sealedEnd));
  regionEnd = end;
  firstPage = b.add(start, b.mul(number, s.step));
  endPage = b.min(b.add(firstPage, s.step), end);
  Value notSink = b.lessEqual(s.sinkSplits, split);
  Value notTail = b.less(afterSealed, b.i64(0));
  runIsSealed = arith::AndIOp::create(b, notSink, notTail);
}

//===----------------------------------------------------------------------===//
// Heads of the chunk
//===----------------------------------------------------------------------===//

Value AttendLowering::headOf(int64_t i, Value &valid) {
  Value inGroup = b.add(b.mul(chunk, n), i);
  valid = {};
  if (spec.group() % n) {
    valid = b.less(inGroup, b.i64(spec.group()));
    inGroup = b.min(inGroup, b.i64(spec.group() - 1));
  }
  return b.add(b.mul(kvHead, spec.group()), inGroup);
}

void AttendLowering::loadQueryBlock(Value head, Value valid, int64_t i,
                                    Value ch, int64_t width) {
  int64_t w = b.lanes();
  Value element = b.add(b.mul(b.add(b.mul(row, spec.qHeads), head), d), ch);
  Value place = b.at(fields["q"], b.mul(element, bitsOf(spec.dtype) / 8));
  Value q = b.widen(b.loadFloats(dtype, place, width), w);
  if (valid)
    q = b.select(valid, q, b.fsplat(w, 0.0));
  b.store(q, b.at(query, b.mul(b.add(ch, i * dpad), 4)));
}

void AttendLowering::emitLoadQuery(LoadQueryOp op) {
  int64_t w = b.lanes(), whole = d / w * w;
  for (int64_t i = 0; i < n; ++i) {
    Value valid;
    Value head = headOf(i, valid);
    b.loop(b.i64(0), b.i64(whole), w,
           [&](Value ch) { loadQueryBlock(head, valid, i, ch, w); });
    if (whole < d)
      loadQueryBlock(head, valid, i, b.i64(whole), d - whole);
  }
  // Scales that stay outside the sum: the rows are the same for every page.
  if (usesIntegers(image.key)) {
    if (!integerKeys.folded)
      quantizeRows(integerKeys, query, dpad);
    return;
  }
  if (modeOf(image.key) == ScaleMode::Fold &&
      image.key.encoding.scale != ScaleKind::Channel)
    emitQuerySums();
}

/// querySums[group][i] = sum of query i over the channels of each scale group.
void AttendLowering::emitQuerySums() {
  const TensorImage &key = image.key;
  int64_t g = key.encoding.scale == ScaleKind::Token ? key.groupSize() : d;
  // Groups are multiples of 4 here (see modeOf).
  int64_t w = std::min<int64_t>(b.lanes(), g & -g);
  b.loop(b.i64(0), b.i64(d / g), 1, [&](Value group) {
    for (int64_t i = 0; i < n; ++i) {
      Value from = b.mul(group, g);
      Values sum =
          b.loop(from, b.add(from, g), w, Values{b.fsplat(w, 0.0)},
                 [&](Value ch, ValueRange carried) {
                   Value place = b.mul(b.add(ch, i * dpad), 4);
                   return Values{b.fadd(carried[0],
                                        b.load(b.fvec(w), b.at(query, place)))};
                 });
      Value place = b.add(b.mul(group, npad), i);
      b.store(b.reduce(sum[0], false), b.at(querySums, b.mul(place, 4)));
    }
  });
}

void AttendLowering::emitLoadSlopes(LoadSlopesOp op) {
  Value memory = b.scratch(npad * 4);
  b.store(b.fsplat(npad, 0.0), memory);
  for (int64_t i = 0; i < n; ++i) {
    Value valid;
    Value head = headOf(i, valid);
    Value slope =
        b.load(b.getF32Type(), b.at(fields["slopes"], b.mul(head, 4)));
    if (valid)
      slope = b.select(valid, slope, b.f32(0.0));
    b.store(slope, b.at(memory, i * 4));
  }
  rowValues[op.getResult()] = b.load(b.fvec(npad), memory);
}

//===----------------------------------------------------------------------===//
// Pages
//===----------------------------------------------------------------------===//

Value AttendLowering::recordOf(PageClass pageClass, Value page) {
  bool sealed = pageClass == PageClass::Sealed;
  Value table = fields[sealed ? "sealed_table" : "open_table"];
  Value index = b.add(b.add(b.mul(seq, fields["table_seq_stride"]),
                            b.mul(kvHead, fields["table_head_stride"])),
                      page);
  int64_t bytes =
      sealed ? image.recordBytes() : openRecordBytes(spec.dtype, tokens, d, v);
  Value record = b.add(b.mul(b.loadIndex(table, index), spec.kvHeads), kvHead);
  return b.at(fields[sealed ? "sealed_pool" : "open_pool"],
              b.mul(record, bytes));
}

/// First and last position that the row sees, last < first if none.
std::pair<Value, Value> AttendLowering::visibleTokens(MaskAttr mask) {
  Value first = b.i64(0), last = b.sub(length, b.i64(1));
  if (mask.getCausal())
    last = b.min(last, position);
  if (mask.getRight() >= 0)
    last = b.min(last, b.add(position, mask.getRight()));
  if (mask.getLeft() >= 0)
    first = b.max(first, b.sub(position, b.i64(mask.getLeft())));
  // Rows before token 0 are empty.
  last = b.select(b.less(position, b.i64(0)), b.i64(-1), last);
  return {first, last};
}

void AttendLowering::enterTile(PageClass pageClass, Value page, Value end) {
  tile = {};
  tile.pageClass = pageClass;
  tile.record = recordOf(pageClass, page);
  if (pageClass == PageClass::Sealed && schedule.getPrefetchBytes()) {
    int64_t pages = schedule.getPrefetchBytes() / image.recordBytes();
    Value last = b.sub(end, b.i64(1));
    auto ahead = [&](int64_t by) {
      return recordOf(pageClass, b.min(b.add(page, by), last));
    };
    tile.ahead = pages ? ahead(pages) : tile.record;
    tile.afterAhead = ahead(pages + 1);
  }
  tile.first = b.mul(page, tokens);
  tile.count = b.min(b.sub(length, tile.first), b.i64(tokens));
}

LogicalResult AttendLowering::emitPageLoop(PageLoopOp op) {
  PageClass pageClass = op.getPageClass();
  auto visible = op.getBody().front().getOps<VisibleOp>();
  MaskAttr mask = MaskAttr::get(op.getContext(), false, -1, -1);
  if (!visible.empty())
    mask = (*visible.begin()).getMask();
  auto [firstToken, lastToken] = visibleTokens(mask);
  Value from = b.max(firstPage, b.div(firstToken, tokens));
  Value to = b.min(endPage, b.div(b.add(lastToken, tokens), tokens));
  // The pages after the run belong to the next split, most likely the next
  // item.
  Value seen = b.min(regionEnd, b.div(b.add(lastToken, tokens), tokens));
  Value mine = pageClass == PageClass::Sealed
                   ? runIsSealed
                   : arith::XOrIOp::create(
                         b, runIsSealed,
                         arith::ConstantOp::create(b, b.getBoolAttr(true)));
  to = b.select(mine, to, from);

  Values inits;
  for (Value init : op.getInits()) {
    if (hasLayout(init.getType(), LayoutKind::Rows))
      inits.push_back(rows(init));
    else if (init.getDefiningOp<arith::ConstantOp>())
      b.loop(b.i64(0), b.i64(n * vpad), b.lanes(), [&](Value i) {
        b.store(b.fsplat(b.lanes(), 0.0), b.at(out, b.mul(i, 4)));
      });
  }
  bool failed = false;
  Values results = b.loop(from, to, 1, inits, [&](Value page, ValueRange args) {
    enterTile(pageClass, page, seen);
    tile.low = b.toI32(b.max(b.sub(firstToken, tile.first), b.i64(0)));
    tile.high = b.toI32(b.min(b.sub(lastToken, tile.first), b.i64(tokens - 1)));
    rowMemory.clear();
    unsigned k = 0;
    for (Value carried : op.getCarried())
      if (hasLayout(carried.getType(), LayoutKind::Rows))
        rowValues[carried] = args[k++];
    for (Operation &inner : op.getBody().front())
      failed |= mlir::failed(emitOp(&inner));
    Values next;
    for (Value value : op.getYield().getOperands())
      if (hasLayout(value.getType(), LayoutKind::Rows))
        next.push_back(rows(value));
    return next;
  });
  unsigned k = 0;
  for (Value result : op.getResults())
    if (hasLayout(result.getType(), LayoutKind::Rows))
      rowValues[result] = results[k++];
  rowMemory.clear();
  return failure(failed);
}

void AttendLowering::prefetchAhead(Value i, int64_t count, bool values) {
  int64_t distance = schedule.getPrefetchBytes();
  if (!tile.ahead)
    return;
  // The record in the order of use: keys' share, then values', with scales
  // spread over both.
  int64_t total = image.recordBytes();
  distance %= total;
  int64_t k = image.size(Section::KCodes), v = image.size(Section::VCodes);
  int64_t keyShare = llvm::alignTo(total * k / (k + v), 64);
  int64_t begin = values ? keyShare : 0;
  int64_t share = values ? total - keyShare : keyShare;
  int64_t lines = llvm::divideCeil(share, 64 * count);
  Value done = b.div(b.mul(i, share), count);
  for (int64_t line = 0; line < lines; ++line) {
    Value ahead = b.add(done, begin + distance + line * 64);
    Value here = b.less(ahead, b.i64(total));
    Value base = b.select(here, tile.ahead, tile.afterAhead);
    Value past = b.sub(ahead, b.i64(total));
    b.prefetch(b.at(base, b.select(here, ahead, past)));
  }
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

void AttendLowering::emitStorePartial(StorePartialOp op) {
  Value max = rows(op.getMax()), sum = rows(op.getSum());
  int64_t floats = kvcache_partial_floats(v), w = b.lanes();
  Value rowIndex = b.sub(row, fields["row_begin"]);
  for (int64_t i = 0; i < n; ++i) {
    Value valid;
    Value head = headOf(i, valid);
    auto write = [&] {
      Value index = b.add(b.mul(rowIndex, spec.qHeads), head);
      index = b.add(b.mul(index, fields["max_splits"]), split);
      Value place = b.at(fields["workspace"], b.mul(index, floats * 4));
      int64_t whole = v / w * w;
      auto copy = [&](Value ch, int64_t width) {
        Value from = b.at(out, b.mul(b.add(ch, i * vpad), 4));
        b.store(b.load(b.fvec(width), from), b.at(place, b.mul(ch, 4)));
      };
      b.loop(b.i64(0), b.i64(whole), w, [&](Value ch) { copy(ch, w); });
      if (whole < v)
        copy(b.i64(whole), v - whole);
      b.store(b.extract(max, i), b.at(place, v * 4));
      b.store(b.extract(sum, i), b.at(place, v * 4 + 4));
    };
    if (valid)
      b.when(valid, write);
    else
      write();
  }
}
