// Scalar meaning of the elementwise ops of stablehlo and chlo.

#include "Lowering.h"

#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::stablehlo;

static Value constantLike(ImplicitLocOpBuilder &b, Type type, double value) {
  if (isa<FloatType>(type))
    return arith::ConstantOp::create(b, b.getFloatAttr(type, value));
  return arith::ConstantOp::create(
      b, b.getIntegerAttr(type, static_cast<int64_t>(value)));
}

/// Conversion of a float to an integer as XLA has it: towards zero, saturating,
/// NaN to 0.
static Value floatToInt(ImplicitLocOpBuilder &b, Value x, IntegerType type,
                        bool isUnsigned) {
  auto from = cast<FloatType>(x.getType());
  unsigned width = type.getWidth();
  // The limits rounded towards zero to the source type: no overflow below.
  llvm::APFloat low(from.getFloatSemantics()), high(from.getFloatSemantics());
  APInt min =
      isUnsigned ? APInt::getZero(width) : APInt::getSignedMinValue(width);
  APInt max =
      isUnsigned ? APInt::getMaxValue(width) : APInt::getSignedMaxValue(width);
  low.convertFromAPInt(min, !isUnsigned, llvm::APFloat::rmTowardZero);
  high.convertFromAPInt(max, !isUnsigned, llvm::APFloat::rmTowardZero);
  if (high.isInfinity())
    high = llvm::APFloat::getLargest(from.getFloatSemantics());
  if (low.isInfinity())
    low = llvm::APFloat::getLargest(from.getFloatSemantics(), true);
  auto limit = [&](const llvm::APFloat &value) -> Value {
    return arith::ConstantOp::create(b, FloatAttr::get(from, value));
  };
  Value clamped = arith::MinNumFOp::create(
      b, arith::MaxNumFOp::create(b, x, limit(low)), limit(high));
  Value number = arith::CmpFOp::create(b, arith::CmpFPredicate::ORD, x, x);
  Value safe =
      arith::SelectOp::create(b, number, clamped, constantLike(b, from, 0));
  Value truncated;
  if (isUnsigned)
    truncated = arith::FPToUIOp::create(b, type, safe);
  else
    truncated = arith::FPToSIOp::create(b, type, safe);
  // Rounding the limits towards zero loses their last units; give them back.
  Value over =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, x, limit(high));
  return arith::SelectOp::create(
      b, over, arith::ConstantOp::create(b, IntegerAttr::get(type, max)),
      truncated);
}

static Value emitConvert(ImplicitLocOpBuilder &b, Value x, Type to,
                         bool unsignedIn, bool unsignedOut) {
  Type from = x.getType();
  if (from == to)
    return x;
  bool fromFloat = isa<FloatType>(from), toFloat = isa<FloatType>(to);
  if (to.isInteger(1)) {
    if (fromFloat)
      return arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, x,
                                   constantLike(b, from, 0));
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, x,
                                 constantLike(b, from, 0));
  }
  if (fromFloat && toFloat) {
    unsigned a = from.getIntOrFloatBitWidth(), c = to.getIntOrFloatBitWidth();
    if (a < c)
      return arith::ExtFOp::create(b, to, x);
    if (a > c)
      return arith::TruncFOp::create(b, to, x);
    // f16 and bf16, or two kinds of f8: through f32, which holds both.
    Value wide = arith::ExtFOp::create(b, b.getF32Type(), x);
    return arith::TruncFOp::create(b, to, wide);
  }
  if (fromFloat)
    return floatToInt(b, x, cast<IntegerType>(to), unsignedOut);
  bool zeroExtend = unsignedIn || from.isInteger(1);
  if (toFloat) {
    if (zeroExtend)
      return arith::UIToFPOp::create(b, to, x);
    return arith::SIToFPOp::create(b, to, x);
  }
  if (from.getIntOrFloatBitWidth() > to.getIntOrFloatBitWidth())
    return arith::TruncIOp::create(b, to, x);
  if (zeroExtend)
    return arith::ExtUIOp::create(b, to, x);
  return arith::ExtSIOp::create(b, to, x);
}

static Value emitCompare(ImplicitLocOpBuilder &b, CompareOp op, Value x,
                         Value y) {
  ComparisonDirection d = op.getComparisonDirection();
  if (isa<FloatType>(x.getType())) {
    static const arith::CmpFPredicate table[] = {
        arith::CmpFPredicate::OEQ, arith::CmpFPredicate::UNE,
        arith::CmpFPredicate::OGE, arith::CmpFPredicate::OGT,
        arith::CmpFPredicate::OLE, arith::CmpFPredicate::OLT};
    return arith::CmpFOp::create(b, table[static_cast<int>(d)], x, y);
  }
  static const arith::CmpIPredicate signedTable[] = {
      arith::CmpIPredicate::eq,  arith::CmpIPredicate::ne,
      arith::CmpIPredicate::sge, arith::CmpIPredicate::sgt,
      arith::CmpIPredicate::sle, arith::CmpIPredicate::slt};
  static const arith::CmpIPredicate unsignedTable[] = {
      arith::CmpIPredicate::eq,  arith::CmpIPredicate::ne,
      arith::CmpIPredicate::uge, arith::CmpIPredicate::ugt,
      arith::CmpIPredicate::ule, arith::CmpIPredicate::ult};
  bool isUnsigned = op->hasAttr(kUnsignedIn) || x.getType().isInteger(1) ||
                    op.getCompareType() == ComparisonType::UNSIGNED;
  return arith::CmpIOp::create(
      b, (isUnsigned ? unsignedTable : signedTable)[static_cast<int>(d)], x, y);
}

template <typename F, typename I>
static Value floatOrInt(ImplicitLocOpBuilder &b, ValueRange args) {
  if (isa<FloatType>(args[0].getType()))
    return F::create(b, args[0], args[1]);
  return I::create(b, args[0], args[1]);
}

/// Shifts by the width or more, which arith leaves undefined.
template <typename Op>
static Value emitShift(ImplicitLocOpBuilder &b, ValueRange args) {
  Type type = args[0].getType();
  Value width = constantLike(b, type, type.getIntOrFloatBitWidth());
  Value inside =
      arith::CmpIOp::create(b, arith::CmpIPredicate::ult, args[1], width);
  bool arithmetic = std::is_same_v<Op, arith::ShRSIOp>;
  Value most = constantLike(b, type, type.getIntOrFloatBitWidth() - 1);
  Value amount = arith::SelectOp::create(b, inside, args[1], most);
  Value shifted = Op::create(b, args[0], amount);
  if (arithmetic)
    return shifted;
  return arith::SelectOp::create(b, inside, shifted, constantLike(b, type, 0));
}

static Value emitSign(ImplicitLocOpBuilder &b, Value x) {
  Type type = x.getType();
  if (isa<FloatType>(type)) {
    // NaN and both zeros keep their value.
    Value one = math::CopySignOp::create(b, constantLike(b, type, 1), x);
    Value nonzero = arith::CmpFOp::create(b, arith::CmpFPredicate::ONE, x,
                                          constantLike(b, type, 0));
    return arith::SelectOp::create(b, nonzero, one, x);
  }
  Value zero = constantLike(b, type, 0);
  Value positive = arith::CmpIOp::create(b, arith::CmpIPredicate::sgt, x, zero);
  Value negative = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, x, zero);
  return arith::SelectOp::create(
      b, positive, constantLike(b, type, 1),
      arith::SelectOp::create(b, negative, constantLike(b, type, -1), zero));
}

static Value emitBinary(ImplicitLocOpBuilder &b, Operation *op,
                        ValueRange args) {
  Type type = args[0].getType();
  bool isBool = type.isInteger(1), isFloat = isa<FloatType>(type);
  bool isUnsigned = op->hasAttr(kUnsignedIn) || isBool;
  auto pick = [&](auto signedOp, auto unsignedOp) -> Value {
    if (isUnsigned)
      return decltype(unsignedOp)::create(b, args[0], args[1]);
    return decltype(signedOp)::create(b, args[0], args[1]);
  };
  return TypeSwitch<Operation *, Value>(op)
      .Case([&](AddOp) -> Value {
        if (isBool)
          return arith::OrIOp::create(b, args[0], args[1]);
        return floatOrInt<arith::AddFOp, arith::AddIOp>(b, args);
      })
      .Case([&](MulOp) -> Value {
        if (isBool)
          return arith::AndIOp::create(b, args[0], args[1]);
        return floatOrInt<arith::MulFOp, arith::MulIOp>(b, args);
      })
      .Case([&](SubOp) {
        return floatOrInt<arith::SubFOp, arith::SubIOp>(b, args);
      })
      .Case([&](DivOp) -> Value {
        if (isFloat)
          return arith::DivFOp::create(b, args[0], args[1]);
        return pick(arith::DivSIOp(), arith::DivUIOp());
      })
      .Case([&](RemOp) -> Value {
        if (isFloat)
          return arith::RemFOp::create(b, args[0], args[1]);
        return pick(arith::RemSIOp(), arith::RemUIOp());
      })
      .Case([&](MaxOp) -> Value {
        if (isFloat)
          return arith::MaximumFOp::create(b, args[0], args[1]);
        return pick(arith::MaxSIOp(), arith::MaxUIOp());
      })
      .Case([&](MinOp) -> Value {
        if (isFloat)
          return arith::MinimumFOp::create(b, args[0], args[1]);
        return pick(arith::MinSIOp(), arith::MinUIOp());
      })
      .Case([&](PowOp) {
        return floatOrInt<math::PowFOp, math::IPowIOp>(b, args);
      })
      .Case([&](Atan2Op) { return math::Atan2Op::create(b, args[0], args[1]); })
      .Case([&](AndOp) { return arith::AndIOp::create(b, args[0], args[1]); })
      .Case([&](OrOp) { return arith::OrIOp::create(b, args[0], args[1]); })
      .Case([&](XorOp) { return arith::XOrIOp::create(b, args[0], args[1]); })
      .Case([&](ShlOp) { return emitShift<arith::ShLIOp>(b, args); })
      .Case([&](ShrAOp) { return emitShift<arith::ShRSIOp>(b, args); })
      .Case([&](ShrLOp) { return emitShift<arith::ShRUIOp>(b, args); })
      .Default(Value());
}

static Value emitSpecialFloat(ImplicitLocOpBuilder &b, Operation *op, Value x) {
  Type type = x.getType();
  auto infinity = [&](bool negative) -> Value {
    return arith::ConstantOp::create(
        b, FloatAttr::get(
               type, llvm::APFloat::getInf(
                         cast<FloatType>(type).getFloatSemantics(), negative)));
  };
  auto equals = [&](Value y) -> Value {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, x, y);
  };
  Value one;
  if (isa<LogisticOp>(op)) {
    one = constantLike(b, type, 1);
    Value e = math::ExpOp::create(b, arith::NegFOp::create(b, x));
    return arith::DivFOp::create(b, one, arith::AddFOp::create(b, one, e));
  }
  if (isa<IsFiniteOp>(op))
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OLT,
                                 math::AbsFOp::create(b, x), infinity(false));
  if (isa<chlo::IsInfOp>(op)) {
    x = math::AbsFOp::create(b, x);
    return equals(infinity(false));
  }
  if (isa<chlo::IsPosInfOp>(op))
    return equals(infinity(false));
  if (isa<chlo::IsNegInfOp>(op))
    return equals(infinity(true));
  return {};
}

static Value emitUnary(ImplicitLocOpBuilder &b, Operation *op, Value x) {
  bool isFloat = isa<FloatType>(x.getType());
  if (isFloat)
    if (Value special = emitSpecialFloat(b, op, x))
      return special;
  return TypeSwitch<Operation *, Value>(op)
      .Case([&](AbsOp) -> Value {
        if (isFloat)
          return math::AbsFOp::create(b, x);
        return op->hasAttr(kUnsignedIn) ? x : math::AbsIOp::create(b, x);
      })
      .Case([&](NegOp) -> Value {
        if (isFloat)
          return arith::NegFOp::create(b, x);
        return arith::SubIOp::create(b, constantLike(b, x.getType(), 0), x);
      })
      .Case([&](NotOp) {
        return arith::XOrIOp::create(b, x, constantLike(b, x.getType(), -1));
      })
      .Case([&](SignOp) { return emitSign(b, x); })
      .Case([&](PopcntOp) { return math::CtPopOp::create(b, x); })
      .Case([&](CbrtOp) { return math::CbrtOp::create(b, x); })
      .Case([&](CeilOp) { return math::CeilOp::create(b, x); })
      .Case([&](FloorOp) { return math::FloorOp::create(b, x); })
      .Case([&](RoundAfzOp) { return math::RoundOp::create(b, x); })
      .Case([&](RoundEvenOp) { return math::RoundEvenOp::create(b, x); })
      .Case([&](CosineOp) { return math::CosOp::create(b, x); })
      .Case([&](SineOp) { return math::SinOp::create(b, x); })
      .Case([&](TanOp) { return math::TanOp::create(b, x); })
      .Case([&](TanhOp) { return math::TanhOp::create(b, x); })
      .Case([&](ExpOp) { return math::ExpOp::create(b, x); })
      .Case([&](Expm1Op) { return math::ExpM1Op::create(b, x); })
      .Case([&](LogOp) { return math::LogOp::create(b, x); })
      .Case([&](Log1pOp) { return math::Log1pOp::create(b, x); })
      .Case([&](SqrtOp) { return math::SqrtOp::create(b, x); })
      .Case([&](RsqrtOp) { return math::RsqrtOp::create(b, x); })
      .Case([&](chlo::ErfOp) { return math::ErfOp::create(b, x); })
      .Case([&](chlo::ErfcOp) { return math::ErfcOp::create(b, x); })
      .Case([&](chlo::SinhOp) { return math::SinhOp::create(b, x); })
      .Case([&](chlo::CoshOp) { return math::CoshOp::create(b, x); })
      .Case([&](chlo::SquareOp) {
        return floatOrInt<arith::MulFOp, arith::MulIOp>(b, {x, x});
      })
      .Default(Value());
}

/// Rounding to e.g. e5m10 through the float type of that format.
static Value emitReducePrecision(ImplicitLocOpBuilder &b, ReducePrecisionOp op,
                                 Value x) {
  Type type;
  if (op.getExponentBits() == 5 && op.getMantissaBits() == 10)
    type = b.getF16Type();
  else if (op.getExponentBits() == 8 && op.getMantissaBits() == 7)
    type = b.getBF16Type();
  else if (op.getExponentBits() == 8 && op.getMantissaBits() == 23)
    type = b.getF32Type();
  else
    return {};
  if (type.getIntOrFloatBitWidth() >= x.getType().getIntOrFloatBitWidth())
    return x;
  Value narrow = arith::TruncFOp::create(b, type, x);
  return arith::ExtFOp::create(b, x.getType(), narrow);
}

bool kvcache::stablehlo::isElementwise(Operation *op) {
  if (isa<SelectOp, ClampOp, BitcastConvertOp>(op))
    return true;
  return op->getNumRegions() == 0 && op->getNumResults() == 1 &&
         op->getNumOperands() > 0 &&
         op->hasTrait<OpTrait::SameOperandsAndResultShape>() &&
         (isa<StableHLODialect, chlo::CHLODialect>(op->getDialect()));
}

Value kvcache::stablehlo::emitScalar(ImplicitLocOpBuilder &b, Operation *op,
                                     ValueRange args, Type resultElement) {
  if (isa<SelectOp>(op))
    return arith::SelectOp::create(b, args[0], args[1], args[2]);
  if (isa<ClampOp>(op)) {
    if (isa<FloatType>(args[1].getType()))
      return arith::MinimumFOp::create(
          b, arith::MaximumFOp::create(b, args[1], args[0]), args[2]);
    if (op->hasAttr(kUnsignedIn))
      return arith::MinUIOp::create(
          b, arith::MaxUIOp::create(b, args[1], args[0]), args[2]);
    return arith::MinSIOp::create(
        b, arith::MaxSIOp::create(b, args[1], args[0]), args[2]);
  }
  if (isa<BitcastConvertOp>(op))
    return args[0].getType() == resultElement
               ? args[0]
               : arith::BitcastOp::create(b, resultElement, args[0]).getOut();
  if (isa<ConvertOp>(op))
    return emitConvert(b, args[0], resultElement, op->hasAttr(kUnsignedIn),
                       op->hasAttr(kUnsignedOut));
  if (auto compare = dyn_cast<CompareOp>(op))
    return emitCompare(b, compare, args[0], args[1]);
  if (auto reduce = dyn_cast<ReducePrecisionOp>(op))
    return emitReducePrecision(b, reduce, args[0]);
  return args.size() == 2 ? emitBinary(b, op, args) : emitUnary(b, op, args[0]);
}

FailureOr<Values>
kvcache::stablehlo::inlineScalarRegion(ImplicitLocOpBuilder &b, Region &region,
                                       ValueRange args) {
  IRMapping map;
  Block &block = region.front();
  map.map(block.getArguments(), args);
  for (Operation &op : block.without_terminator()) {
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      auto dense = dyn_cast<DenseElementsAttr>(constant.getValue());
      if (!dense || !dense.isSplat())
        return failure();
      map.map(op.getResult(0),
              arith::ConstantOp::create(
                  b, cast<TypedAttr>(dense.getSplatValue<Attribute>())));
      continue;
    }
    if (!isElementwise(&op)) {
      op.emitError("'") << op.getName()
                        << "' is not supported inside a scalar computation";
      return failure();
    }
    Values operands;
    for (Value operand : op.getOperands()) {
      Value mapped = map.lookupOrNull(operand);
      if (!mapped)
        mapped = scalarOf(b, operand);
      operands.push_back(mapped);
    }
    Value scalar = emitScalar(b, &op, operands,
                              getElementTypeOrSelf(op.getResult(0).getType()));
    if (!scalar) {
      op.emitError("'") << op.getName() << "' on " << op.getOperand(0).getType()
                        << " is not supported";
      return failure();
    }
    map.map(op.getResult(0), scalar);
  }
  Values results;
  for (Value operand : block.getTerminator()->getOperands()) {
    Value mapped = map.lookupOrNull(operand);
    results.push_back(mapped ? mapped : scalarOf(b, operand));
  }
  return results;
}
