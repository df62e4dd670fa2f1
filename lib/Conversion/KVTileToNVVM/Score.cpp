//===- Score.cpp - S^T = K Q^T
//---------------------------------------------===//
//
// Keys are operand A. Channel scales are folded into the queries once per group
// of tokens, as f16 pairs high + low: with at most 4 heads the low parts fill
// columns 4..7 and one product does for both, else a second product follows.
// The zero term q.z comes from tiles whose rows are the zeros of a group.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

static std::vector<Values> zeroTiles(Emitter &e, int64_t count) {
  return std::vector<Values>(count, Values(4, e.f32c(0)));
}

static Values flatten(const std::vector<Values> &tiles) {
  Values result;
  for (const Values &tile : tiles)
    llvm::append_range(result, tile);
  return result;
}

Values Kernel::score() {
  if (stored.pageClass == tile::PageClass::Open)
    return scoreOpen();
  switch (plan.key) {
  case Product::Plain:
    return scorePlain();
  case Product::Folded:
    return scoreFolded();
  case Product::InPlace:
    return scoreInPlace();
  }
  return {};
}

/// Multiplies by the powers of two taken out of the columns, if any.
static void scaleColumns(Emitter &e, const Query &query, Values &tile) {
  if (!query.column0)
    return;
  for (auto [i, value] : llvm::enumerate(tile))
    value = e.fmul(value, i % 2 ? query.column1 : query.column0);
}

Values Kernel::scorePlain() {
  const TensorImage &key = plan.image.key;
  std::vector<Values> acc = zeroTiles(e, plan.tokenTiles());
  for (const FragmentPiece &piece : fragmentPieces(key))
    for (int64_t i = 0; i < plan.tokenTiles(); ++i) {
      Values words = loadPiece(key, Section::KCodes, piece, i);
      int64_t j = piece.firstTile;
      ArrayRef<Value> b = ArrayRef<Value>(query.registers).slice(2 * j, 2);
      acc[i] = e.mma(query.half, words, b, acc[i]);
      if (!query.low.empty())
        acc[i] = e.mma(query.half, words,
                       ArrayRef<Value>(query.low).slice(2 * j, 2), acc[i]);
    }
  for (Values &tile : acc)
    scaleColumns(e, query, tile);
  return flatten(acc);
}

Values Kernel::scoreOpen() {
  int64_t d = plan.spec.headDim;
  std::vector<Values> acc = zeroTiles(e, plan.tokenTiles());
  for (int64_t i = 0; i < plan.tokenTiles(); ++i) {
    llvm::SmallVector<Values, 2> rows; // of tokens g and g + 8
    for (int64_t half : {0, 1}) {
      // Rows past the end repeat the last visible one: what lies there is not
      // read, and the mask removes the repetition.
      Value token = e.smin(tokenOf(i, half), e.addi(endVisible, -1));
      Value inPage = e.add(stored.tokenInPage, e.sub(token, stored.firstToken));
      Value base = e.gep(stored.record, e.sext64(e.muli(inPage, d * 2)));
      Value lanes = e.gep(base, e.sext64(e.shl(t, 4)));
      Values words;
      for (int64_t j = 0; j < d / 32; ++j)
        llvm::append_range(words, e.loadWords(e.gep(lanes, 64 * j), 4));
      if (d % 32)
        llvm::append_range(
            words,
            e.loadWords(e.gep(e.gep(base, e.sext64(e.shl(t, 3))), d / 32 * 64),
                        2));
      rows.push_back(std::move(words));
    }
    for (int64_t j = 0; j < plan.keyTiles(); ++j) {
      Value a[] = {rows[0][2 * j], rows[1][2 * j], rows[0][2 * j + 1],
                   rows[1][2 * j + 1]};
      acc[i] = e.mma(query.half, a,
                     ArrayRef<Value>(query.registers).slice(2 * j, 2), acc[i]);
    }
  }
  return flatten(acc);
}

//===----------------------------------------------------------------------===//
// Folded scales
//===----------------------------------------------------------------------===//

/// What `foldTile` takes out of f16 scales: 2^-e must itself be an f16.
static Value halfExponent(Emitter &e, Value exponent) {
  return e.smax(e.smin(exponent, e.i32c(14)), e.i32c(-14));
}

Kernel::Folded Kernel::foldTile(Value scaleRow, int64_t keyTile,
                                Value exponent) {
  ScaleType type = plan.image.key.encoding.scaleType;
  int64_t bytes = bytesOf(type);
  Folded folded;
  Value negative = e.sub(e.i32c(0), exponent);
  Value halfUnit;
  if (type == ScaleType::F16) {
    Value bits = e.shl(e.addi(negative, 15), 10);
    halfUnit = e.bitOr(bits, e.shl(bits, 16));
  }
  for (int64_t r : {0, 1}) {
    Value q = query.registers[2 * keyTile + r];
    Value pointer = e.gep(scaleRow, (keyTile * kTile + 8 * r) * bytes);
    Value high, low;
    if (type == ScaleType::F16) {
      // One rounding each: high = rn(q s), low = rn(q s - high).
      Value s = e.hmul(e.load(e.i32, pointer, 4), halfUnit);
      high = e.hmul(q, s);
      low = e.hfma(q, s, e.hneg(high));
    } else {
      auto [s0, s1] = loadPair(type, pointer);
      auto [q0, q1] = e.unpack(Half::F16, q);
      Value unit = e.pow2(negative);
      std::tie(high, low) =
          splitPair(e.fmul(q0, e.fmul(s0, unit)), e.fmul(q1, e.fmul(s1, unit)));
    }
    folded.high.push_back(high);
    folded.low.push_back(low);
  }
  if (plan.packed()) {
    Value isHigh = e.slt(g, e.i32c(4));
    for (int64_t r : {0, 1})
      folded.high[r] = e.select(isHigh, folded.high[r], folded.low[r]);
  }
  return folded;
}

/// q.z of each group, columns 2t and 2t + 1, in the units of the scores.
Values Kernel::keyZeros(int64_t groups, const Exponents &exponents) {
  const TensorImage &key = plan.image.key;
  ScaleType type = key.encoding.scaleType;
  int64_t bytes = bytesOf(type), d = plan.spec.headDim;
  Value group = e.udiv(stored.tokenInPage, key.groupSize());
  Value offset = e.add(e.muli(group, d * bytes), e.muli(t, 2 * bytes));
  Value base = sectionAt(Section::KZeros, offset);
  Value unit = e.pow2(exponents.keyZero),
        inverse = e.pow2(e.sub(e.i32c(0), exponents.keyZero));
  Values result;
  for (int64_t first = 0; first < groups; first += 2) {
    Values acc(4, e.f32c(0));
    for (int64_t j = 0; j < plan.keyTiles(); ++j) {
      ArrayRef<Value> b = ArrayRef<Value>(query.registers).slice(2 * j, 2);
      Value high[4], low[4];
      for (int64_t r = 0; r < 4; ++r) {
        int64_t which = std::min(first + r % 2, groups - 1);
        if (which == first && r % 2) { // no second group: repeat the first
          high[r] = high[r - 1], low[r] = low[r - 1];
          continue;
        }
        Value pointer =
            e.gep(base, (which * d + j * kTile + r / 2 * 8) * bytes);
        if (type == ScaleType::F16) {
          high[r] = e.load(e.i32, pointer, 4);
          continue;
        }
        auto [z0, z1] = loadPair(type, pointer);
        std::tie(high[r], low[r]) =
            splitPair(e.fmul(z0, inverse), e.fmul(z1, inverse));
      }
      acc = e.mma(Half::F16, high, b, acc);
      if (type != ScaleType::F16)
        acc = e.mma(Half::F16, low, b, acc);
    }
    for (Value &value : acc)
      if (type != ScaleType::F16)
        value = e.fmul(value, unit);
    scaleColumns(e, query, acc);
    int64_t present = std::min<int64_t>(2, groups - first);
    result.append(acc.begin(), acc.begin() + 2 * present);
  }
  return result;
}

Values Kernel::finishFolded(std::vector<Values> acc, Values zeros,
                            const Exponents &exponents) {
  const TensorImage &key = plan.image.key;
  bool isHalf = key.encoding.scaleType == ScaleType::F16;
  Value exponent =
      isHalf ? halfExponent(e, exponents.keyScale) : exponents.keyScale;
  Value unit = e.fmul(e.pow2(exponent), e.f32c(1.0 / codeUnit()));
  double upper = upperFactor(key);
  Value factor[4];
  for (int64_t r = 0; r < 4; ++r) {
    factor[r] = e.fmul(unit, r % 2 ? query.column1 : query.column0);
    if (r >= 2 && upper != 1)
      factor[r] = e.fmul(factor[r], e.f32c(1.0 / upper));
  }
  int64_t tilesPerGroup = std::min(key.groupSize(), plan.tokens) / kTile;
  Values result;
  for (auto [i, tile] : llvm::enumerate(acc))
    for (int64_t r = 0; r < 4; ++r) {
      Value sum = tile[r];
      if (plan.packed())
        sum = e.fadd(sum, e.shflXor(sum, 2));
      result.push_back(
          zeros.empty() ? e.fmul(sum, factor[r])
                        : e.fma(sum, factor[r],
                                zeros[int64_t(i) / tilesPerGroup * 2 + r % 2]));
    }
  return result;
}

Values Kernel::scoreFolded() {
  const TensorImage &key = plan.image.key;
  int64_t bytes = bytesOf(key.encoding.scaleType), d = plan.spec.headDim;
  int64_t group = std::min(key.groupSize(), plan.tokens);
  int64_t groups = plan.tokens / group, perGroup = group / kTile;
  Exponents exponents = loadExponents();
  Value exponent = key.encoding.scaleType == ScaleType::F16
                       ? halfExponent(e, exponents.keyScale)
                       : exponents.keyScale;
  Value offset =
      e.add(e.muli(e.udiv(stored.tokenInPage, key.groupSize()), d * bytes),
            e.muli(t, 2 * bytes));
  Value scales = sectionAt(Section::KScales, offset);

  std::vector<Values> acc = zeroTiles(e, plan.tokenTiles());
  int64_t wordsPerTile = key.wordsPerTile();
  for (int64_t which = 0; which < groups; ++which)
    for (const FragmentPiece &piece : fragmentPieces(key)) {
      std::vector<Values> words;
      for (int64_t i = 0; i < perGroup; ++i)
        words.push_back(
            loadPiece(key, Section::KCodes, piece, which * perGroup + i));
      for (int64_t j = 0; j < piece.tiles; ++j) {
        Folded b = foldTile(e.gep(scales, which * d * bytes),
                            piece.firstTile + j, exponent);
        for (int64_t i = 0; i < perGroup; ++i) {
          Values a = decode(key, ArrayRef<Value>(words[i]).slice(
                                     j * wordsPerTile, wordsPerTile));
          Values &tile = acc[which * perGroup + i];
          tile = e.mma(Half::F16, a, b.high, tile);
          if (!plan.packed())
            tile = e.mma(Half::F16, a, b.low, tile);
        }
      }
    }
  Values zeros;
  if (key.encoding.asymmetric)
    zeros = keyZeros(groups, exponents);
  return finishFolded(std::move(acc), std::move(zeros), exponents);
}

//===----------------------------------------------------------------------===//
// Groups narrower than a tile
//===----------------------------------------------------------------------===//

Values Kernel::scoreInPlace() {
  const TensorImage &key = plan.image.key;
  int64_t bytes = bytesOf(key.encoding.scaleType), d = plan.spec.headDim;
  Exponents exponents = loadExponents();
  InPlaceScale unit = inPlaceScale(key, exponents.keyScale, exponents.keyZero);
  std::vector<Values> acc = zeroTiles(e, plan.tokenTiles());
  int64_t wordsPerTile = key.wordsPerTile();
  for (int64_t i = 0; i < plan.tokenTiles(); ++i) {
    Value offsets[2];
    for (int64_t half : {0, 1}) {
      Value token = e.addi(e.add(stored.tokenInPage, g), i * kTile + half * 8);
      offsets[half] = e.add(e.muli(e.udiv(token, key.groupSize()), d * bytes),
                            e.muli(t, 2 * bytes));
    }
    for (const FragmentPiece &piece : fragmentPieces(key)) {
      Values words = loadPiece(key, Section::KCodes, piece, i);
      for (int64_t j = 0; j < piece.tiles; ++j) {
        Values codes = decode(
            key, ArrayRef<Value>(words).slice(j * wordsPerTile, wordsPerTile));
        Value high[4], low[4];
        for (int64_t r = 0; r < 4; ++r) {
          int64_t at = ((piece.firstTile + j) * kTile + r / 2 * 8) * bytes;
          Value scales = e.gep(sectionAt(Section::KScales, offsets[r % 2]), at);
          Value zeros =
              key.encoding.asymmetric
                  ? e.gep(sectionAt(Section::KZeros, offsets[r % 2]), at)
                  : Value();
          std::tie(high[r], low[r]) =
              decodePair(key, codes[r], r % 2 ? upperFactor(key) : 1.0, unit,
                         scales, zeros);
        }
        ArrayRef<Value> b = ArrayRef<Value>(query.registers)
                                .slice(2 * (piece.firstTile + j), 2);
        acc[i] = e.mma(Half::F16, high, b, acc[i]);
        acc[i] = e.mma(Half::F16, low, b, acc[i]);
      }
      // As in accumulateInPlace: bounds the loads in flight.
      e.warpSync();
    }
  }
  for (Values &tile : acc) {
    for (Value &value : tile)
      value = e.fmul(value, unit.unit);
    scaleColumns(e, query, tile);
  }
  return flatten(acc);
}
