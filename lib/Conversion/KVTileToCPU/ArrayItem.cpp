//===- ArrayItem.cpp - One work item of a kernel on arrays ----------------===//

#include "ArrayLowering.h"
#include "kvcache/ABI/ArrayKernelABI.h"
#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Conversion/KVTileToCPU.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <numbers>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

ArrayLowering::ArrayLowering(ArrayKernelOp kernel)
    : TileEvaluator(kernel.getLoc(), kernel.getSchedule()->getVectorBits()),
      kernel(kernel), spec(kernel.getSpec()), schedule(*kernel.getSchedule()),
      n(schedule.getQPack() * schedule.getQRows()), npad(n),
      tokens(schedule.getTileTokens()), d(spec.getHeadDim()),
      v(spec.getValueDim()), pack(schedule.getQPack()),
      rowsPerItem(schedule.getQRows()),
      chunks(llvm::divideCeil(spec.getGroup(), pack)) {
  key.name = "k";
  key.element = spec.getKey();
  key.channels = d;
  value.name = "v";
  value.element = spec.getValue();
  value.channels = v;
  key.rows = kernel->getAttrOfType<FlatSymbolRefAttr>(kKeyRows);
  value.rows = kernel->getAttrOfType<FlatSymbolRefAttr>(kValueRows);
  for (Side *side : {&key, &value}) {
    if (side->rows)
      side->element = b.getF32Type();
    side->held = side->element;
    side->pad = llvm::alignTo(side->channels, 16);
  }
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

LogicalResult ArrayLowering::run() {
  b.setInsertionPoint(kernel);
  std::string itemName = (kernel.getSymName() + "_item").str();
  Type i64 = b.getI64Type(), i1 = b.getI1Type();
  auto itemFn = func::FuncOp::create(
      b, itemName, b.getFunctionType({b.ptrType(), i64, i1}, {i1}));
  auto entry = func::FuncOp::create(
      b, kernel.getSymName(),
      b.getFunctionType({b.ptrType(), i64, i64}, {b.getI32Type()}));

  // The entry: every item, and again with care where that is due.
  Block *block = entry.addEntryBlock();
  b.setInsertionPointToStart(block);
  auto boolean = [&](bool x) -> Value {
    return arith::ConstantOp::create(b, b.getBoolAttr(x));
  };
  b.loop(block->getArgument(1), block->getArgument(2), 1, [&](Value item) {
    auto call = [&](bool careful) -> Value {
      return func::CallOp::create(
                 b, itemFn,
                 ValueRange{block->getArgument(0), item, boolean(careful)})
          .getResult(0);
    };
    b.when(call(false), [&] { call(true); });
  });
  func::ReturnOp::create(b, b.i32(KVCACHE_OK));

  itemFn.setPrivate();
  itemFn.setNoInline(true);
  block = itemFn.addEntryBlock();
  b.setInsertionPointToStart(block);
  int32_t slot = 0;
  auto field = [&](StringRef kind, StringRef name) {
    Type type = kind == "PTR" ? b.ptrType() : Type(i64);
    fields[name] = b.load(type, b.at(block->getArgument(0), 8 * slot++));
  };
#define KVCACHE_LOAD(kind, name) field(#kind, #name);
  KVCACHE_ARRAY_ATTEND_ARGS(KVCACHE_LOAD)
#undef KVCACHE_LOAD
  careful = block->getArgument(2);
  out = b.scratch(outFloats() * 4);
  low = b.scratch(npad * 4);
  high = b.scratch(npad * 4);
  positions = b.scratch(npad * 4);
  if (spec.getMaskOperand())
    maskScratch = b.scratch(accBytes());
  if (spec.getEmptyRows() == EmptyRows::MeanAll)
    mean = b.scratch(value.pad * 4);
  broken = b.scratch(8);
  b.store(b.i32(0), broken);
  if (failed(emitItem(block->getArgument(1))))
    return failure();
  Value result = b.load(b.getI32Type(), broken);
  func::ReturnOp::create(
      b, Value(arith::CmpIOp::create(b, arith::CmpIPredicate::ne, result,
                                     b.i32(0))));
  return success();
}

LogicalResult ArrayLowering::emitItem(Value item) {
  findItem(item);
  bool failed = false;
  b.when(b.less(b.i64(0), validRows), [&] {
    findColumns();
    for (Operation &op : kernel.getBody().front())
      failed |= mlir::failed(emitOp(&op));
  });
  return failure(failed);
}

/// An element of an i64 array, or `otherwise` where the array is null.
Value ArrayLowering::loadOr(StringRef array, Value index, Value otherwise) {
  Value pointer = fields[array];
  Value null = LLVM::ZeroOp::create(b, b.ptrType());
  Value given = LLVM::ICmpOp::create(b, LLVM::ICmpPredicate::ne, pointer, null);
  auto op = scf::IfOp::create(b, TypeRange{b.getI64Type()}, given, true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(op.thenBlock());
  scf::YieldOp::create(b,
                       b.load(b.getI64Type(), b.at(pointer, b.mul(index, 8))));
  b.setInsertionPointToStart(op.elseBlock());
  scf::YieldOp::create(b, otherwise);
  return op.getResult(0);
}

void ArrayLowering::findItem(Value item) {
  Value tiles = fields["tiles"];
  Value rest = b.div(item, tiles);
  row0 = b.mul(b.sub(item, b.mul(rest, tiles)), rowsPerItem);
  chunk = b.rem(rest, chunks);
  rest = b.div(rest, chunks);
  seq = b.div(rest, fields["heads"]);
  Value head = b.sub(rest, b.mul(seq, fields["heads"]));
  kvHead = loadOr("head_map", head, head);
  firstHead = b.add(b.mul(head, spec.getGroup()), b.mul(chunk, pack));
  heads = b.min(b.sub(b.i64(spec.getGroup()), b.mul(chunk, pack)), b.i64(pack));
  Value rows = loadOr("row_count", seq, fields["rows"]);
  validRows = b.min(b.sub(rows, row0), b.i64(rowsPerItem));
  rowBase = b.add(loadOr("row_begin", seq, b.i64(0)), row0);
  length = loadOr("lengths", seq, fields["tokens"]);
  Value end = b.select(arith::CmpIOp::create(b, arith::CmpIPredicate::ne,
                                             fields["bottom_right"], b.i64(0)),
                       b.sub(length, rows), b.i64(0));
  position = b.add(b.add(fields["shift"], end), row0);
  for (Side *side : {&key, &value}) {
    if (side->rows)
      continue;
    std::string name = side->name.str();
    int64_t bytes = bytesOf(side->element);
    Value offset = b.add(b.mul(seq, fields[name + "_seq"]),
                         b.mul(kvHead, fields[name + "_head"]));
    side->base = b.at(fields[name], b.mul(offset, bytes));
    side->stride = b.mul(fields[name + "_row"], bytes);
    side->channelStride = fields[name + "_channel"];
  }
}

//===----------------------------------------------------------------------===//
// Columns
//===----------------------------------------------------------------------===//

/// low, high: the tokens that each column sees, inclusive; none if it does not
/// exist. positions: of its row.
void ArrayLowering::findColumns() {
  MaskAttr mask = spec.getMask();
  int64_t left = mask ? mask.getLeft() : -1,
          right = mask ? mask.getRight() : -1;
  SmallVector<int32_t> rowOf(npad, 1 << 30), headOf(npad, 1 << 30);
  for (int64_t i = 0; i < n; ++i) {
    rowOf[i] = static_cast<int32_t>(i % rowsPerItem);
    headOf[i] = static_cast<int32_t>(i / rowsPerItem);
  }
  auto vector = [&](ArrayRef<int32_t> values) -> Value {
    return arith::ConstantOp::create(
        b, DenseElementsAttr::get(b.ivec(npad), values));
  };
  auto splat = [&](Value x) { return b.splat(b.toI32(x), npad); };
  auto least = [&](Value a, Value x) -> Value {
    return arith::MinSIOp::create(b, a, x);
  };
  Value row = vector(rowOf);
  Value pos = b.iadd(splat(position), row);
  Value hi = splat(b.sub(length, b.i64(1)));
  Value lo = b.isplat(npad, 0);
  if (mask && mask.getCausal())
    hi = least(hi, pos);
  int64_t far = 1 << 30;
  if (right >= 0)
    hi = least(hi, b.iadd(pos, b.isplat(npad, std::min(right, far))));
  if (left >= 0)
    lo = arith::MaxSIOp::create(
        b, lo, b.iadd(pos, b.isplat(npad, -std::min(left, far))));
  exists = arith::AndIOp::create(b, b.less(row, splat(validRows)),
                                 b.less(vector(headOf), splat(heads)));
  exists = arith::AndIOp::create(b, exists,
                                 b.lessEqual(splat(fields["first"]), pos));
  hi = b.select(exists, hi, b.isplat(npad, -1));
  b.store(lo, low);
  b.store(hi, high);
  b.store(pos, positions);

  // The tokens that any of them sees.
  Value last = b.add(position, b.sub(validRows, b.i64(1)));
  firstToken = b.i64(0);
  lastToken = b.sub(length, b.i64(1));
  if (left >= 0)
    firstToken = b.max(firstToken, b.sub(position, b.i64(left)));
  if (mask && mask.getCausal())
    lastToken = b.min(lastToken, last);
  if (right >= 0)
    lastToken = b.min(lastToken, b.add(last, right));
  lastToken = b.max(lastToken, b.i64(-1));
}

void ArrayLowering::forColumns(
    bool all, llvm::function_ref<void(Value n, Value head, Value row)> body) {
  Value headEnd = all ? b.i64(pack) : heads;
  Value rowEnd = all ? b.i64(rowsPerItem) : validRows;
  b.loop(b.i64(0), headEnd, 1, [&](Value head) {
    b.loop(b.i64(0), rowEnd, 1, [&](Value row) {
      Value column = b.add(b.mul(head, rowsPerItem), row);
      if (!all)
        return body(column, head, row);
      body(column, b.min(head, b.sub(heads, b.i64(1))),
           b.min(row, b.sub(validRows, b.i64(1))));
    });
  });
}

/// First channel of a query.
Value ArrayLowering::queryPlace(Value head, Value row) {
  Value offset = b.add(b.mul(seq, fields["q_seq"]),
                       b.mul(b.add(firstHead, head), fields["q_head"]));
  offset = b.add(offset, b.mul(b.add(rowBase, row), fields["q_row"]));
  return b.at(fields["q"], b.mul(offset, bytesOf(spec.getQuery())));
}

/// One f32 per column from an array over query heads.
Value ArrayLowering::loadColumns(StringRef array) {
  Value memory = b.scratch(npad * 4);
  b.store(b.fsplat(npad, 0.0), memory);
  forColumns(true, [&](Value column, Value head, Value) {
    Value place = b.at(fields[array], b.mul(b.add(firstHead, head), 4));
    b.store(b.load(b.getF32Type(), place), b.at(memory, b.mul(column, 4)));
  });
  return b.load(b.fvec(npad), memory);
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

Value ArrayLowering::loadFloat(Type element, Value place) {
  return b.extract(b.loadFloats(element, place, 1), 0);
}

void ArrayLowering::storeFloat(Value x, Type element, Value place) {
  if (element.isF32())
    return b.store(x, place);
  b.store(b.truncate(b.splat(x, 1), element), place);
}

/// Whether any element of the output is not finite.
Value ArrayLowering::isBroken() {
  int64_t w = b.lanes();
  Value none = b.isplat(w, 0), exponent = b.isplat(w, 0x7f800000);
  Values bad = b.loop(
      b.i64(0), b.i64(outFloats()), w, none, [&](Value i, ValueRange carried) {
        Value x = b.load(b.ivec(w), b.at(out, b.mul(i, 4)));
        Value full = arith::CmpIOp::create(
            b, arith::CmpIPredicate::eq, arith::AndIOp::create(b, x, exponent),
            exponent);
        return Values{b.ior(carried[0], b.select(full, exponent, none))};
      });
  Value any = vector::ReductionOp::create(b, vector::CombiningKind::OR, bad[0]);
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, any, b.i32(0));
}

void ArrayLowering::emitStoreResult(StoreResultOp op) {
  Value max = rows(op.getMax()), sum = rows(op.getSum());
  Value again = arith::AndIOp::create(
      b, isBroken(),
      arith::XOrIOp::create(b, careful,
                            arith::ConstantOp::create(b, b.getBoolAttr(true))));
  b.store(b.select(again, b.i32(1), b.i32(0)), broken);
  auto branch = scf::IfOp::create(b, again, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(branch.elseBlock());

  Value zero = b.fsplat(npad, 0.0);
  auto equal = [&](Value a, Value x) -> Value {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, a, x);
  };
  Value empty = equal(sum, zero), proper = equal(sum, sum);
  Value one = b.fsplat(npad, 1.0);
  Value log = b.fmul(b.log2(b.select(empty, one, sum)),
                     b.fsplat(npad, std::numbers::ln2));
  Value lse = b.select(empty, b.fsplat(npad, -INFINITY), b.fadd(max, log));
  lse = b.select(proper, lse, sum);
  Value factor = b.fdiv(one, sum);
  if (spec.getEmptyRows() == EmptyRows::NaN)
    factor = b.select(empty, b.fsplat(npad, NAN), factor);
  else
    factor = b.select(empty, zero, factor);
  Value factors = b.scratch(npad * 4), lses = b.scratch(npad * 4);
  b.store(factor, factors);
  b.store(lse, lses);
  if (mean)
    emitMeans(sum);
  forColumns(false, [&](Value column, Value head, Value row) {
    storeColumn(column, head, row, factors, lses);
  });
}

void ArrayLowering::storeColumn(Value column, Value head, Value row,
                                Value factors, Value lses) {
  Value place = b.add(b.mul(seq, fields["out_seq"]),
                      b.mul(b.add(firstHead, head), fields["out_head"]));
  place = b.add(place, b.mul(b.add(rowBase, row), fields["out_row"]));
  Type element = spec.getOut();
  place = b.at(fields["out"], b.mul(place, bytesOf(element)));
  Value at = b.mul(column, 4);
  Value factor = b.load(b.getF32Type(), b.at(factors, at));
  Value lse = b.load(b.getF32Type(), b.at(lses, at));
  b.loop(b.i64(0), b.i64(v), 1, [&](Value c) {
    Value x = b.load(b.getF32Type(), b.at(out, outPlace(c, column)));
    storeFloat(b.fmul(x, factor), element,
               b.at(place, b.mul(c, bytesOf(element))));
  });
  if (mean)
    b.when(arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, lse,
                                 b.f32(-INFINITY)),
           [&] {
             b.loop(b.i64(0), b.i64(v), 1, [&](Value c) {
               Value x = b.load(b.getF32Type(), b.at(mean, b.mul(c, 4)));
               storeFloat(x, element, b.at(place, b.mul(c, bytesOf(element))));
             });
           });
  place = b.add(b.mul(seq, fields["lse_seq"]),
                b.mul(b.add(firstHead, head), fields["lse_head"]));
  place = b.add(place, b.mul(b.add(rowBase, row), fields["lse_row"]));
  b.store(lse, b.at(fields["lse"], b.mul(place, 4)));
}

/// mean: of all values, where a column that exists has no key.
void ArrayLowering::emitMeans(Value sums) {
  Value empty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sums,
                                      b.fsplat(npad, 0.0));
  empty = arith::AndIOp::create(b, empty, exists);
  Value any = vector::ReductionOp::create(b, vector::CombiningKind::OR, empty);
  b.when(any, [&] {
    // All tokens that there are, those past the length too.
    Value tokens = fields["tokens"];
    Value number = arith::SIToFPOp::create(b, b.getF32Type(), tokens);
    zero(mean, value.pad);
    b.loop(b.i64(0), tokens, 1, [&](Value t) {
      bool made = static_cast<bool>(value.rows);
      if (made)
        callRows(value, t, b.i64(1), value.scratch);
      Value row =
          made ? value.scratch : b.at(value.base, b.mul(t, value.stride));
      Value stride = made ? b.i64(1) : value.channelStride;
      Type element = made ? value.held : value.element;
      b.loop(b.i64(0), b.i64(v), 1, [&](Value c) {
        Value at = b.mul(b.mul(c, stride), bytesOf(element));
        Value sum = b.at(mean, b.mul(c, 4));
        b.store(b.fadd(b.load(b.getF32Type(), sum),
                       loadFloat(element, b.at(row, at))),
                sum);
      });
    });
    b.loop(b.i64(0), b.i64(v), 1, [&](Value c) {
      Value sum = b.at(mean, b.mul(c, 4));
      b.store(b.fdiv(b.load(b.getF32Type(), sum), number), sum);
    });
  });
}
