//===- Coding.cpp - quantize, dequantize, page_gather as loops ------------===//
#include "Lowerings.h"
#include "kvcache/Conversion/ExpandFloats/ExpandFloats.h"
#include "kvcache/Format/Codec.h"

#include <limits>

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

using namespace kvcache;
using namespace mlir;

Value kvcache::unpackCode(Emitter &e, Value container, Value shift,
                          const Encoding &encoding) {
  Type narrow = e.getIntegerType(bitsOf(encoding.element));
  if (shift)
    container = arith::ShRUIOp::create(
        e, container,
        arith::IndexCastOp::create(e, container.getType(), shift));
  if (container.getType() != narrow)
    container = arith::TruncIOp::create(e, narrow, container);
  if (encoding.asymmetric)
    return arith::UIToFPOp::create(e, e.getF32Type(), container);
  return arith::SIToFPOp::create(e, e.getF32Type(), container);
}

//===----------------------------------------------------------------------===//
// quantize
//===----------------------------------------------------------------------===//

/// `x` with NaN replaced by 0.
static Value withoutNaN(Emitter &e, Value x) {
  Value isNaN = e.cmp(arith::CmpFPredicate::UNO, x, x);
  return e.select(isNaN, e.f32(0), x);
}

namespace {
/// The groups of a tensor under an encoding.
class Groups {
public:
  Groups(Emitter &e, Value x, const Encoding &enc, Layout layout) : x(x) {
    sizes = e.sizesOf(x);
    LayoutDims dims = layoutDims(layout, sizes.size());
    token = dims.token;
    channel = dims.channel;
    Value one = e.index(1), group = enc.group ? e.index(enc.group) : Value();
    bool perToken = enc.scale == ScaleKind::Token,
         perChannel = enc.scale == ScaleKind::Channel;
    tokens = perToken ? one : perChannel && group ? group : sizes[token];
    channels = perChannel ? one : perToken && group ? group : sizes[channel];
  }

  /// Sizes of the scales: x's with tokens and channels counted in groups.
  Values scaleSizes(Emitter &e) const {
    Values s = sizes;
    auto count = [&](Value size, Value group) {
      // A group of an empty axis is empty too: no division by 0.
      return e.createOrFold<arith::DivUIOp>(size, e.maxS(group, e.index(1)));
    };
    s[token] = count(sizes[token], tokens);
    s[channel] = count(sizes[channel], channels);
    return s;
  }
  /// Index of the scale of an element.
  Values scaleOf(Emitter &e, ValueRange at) const {
    Values s(at);
    s[token] = e.createOrFold<arith::DivUIOp>(s[token], tokens);
    s[channel] = e.createOrFold<arith::DivUIOp>(s[channel], channels);
    return s;
  }
  /// Minimum, maximum and largest magnitude (f32) of the group of a scale.
  Values ranges(Emitter &e, ValueRange scale) const {
    Value inf = e.f32(std::numeric_limits<float>::infinity());
    Value negInf = e.f32(-std::numeric_limits<float>::infinity());
    return e.loops(
        {tokens, channels}, {inf, negInf, e.f32(0)},
        [&](ValueRange in, ValueRange a) -> Values {
          Values at(scale);
          at[token] = e.add(e.mul(at[token], tokens), in[0]);
          at[channel] = e.add(e.mul(at[channel], channels), in[1]);
          Value v = withoutNaN(e, e.toFloat(e.extract(x, at), e.getF32Type()));
          return {
              arith::MinimumFOp::create(e, a[0], v),
              arith::MaximumFOp::create(e, a[1], v),
              arith::MaximumFOp::create(e, a[2], math::AbsFOp::create(e, v))};
        });
  }

  Value x, tokens, channels;
  Values sizes;
  int64_t token, channel;
};
} // namespace

/// The scales (and zeros) of all groups.
static Values computeParams(Emitter &e, QuantizeOp op, const Groups &groups) {
  const Encoding enc = op.getEncoding().getEncoding();
  Values sizes = groups.scaleSizes(e), init;
  for (Value result : op.getParams())
    init.push_back(e.empty(cast<RankedTensorType>(result.getType()), sizes));
  auto type = cast<FloatType>(
      cast<RankedTensorType>(init[0].getType()).getElementType());
  return e.loops(sizes, init, [&](ValueRange at, ValueRange a) -> Values {
    Values range = groups.ranges(e, at);
    ir::Float lo{e.env, range[0]}, hi{e.env, range[1]}, top{e.env, range[2]};
    if (!enc.asymmetric) {
      Value scale = codec::fromAbsMax(enc, top).value;
      return {e.insert(e.toFloat(scale, type), a[0], at)};
    }
    auto params = codec::fromRange(enc, lo, hi);
    return {e.insert(e.toFloat(params.scale.value, type), a[0], at),
            e.insert(e.toFloat(params.zero.value, type), a[1], at)};
  });
}

/// The code of `x`, as the element type of the codes.
static Value encodeElement(Emitter &e, const Encoding &enc, Type element,
                           Value x, Value scale, Value zero) {
  if (enc.scale == ScaleKind::None)
    return e.toFloat(x, cast<FloatType>(element));
  Value isNaN = e.cmp(arith::CmpFPredicate::UNO, x, x);
  Value none = e.cmp(arith::CmpFPredicate::OEQ, scale, e.f32(0));
  if (isFp8(enc.element)) {
    // Saturating: +-inf becomes +-max, NaN stays NaN (0x7f).
    float top = enc.element == Element::E4M3 ? 448.0f : 57344.0f;
    Value q = e.divF(x, scale);
    q = e.select(e.cmp(arith::CmpFPredicate::OGT, q, e.f32(top)), e.f32(top),
                 q);
    q = e.select(e.cmp(arith::CmpFPredicate::OLT, q, e.f32(-top)), e.f32(-top),
                 q);
    q = e.select(none, e.f32(0), q);
    Value bits = expandTruncToFp8(e, q, cast<FloatType>(element));
    auto i8 = [&](int v) -> Value {
      return arith::ConstantOp::create(e, e.getI8IntegerAttr(v));
    };
    bits = e.select(isNaN, i8(0x7f), bits);
    return arith::BitcastOp::create(e, element, bits);
  }
  ir::Float value{e.env, withoutNaN(e, x)}, s{e.env, scale}, z{e.env, zero};
  Value code = codec::encode(enc, value, s, z).value;
  int64_t bias = codec::codeBias(enc);
  auto i32 = [&](int64_t v) -> Value {
    return arith::ConstantOp::create(e, e.getI32IntegerAttr(v));
  };
  code = e.sub(code, i32(bias));
  code = e.select(isNaN, i32(0), code);
  return arith::TruncIOp::create(e, element, code);
}

Values kvcache::lowerQuantize(Emitter &e, QuantizeOp op) {
  const Encoding enc = op.getEncoding().getEncoding();
  Groups groups(e, op.getX(), enc, op.getLayout());
  auto type = cast<RankedTensorType>(op.getCodes().getType());
  Values params;
  if (!op.getParams().empty())
    params = computeParams(e, op, groups);
  Value codes = e.loops(
      groups.sizes, e.empty(type, groups.sizes),
      [&](ValueRange at, ValueRange a) -> Values {
        auto param = [&](Value tensor) {
          Values where = groups.scaleOf(e, at);
          return e.toFloat(e.extract(tensor, where), e.getF32Type());
        };
        Value scale, zero;
        if (Value given = op.getStaticScale()) {
          Values where;
          for (auto [i, v] : llvm::enumerate(at))
            if (static_cast<int64_t>(i) <
                cast<RankedTensorType>(given.getType()).getRank())
              where.push_back(e.minS(v, e.sub(e.dim(given, i), e.index(1))));
          scale = e.toFloat(e.extract(given, where), e.getF32Type());
        } else if (!params.empty()) {
          scale = param(params[0]);
        }
        zero = params.size() > 1 ? param(params[1]) : scale;
        Value x = e.toFloat(e.extract(op.getX(), at), e.getF32Type());
        Value code =
            encodeElement(e, enc, type.getElementType(), x, scale, zero);
        return {e.insert(code, a[0], at)};
      })[0];
  Values results = {codes};
  results.append(params.begin(), params.end());
  return results;
}

//===----------------------------------------------------------------------===//
// dequantize
//===----------------------------------------------------------------------===//

/// The index of a param: each entry serves a run of neighbours along tokens and
/// channels, and all of a dimension where the param has size 1.
static Values paramIndex(Emitter &e, Value param, ValueRange at,
                         ValueRange sizes) {
  Values where;
  for (auto [i, v] : llvm::enumerate(at)) {
    Value have = e.dim(param, i);
    Value run =
        e.createOrFold<arith::DivUIOp>(sizes[i], e.maxS(have, e.index(1)));
    where.push_back(e.createOrFold<arith::DivUIOp>(v, e.maxS(run, e.index(1))));
  }
  return where;
}

/// Whether the sizes of scales and zeros divide those of the codes (or are 1).
static Value checkGroups(Emitter &e, DequantizeOp op, ValueRange sizes) {
  Value ok = e.boolean(true), zero = e.index(0);
  for (Value param : op.getParams())
    for (auto [i, size] : llvm::enumerate(sizes)) {
      Value have = e.dim(param, i);
      Value rest =
          e.createOrFold<arith::RemUIOp>(size, e.maxS(have, e.index(1)));
      Value fits =
          e.both(e.cmp(arith::CmpIPredicate::eq, rest, zero),
                 e.either(e.lt(zero, have),
                          e.cmp(arith::CmpIPredicate::eq, size, zero)));
      if (matchPattern(fits, m_One()))
        continue;
      emitCheck(e, fits, Check::Groups, {have, size});
      ok = e.both(ok, fits);
    }
  return ok;
}

Values kvcache::lowerDequantize(Emitter &e, DequantizeOp op) {
  const Encoding enc = op.getEncoding().getEncoding();
  auto type = cast<RankedTensorType>(op.getResult().getType());
  auto codesType = cast<RankedTensorType>(op.getCodes().getType());
  LayoutDims dims = layoutDims(op.getLayout(), type.getRank());
  PackingAttr packing = op.getPackingAttr();
  int64_t per =
      codesPerContainer(codesType.getElementType(), enc.element, packing);
  int64_t axis = packing && packing.getAxis() == PackAxis::Token ? dims.token
                                                                 : dims.channel;
  Values sizes = e.sizesOf(op.getCodes());
  sizes[axis] = e.mul(sizes[axis], e.index(per));
  Values run = sizes;
  run[0] = e.select(checkGroups(e, op, sizes), sizes[0], e.index(0));
  return e.loops(
      run, e.empty(type, sizes), [&](ValueRange at, ValueRange a) -> Values {
        Values where(at);
        Value shift;
        if (packing) {
          Value slot = e.mod(at[axis], per);
          where[axis] = e.div(at[axis], per);
          if (packing.getOrder() == PackOrder::HighFirst)
            slot = e.sub(e.index(per - 1), slot);
          shift = e.mul(slot, e.index(bitsOf(enc.element)));
        }
        Value raw = e.extract(op.getCodes(), where);
        Value code = isa<FloatType>(raw.getType())
                         ? e.toFloat(raw, e.getF32Type())
                         : unpackCode(e, raw, shift, enc);
        auto param = [&](Value p) {
          return e.toFloat(e.extract(p, paramIndex(e, p, at, sizes)),
                           e.getF32Type());
        };
        if (Value scale = op.getScale()) {
          Value s = param(scale);
          code =
              op.getZero()
                  ? Value(math::FmaOp::create(e, code, s, param(op.getZero())))
                  : e.mulF(code, s);
        }
        return {e.insert(
            e.toFloat(code, cast<FloatType>(type.getElementType())), a[0], at)};
      });
}

//===----------------------------------------------------------------------===//
// page_gather
//===----------------------------------------------------------------------===//

/// The one attention that reads a gathered tensor, if that is what it is for:
/// entries of pages past its lengths are not part of anything.
static AttentionOp attentionOfUse(Value gathered) {
  AttentionOp attention;
  for (Operation *user : gathered.getUsers()) {
    auto found = dyn_cast<AttentionOp>(user);
    if (isa<DequantizeOp, tensor::CastOp>(user))
      found = attentionOfUse(user->getResult(0));
    if (!found || (attention && attention != found))
      return {};
    attention = found;
  }
  return attention && attention.getLengths() ? attention : AttentionOp();
}

/// Tokens of one page in the attention's counting: a gathered array of scales
/// has fewer rows. At least 1 where sizes are dynamic.
static Value tokensOfPage(Emitter &e, AttentionOp attention, Value columns) {
  auto k = cast<RankedTensorType>(attention.getK().getType());
  int64_t tokens = k.getDimSize(layoutDims(attention.getLayout(), 4).token);
  if (ShapedType::isDynamic(tokens))
    return e.index(1);
  return e.createOrFold<arith::DivUIOp>(e.index(tokens),
                                        e.maxS(columns, e.index(1)));
}

Values kvcache::lowerPageGather(Emitter &e, PageGatherOp op) {
  auto type = cast<RankedTensorType>(op.getResult().getType());
  LayoutDims dims = layoutDims(op.getLayout(), 4);
  Value pool = op.getPool(), table = op.getTable();
  bool lists = cast<RankedTensorType>(table.getType()).getRank() == 3;
  Values pageSizes = e.sizesOf(pool);
  Value pages = pageSizes[0], tokens = pageSizes[dims.token];
  Value columns = e.dim(table, lists ? 2 : 1), zero = e.index(0);
  Values sizes = pageSizes;
  sizes[0] = e.dim(table, 0);
  sizes[dims.token] = e.mul(columns, tokens);
  AttentionOp attention = attentionOfUse(op.getResult());
  // Loop over pages first, so that an entry is looked at once per head.
  Values nest = {sizes[0], columns, pageSizes[dims.head], tokens,
                 pageSizes[dims.channel]};
  return e.loops(
      nest, e.empty(type, sizes), [&](ValueRange at, ValueRange a) -> Values {
        Values entry = {at[0]};
        if (lists)
          entry.push_back(e.minS(at[2], e.sub(e.dim(table, 1), e.index(1))));
        entry.push_back(at[1]);
        Value number = e.toIndex(e.extract(table, entry));
        if (op.getTableRule() == TableRule::Wrap)
          number = e.select(e.lt(number, zero), e.add(number, pages), number);
        if (op.getTableRule() != TableRule::Raw)
          number = e.maxS(e.minS(number, e.sub(pages, e.index(1))), zero);
        Value ok = e.both(e.le(zero, number), e.lt(number, pages));
        if (op.getTableRule() == TableRule::Raw) {
          Value fine = ok;
          if (attention) {
            Value length = e.toIndex(e.extract(attention.getLengths(), at[0]));
            Value first = e.mul(at[1], tokensOfPage(e, attention, columns));
            fine = e.either(ok, e.le(length, first));
          }
          emitCheck(e, fine, Check::PageNumber, {at[0], at[1], number, pages});
        }
        return e.when(ok, a, [&]() -> Values {
          Values from(4), to(4);
          from[0] = number;
          to[0] = at[0];
          from[dims.head] = to[dims.head] = at[2];
          from[dims.token] = at[3];
          to[dims.token] = e.add(e.mul(at[1], tokens), at[3]);
          from[dims.channel] = to[dims.channel] = at[4];
          return {e.insert(e.extract(pool, from), a[0], to)};
        });
      });
}
