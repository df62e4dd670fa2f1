//===- Accumulate.cpp - Weighted values in f32 ----------------------------===//
//
// Values lie channel-in-lane: a vector of codes holds w channels of one token
// (or of the few tokens that share a word), is converted once and multiplied
// with a repeated probability of every head. Scales:
//
//   per token     folded into the probabilities once per channel group; the
//                 zeros add sum of p * z to the whole group
//   per channel   result += s * acc + z * (sum of p), per token group
//   groups too small for that: code * s + z by one fma while decoding
//
// Open pages store values in the same order as sealed floats.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

/// Tokens that one load of codes brings for each channel.
int64_t AttendLowering::valueUnit(bool open) const {
  unsigned bits = image.value.bits();
  if (open || bits >= 16)
    return 1;
  return std::min<int64_t>(tokens, bits == 8 ? 4 : 8);
}

void AttendLowering::emitAccumulate(AccumulateOp op) {
  Value p = materialize(op.getP(), op);
  rescaleOut(rows(op.getAlpha()));
  if (tile.pageClass == PageClass::Open)
    accumulateOpen(p);
  else if (usesIntegers(image.value))
    emitAccumulateInteger(p);
  else
    accumulateSealed(p);
}

/// out *= alpha.
void AttendLowering::rescaleOut(Value alpha) {
  int64_t w = b.lanes();
  for (int64_t i = 0; i < n; ++i) {
    Value a = b.splat(b.extract(alpha, i), w);
    b.loop(b.i64(0), b.i64(vpad), w, [&](Value ch) {
      Value place = b.at(out, b.mul(b.add(ch, i * vpad), 4));
      b.store(b.fmul(b.load(b.fvec(w), place), a), place);
    });
  }
}

void AttendLowering::accumulateOpen(Value p) {
  addBlocks(b.i64(0), v, b.i64(0), tile.count, p, true, false, {});
}

void AttendLowering::accumulateSealed(Value p) {
  const TensorImage &value = image.value;
  ScaleMode mode = modeOf(value);
  if (mode != ScaleMode::Fold)
    return addBlocks(b.i64(0), v, b.i64(0), b.i64(tokens), p, false,
                     mode == ScaleMode::Decode, {});
  if (value.encoding.scale == ScaleKind::Channel)
    return accumulateChannels(p);
  accumulateGroups(p);
}

//===----------------------------------------------------------------------===//
// Scales
//===----------------------------------------------------------------------===//

/// Scales per token (and channel group): they rescale the probabilities.
void AttendLowering::accumulateGroups(Value p) {
  const TensorImage &value = image.value;
  int64_t g = value.encoding.scale == ScaleKind::Token ? value.groupSize() : v;
  b.loop(b.i64(0), b.i64(v), g, [&](Value ch) {
    foldProbabilities(p, ch);
    addBlocks(ch, g, b.i64(0), b.i64(tokens), foldedP, false, false, {});
  });
}

/// foldedP = p * s for the channel group of `ch`, pSums = sum p * z.
void AttendLowering::foldProbabilities(Value p, Value ch) {
  const TensorImage &value = image.value;
  int64_t w = std::min(b.lanes(), tokens);
  Values sums(n, b.fsplat(w, 0.0));
  sums = b.loop(b.i64(0), b.i64(tokens), w, sums,
                [&](Value tok, ValueRange carried) {
                  Value s = loadScale(value, tok, ch, w, Lanes::Tokens);
                  Value z = loadZero(value, tok, ch, w, Lanes::Tokens, s);
                  Values next;
                  for (int64_t i = 0; i < n; ++i) {
                    Value place = b.mul(b.add(tok, i * tokens), 4);
                    Value x = b.load(b.fvec(w), b.at(p, place));
                    b.store(b.fmul(x, s), b.at(foldedP, place));
                    next.push_back(b.fma(x, z, carried[i]));
                  }
                  return next;
                });
  for (int64_t i = 0; i < n; i += w) {
    ArrayRef<Value> part = ArrayRef(sums).slice(i, std::min(w, n - i));
    b.store(b.reduceEach(part), b.at(pSums, i * 4));
  }
}

/// Scales per channel and token group: they rescale the sums of the group.
void AttendLowering::accumulateChannels(Value p) {
  int64_t g = image.value.groupSize();
  b.loop(b.i64(0), b.i64(tokens), g, [&](Value tok) {
    sumProbabilities(p, tok, g);
    addBlocks(b.i64(0), v, tok, b.add(tok, g), p, false, false, tok);
  });
}

/// pSums = sum of p over `count` tokens from `tok`.
void AttendLowering::sumProbabilities(Value p, Value tok, int64_t count) {
  int64_t w = std::min(b.lanes(), count);
  for (int64_t i = 0; i < n; ++i) {
    Values sum = b.loop(
        tok, b.add(tok, count), w, Values{b.fsplat(w, 0.0)},
        [&](Value t, ValueRange carried) {
          Value place = b.mul(b.add(t, i * tokens), 4);
          return Values{b.fadd(carried[0], b.load(b.fvec(w), b.at(p, place)))};
        });
    b.store(b.reduce(sum[0], false), b.at(pSums, i * 4));
  }
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// Adds the tokens [tok, end) to the channels [ch, ch + channels) of `out`,
/// as many vectors at once as accumulators allow. With `post` (a token of the
/// group) per-channel scales apply to the sums; without it, folded zeros
/// (pSums) do where there are any.
void AttendLowering::addBlocks(Value ch, int64_t channels, Value tok, Value end,
                               Value p, bool open, bool decode, Value post) {
  const TensorImage &value = image.value;
  bool startZeros =
      !open && !decode && !post && modeOf(value) == ScaleMode::Fold;
  // Pages of one token split the channels of a byte; vectors stay in one half.
  bool halves = !open && value.bits() == 4 && tokens == 1;
  int64_t most = halves ? 4 : b.lanes();
  auto blocks = [&](Value c, ArrayRef<int64_t> widths) {
    Values acc;
    auto place = [&](int64_t head, int64_t offset) {
      return b.at(out, b.mul(b.add(c, head * vpad + offset), 4));
    };
    auto forEach = [&](llvm::function_ref<void(int64_t, int64_t, int64_t)> f) {
      int64_t offset = 0;
      for (int64_t w : widths) {
        for (int64_t i = 0; i < n; ++i)
          f(i, offset, w);
        offset += w;
      }
    };
    forEach([&](int64_t i, int64_t offset, int64_t w) {
      Value x = post ? b.fsplat(w, 0.0) : b.load(b.fvec(w), place(i, offset));
      if (startZeros)
        x = b.fadd(x, b.loadSplat(b.at(pSums, i * 4), w));
      acc.push_back(x);
    });
    acc = dotValues(c, widths, tok, end, p, acc, open, decode);
    size_t k = 0;
    forEach([&](int64_t i, int64_t offset, int64_t w) {
      Value x = acc[k++], address = place(i, offset);
      if (post) {
        Value at = b.add(c, offset);
        Value s = loadScale(value, post, at, w, Lanes::Channels);
        Value z = loadZero(value, post, at, w, Lanes::Channels, s);
        Value sum = b.loadSplat(b.at(pSums, i * 4), w);
        x = b.fma(x, s, b.fma(sum, z, b.load(b.fvec(w), address)));
      }
      b.store(x, address);
    });
  };
  int64_t together =
      llvm::bit_floor<uint64_t>(std::max<int64_t>(b.accumulators() / n, 1));
  int64_t stride = most * together, whole = channels / stride * stride;
  SmallVector<int64_t> widths(together, most);
  if (whole)
    b.loop(ch, b.add(ch, whole), stride, [&](Value c) { blocks(c, widths); });
  widths.clear();
  for (int64_t left = channels - whole; left > 0; left -= widths.back())
    widths.push_back(std::min<int64_t>(most, llvm::bit_floor<uint64_t>(left)));
  if (!widths.empty())
    blocks(b.add(ch, whole), widths);
}

/// acc[block][i] += sum over tokens of p[i] * value.
AttendLowering::Values AttendLowering::dotValues(Value ch,
                                                 ArrayRef<int64_t> widths,
                                                 Value tok, Value end, Value p,
                                                 Values acc, bool open,
                                                 bool decode) {
  int64_t unit = valueUnit(open);
  int64_t stride = 0;
  for (int64_t w : widths)
    stride += w;
  auto body = [&](Value t, ValueRange carried) {
    Values next = llvm::to_vector_of<Value>(carried);
    SmallVector<Values> values;
    int64_t offset = 0;
    for (int64_t w : widths) {
      values.push_back(valueTokens(t, b.add(ch, offset), w, open, decode));
      offset += w;
    }
    for (int64_t k = 0; k < unit; ++k)
      for (int64_t i = 0; i < n; ++i) {
        Value place = b.at(p, b.mul(b.add(t, k + i * tokens), 4));
        Value scalar = b.load(b.getF32Type(), place);
        for (size_t block = 0; block < widths.size(); ++block) {
          Value &x = next[block * n + i];
          x = b.fma(values[block][k], b.splat(scalar, widths[block]), x);
        }
      }
    if (!open) {
      int64_t perStride = tokens / unit;
      prefetchAhead(b.add(b.mul(b.div(ch, stride), perStride), b.div(t, unit)),
                    llvm::divideCeil(v, stride) * perStride, true);
    }
    return next;
  };
  return b.loop(tok, end, unit, acc, body);
}

/// Tokens tok .. tok+unit-1 of w channels, as f32 (codes, unless `decode`).
AttendLowering::Values AttendLowering::valueTokens(Value tok, Value ch,
                                                   int64_t w, bool open,
                                                   bool decode) {
  const TensorImage &value = image.value;
  if (open) {
    int64_t bytes = bitsOf(spec.dtype) / 8;
    Value e = b.add(b.add(b.mul(tok, v), ch), tokens * d);
    return {b.loadFloats(dtype, b.at(tile.record, b.mul(e, bytes)), w)};
  }
  Value codes = b.at(tile.record, image.offset(Section::VCodes));
  BitAddress<Idx> where = value.code(Idx{&b, tok}, Idx{&b, ch});
  Value place = b.at(codes, where.byte.v);
  if (value.bits() >= 16)
    return {
        b.loadFloats(toType(b.getContext(), value.encoding.element), place, w)};
  int64_t unit = valueUnit(false);
  int64_t word = std::max<int64_t>(unit * value.bits(), 8);
  Value raw = b.load(b.vec(w, b.getIntegerType(word)), place);
  if (word < 32)
    raw = arith::ExtUIOp::create(b, b.ivec(w), raw);
  if (value.bits() == 4 && tokens == 1)
    raw = arith::ShRUIOp::create(b, raw, b.splat(b.toI32(where.shift.v), w));
  Values result;
  for (int64_t k = 0; k < unit; ++k) {
    BitAddress<int64_t> in = value.code<int64_t>(k, 0);
    int64_t shift = in.byte * 8 + in.shift;
    Value code = b.shr(raw, shift);
    if (shift + int64_t(value.bits()) < word)
      code = b.iand(code, (1 << value.bits()) - 1);
    code = b.toFloat(code);
    if (decode) {
      Value t = b.add(tok, k);
      Value s = loadScale(value, t, ch, w, Lanes::Channels);
      code = b.fma(code, s, loadZero(value, t, ch, w, Lanes::Channels, s));
    }
    result.push_back(code);
  }
  return result;
}
