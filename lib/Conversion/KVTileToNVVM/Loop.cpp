//===- Loop.cpp - Walking a kernel's body ---------------------------------===//
//
// Each op of the body becomes code over the registers of its operands. A page
// loop runs only if the split's pages are of its class; warp w takes every
// `warps`-th tile, starting with the w-th.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

Kernel::Kernel(Plan plan, tile::KernelOp source, OpBuilder &builder)
    : plan(std::move(plan)), source(source), e(builder, source.getLoc()) {}

LogicalResult Kernel::run() {
  OpBuilder::InsertionGuard guard(e.builder);
  e.builder.setInsertionPoint(source);
  createFunction();
  decodeItem();
  decodeSplit();
  findVisible();
  for (Operation &op : source.getBody().front())
    if (failed(lower(op)))
      return failure();
  return success();
}

int64_t Kernel::registersOf(Type type) {
  switch (*tile::getLayout(type)) {
  case tile::LayoutKind::Query:
    return 0; // loaded where it is used
  case tile::LayoutKind::Acc:
    return 4 * plan.tokenTiles();
  case tile::LayoutKind::Rows:
    return 2;
  case tile::LayoutKind::Out:
    return 4 * (plan.valueTiles() + (plan.hasZeroRows() ? 1 : 0));
  }
  return 0;
}

Values Kernel::constant(Type type, Attribute value) {
  auto dense = cast<SplatElementsAttr>(value);
  Value one;
  if (isa<FloatType>(dense.getElementType()))
    one = e.f32c(dense.getSplatValue<APFloat>().convertToFloat());
  else
    one = e.boolc(dense.getSplatValue<bool>());
  return Values(registersOf(type), one);
}

LogicalResult Kernel::lower(Operation &op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(&op)
      .Case<tile::LoadQueryOp, tile::YieldOp>([](auto) { return success(); })
      .Case([&](tile::LoadSlopesOp load) {
        values[load.getResult()] = loadSlopes();
        return success();
      })
      .Case([&](tile::PageLoopOp loop) { return lowerLoop(loop); })
      .Case([&](tile::ScoreOp score) {
        values[score.getResult()] = this->score();
        return success();
      })
      .Case([&](tile::VisibleOp op) {
        values[op.getResult()] = visible(op);
        return success();
      })
      .Case([&](tile::DistanceOp op) {
        values[op.getResult()] = distance();
        return success();
      })
      .Case([&](tile::ReduceOp op) {
        values[op.getResult()] = reduce(op);
        return success();
      })
      .Case([&](tile::BroadcastOp op) {
        Values rows = values[op.getOperand()], result;
        for (int64_t i = 0; i < 4 * plan.tokenTiles(); ++i)
          result.push_back(rows[i % 2]);
        values[op.getResult()] = std::move(result);
        return success();
      })
      .Case([&](tile::AccumulateOp op) {
        values[op.getResult()] = accumulate(
            values[op.getP()], values[op.getOut()], values[op.getAlpha()]);
        return success();
      })
      .Case([&](tile::StorePartialOp op) {
        storePartial(values[op.getMax()], values[op.getSum()],
                     values[op.getOut()]);
        return success();
      })
      .Case([&](tile::ReturnOp) { return success(); })
      .Default([&](Operation *other) { return lowerElementwise(*other); });
}

/// The scalar of an elementwise op, null if it has none here.
static Value scalar(Emitter &e, Operation &op, ArrayRef<Value> in) {
  return llvm::TypeSwitch<Operation *, Value>(&op)
      .Case([&](arith::AddFOp) { return e.fadd(in[0], in[1]); })
      .Case([&](arith::SubFOp) { return e.fsub(in[0], in[1]); })
      .Case([&](arith::MulFOp) { return e.fmul(in[0], in[1]); })
      .Case([&](arith::DivFOp) { return e.fdiv(in[0], in[1]); })
      .Case<arith::MaximumFOp, arith::MaxNumFOp>(
          [&](auto) { return e.fmax(in[0], in[1]); })
      .Case([&](arith::SelectOp) { return e.select(in[0], in[1], in[2]); })
      .Case([&](math::Exp2Op) { return e.exp2(in[0]); })
      .Case([&](math::AbsFOp) { return e.fabs(in[0]); })
      .Case([&](math::CopySignOp) {
        Value magnitude = e.bitAnd(e.toInt(in[0]), e.i32c(0x7fffffff));
        Value sign = e.bitAnd(e.toInt(in[1]), e.i32c(0x80000000));
        return e.toFloat(e.bitOr(magnitude, sign));
      })
      .Case([&](arith::CmpFOp compare) {
        if (compare.getPredicate() == arith::CmpFPredicate::OEQ)
          return e.feq(in[0], in[1]);
        if (compare.getPredicate() == arith::CmpFPredicate::OLT)
          return e.flt(in[0], in[1]);
        return Value();
      })
      .Default([](Operation *) { return Value(); });
}

LogicalResult Kernel::lowerElementwise(Operation &op) {
  if (auto constantOp = dyn_cast<arith::ConstantOp>(op)) {
    if (!isa<SplatElementsAttr>(constantOp.getValue()))
      return op.emitOpError("expected a splat of a tile's tensor type");
    values[constantOp.getResult()] =
        constant(constantOp.getType(), constantOp.getValue());
    return success();
  }
  auto unsupported = [&] {
    return op.emitOpError("cannot be lowered in a kernel for PTX targets");
  };
  if (op.getNumResults() != 1 || !tile::getLayout(op.getResult(0).getType()))
    return unsupported();
  int64_t count = registersOf(op.getResult(0).getType());
  Values result;
  for (int64_t i = 0; i < count; ++i) {
    Values in;
    for (Value operand : op.getOperands()) {
      auto it = values.find(operand);
      if (it == values.end() || int64_t(it->second.size()) != count)
        return unsupported();
      in.push_back(it->second[i]);
    }
    Value one = scalar(e, op, in);
    if (!one)
      return unsupported();
    result.push_back(one);
  }
  values[op.getResult(0)] = std::move(result);
  return success();
}

//===----------------------------------------------------------------------===//
// Page loops
//===----------------------------------------------------------------------===//

/// The table entry of the page that holds tile `unit`.
Value Kernel::loadEntry(tile::PageClass pageClass, Value unit) {
  bool open = pageClass == tile::PageClass::Open;
  Value page = e.udiv(unit, plan.tilesPerPage());
  Value index = e.add(e.add(e.mul(sequence, argument("table_seq_stride")),
                            e.mul(kvHead, argument("table_head_stride"))),
                      e.sext64(page));
  return loadIndex(open ? "open_table" : "sealed_table", index);
}

StoredTile Kernel::openTile(tile::PageClass pageClass, Value unit,
                            Value entry) {
  bool open = pageClass == tile::PageClass::Open;
  StoredTile tile;
  tile.pageClass = pageClass;
  tile.firstToken = e.muli(unit, plan.tokens);
  tile.tokenInPage = e.i32c(0);
  if (plan.tilesPerPage() > 1)
    tile.tokenInPage = e.muli(e.urem(unit, plan.tilesPerPage()), plan.tokens);
  int64_t recordBytes =
      open ? openRecordBytes(plan.spec.dtype, plan.spec.format.page,
                             plan.spec.headDim, plan.spec.valueDim)
           : plan.image.recordBytes();
  // The page number becomes 64 bits wide before any multiplication.
  Value record = e.add(e.muli(e.sext64(entry), plan.spec.kvHeads), kvHead);
  tile.record = e.gep(argument(open ? "open_pool" : "sealed_pool"),
                      e.muli(record, recordBytes));
  return tile;
}

/// Runs `body` for this warp's tiles of the split. The table is read one tile
/// ahead, and only where there is one: other entries may be anything.
Values Kernel::overTiles(tile::PageClass pageClass, Values inits,
                         llvm::function_ref<Values(Values)> body) {
  int64_t perPage = plan.tilesPerPage();
  Value first =
      e.smax(e.muli(firstPage, perPage), e.udiv(firstVisible, plan.tokens));
  Value end = e.smin(e.muli(endPage, perPage),
                     e.udiv(e.addi(endVisible, plan.tokens - 1), plan.tokens));
  Value start = e.add(first, warp);
  Values entry = e.ifThen(e.slt(start, end), {e.i32c(0)}, [&]() -> Values {
    return {loadEntry(pageClass, start)};
  });
  inits.push_back(entry[0]);
  Values outs = e.forLoop(
      start, end, e.i32c(plan.warps), inits, [&](Value unit, Values carried) {
        Value next = e.smin(e.addi(unit, plan.warps), e.addi(end, -1));
        Value nextEntry = loadEntry(pageClass, next);
        stored = openTile(pageClass, unit, carried.pop_back_val());
        Values result = body(std::move(carried));
        result.push_back(nextEntry);
        return result;
      });
  outs.pop_back();
  return outs;
}

LogicalResult Kernel::lowerLoop(tile::PageLoopOp loop) {
  tile::PageClass pageClass = loop.getPageClass();
  if (pageClass == tile::PageClass::External)
    return loop.emitOpError(
        "external layouts have no kernel on PTX targets yet, accepted: "
        "'sealed' 'open'");
  Values inits;
  llvm::SmallVector<size_t> sizes;
  for (Value init : loop.getInits()) {
    sizes.push_back(values[init].size());
    llvm::append_range(inits, values[init]);
  }
  auto distribute = [&](ValueRange targets, Values flat) {
    size_t at = 0;
    for (auto [target, size] : llvm::zip(targets, sizes)) {
      values[target] = Values(flat.begin() + at, flat.begin() + at + size);
      at += size;
    }
  };
  LogicalResult result = success();
  bool open = pageClass == tile::PageClass::Open;
  Value mine = open ? e.eq(isSealed, e.boolc(false)) : isSealed;
  Values outs = e.ifThen(mine, inits, [&] {
    query = loadQuery(pageClass);
    return overTiles(pageClass, inits, [&](Values carried) {
      distribute(loop.getCarried(), carried);
      for (Operation &op : loop.getBody().front())
        if (succeeded(result))
          result = lower(op);
      if (failed(result))
        return carried;
      Values next;
      for (Value v : loop.getYield().getOperands())
        llvm::append_range(next, values[v]);
      return next;
    });
  });
  distribute(loop.getResults(), outs);
  return result;
}

//===----------------------------------------------------------------------===//
// Masks and reductions
//===----------------------------------------------------------------------===//

Value Kernel::tokenOf(int64_t tokenTile, int64_t half) {
  return e.addi(e.add(stored.firstToken, g), tokenTile * kTile + half * 8);
}

Values Kernel::visible(tile::VisibleOp op) {
  tile::MaskAttr mask = op.getMask();
  // Positions are i32: a side that wide hides nothing.
  auto bounds = [](int64_t side) { return side >= 0 && side < 1 << 30; };
  Values result;
  for (int64_t i = 0; i < plan.tokenTiles(); ++i)
    for (int64_t half : {0, 1}) {
      Value token = tokenOf(i, half);
      Value seen = e.slt(token, length);
      if (mask.getCausal())
        seen = e.bitAnd(seen, e.sle(token, position));
      if (bounds(mask.getLeft()))
        seen = e.bitAnd(seen, e.sge(token, e.addi(position, -mask.getLeft())));
      if (bounds(mask.getRight()))
        seen = e.bitAnd(seen, e.sle(token, e.addi(position, mask.getRight())));
      result.append(2, seen);
    }
  return result;
}

Values Kernel::distance() {
  Values result;
  for (int64_t i = 0; i < plan.tokenTiles(); ++i)
    for (int64_t half : {0, 1})
      result.append(2, e.sitofp(e.sub(tokenOf(i, half), position)));
  return result;
}

Values Kernel::reduce(tile::ReduceOp op) {
  bool isMax = op.getKind() == tile::ReduceKind::Max;
  auto combine = [&](Value a, Value b) {
    return isMax ? e.fmax(a, b) : e.fadd(a, b);
  };
  const Values &in = values[op.getOperand()];
  Values result;
  for (size_t column = 0; column < 2; ++column) {
    Value all = in[column];
    for (size_t i = column + 2; i < in.size(); i += 2)
      all = combine(all, in[i]);
    // Over the rows, which the lanes of equal t hold.
    for (int64_t mask : {4, 8, 16})
      all = combine(all, e.shflXor(all, mask));
    result.push_back(all);
  }
  return result;
}
