//===- Codes.cpp - Sealed records to A fragments --------------------------===//
//
// A record's codes lie in fragment order (kvcache/Format/Image.h): a lane's
// load of up to 16 bytes brings the A registers of one or more 16x16 tiles.
// Codes become f16 in one of two forms, a choice of the schedule:
//
//   subnormal  the bits of the code are the f16: n * 2^-24, exact, no further
//              instruction; the factor is given back in f32
//   offset     0x6400 | n is 1024 + n; 1024 is subtracted, exactly
//
// Symmetric codes are stored with a bias, which the same subtraction removes.
// In i4 the upper rows' nibbles stay at bits 4..7: codes times 16.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

/// The f16 bits of a small non-negative integer times 2^-24 (a subnormal or,
/// from 1024 on, the first normal binade: the encodings are consecutive).
static int64_t subnormalBits(int64_t n) { return n; }
/// The f16 bits of an integer in [1024, 4096).
static int64_t largeBits(int64_t n) {
  return n < 2048 ? 0x6400 + (n - 1024) : 0x6800 + (n - 2048) / 2;
}
static int64_t both(int64_t half) { return half << 16 | half; }

Kernel::Exponents Kernel::loadExponents() {
  Values words = e.loadWords(
      e.gep(stored.record, plan.image.offset(Section::Exponents)), 4);
  return {words[0], words[1], words[2], words[3]};
}

Value Kernel::sectionAt(Section section, Value byteOffset) {
  return e.gep(e.gep(stored.record, e.sext64(byteOffset)),
               plan.image.offset(section));
}

Values Kernel::loadPiece(const TensorImage &side, Section section,
                         const FragmentPiece &piece, int64_t block) {
  // tokenInPage is a multiple of 16.
  Value offset = e.add(e.muli(stored.tokenInPage, side.blockBytes() / kTile),
                       e.muli(lane, piece.laneBytes));
  Value pointer = e.gep(sectionAt(section, offset),
                        block * side.blockBytes() + piece.offset);
  return e.loadWords(pointer, piece.laneBytes / 4);
}

Values Kernel::decode(const TensorImage &side, ArrayRef<Value> words) {
  if (side.bits() == 16)
    return Values(words.begin(), words.end());
  Values a;
  Value large = e.i32c(plan.subnormal() ? 0 : 0x64646464);
  if (side.bits() == 8) {
    for (Value word : words)
      for (int64_t selector : {0x4140, 0x4342})
        a.push_back(e.prmt(word, large, selector));
  } else {
    Value upper = e.lshr(words[0], 8);
    for (Value word : {words[0], upper})
      for (int64_t mask : {0x000f000f, 0x00f000f0}) {
        Value code = e.bitAnd(word, e.i32c(mask));
        a.push_back(plan.subnormal() ? code
                                     : e.bitOr(code, e.i32c(0x64006400)));
      }
  }
  int64_t bias = side.codeBias(), base = plan.subnormal() ? 0 : 1024;
  if (bias == 0 && base == 0)
    return a;
  for (auto [i, code] : llvm::enumerate(a)) {
    int64_t factor = i % 2 ? int64_t(upperFactor(side)) : 1;
    int64_t n = base + bias * factor;
    code = e.hsub(
        code, e.i32c(both(plan.subnormal() ? subnormalBits(n) : largeBits(n))));
  }
  return a;
}

std::pair<Value, Value> Kernel::loadPair(ScaleType type, Value pointer) {
  if (type == ScaleType::F32) {
    Values words = e.loadWords(pointer, 2);
    return {e.toFloat(words[0]), e.toFloat(words[1])};
  }
  return e.unpack(type == ScaleType::BF16 ? Half::BF16 : Half::F16,
                  e.load(e.i32, pointer, 4));
}

Value Kernel::loadScale(ScaleType type, Value pointer) {
  if (type == ScaleType::F32)
    return e.load(e.f32, pointer, 4);
  return e.extend(type == ScaleType::BF16 ? Half::BF16 : Half::F16,
                  e.load(e.i16, pointer, 2));
}

std::pair<Value, Value> Kernel::splitPair(Value x0, Value x1) {
  Value high = e.pack(Half::F16, x0, x1);
  auto [h0, h1] = e.unpack(Half::F16, high);
  return {high, e.pack(Half::F16, e.fsub(x0, h0), e.fsub(x1, h1))};
}

Kernel::InPlaceScale Kernel::inPlaceScale(const TensorImage &side, Value scale,
                                          Value zero) {
  // |code * s| < 2^(bits + es + 1) and |z| < 2^(ez + 1): their sum is below
  // 2^(E + 1) with E one more than the larger exponent.
  Value exponent = e.addi(scale, side.bits() + 1);
  if (side.encoding.asymmetric)
    exponent = e.smax(exponent, e.addi(zero, 1));
  // Not below -100: 2^24 (the code unit) over 2^E must be finite.
  exponent = e.smin(e.smax(exponent, e.i32c(-100)), e.i32c(126));
  return {exponent, e.pow2(e.sub(e.i32c(0), exponent)), e.pow2(exponent)};
}

std::pair<Value, Value> Kernel::decodePair(const TensorImage &side, Value codes,
                                           double factor,
                                           const InPlaceScale &unit,
                                           Value scales, Value zeros) {
  ScaleType type = side.encoding.scaleType;
  auto [c0, c1] = e.unpack(Half::F16, codes);
  auto [s0, s1] = loadPair(type, scales);
  Value toUnit = e.fmul(unit.inverse, e.f32c(1.0 / (codeUnit() * factor)));
  Value x0, x1;
  s0 = e.fmul(s0, toUnit);
  s1 = e.fmul(s1, toUnit);
  if (side.encoding.asymmetric) {
    auto [z0, z1] = loadPair(type, zeros);
    x0 = e.fma(c0, s0, e.fmul(z0, unit.inverse));
    x1 = e.fma(c1, s1, e.fmul(z1, unit.inverse));
  } else {
    x0 = e.fmul(c0, s0);
    x1 = e.fmul(c1, s1);
  }
  return splitPair(x0, x1);
}
