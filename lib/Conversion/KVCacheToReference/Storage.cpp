//===- Storage.cpp - read, append and seal as loops -----------------------===//
#include "Lowerings.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace kvcache;
using namespace mlir;

//===----------------------------------------------------------------------===//
// read
//===----------------------------------------------------------------------===//

Values kvcache::lowerRead(Emitter &e, ReadOp op, Source &source) {
  LayoutDims dims = layoutDims(op.getLayout(), 4);
  CacheType cache = op.getCache().getType();
  auto kType = cast<RankedTensorType>(op.getK().getType());
  auto vType = cast<RankedTensorType>(op.getV().getType());
  auto nType = cast<RankedTensorType>(op.getLengths().getType());
  Value seqs = source.sequences(e), zero = e.index(0);

  // Lengths first: dynamic results are as long as the longest sequence.
  Values checked =
      e.loop(zero, seqs, {e.empty(nType, seqs), zero},
             [&](Value seq, ValueRange a) -> Values {
               Value n = source.checkedLength(e, seq, zero);
               Value stored = n;
               if (!nType.getElementType().isIndex())
                 stored =
                     arith::IndexCastOp::create(e, nType.getElementType(), n);
               return {e.insert(stored, a[0], seq), e.maxS(a[1], n)};
             });
  Value lengths = checked[0], longest = checked[1];
  int64_t room = kType.getDimSize(dims.token);
  Value tokens = ShapedType::isDynamic(room) ? longest : e.index(room);
  if (!ShapedType::isDynamic(room))
    emitCheck(e, e.le(longest, tokens), Check::Room, {zero, longest, tokens});

  auto fill = [&](RankedTensorType type, bool isValue) {
    Values sizes(4);
    sizes[0] = seqs;
    sizes[dims.head] = e.index(cache.getKvHeads());
    sizes[dims.token] = tokens;
    sizes[dims.channel] =
        e.index(isValue ? cache.getValueDim() : cache.getHeadDim());
    auto element = cast<FloatType>(type.getElementType());
    Values outer = {sizes[0], sizes[dims.head], tokens};
    return e.loops(
        outer, e.empty(type, sizes),
        [&](ValueRange at, ValueRange a) -> Values {
          Value n = e.toIndex(e.extract(lengths, at[0]));
          auto row = [&](function_ref<Value(Value)> channelValue) {
            return e.loop(zero, sizes[dims.channel], a[0],
                          [&](Value channel, ValueRange inner) -> Values {
                            Values to(4);
                            to[0] = at[0];
                            to[dims.head] = at[1];
                            to[dims.token] = at[2];
                            to[dims.channel] = channel;
                            return {
                                e.insert(channelValue(channel), inner[0], to)};
                          });
          };
          return e.branch(
              e.lt(at[2], n),
              [&] {
                Values located = source.locate(e, at[0], at[1], at[2]);
                return row([&](Value channel) {
                  return e.toFloat(source.load(e, located, isValue, channel),
                                   element);
                });
              },
              [&] {
                return row([&](Value) -> Value {
                  return arith::ConstantOp::create(
                      e, e.getFloatAttr(element, 0.0));
                });
              });
        })[0];
  };
  return {fill(kType, false), fill(vType, true), lengths};
}

//===----------------------------------------------------------------------===//
// append
//===----------------------------------------------------------------------===//

/// ok if every channel of a row is finite and small enough to be coded later.
static Value acceptRow(Emitter &e, Value x, Value row, int64_t heads,
                       int64_t channels, const Encoding &enc, Value ok) {
  float limit = codec::largestAccepted(enc);
  return e.loops({e.index(heads), e.index(channels)}, ok,
                 [&](ValueRange at, ValueRange a) -> Values {
                   Value v = e.toFloat(e.extract(x, {row, at[0], at[1]}),
                                       e.getF32Type());
                   Value fits = e.cmp(arith::CmpFPredicate::OLE,
                                      math::AbsFOp::create(e, v), e.f32(limit));
                   return {e.both(a[0], fits)};
                 })[0];
}

/// The bits of a float as i32.
static Value bitsOfFloat(Emitter &e, Value x) {
  unsigned width = cast<FloatType>(x.getType()).getWidth();
  Value bits = arith::BitcastOp::create(e, e.getIntegerType(width), x);
  return width < 32 ? Value(arith::ExtUIOp::create(e, e.getI32Type(), bits))
                    : bits;
}

/// The open pool with one row of k or v stored in its page.
static Value storeRow(Emitter &e, PagedSource &source, Value pool, Value x,
                      bool isValue, Value row, Value seq, Value token) {
  Value page = e.div(token, source.page), in = e.mod(token, source.page);
  int64_t channels = isValue ? source.parts.type.getValueDim()
                             : source.parts.type.getHeadDim();
  return e.loops(
      {e.index(source.kv), e.index(channels)}, pool,
      [&](ValueRange at, ValueRange a) -> Values {
        Value number = source.pageNumber(e, 1, seq, at[0], page);
        Value base = source.record(e, 1, number, at[0]);
        Value where = e.add(base, source.openOffset(e, isValue, in, at[1]));
        Value bits = bitsOfFloat(e, e.extract(x, {row, at[0], at[1]}));
        return {storeBytes(e, a[0], where, bitsOf(source.open) / 8, bits)};
      })[0];
}

Value kvcache::checkRoom(Emitter &e, PagedSource &source, Value seq,
                         Value token) {
  Value page = e.div(token, source.page), have = source.columns(e);
  Value enough = e.lt(page, have);
  emitCheck(e, enough, Check::PageCount,
            {seq, e.add(token, e.index(1)), e.add(page, e.index(1)), have});
  return e.when(enough, enough, [&] {
    return e.loop(e.index(0), source.lists(e, 1), enough,
                  [&](Value list, ValueRange a) -> Values {
                    return {
                        e.both(a[0], source.checkPage(e, 1, seq, list, page))};
                  });
  })[0];
}

CacheParts kvcache::lowerAppend(Emitter &e, AppendOp op, PagedSource &source) {
  Value k = op.getK(), v = op.getV(), rowSeq = op.getRowSeq();
  CacheType type = source.parts.type;
  Value rows = e.dim(k, 0), zero = e.index(0), seqs = source.sequences(e);
  auto nType = cast<RankedTensorType>(source.parts.lengths.getType());
  // Nothing is written unless every row can be: refusals change nothing.
  Value fit = checkSizes(e, e.boolean(true), e.dim(v, 0), rows);
  fit = checkSizes(e, fit, e.dim(rowSeq, 0), rows);
  rows = e.select(fit, rows, zero);
  Value ok = e.loop(zero, rows, e.boolean(true), [&](Value row, ValueRange a) {
    Value seq = e.toIndex(e.extract(rowSeq, row));
    Value padding = e.cmp(arith::CmpIPredicate::eq, seq, e.index(-1));
    return e.branch(
        padding, [&] { return Values(a); },
        [&]() -> Values {
          Value known = e.both(e.le(zero, seq), e.lt(seq, seqs));
          emitCheck(e, known, Check::AppendRow, {row, seq, seqs});
          Value good = acceptRow(e, k, row, source.kv, type.getHeadDim(),
                                 source.image.key.encoding, known);
          good = acceptRow(e, v, row, source.kv, type.getValueDim(),
                           source.image.value.encoding, good);
          emitCheck(
              e,
              e.either(good, arith::XOrIOp::create(e, known, e.boolean(true))),
              Check::AppendValue, row);
          return {e.both(a[0], good)};
        });
  })[0];
  Values results = e.loop(
      zero, e.select(ok, rows, zero),
      {source.parts.pools[1], source.parts.lengths},
      [&](Value row, ValueRange a) {
        Value seq = e.toIndex(e.extract(rowSeq, row));
        return e.when(e.le(zero, seq), a, [&]() -> Values {
          Value token = e.toIndex(e.extract(a[1], seq));
          return e.when(checkRoom(e, source, seq, token), a, [&]() -> Values {
            Value pool = storeRow(e, source, a[0], k, false, row, seq, token);
            pool = storeRow(e, source, pool, v, true, row, seq, token);
            Value next = arith::IndexCastOp::create(e, nType.getElementType(),
                                                    e.add(token, e.index(1)));
            return {pool, e.insert(next, a[1], seq)};
          });
        });
      });
  CacheParts parts = source.parts;
  parts.pools[1] = results[0];
  parts.lengths = results[1];
  return parts;
}

//===----------------------------------------------------------------------===//
// seal
//===----------------------------------------------------------------------===//

namespace {
/// Codes one record: an open page of one head into its image.
class Sealer {
public:
  Sealer(Emitter &e, PagedSource &source, bool isValue, Value from, Value to,
         Value head)
      : e(e), source(source), isValue(isValue),
        t(isValue ? source.image.value : source.image.key), enc(t.encoding),
        from(from), to(to), head(head) {}

  /// The sealed pool with scales, zeros and codes stored.
  Value run(Value pool) {
    if (t.scaleCount())
      pool = storeParams(pool);
    return storeCodes(pool);
  }

private:
  ir::Float load(Value token, Value channel) {
    return {e.env, source.loadOpen(e, source.parts.pools[1], from, isValue,
                                   token, channel)};
  }
  Value storeParams(Value pool);
  Value storeCodes(Value pool);
  Value scaleAt(Value index, Section section) {
    ir::Int i{e.env, index};
    return e.add(
        to, (i * bytesOf(enc.scaleType) + source.image.offset(section)).value);
  }

  Emitter &e;
  PagedSource &source;
  bool isValue;
  const TensorImage &t;
  const Encoding &enc;
  Value from, to, head;
};
} // namespace

Value Sealer::storeParams(Value pool) {
  unsigned bytes = bytesOf(enc.scaleType);
  Element stored = codec::elementOf(enc.scaleType);
  Section scales = isValue ? Section::VScales : Section::KScales;
  Section zeros = isValue ? Section::VZeros : Section::KZeros;
  return e.loop(
      e.index(0), e.index(t.scaleCount()), pool,
      [&](Value index, ValueRange a) -> Values {
        PageElement<ir::Int> origin = t.groupOrigin(ir::Int{e.env, index});
        ir::Float first = load(origin.token.value, origin.channel.value);
        Values range = e.loops(
            {e.index(t.groupTokens()), e.index(t.groupChannels())},
            {first.value, first.value, e.f32(0)},
            [&](ValueRange in, ValueRange r) -> Values {
              ir::Float x = load(e.add(origin.token.value, in[0]),
                                 e.add(origin.channel.value, in[1]));
              ir::Float lo{e.env, r[0]}, hi{e.env, r[1]}, top{e.env, r[2]};
              return {codec::smaller(x, lo).value, codec::larger(x, hi).value,
                      codec::larger(absolute(x), top).value};
            });
        ir::Float lo{e.env, range[0]}, hi{e.env, range[1]},
            top{e.env, range[2]};
        Value next = a[0];
        ir::Float scale = top;
        if (enc.asymmetric) {
          auto params = codec::fromRange(enc, lo, hi);
          next = storeBytes(e, next, scaleAt(index, zeros), bytes,
                            codec::toElementBits(stored, params.zero).value);
          scale = params.scale;
        } else {
          scale = codec::fromAbsMax(enc, top);
        }
        return {storeBytes(e, next, scaleAt(index, scales), bytes,
                           codec::toElementBits(stored, scale).value)};
      })[0];
}

Value Sealer::storeCodes(Value pool) {
  unsigned bits = t.bits();
  int64_t offset =
      source.image.offset(isValue ? Section::VCodes : Section::KCodes);
  Element stored = codec::elementOf(enc.scaleType);
  return e.loop(
      e.index(0), e.index(t.codeWords()), pool,
      [&](Value wordIndex, ValueRange a) -> Values {
        // One 32-bit word at a time: every slot of it is known, so nothing is
        // read back.
        ir::Int w{e.env, wordIndex};
        ir::Int word{e.env,
                     arith::ConstantOp::create(e, e.getI32IntegerAttr(0))};
        for (int64_t slot = 0; slot < t.slotsPerWord(); ++slot) {
          PageElement<ir::Int> at = t.element(w, slot);
          ir::Float x = load(at.token.value, at.channel.value);
          ir::Int code = word;
          if (isFloat(enc.element)) {
            code = codec::toElementBits(enc.element, x);
          } else {
            Value index = t.scaleIndex(at.token, at.channel).value;
            auto param = [&](Section section) -> ir::Float {
              ir::Int raw{e.env, loadBytes(e, a[0], scaleAt(index, section),
                                           bytesOf(enc.scaleType))};
              return codec::fromElementBits(stored, raw);
            };
            ir::Float scale{e.env, source.staticScale(e, isValue, head)};
            if (!scale.value)
              scale = param(isValue ? Section::VScales : Section::KScales);
            ir::Float zero = scale;
            if (enc.asymmetric)
              zero = param(isValue ? Section::VZeros : Section::KZeros);
            code = codec::encode(enc, x, scale, zero);
          }
          word =
              slot ? word | (code << static_cast<uint32_t>(slot * bits)) : code;
        }
        Value at = e.add(to, (w * 4 + offset).value);
        return {storeBytes(e, a[0], at, 4, word.value)};
      })[0];
}

std::pair<Value, Value> kvcache::pagesDue(Emitter &e, PagedSource &source,
                                          Value seq) {
  Value zero = e.index(0), page = e.index(source.page);
  Value sinks = e.index(source.image.format.sinkPages());
  Value length = source.checkedLength(e, seq, zero);
  Value old = e.maxS(e.sub(length, e.index(source.image.format.recent)), zero);
  Value due =
      e.maxS(e.sub(e.createOrFold<arith::DivUIOp>(old, page), sinks), zero);
  Value sealed = e.toIndex(e.extract(source.parts.sealedPages, seq));
  return {e.add(sinks, sealed), e.add(sinks, e.maxS(due, sealed))};
}

/// The pages of sequence `seq` that are due and not sealed yet, sealed.
static Values sealSequence(Emitter &e, PagedSource &source, Value seq,
                           ValueRange carried) {
  Value zero = e.index(0);
  auto nType = cast<RankedTensorType>(source.parts.sealedPages.getType());
  auto [first, end] = pagesDue(e, source, seq);
  Values pool =
      e.loop(first, end, carried[0], [&](Value logical, ValueRange perPage) {
        Value ok = e.loop(
            zero, source.lists(e, 0), e.boolean(true),
            [&](Value list, ValueRange a) -> Values {
              return {e.both(a[0], source.checkPage(e, 0, seq, list, logical))};
            })[0];
        return e.loop(
            zero, e.select(ok, e.index(source.kv), zero), perPage,
            [&](Value head, ValueRange a) -> Values {
              Value from = source.record(
                  e, 1, source.pageNumber(e, 1, seq, head, logical), head);
              Value to = source.record(
                  e, 0, source.pageNumber(e, 0, seq, head, logical), head);
              Value p = Sealer(e, source, false, from, to, head).run(a[0]);
              return {Sealer(e, source, true, from, to, head).run(p)};
            });
      });
  Value count = arith::IndexCastOp::create(
      e, nType.getElementType(),
      e.sub(end, e.index(source.image.format.sinkPages())));
  return {pool[0], e.insert(count, carried[1], seq)};
}

CacheParts kvcache::lowerSeal(Emitter &e, SealOp op, PagedSource &source) {
  CacheParts parts = source.parts;
  Values results = e.loop(
      e.index(0), source.sequences(e), {parts.pools[0], parts.sealedPages},
      [&](Value seq, ValueRange a) { return sealSequence(e, source, seq, a); });
  parts.pools[0] = results[0];
  parts.sealedPages = results[1];
  return parts;
}
