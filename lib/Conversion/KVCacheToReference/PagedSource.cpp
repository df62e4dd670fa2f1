//===- PagedSource.cpp - Reading our own pages ----------------------------===//
//
// Tables give page numbers; a page is kv_heads records; a record's bytes lie as
// Image.h says and decode as Codec.h says.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/KVCacheToReference/Source.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace kvcache;
using namespace mlir;

Value kvcache::loadBytes(Emitter &e, Value pool, Value at, unsigned bytes) {
  Value word;
  for (unsigned i = 0; i < bytes; ++i) {
    Value byte = arith::ExtUIOp::create(e, e.getI32Type(),
                                        e.extract(pool, e.add(at, e.index(i))));
    if (i)
      byte = arith::ShLIOp::create(
          e, byte, arith::ConstantOp::create(e, e.getI32IntegerAttr(8 * i)));
    word = word ? e.either(word, byte) : byte;
  }
  return word;
}

Value kvcache::storeBytes(Emitter &e, Value pool, Value at, unsigned bytes,
                          Value word) {
  for (unsigned i = 0; i < bytes; ++i) {
    Value shifted = arith::ShRUIOp::create(
        e, word, arith::ConstantOp::create(e, e.getI32IntegerAttr(8 * i)));
    Value byte = arith::TruncIOp::create(e, e.getI8Type(), shifted);
    pool = e.insert(byte, pool, e.add(at, e.index(i)));
  }
  return pool;
}

FailureOr<std::unique_ptr<PagedSource>>
PagedSource::create(Location loc, const CacheParts &parts) {
  CacheType type = parts.type;
  if (type.getLatent())
    return emitError(loc, "latent caches are not supported by the reference "
                          "yet, got ")
           << type;
  ImageFamily family = ImageFamily::X86_64;
  if (ImageAttr attr = type.getImage()) {
    auto parsed = parseImageFamily(attr.getFamily());
    if (!parsed)
      return emitError(loc, "unknown image family '")
             << attr.getFamily() << "'";
    family = *parsed;
  }
  auto source = std::make_unique<PagedSource>();
  auto image = PageImage::create(type.getResolvedFormat(), type.getHeadDim(),
                                 type.getValueDim(), family);
  if (auto *error = std::get_if<FormatError>(&image))
    return emitError(loc, error->message);
  source->parts = parts;
  source->image = std::get<PageImage>(image);
  source->open = type.getOpenElement();
  source->page = source->image.format.page;
  source->kv = type.getKvHeads();
  source->openBytes = openRecordBytes(source->open, source->page,
                                      type.getHeadDim(), type.getValueDim());
  return source;
}

Value PagedSource::sequences(Emitter &) { return parts.sequences; }

Value PagedSource::length(Emitter &e, Value seq) {
  return e.toIndex(e.extract(parts.lengths, seq));
}

static bool hasLists(Value table) {
  return cast<RankedTensorType>(table.getType()).getRank() == 3;
}

Value PagedSource::lists(Emitter &e, int which) {
  Value table = parts.tables[which];
  return hasLists(table) ? e.dim(table, 1) : e.index(1);
}

Value PagedSource::columns(Emitter &e) {
  auto last = [&](Value table) {
    return e.dim(table, hasLists(table) ? 2 : 1);
  };
  return e.minS(last(parts.tables[0]), last(parts.tables[1]));
}

Value PagedSource::pageNumber(Emitter &e, int which, Value seq, Value head,
                              Value page) {
  Value table = parts.tables[which];
  Values at = {seq};
  if (hasLists(table)) // one list for all heads, or one each
    at.push_back(e.minS(head, e.sub(e.dim(table, 1), e.index(1))));
  at.push_back(page);
  return e.toIndex(e.extract(table, at));
}

Value PagedSource::record(Emitter &e, int which, Value number, Value head) {
  Value first = e.add(e.mul(number, e.index(kv)), head);
  return e.mul(first, e.index(which == 0 ? image.recordBytes() : openBytes));
}

Value PagedSource::isSealed(Emitter &e, Value seq, Value page) {
  Value sinks = e.index(image.format.sinkPages());
  Value sealed = e.toIndex(e.extract(parts.sealedPages, seq));
  return e.both(e.le(sinks, page), e.lt(page, e.add(sinks, sealed)));
}

Value PagedSource::checkPage(Emitter &e, int which, Value seq, Value head,
                             Value page) {
  int64_t bytes = kv * (which == 0 ? image.recordBytes() : openBytes);
  Value pages = e.div(e.dim(parts.pools[which], 0), bytes);
  Value number = pageNumber(e, which, seq, head, page);
  Value ok = e.both(e.le(e.index(0), number), e.lt(number, pages));
  emitCheck(e, ok, Check::PageNumber, {seq, page, number, pages});
  return ok;
}

Value PagedSource::checkedLength(Emitter &e, Value seq, Value firstToken) {
  Value n = length(e, seq);
  Value positive = e.le(e.index(0), n);
  emitCheck(e, positive, Check::Length, {seq, n});
  Value safe = e.maxS(n, e.index(0));
  Value needed = e.div(e.add(safe, e.index(page - 1)), page);
  Value have = columns(e);
  Value enough = e.le(needed, have);
  emitCheck(e, enough, Check::PageCount, {seq, n, needed, have});

  Value sealed = e.toIndex(e.extract(parts.sealedPages, seq));
  Value most = e.maxS(
      e.sub(e.div(safe, page), e.index(image.format.sinkPages())), e.index(0));
  Value sane = e.both(e.le(e.index(0), sealed), e.le(sealed, most));
  emitCheck(e, sane, Check::SealedPages, {seq, sealed, n, most});

  Value ok = e.both(positive, e.both(enough, sane));
  Value end = e.select(ok, needed, e.index(0));
  ok = e.loop(e.div(firstToken, page), end, ok, [&](Value p, ValueRange acc) {
    auto scan = [&](int which) -> Values {
      return e.loop(e.index(0), lists(e, which), acc[0],
                    [&](Value head, ValueRange inner) -> Values {
                      return {
                          e.both(inner[0], checkPage(e, which, seq, head, p))};
                    });
    };
    return e.branch(
        isSealed(e, seq, p), [&] { return scan(0); }, [&] { return scan(1); });
  })[0];
  return e.select(ok, n, e.index(0));
}

Values PagedSource::locate(Emitter &e, Value seq, Value head, Value token) {
  Value logical = e.div(token, page);
  Value sealed = isSealed(e, seq, logical);
  auto base = [&](int which) -> Values {
    return {record(e, which, pageNumber(e, which, seq, head, logical), head)};
  };
  Value at =
      e.branch(sealed, [&] { return base(0); }, [&] { return base(1); })[0];
  return {sealed, at, e.mod(token, page), head};
}

Value PagedSource::openOffset(Emitter &e, bool isValue, Value token,
                              Value channel) {
  int64_t d = isValue ? parts.type.getValueDim() : parts.type.getHeadDim();
  Value element = e.add(e.mul(token, e.index(d)), channel);
  if (isValue)
    element = e.add(element, e.index(page * parts.type.getHeadDim()));
  return e.mul(element, e.index(bitsOf(open) / 8));
}

Value PagedSource::loadOpen(Emitter &e, Value pool, Value base, bool isValue,
                            Value token, Value channel) {
  Value at = e.add(base, openOffset(e, isValue, token, channel));
  ir::Int word{e.env, loadBytes(e, pool, at, bitsOf(open) / 8)};
  return codec::fromElementBits(open, word).value;
}

Value PagedSource::staticScale(Emitter &e, bool isValue, Value head) {
  const Encoding &mine = isValue ? image.value.encoding : image.key.encoding;
  if (mine.scale != ScaleKind::Tensor)
    return {};
  // Scales are listed for the sides that have one, the key first.
  bool keyHasOne = image.key.encoding.scale == ScaleKind::Tensor;
  return e.extract(parts.scales[isValue && keyHasOne ? 1 : 0], head);
}

Value PagedSource::loadSealed(Emitter &e, Value base, bool isValue, Value token,
                              Value channel, Value head) {
  const TensorImage &t = isValue ? image.value : image.key;
  const Encoding &enc = t.encoding;
  Value pool = parts.pools[0];
  ir::Int tok{e.env, token}, ch{e.env, channel};
  BitAddress<ir::Int> at = t.code(tok, ch);
  int64_t codes = image.offset(isValue ? Section::VCodes : Section::KCodes);
  Value byte = e.add(base, (at.byte + codes).value);
  unsigned bits = t.bits();
  ir::Int code{e.env, loadBytes(e, pool, byte, std::max(1u, bits / 8))};
  if (isFloat(enc.element))
    return codec::fromElementBits(enc.element, code).value;
  if (bits < 8) {
    Value shift = arith::IndexCastOp::create(e, e.getI32Type(), at.shift.value);
    code = (code >> ir::Int{e.env, shift}) & ((1u << bits) - 1);
  }
  ir::Int index = t.scaleIndex(tok, ch) * bytesOf(enc.scaleType);
  auto stored = [&](Section section) -> ir::Float {
    Value where = e.add(base, (index + image.offset(section)).value);
    ir::Int word{e.env, loadBytes(e, pool, where, bytesOf(enc.scaleType))};
    return codec::fromElementBits(codec::elementOf(enc.scaleType), word);
  };
  ir::Float scale{e.env, staticScale(e, isValue, head)};
  if (!scale.value)
    scale = stored(isValue ? Section::VScales : Section::KScales);
  ir::Float zero = scale;
  if (enc.asymmetric)
    zero = stored(isValue ? Section::VZeros : Section::KZeros);
  return codec::decode(enc, code, scale, zero).value;
}

Value PagedSource::load(Emitter &e, ValueRange row, bool isValue,
                        Value channel) {
  return e.branch(
      row[0],
      [&]() -> Values {
        return {loadSealed(e, row[1], isValue, row[2], channel, row[3])};
      },
      [&]() -> Values {
        return {loadOpen(e, parts.pools[1], row[1], isValue, row[2], channel)};
      })[0];
}
