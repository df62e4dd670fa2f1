//===- Score.cpp - Scores in f32 ------------------------------------------===//
//
// Sealed keys lie token-in-lane: a vector of codes holds one channel of w
// tokens, is converted once and multiplied with a repeated query element of
// every head; no product ends in a horizontal sum. Scales:
//
//   per channel   folded into the query once per token group; the zeros give
//   the
//                 accumulators' start, sum of q * z
//   per token     result += s * acc + z * (sum of q), per channel group
//   groups too small for that: code * s + z by one fma while decoding
//
// Open keys lie token-major: products of channel vectors, summed by a tree over
// as many (head, token) pairs as a register has lanes.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

/// Tokens in a vector of keys.
int64_t AttendLowering::keyLanes() const { return std::min(b.lanes(), tokens); }

/// Channels that one load of codes brings for each token.
int64_t AttendLowering::keyUnit() const {
  unsigned bits = image.key.bits();
  return bits == 8 ? 4 : bits == 4 ? 8 : 1;
}

void AttendLowering::emitScore(ScoreOp op) {
  scores = bufferFor(op.getResult(), op);
  accBuffers[op.getResult()] = scores;
  if (tile.pageClass == PageClass::Open)
    return scoreOpen();
  if (usesIntegers(image.key))
    return emitScoreInteger();
  scoreSealed();
}

//===----------------------------------------------------------------------===//
// Sealed keys
//===----------------------------------------------------------------------===//

void AttendLowering::scoreSealed() {
  const TensorImage &key = image.key;
  bool perChannel = key.encoding.scale == ScaleKind::Channel &&
                    modeOf(key) == ScaleMode::Fold;
  if (!perChannel)
    return scoreRange(b.i64(0), tokens, false);
  int64_t group = key.groupSize();
  b.loop(b.i64(0), b.i64(tokens), group, [&](Value tok) {
    foldQuery(tok);
    scoreRange(tok, group, true);
  });
}

/// foldedQuery = q * s, foldedZeros = sum q * z for the group of token `tok`.
void AttendLowering::foldQuery(Value tok) {
  const TensorImage &key = image.key;
  int64_t w = b.lanes();
  auto block = [&](Value ch, int64_t width, ValueRange sums) {
    Value s = loadScale(key, tok, ch, width, Lanes::Channels);
    Value z = loadZero(key, tok, ch, width, Lanes::Channels, s);
    Values next;
    for (int64_t i = 0; i < n; ++i) {
      Value place = b.mul(b.add(ch, i * dpad), 4);
      Value q = b.load(b.fvec(width), b.at(query, place));
      b.store(b.fmul(q, s), b.at(foldedQuery, place));
      next.push_back(b.fma(b.widen(q, w), b.widen(z, w), sums[i]));
    }
    return next;
  };
  Values sums(n, b.fsplat(w, 0.0));
  int64_t whole = d / w * w;
  sums = b.loop(
      b.i64(0), b.i64(whole), w, sums,
      [&](Value ch, ValueRange carried) { return block(ch, w, carried); });
  if (whole < d)
    sums = block(b.i64(whole), d - whole, sums);
  for (int64_t i = 0; i < n; i += w) {
    ArrayRef<Value> part = ArrayRef(sums).slice(i, std::min(w, n - i));
    b.store(b.reduceEach(part), b.at(foldedZeros, i * 4));
  }
}

/// Scores of `tokens` tokens from `from`.
void AttendLowering::scoreRange(Value from, int64_t count, bool folded) {
  const TensorImage &key = image.key;
  int64_t w = keyLanes();
  bool groups = modeOf(key) == ScaleMode::Fold && !folded;
  int64_t budget = b.accumulators() / (groups ? 2 : 1);
  int64_t u = llvm::bit_floor<uint64_t>(std::max<int64_t>(budget / n, 1));
  u = std::min(u, count / w);
  auto zeros = [&] { return Values(u * n, b.fsplat(w, 0.0)); };
  auto block = [&](Value tok) {
    Values acc = zeros();
    if (folded) {
      for (int64_t i = 0; i < u * n; ++i)
        acc[i] = b.loadSplat(b.at(foldedZeros, i % n * 4), w);
      acc = dotKeys(tok, u, b.i64(0), d, foldedQuery, acc, false);
    } else if (groups) {
      int64_t g = key.encoding.scale == ScaleKind::Token ? key.groupSize() : d;
      acc = b.loop(b.i64(0), b.i64(d), g, acc, [&](Value ch, ValueRange sum) {
        Values part = dotKeys(tok, u, ch, g, query, zeros(), false);
        Values next;
        for (int64_t j = 0; j < u; ++j) {
          Value t = b.add(tok, j * w);
          Value s = loadScale(key, t, ch, w, Lanes::Tokens);
          Value z = loadZero(key, t, ch, w, Lanes::Tokens, s);
          for (int64_t i = 0; i < n; ++i) {
            Value place = b.add(b.mul(b.div(ch, g), npad), i);
            Value q = b.loadSplat(b.at(querySums, b.mul(place, 4)), w);
            Value x = b.fma(part[j * n + i], s, sum[j * n + i]);
            next.push_back(b.fma(q, z, x));
          }
        }
        return next;
      });
    } else {
      acc = dotKeys(tok, u, b.i64(0), d, query, acc,
                    modeOf(key) == ScaleMode::Decode);
    }
    for (int64_t i = 0; i < u * n; ++i) {
      Value place = b.add(tok, i / n * w + i % n * tokens);
      b.store(acc[i], b.at(scores, b.mul(place, 4)));
    }
  };
  b.loop(from, b.add(from, count), w * u, block);
}

/// acc[j][i] += sum over `channels` channels from `ch` of key * query[i].
AttendLowering::Values AttendLowering::dotKeys(Value tok, int64_t u, Value ch,
                                               int64_t channels, Value q,
                                               Values acc, bool decode) {
  int64_t w = keyLanes(), unit = keyUnit();
  // Floats: four channels an iteration.
  int64_t step = std::max<int64_t>(unit, channels % 4 == 0 ? 4 : 1);
  return b.loop(
      ch, b.add(ch, channels), step, acc, [&](Value c, ValueRange carried) {
        Values next = llvm::to_vector_of<Value>(carried);
        for (int64_t part = 0; part < step; part += unit) {
          Value first = b.add(c, part);
          SmallVector<Values> keys;
          for (int64_t j = 0; j < u; ++j)
            keys.push_back(keyValues(b.add(tok, j * w), first, decode));
          for (int64_t k = 0; k < unit; ++k)
            for (int64_t i = 0; i < n; ++i) {
              Value place = b.mul(b.add(first, k + i * dpad), 4);
              Value qs = b.loadSplat(b.at(q, place), w);
              for (int64_t j = 0; j < u; ++j)
                next[j * n + i] = b.fma(keys[j][k], qs, next[j * n + i]);
            }
        }
        int64_t perBlock = d / step;
        prefetchAhead(b.add(b.mul(b.div(tok, w * u), perBlock), b.div(c, step)),
                      tokens / (w * u) * perBlock, false);
        return next;
      });
}

/// Channels ch .. ch+unit-1 of w tokens, as f32 (codes, unless `decode`).
AttendLowering::Values AttendLowering::keyValues(Value tok, Value ch,
                                                 bool decode) {
  const TensorImage &key = image.key;
  int64_t w = keyLanes(), unit = keyUnit();
  Value codes = b.at(tile.record, image.offset(Section::KCodes));
  Value place = b.at(codes, key.code(Idx{&b, tok}, Idx{&b, ch}).byte.v);
  if (unit == 1)
    return {
        b.loadFloats(toType(b.getContext(), key.encoding.element), place, w)};
  Values result;
  Value word = b.load(b.ivec(w), place);
  for (int64_t k = 0; k < unit; ++k) {
    BitAddress<int64_t> in = key.code<int64_t>(0, k);
    Value code = b.shr(word, in.byte * 8 + in.shift);
    // The topmost code needs no mask.
    if (in.byte * 8 + in.shift + key.bits() < 32)
      code = b.iand(code, (1 << key.bits()) - 1);
    code = b.toFloat(code);
    if (decode) {
      Value c = b.add(ch, k);
      Value s = loadScale(key, tok, c, w, Lanes::Tokens);
      code = b.fma(code, s, loadZero(key, tok, c, w, Lanes::Tokens, s));
    }
    result.push_back(code);
  }
  return result;
}

//===----------------------------------------------------------------------===//
// Open keys
//===----------------------------------------------------------------------===//

void AttendLowering::scoreOpen() {
  int64_t w = b.lanes();
  int64_t heads = std::min(n, w);
  // Tokens a step, so that heads * u pairs fill a register's lanes.
  int64_t u = std::min<int64_t>(llvm::bit_floor<uint64_t>(w / heads), tokens);
  int64_t bytes = bitsOf(spec.dtype) / 8;
  auto step = [&](Value tok, int64_t head, int64_t count) {
    auto block = [&](Value ch, int64_t width, ValueRange sums) {
      Values next = llvm::to_vector_of<Value>(sums), keys;
      for (int64_t j = 0; j < u; ++j) {
        Value e = b.add(b.mul(b.add(tok, j), d), ch);
        keys.push_back(b.widen(
            b.loadFloats(dtype, b.at(tile.record, b.mul(e, bytes)), width), w));
      }
      for (int64_t i = 0; i < count; ++i) {
        Value place = b.mul(b.add(ch, (head + i) * dpad), 4);
        Value q = b.load(b.fvec(w), b.at(query, place));
        for (int64_t j = 0; j < u; ++j)
          next[i * u + j] = b.fma(keys[j], q, next[i * u + j]);
      }
      return next;
    };
    int64_t whole = d / w * w;
    Values sums(count * u, b.fsplat(w, 0.0));
    sums = b.loop(
        b.i64(0), b.i64(whole), w, sums,
        [&](Value ch, ValueRange carried) { return block(ch, w, carried); });
    if (whole < d)
      sums = block(b.i64(whole), d - whole, sums);
    Value pairs = b.reduceEach(sums);
    for (int64_t i = 0; i < count; ++i) {
      Value place = b.add(tok, (head + i) * tokens);
      b.store(b.slice(pairs, i * u, u), b.at(scores, b.mul(place, 4)));
    }
  };
  b.loop(b.i64(0), tile.count, u, [&](Value tok) {
    for (int64_t head = 0; head < n; head += heads)
      step(tok, head, std::min(heads, n - head));
  });
}
