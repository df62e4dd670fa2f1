//===- OtherSources.cpp - Plain tensors and external arrays ---------------===//
#include "kvcache/Conversion/KVCacheToReference/Source.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Affine/Utils.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Matchers.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace kvcache;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

/// The function that stores the first failure; created on first use.
static func::FuncOp checkFunction(Emitter &e) {
  ModuleOp module = e.module;
  if (auto function = module.lookupSymbol<func::FuncOp>(kCheckFailed))
    return function;
  OpBuilder::InsertionGuard guard(e);
  e.setInsertionPointToEnd(module.getBody());
  auto type = MemRefType::get({5}, e.getI64Type());
  memref::GlobalOp::create(
      e, kCheckRecord, /*visibility=*/nullptr, type,
      DenseElementsAttr::get(RankedTensorType::get({5}, e.getI64Type()),
                             int64_t(0)),
      /*constant=*/false, /*alignment=*/nullptr);
  SmallVector<Type> inputs(5, e.getI64Type());
  auto function = func::FuncOp::create(e, kCheckFailed,
                                       e.getFunctionType(inputs, TypeRange()));
  function.setPrivate();
  Block *body = function.addEntryBlock();
  e.setInsertionPointToStart(body);
  Value record = memref::GetGlobalOp::create(e, type, kCheckRecord);
  Value kind = memref::LoadOp::create(e, record, e.index(0));
  Value zero = arith::ConstantOp::create(e, e.getI64IntegerAttr(0));
  Value isFirst = e.cmp(arith::CmpIPredicate::eq, kind, zero);
  e.when(isFirst, {}, [&]() -> Values {
    for (auto [i, argument] : llvm::enumerate(body->getArguments()))
      memref::StoreOp::create(e, argument, record, e.index(i));
    return {};
  });
  func::ReturnOp::create(e);
  return function;
}

void kvcache::emitCheck(Emitter &e, Value ok, Check kind, ValueRange numbers) {
  func::FuncOp function = checkFunction(e);
  Value bad = arith::XOrIOp::create(e, ok, e.boolean(true));
  e.when(bad, {}, [&]() -> Values {
    auto i64 = [&](int64_t v) -> Value {
      return arith::ConstantOp::create(e, e.getI64IntegerAttr(v));
    };
    Values args = {i64(static_cast<int64_t>(kind))};
    for (Value v : numbers)
      args.push_back(v.getType().isIndex()
                         ? arith::IndexCastOp::create(e, e.getI64Type(), v)
                         : v);
    while (args.size() < 5)
      args.push_back(i64(0));
    func::CallOp::create(e, function, args);
    return {};
  });
}

Value kvcache::checkSizes(Emitter &e, Value ok, Value have, Value expected) {
  Value same = e.cmp(arith::CmpIPredicate::eq, have, expected);
  if (matchPattern(same, m_One()))
    return ok;
  emitCheck(e, same, Check::Sizes, {have, expected});
  return e.both(ok, same);
}

//===----------------------------------------------------------------------===//
// Plain tensors
//===----------------------------------------------------------------------===//

namespace {
class DenseSource : public Source {
public:
  DenseSource(Value k, Value v, Value lengths, Layout layout)
      : k(k), v(v), lengths(lengths), dims(layoutDims(layout, 4)) {}

  Value sequences(Emitter &e) override {
    Value ok = e.boolean(true), count = e.dim(k, 0);
    ok = checkSizes(e, ok, e.dim(v, 0), count);
    ok = checkSizes(e, ok, e.dim(v, dims.token), e.dim(k, dims.token));
    if (lengths)
      ok = checkSizes(e, ok, e.dim(lengths, 0), count);
    return e.select(ok, count, e.index(0));
  }
  Value length(Emitter &e, Value seq) override {
    Value room = e.dim(k, dims.token);
    return lengths ? e.toIndex(e.extract(lengths, seq)) : room;
  }
  Value capacity(Emitter &e, Value) override { return e.dim(k, dims.token); }
  Value checkedLength(Emitter &e, Value seq, Value) override {
    Value n = length(e, seq), room = e.dim(k, dims.token);
    if (!lengths)
      return n;
    Value positive = e.le(e.index(0), n), fits = e.le(n, room);
    emitCheck(e, positive, Check::Length, {seq, n});
    emitCheck(e, fits, Check::Room, {seq, n, room});
    return e.select(e.both(positive, fits), n, e.index(0));
  }
  Values locate(Emitter &e, Value seq, Value head, Value token) override {
    return {seq, head, token};
  }
  Value load(Emitter &e, ValueRange row, bool isValue, Value channel) override {
    Values at(4);
    at[0] = row[0];
    at[dims.head] = row[1];
    at[dims.token] = row[2];
    at[dims.channel] = channel;
    return e.toFloat(e.extract(isValue ? v : k, at), e.getF32Type());
  }

private:
  Value k, v, lengths;
  LayoutDims dims;
};

} // namespace

std::unique_ptr<Source> kvcache::makeDenseSource(Value k, Value v,
                                                 Value lengths, Layout layout) {
  return std::make_unique<DenseSource>(k, v, lengths, layout);
}

FailureOr<std::unique_ptr<Source>>
kvcache::makeSource(Location loc, const CacheParts &parts) {
  if (!parts.type.getExternal()) {
    auto paged = PagedSource::create(loc, parts);
    if (failed(paged))
      return failure();
    return std::unique_ptr<Source>(std::move(*paged));
  }
  if (parts.type.getLatent())
    return emitError(loc, "latent caches are not supported by the reference "
                          "yet, got ")
           << parts.type;
  return std::unique_ptr<Source>(std::make_unique<ExternalSource>(parts));
}

//===----------------------------------------------------------------------===//
// External arrays
//===----------------------------------------------------------------------===//

/// Value of a map's result at constant coordinates, if it is one.
static std::optional<int64_t> evaluate(AffineExpr expr, ArrayRef<int64_t> at) {
  SmallVector<AffineExpr> dims;
  for (int64_t v : at)
    dims.push_back(getAffineConstantExpr(v, expr.getContext()));
  auto folded = dyn_cast<AffineConstantExpr>(
      simplifyAffineExpr(expr.replaceDims(dims), 0, 0));
  return folded ? std::optional(folded.getValue()) : std::nullopt;
}

/// Whether the coordinate is taken modulo something, which bounds nothing.
static bool comesBack(AffineExpr expr, unsigned coordinate) {
  bool found = false;
  expr.walk([&](AffineExpr part) {
    found |= part.getKind() == AffineExprKind::Mod &&
             part.isFunctionOfDim(coordinate);
  });
  return found;
}

/// How many steps of a coordinate move the index, and by how much: {1, s} for
/// s * x, {n, s} for s * (x floordiv n).
static std::optional<std::pair<int64_t, int64_t>>
strideOf(AffineExpr expr, unsigned coordinate) {
  constexpr int64_t kLargestRun = 4096;
  SmallVector<int64_t> at(4, 0);
  auto zero = evaluate(expr, at);
  while (zero && ++at[coordinate] <= kLargestRun)
    if (auto moved = evaluate(expr, at); moved && *moved > *zero)
      return std::pair(at[coordinate], *moved - *zero);
  return std::nullopt;
}

/// How far a coordinate (page 0, token 1) can go in the codes' arrays: it is
/// bounded by every dimension it moves in, with the others at their largest
/// (page and token, where they are not known, at 0).
Value ExternalSource::room(Emitter &e, unsigned coordinate) {
  Value least;
  for (bool isValue : {false, true}) {
    ExternalTensorAttr side = isValue ? layout.getValue() : layout.getKey();
    AffineMap map = side.getCodes().getMap().getValue();
    Value codes = array(side.getCodes().getArray());
    int64_t per = codesPerContainer(
        cast<RankedTensorType>(codes.getType()).getElementType(),
        side.getElement(), side.getPacking());
    int64_t channels =
        isValue ? parts.type.getValueDim() : parts.type.getHeadDim();
    int64_t tokens = hasTable() ? page : 1, stored = tokens;
    bool overTokens =
        side.getPacking() && side.getPacking().getAxis() == PackAxis::Token;
    if (side.getPacking())
      (overTokens ? stored : channels) /= per;
    SmallVector<int64_t> last = {0, std::max<int64_t>(stored - 1, 0),
                                 parts.type.getKvHeads() - 1, channels - 1};
    last[coordinate] = 0;
    int64_t scale = coordinate == 1 && overTokens ? per : 1;
    for (auto [i, expr] : llvm::enumerate(map.getResults())) {
      if (!expr.isFunctionOfDim(coordinate) || comesBack(expr, coordinate))
        continue;
      auto rest = evaluate(expr, last);
      auto stride = strideOf(expr, coordinate);
      if (!rest || !stride)
        continue;
      auto [run, step] = *stride;
      Value room = e.sub(e.dim(codes, i), e.index(*rest));
      Value count =
          e.div(e.add(e.maxS(room, e.index(0)), e.index(step - 1)), step);
      if (scale * run != 1)
        count = e.mul(count, e.index(scale * run));
      least = least ? e.minS(least, count) : count;
    }
  }
  return least ? least : e.index(0);
}

Value ExternalSource::capacity(Emitter &e, Value) {
  if (!hasTable())
    return room(e, 1);
  Value table = parts.tables[0];
  int64_t rank = cast<RankedTensorType>(table.getType()).getRank();
  return e.mul(e.dim(table, rank - 1), e.index(page));
}

/// The raw table entry of a logical page.
Value ExternalSource::entry(Emitter &e, Value seq, Value head, Value logical) {
  Value table = parts.tables[0];
  Values at = {seq};
  if (cast<RankedTensorType>(table.getType()).getRank() == 3)
    at.push_back(e.minS(head, e.sub(e.dim(table, 1), e.index(1))));
  at.push_back(logical);
  return e.toIndex(e.extract(table, at));
}

Value ExternalSource::length(Emitter &e, Value seq) {
  return e.toIndex(e.extract(parts.lengths, seq));
}

Value ExternalSource::checkedLength(Emitter &e, Value seq, Value firstToken) {
  Value n = length(e, seq);
  Value ok = e.le(e.index(0), n);
  emitCheck(e, ok, Check::Length, {seq, n});
  if (!hasTable()) {
    Value fits = e.lt(seq, pages(e));
    emitCheck(e, fits, Check::PageNumber, {seq, e.index(0), seq, pages(e)});
    Value all = room(e, 1), holds = e.le(n, all);
    emitCheck(e, holds, Check::Room, {seq, n, all});
    return e.select(e.both(e.both(ok, fits), holds), n, e.index(0));
  }
  Value table = parts.tables[0];
  int64_t rank = cast<RankedTensorType>(table.getType()).getRank();
  Value needed = e.div(e.add(e.maxS(n, e.index(0)), e.index(page - 1)), page);
  Value have = e.dim(table, rank - 1);
  Value enough = e.le(needed, have);
  emitCheck(e, enough, Check::PageCount, {seq, n, needed, have});
  ok = e.both(ok, enough);
  if (layout.getTable() != TableRule::Raw)
    return e.select(ok, n, e.index(0));
  Value lists = rank == 3 ? e.dim(table, 1) : e.index(1), count = pages(e);
  ok = e.loop(e.div(firstToken, page), e.select(ok, needed, e.index(0)), ok,
              [&](Value p, ValueRange acc) {
                return e.loop(e.index(0), lists, acc[0],
                              [&](Value list, ValueRange inner) -> Values {
                                Value number = entry(e, seq, list, p);
                                Value good = e.both(e.le(e.index(0), number),
                                                    e.lt(number, count));
                                emitCheck(e, good, Check::PageNumber,
                                          {seq, p, number, count});
                                return {e.both(inner[0], good)};
                              });
              })[0];
  return e.select(ok, n, e.index(0));
}

Values ExternalSource::locate(Emitter &e, Value seq, Value head, Value token) {
  if (!hasTable())
    return {seq, token, head};
  Value number = entry(e, seq, head, e.div(token, page));
  TableRule rule = layout.getTable();
  if (rule != TableRule::Raw) {
    Value count = pages(e), zero = e.index(0);
    if (rule == TableRule::Wrap)
      number = e.select(e.lt(number, zero), e.add(number, count), number);
    number = e.maxS(e.minS(number, e.sub(count, e.index(1))), zero);
  }
  return {number, e.mod(token, page), head};
}

Value ExternalSource::load(Emitter &e, ValueRange row, bool isValue,
                           Value channel) {
  return decode(e, row, isValue, channel,
                [&](int64_t number, ValueRange at) -> Value {
                  return e.extract(array(number), at);
                });
}

Value ExternalSource::decode(
    Emitter &e, ValueRange row, bool isValue, Value channel,
    function_ref<Value(int64_t array, ValueRange at)> extract) const {
  ExternalTensorAttr side = isValue ? layout.getValue() : layout.getKey();
  const Encoding enc = isValue ? parts.type.getResolvedFormat().value
                               : parts.type.getResolvedFormat().key;
  auto fetch = [&](ExternalArrayAttr a, Value t, Value c) {
    auto at = affine::expandAffineMap(e, e.getLoc(), a.getMap().getValue(),
                                      ValueRange{row[0], t, row[2], c});
    return extract(a.getArray(), *at);
  };
  Value t = row[1], c = channel, shift;
  unsigned bits = bitsOf(enc.element);
  if (PackingAttr packing = side.getPacking()) {
    Value codes = array(side.getCodes().getArray());
    int64_t per = codesPerContainer(
        cast<RankedTensorType>(codes.getType()).getElementType(), enc.element,
        packing);
    Value &axis = packing.getAxis() == PackAxis::Token ? t : c;
    Value slot = e.mod(axis, per);
    axis = e.div(axis, per);
    if (packing.getOrder() == PackOrder::HighFirst)
      slot = e.sub(e.index(per - 1), slot);
    shift = e.mul(slot, e.index(bits));
  }
  Value raw = fetch(side.getCodes(), t, c);
  auto param = [&](ExternalArrayAttr a) {
    return e.toFloat(fetch(a, row[1], channel), e.getF32Type());
  };
  if (isa<FloatType>(raw.getType())) {
    Value x = e.toFloat(raw, e.getF32Type());
    return side.getScales() ? e.mulF(x, param(side.getScales())) : x;
  }
  Value code = unpackCode(e, raw, shift, enc);
  if (!side.getScales())
    return code;
  Value scale = param(side.getScales());
  if (!side.getZeros())
    return e.mulF(code, scale);
  return math::FmaOp::create(e, code, scale, param(side.getZeros()));
}
