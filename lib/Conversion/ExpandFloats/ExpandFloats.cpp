//===- ExpandFloats.cpp - Expanding narrow floats -------------------------===//
//
// Everything goes through f32. Widening places the exponent and mantissa bits
// in an f32 and multiplies by a power of two, which makes subnormals right
// without a branch. Narrowing rounds normal numbers by an integer add and
// subnormal ones, whose step is fixed, by a scaled round-to-even.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/ExpandFloats/ExpandFloats.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

#include <cmath>

namespace kvcache {
#define GEN_PASS_DEF_KVCACHEEXPANDFLOATSPASS
#include "kvcache/Conversion/ExpandFloats/Passes.h.inc"
} // namespace kvcache

using namespace mlir;
using namespace kvcache;

/// `like` with its element replaced.
static Type cloneElement(Type like, Type element) {
  if (auto shaped = dyn_cast<ShapedType>(like))
    return shaped.clone(element);
  return element;
}

namespace {
/// Short names for the integer arithmetic below, elementwise on shaped types.
struct Bits {
  ImplicitLocOpBuilder &b;
  Type like;

  Type i32() { return cloneElement(like, b.getI32Type()); }
  Type f32() { return cloneElement(like, b.getF32Type()); }
  Value constant(TypedAttr scalar) {
    Type type = cloneElement(like, scalar.getType());
    if (auto shaped = dyn_cast<ShapedType>(type))
      return arith::ConstantOp::create(
          b, SplatElementsAttr::get(shaped, Attribute(scalar)));
    return arith::ConstantOp::create(b, scalar);
  }
  Value i(uint32_t v) { return constant(b.getI32IntegerAttr(v)); }
  Value f(float v) { return constant(b.getF32FloatAttr(v)); }
  Value add(Value x, Value y) { return arith::AddIOp::create(b, x, y); }
  Value sub(Value x, Value y) { return arith::SubIOp::create(b, x, y); }
  Value mask(Value x, uint32_t m) { return arith::AndIOp::create(b, x, i(m)); }
  Value orI(Value x, Value y) { return arith::OrIOp::create(b, x, y); }
  Value shl(Value x, unsigned n) { return arith::ShLIOp::create(b, x, i(n)); }
  Value shr(Value x, unsigned n) { return arith::ShRUIOp::create(b, x, i(n)); }
  Value cmp(arith::CmpIPredicate p, Value x, Value y) {
    return arith::CmpIOp::create(b, p, x, y);
  }
  Value select(Value c, Value x, Value y) {
    return arith::SelectOp::create(b, c, x, y);
  }
  Value toInt(Value x) { return arith::BitcastOp::create(b, i32(), x); }
  Value toFloat(Value x) { return arith::BitcastOp::create(b, f32(), x); }
  Value trunc(Value x, unsigned bits) {
    return arith::TruncIOp::create(
        b, cloneElement(like, b.getIntegerType(bits)), x);
  }
  /// Adds half of the last kept place (ties to even) below `drop` bits.
  Value roundUp(Value x, unsigned drop) {
    Value odd = mask(shr(x, drop), 1);
    return add(add(x, i((1u << (drop - 1)) - 1)), odd);
  }
};

/// Shape of an fp8 type.
struct Fp8 {
  unsigned mantissa;
  int bias;
  uint32_t infinite; ///< smallest magnitude that is no number
  uint32_t overflow; ///< what too large a value becomes
};
} // namespace

static bool isFp8(Type type) {
  return isa<Float8E4M3FNType, Float8E5M2Type>(type);
}
static Fp8 shapeOf(FloatType type) {
  if (isa<Float8E4M3FNType>(type))
    return {3, 7, 0x7f, 0x7f};
  return {2, 15, 0x7c, 0x7c};
}

Value kvcache::expandExtFromFp8(ImplicitLocOpBuilder &b, Value bits,
                                FloatType type) {
  Bits k{b, bits.getType()};
  Fp8 fp8 = shapeOf(type);
  Value wide = arith::ExtUIOp::create(b, k.i32(), bits);
  Value magnitude = k.mask(wide, 0x7f);
  Value placed = k.shl(magnitude, 23 - fp8.mantissa);
  Value scaled = arith::MulFOp::create(b, k.toFloat(placed),
                                       k.f(std::ldexp(1.0f, 127 - fp8.bias)));
  // Infinity and NaN: all exponent bits, and the mantissa when it has one.
  Value special = isa<Float8E4M3FNType>(type) ? k.i(0x7fc00000)
                                              : k.orI(placed, k.i(0x7f800000));
  Value result =
      k.select(k.cmp(arith::CmpIPredicate::uge, magnitude, k.i(fp8.infinite)),
               special, k.toInt(scaled));
  Value sign = k.shl(k.mask(wide, 0x80), 24);
  return k.toFloat(k.orI(result, sign));
}

Value kvcache::expandTruncToFp8(ImplicitLocOpBuilder &b, Value f32,
                                FloatType type) {
  Bits k{b, f32.getType()};
  Fp8 fp8 = shapeOf(type);
  unsigned drop = 23 - fp8.mantissa;
  Value bits = k.toInt(f32);
  Value magnitude = k.mask(bits, 0x7fffffff);
  // Normal numbers: round, then rebias the exponent. Overflow is judged after
  // rounding; what wraps around is subnormal and replaced below.
  Value normal = k.sub(k.shr(k.roundUp(magnitude, drop), drop),
                       k.i((127 - fp8.bias) << fp8.mantissa));
  Value code =
      k.select(k.cmp(arith::CmpIPredicate::ugt, normal, k.i(fp8.infinite - 1)),
               k.i(fp8.overflow), normal);
  // Subnormal numbers are multiples of 2^(1 - bias - mantissa).
  int step = 1 - fp8.bias - static_cast<int>(fp8.mantissa);
  Value smallest = k.i(static_cast<uint32_t>(128 - fp8.bias) << 23);
  Value isSmall = k.cmp(arith::CmpIPredicate::ult, magnitude, smallest);
  Value small = k.select(isSmall, k.toFloat(magnitude), k.f(0));
  Value steps = math::RoundEvenOp::create(
      b, arith::MulFOp::create(b, small, k.f(std::ldexp(1.0f, -step))));
  code = k.select(isSmall, arith::FPToUIOp::create(b, k.i32(), steps), code);
  Value isNaN = k.cmp(arith::CmpIPredicate::ugt, magnitude, k.i(0x7f800000));
  code = k.select(isNaN, k.i(0x7f), code);
  return k.trunc(k.orI(code, k.mask(k.shr(bits, 24), 0x80)), 8);
}

Value kvcache::expandTruncToBF16(ImplicitLocOpBuilder &b, Value f32) {
  Bits k{b, f32.getType()};
  Value bits = k.toInt(f32);
  Value isNaN = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, f32, f32);
  // A NaN keeps its sign and gets a quiet payload, whatever bits are dropped.
  Value quiet = k.orI(k.shr(bits, 16), k.i(0x40));
  Value rounded = k.shr(k.roundUp(bits, 16), 16);
  Value half = k.trunc(k.select(isNaN, quiet, rounded), 16);
  return arith::BitcastOp::create(
      b, cloneElement(f32.getType(), b.getBF16Type()), half);
}

/// f64 -> f32 rounded to odd: a later rounding to fewer bits is then exact.
static Value truncToOdd(ImplicitLocOpBuilder &b, Value f64) {
  Bits k{b, f64.getType()};
  Value near = arith::TruncFOp::create(b, k.f32(), f64);
  Value back = arith::ExtFOp::create(b, f64.getType(), near);
  Value exact = arith::CmpFOp::create(b, arith::CmpFPredicate::UEQ, back, f64);
  Value tooLarge = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT,
                                         math::AbsFOp::create(b, back),
                                         math::AbsFOp::create(b, f64));
  Value bits = k.toInt(near);
  Value toZero = k.select(tooLarge, k.sub(bits, k.i(1)), bits);
  return k.toFloat(k.select(exact, bits, k.orI(toZero, k.i(1))));
}

/// Any float narrower or wider than f32 -> f32; fp8 by expansion.
static Value toF32(ImplicitLocOpBuilder &b, Value x) {
  Type element = getElementTypeOrSelf(x.getType());
  Type f32 = cloneElement(x.getType(), b.getF32Type());
  if (element.isF32())
    return x;
  if (element.isF64())
    return truncToOdd(b, x);
  if (element.isBF16()) {
    Bits k{b, x.getType()};
    Value half = arith::BitcastOp::create(
        b, cloneElement(x.getType(), b.getI16Type()), x);
    return k.toFloat(k.shl(arith::ExtUIOp::create(b, k.i32(), half), 16));
  }
  if (!isFp8(element))
    return arith::ExtFOp::create(b, f32, x);
  Value bits =
      arith::BitcastOp::create(b, cloneElement(x.getType(), b.getI8Type()), x);
  return expandExtFromFp8(b, bits, cast<FloatType>(element));
}

/// f32 -> `type`, fp8 and bf16 by expansion.
static Value fromF32(ImplicitLocOpBuilder &b, Value x, Type type) {
  Type element = getElementTypeOrSelf(type);
  if (element.isF32())
    return x;
  if (element.isF64())
    return arith::ExtFOp::create(b, type, x);
  if (element.isBF16())
    return expandTruncToBF16(b, x);
  if (!isFp8(element))
    return arith::TruncFOp::create(b, type, x);
  return arith::BitcastOp::create(
      b, type, expandTruncToFp8(b, x, cast<FloatType>(element)));
}

namespace {
/// arith.extf and arith.truncf between floats.
template <typename OpTy>
struct ExpandFloatCast : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    Type from = getElementTypeOrSelf(op.getIn().getType());
    Type to = getElementTypeOrSelf(op.getType());
    // Both directions of bf16: LLVM narrows arithmetic around a widening it
    // sees, and then needs the narrowing that is missing.
    if (!isFp8(from) && !isFp8(to) && !from.isBF16() && !to.isBF16())
      return rewriter.notifyMatchFailure(op, "LLVM does this conversion");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    rewriter.replaceOp(op, fromF32(b, toF32(b, op.getIn()), op.getType()));
    return success();
  }
};

/// Integers to fp8 and bf16. Through f64, so that 32-bit integers round once.
template <typename OpTy>
struct ExpandIntToFloat : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    Type to = getElementTypeOrSelf(op.getType());
    if (!isFp8(to) && !to.isBF16())
      return rewriter.notifyMatchFailure(op, "LLVM does this conversion");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Type f64 = cloneElement(op.getType(), b.getF64Type());
    Value wide = OpTy::create(b, f64, op.getIn());
    rewriter.replaceOp(op, fromF32(b, toF32(b, wide), op.getType()));
    return success();
  }
};

/// fp8 and bf16 to integers.
template <typename OpTy>
struct ExpandFloatToInt : OpRewritePattern<OpTy> {
  using OpRewritePattern<OpTy>::OpRewritePattern;

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    Type from = getElementTypeOrSelf(op.getIn().getType());
    if (!isFp8(from) && !from.isBF16())
      return rewriter.notifyMatchFailure(op, "LLVM does this conversion");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    rewriter.replaceOpWithNewOp<OpTy>(op, op.getType(), toF32(b, op.getIn()));
    return success();
  }
};

struct ExpandFloats : kvcache::impl::KVCacheExpandFloatsPassBase<ExpandFloats> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateExpandFloatsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void kvcache::populateExpandFloatsPatterns(RewritePatternSet &patterns) {
  patterns
      .add<ExpandFloatCast<arith::ExtFOp>, ExpandFloatCast<arith::TruncFOp>,
           ExpandIntToFloat<arith::SIToFPOp>, ExpandIntToFloat<arith::UIToFPOp>,
           ExpandFloatToInt<arith::FPToSIOp>,
           ExpandFloatToInt<arith::FPToUIOp>>(patterns.getContext());
}
