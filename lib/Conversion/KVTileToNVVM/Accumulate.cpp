//===- Accumulate.cpp - O^T = O^T alpha + V^T P^T
//--------------------------===//
//
// Values are operand A, transposed (rows are channels). P in C layout becomes B
// by movmatrix. Token scales are folded into P once per group of channels; the
// zero term is one more tile whose row r is channel group r, spread over the
// channels at the end of the work item. Products with codes go to a zeroed
// accumulator and are added in f32, which also gives back powers of two.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

Values Kernel::toB(Half half, ArrayRef<Value> p, Value f0, Value f1) {
  Value scaled[4];
  for (int64_t r = 0; r < 4; ++r) {
    Value factor = r < 2 ? f0 : f1;
    scaled[r] = factor ? e.fmul(p[r], factor) : p[r];
  }
  return {e.movmatrix(e.pack(half, scaled[0], scaled[1])),
          e.movmatrix(e.pack(half, scaled[2], scaled[3]))};
}

std::vector<Values> Kernel::allB(Half half, Values p) {
  std::vector<Values> b;
  for (int64_t k = 0; k < plan.tokenTiles(); ++k)
    b.push_back(
        toB(half, ArrayRef<Value>(p).slice(4 * k, 4), Value(), Value()));
  return b;
}

void Kernel::addTile(Values &out, int64_t tile, ArrayRef<Value> acc,
                     Values alpha, Value unit, double upper) {
  Value unitUpper = upper == 1 ? unit : e.fmul(unit, e.f32c(1.0 / upper));
  for (int64_t r = 0; r < 4; ++r) {
    Value &o = out[4 * tile + r];
    o = e.fma(acc[r], r < 2 ? unit : unitUpper, e.fmul(o, alpha[r % 2]));
  }
}

Values Kernel::accumulate(Values p, Values out, Values alpha) {
  Values result;
  if (stored.pageClass == tile::PageClass::Open)
    result = accumulateOpen(p, out, alpha);
  else if (plan.value == Product::Plain)
    result = accumulatePlain(p, out, alpha);
  else if (plan.value == Product::Folded)
    result = accumulateFolded(p, out, alpha);
  else
    result = accumulateInPlace(p, out, alpha);
  // Open tiles add nothing to the zero rows.
  if (plan.hasZeroRows() && stored.pageClass == tile::PageClass::Open)
    for (int64_t r = 0; r < 4; ++r) {
      Value &z = result[4 * plan.valueTiles() + r];
      z = e.fmul(z, alpha[r % 2]);
    }
  return result;
}

/// out * alpha of one tile, the start of a product's accumulator.
static Values rescaled(Emitter &e, const Values &out, int64_t tile,
                       const Values &alpha) {
  Values c;
  for (int64_t r = 0; r < 4; ++r)
    c.push_back(e.fmul(out[4 * tile + r], alpha[r % 2]));
  return c;
}

Values Kernel::accumulatePlain(Values p, Values out, Values alpha) {
  const TensorImage &value = plan.image.value;
  Half half = plan.sealedHalf(value);
  std::vector<Values> b = allB(half, p);
  for (const FragmentPiece &piece : fragmentPieces(value)) {
    int64_t tile = piece.firstTile;
    Values c = rescaled(e, out, tile, alpha);
    for (int64_t k = 0; k < plan.tokenTiles(); ++k)
      c = e.mma(half, loadPiece(value, Section::VCodes, piece, k), b[k], c);
    llvm::copy(c, out.begin() + 4 * tile);
  }
  return out;
}

Values Kernel::accumulateOpen(Values p, Values out, Values alpha) {
  int64_t dv = plan.spec.valueDim;
  int64_t values = plan.spec.format.page * plan.spec.headDim * 2;
  std::vector<Values> b = allB(plan.model, p);
  std::vector<Values> lanes; // addresses of rows g and g + 8
  for (int64_t k = 0; k < plan.tokenTiles(); ++k) {
    Values rows;
    for (int64_t half : {0, 1}) {
      // As in scoreOpen: nothing past the end is read.
      Value token = e.smin(tokenOf(k, half), e.addi(endVisible, -1));
      Value inPage = e.add(stored.tokenInPage, e.sub(token, stored.firstToken));
      Value offset = e.add(e.muli(inPage, dv * 2), e.shl(t, 2));
      rows.push_back(e.gep(e.gep(stored.record, e.sext64(offset)), values));
    }
    lanes.push_back(std::move(rows));
  }
  for (int64_t tile = 0; tile < plan.valueTiles(); ++tile) {
    Values c = rescaled(e, out, tile, alpha);
    for (int64_t k = 0; k < plan.tokenTiles(); ++k) {
      Value a[4];
      for (int64_t r = 0; r < 4; ++r)
        a[r] = e.movmatrix(
            e.load(e.i32, e.gep(lanes[k][r / 2], tile * 32 + r % 2 * 16), 4));
      c = e.mma(plan.model, a, b[k], c);
    }
    llvm::copy(c, out.begin() + 4 * tile);
  }
  return out;
}

//===----------------------------------------------------------------------===//
// Folded scales
//===----------------------------------------------------------------------===//

/// P of every 16-token tile, times the scales of channel group `group`.
std::vector<Values> Kernel::scaledB(Values p, int64_t group,
                                    const Exponents &exponents) {
  const TensorImage &value = plan.image.value;
  ScaleType type = value.encoding.scaleType;
  int64_t bytes = bytesOf(type);
  Value inverse = e.pow2(e.sub(e.i32c(0), exponents.valueScale));
  Value offset = e.muli(e.add(stored.tokenInPage, g), bytes);
  Value scales = e.gep(sectionAt(Section::VScales, offset),
                       group * plan.spec.format.page * bytes);
  std::vector<Values> b;
  for (int64_t k = 0; k < plan.tokenTiles(); ++k) {
    Value f[2];
    for (int64_t half : {0, 1})
      f[half] =
          e.fmul(loadScale(type, e.gep(scales, (k * kTile + half * 8) * bytes)),
                 inverse);
    b.push_back(toB(Half::F16, ArrayRef<Value>(p).slice(4 * k, 4), f[0], f[1]));
  }
  return b;
}

Values Kernel::zeroRows(Values p, Values rows, Values alpha,
                        const Exponents &exponents) {
  const TensorImage &value = plan.image.value;
  ScaleType type = value.encoding.scaleType;
  int64_t bytes = bytesOf(type), page = plan.spec.format.page;
  int64_t groups = plan.spec.valueDim / value.groupSize();
  Value inverse = e.pow2(e.sub(e.i32c(0), exponents.valueZero));
  std::vector<Values> b = allB(Half::F16, p);
  Values acc(4, e.f32c(0));
  for (int64_t k = 0; k < plan.tokenTiles(); ++k) {
    Value high[4], low[4];
    for (int64_t r = 0; r < 4; ++r) {
      if (r % 2 && groups <= 8) { // rows 8..15 are no groups
        high[r] = low[r] = e.i32c(0);
        continue;
      }
      Value row = e.addi(g, r % 2 * 8);
      Value inside = e.slt(row, e.i32c(groups));
      Value offset = e.muli(e.add(e.muli(e.smin(row, e.i32c(groups - 1)), page),
                                  e.add(stored.tokenInPage, e.shl(t, 1))),
                            bytes);
      Value pointer = e.gep(sectionAt(Section::VZeros, offset),
                            (k * kTile + r / 2 * 8) * bytes);
      if (type == ScaleType::F16) {
        high[r] = e.load(e.i32, pointer, 4);
      } else {
        auto [z0, z1] = loadPair(type, pointer);
        std::tie(high[r], low[r]) =
            splitPair(e.fmul(z0, inverse), e.fmul(z1, inverse));
        low[r] = e.select(inside, low[r], e.i32c(0));
      }
      high[r] = e.select(inside, high[r], e.i32c(0));
    }
    acc = e.mma(Half::F16, high, b[k], acc);
    if (type != ScaleType::F16)
      acc = e.mma(Half::F16, low, b[k], acc);
  }
  Value unit = type == ScaleType::F16 ? e.f32c(1) : e.pow2(exponents.valueZero);
  addTile(rows, 0, acc, alpha, unit, 1);
  return rows;
}

Values Kernel::accumulateFolded(Values p, Values out, Values alpha) {
  const TensorImage &value = plan.image.value;
  Exponents exponents = loadExponents();
  Value unit = e.fmul(e.pow2(exponents.valueScale), e.f32c(1.0 / codeUnit()));
  int64_t tilesPerGroup = value.groupSize() / kTile;
  int64_t wordsPerTile = value.wordsPerTile();
  std::vector<Values> b;
  for (const FragmentPiece &piece : fragmentPieces(value)) {
    std::vector<Values> words;
    for (int64_t k = 0; k < plan.tokenTiles(); ++k)
      words.push_back(loadPiece(value, Section::VCodes, piece, k));
    for (int64_t j = 0; j < piece.tiles; ++j) {
      int64_t tile = piece.firstTile + j;
      if (tile % tilesPerGroup == 0)
        b = scaledB(p, tile / tilesPerGroup, exponents);
      Values acc(4, e.f32c(0));
      for (int64_t k = 0; k < plan.tokenTiles(); ++k)
        acc = e.mma(Half::F16,
                    decode(value, ArrayRef<Value>(words[k]).slice(
                                      j * wordsPerTile, wordsPerTile)),
                    b[k], acc);
      addTile(out, tile, acc, alpha, unit, upperFactor(value));
    }
  }
  if (plan.hasZeroRows()) {
    int64_t at = 4 * plan.valueTiles();
    Values rows =
        zeroRows(p, Values(out.begin() + at, out.end()), alpha, exponents);
    llvm::copy(rows, out.begin() + at);
  }
  return out;
}

//===----------------------------------------------------------------------===//
// Groups that cut through a tile
//===----------------------------------------------------------------------===//

Values Kernel::accumulateInPlace(Values p, Values out, Values alpha) {
  const TensorImage &value = plan.image.value;
  int64_t bytes = bytesOf(value.encoding.scaleType);
  int64_t page = plan.spec.format.page, wordsPerTile = value.wordsPerTile();
  int64_t group = value.groupSize();
  Exponents exponents = loadExponents();
  InPlaceScale unit =
      inPlaceScale(value, exponents.valueScale, exponents.valueZero);
  std::vector<Values> b = allB(Half::F16, p);
  Value firstToken = e.add(stored.tokenInPage, e.shl(t, 1));
  for (const FragmentPiece &piece : fragmentPieces(value))
    for (int64_t j = 0; j < piece.tiles; ++j) {
      int64_t tile = piece.firstTile + j;
      // Groups that divide a tile lie a constant apart in each tile; the
      // offsets of the others are one division per tile and row.
      bool regular = kTile % group == 0;
      int64_t first = regular ? 0 : tile * kTile;
      int64_t apart = regular ? tile * kTile / group * page * bytes : 0;
      Value offsets[2];
      for (int64_t half : {0, 1})
        offsets[half] = e.muli(
            e.add(e.muli(e.udiv(e.addi(g, first + half * 8), group), page),
                  firstToken),
            bytes);
      Values acc(4, e.f32c(0));
      for (int64_t k = 0; k < plan.tokenTiles(); ++k) {
        Values words = loadPiece(value, Section::VCodes, piece, k);
        Values codes = decode(value, ArrayRef<Value>(words).slice(
                                         j * wordsPerTile, wordsPerTile));
        Value high[4], low[4];
        for (int64_t r = 0; r < 4; ++r) {
          int64_t at = (k * kTile + r / 2 * 8) * bytes + apart;
          Value scales = e.gep(sectionAt(Section::VScales, offsets[r % 2]), at);
          Value zeros =
              value.encoding.asymmetric
                  ? e.gep(sectionAt(Section::VZeros, offsets[r % 2]), at)
                  : Value();
          std::tie(high[r], low[r]) =
              decodePair(value, codes[r], r % 2 ? upperFactor(value) : 1.0,
                         unit, scales, zeros);
        }
        acc = e.mma(Half::F16, high, b[k], acc);
        acc = e.mma(Half::F16, low, b[k], acc);
      }
      addTile(out, tile, acc, alpha, unit.unit, 1);
      // Or ptxas issues the scales of all tiles at once and runs out of
      // registers.
      e.warpSync();
    }
  return out;
}
