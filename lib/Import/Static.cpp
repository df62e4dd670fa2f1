// Evaluating masks and biases that depend on positions alone. Values are kept
// as doubles, which hold every integer and f32 that occurs in them.

#include "Static.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

using namespace mlir;
using namespace kvcache::import;

/// Largest constant tensor that is read element by element.
static constexpr int64_t kMaxElements = 1 << 22;

static double elementValue(Attribute attr) {
  if (auto number = dyn_cast<FloatAttr>(attr))
    return number.getValueAsDouble();
  auto integer = cast<IntegerAttr>(attr);
  return integer.getType().isInteger(1)
             ? static_cast<double>(integer.getValue().getZExtValue())
             : static_cast<double>(integer.getValue().getSExtValue());
}

static bool isEvaluated(Operation *op) {
  return isa<arith::AddFOp, arith::AddIOp, arith::SubFOp, arith::SubIOp,
             arith::MulFOp, arith::MulIOp, arith::DivFOp, arith::DivSIOp,
             arith::FloorDivSIOp, arith::RemSIOp, arith::NegFOp, arith::AndIOp,
             arith::OrIOp, arith::XOrIOp, arith::SelectOp, arith::CmpIOp,
             arith::CmpFOp, arith::ExtUIOp, arith::ExtSIOp, arith::ExtFOp,
             arith::TruncFOp, arith::TruncIOp, arith::SIToFPOp, arith::UIToFPOp,
             arith::FPToSIOp, arith::IndexCastOp, arith::MaxSIOp,
             arith::MinSIOp, arith::MaximumFOp, arith::MinimumFOp,
             arith::MaxNumFOp, arith::MinNumFOp, math::AbsFOp, math::AbsIOp,
             math::FloorOp, math::CeilOp, math::CopySignOp>(op);
}

int Tape::add(Cursor cursor, unsigned depth) {
  if (depth == 0 || steps.size() > 500)
    return -1;
  Node node = read.resolve(cursor);
  Step step;
  step.kind = node.kind;
  switch (node.kind) {
  case Kind::Constant:
    if (auto dense = dyn_cast<DenseElementsAttr>(node.constant)) {
      if (dense.getNumElements() > kMaxElements ||
          !dense.getElementType().isIntOrIndexOrFloat())
        return -1;
      for (Attribute element : dense.getValues<Attribute>())
        step.elements.push_back(elementValue(element));
      for (auto [size, idx] :
           llvm::zip(dense.getType().getShape(), node.cursor.at))
        step.position = space.add(space.affine(step.position, size), idx);
      step.position = space.resolve(step.position);
    } else if (isa<FloatAttr, IntegerAttr>(node.constant)) {
      step.constant = elementValue(node.constant);
    } else {
      return -1;
    }
    break;
  case Kind::Position:
    step.position = space.resolve(node.position);
    break;
  case Kind::Op:
    if (!isEvaluated(node.op) || node.operands.size() > 3)
      return -1;
    step.op = node.op;
    for (auto [i, operand] : llvm::enumerate(node.operands)) {
      step.operands[i] = add(operand, depth - 1);
      if (step.operands[i] < 0)
        return -1;
    }
    break;
  default:
    return -1;
  }
  steps.push_back(std::move(step));
  return steps.size() - 1;
}

bool Tape::compile(Cursor cursor) {
  steps.clear();
  bool compiled = add(cursor, 64) >= 0;
  // Later steps may have divided variables of earlier ones.
  for (Step &step : steps)
    step.position = space.resolve(step.position);
  return compiled;
}

int64_t Tape::place(const Idx &idx, ArrayRef<VarId> loops,
                    ArrayRef<int64_t> values) const {
  int64_t result = idx.offset;
  for (const Term &term : idx.terms)
    for (auto [loop, value] : llvm::zip(loops, values))
      if (loop == term.var)
        result += value * term.stride;
  return result;
}

static bool compareFloats(arith::CmpFPredicate p, double x, double y) {
  using P = arith::CmpFPredicate;
  bool nan = std::isnan(x) || std::isnan(y);
  switch (p) {
  case P::OEQ:
    return x == y;
  case P::ONE:
    return !nan && x != y;
  case P::UNE:
    return x != y;
  case P::OGT:
    return x > y;
  case P::OGE:
    return x >= y;
  case P::OLT:
    return x < y;
  case P::OLE:
    return x <= y;
  case P::ORD:
    return !nan;
  case P::UNO:
    return nan;
  case P::UEQ:
    return nan || x == y;
  case P::UGT:
    return nan || x > y;
  case P::UGE:
    return nan || x >= y;
  case P::ULT:
    return nan || x < y;
  case P::ULE:
    return nan || x <= y;
  case P::AlwaysTrue:
    return true;
  case P::AlwaysFalse:
    return false;
  }
  return false;
}

static bool compareInts(arith::CmpIPredicate p, double x, double y) {
  using P = arith::CmpIPredicate;
  // Unsigned comparisons see negative numbers as large ones.
  auto u = [](double v) {
    return static_cast<uint64_t>(static_cast<int64_t>(v));
  };
  switch (p) {
  case P::eq:
    return x == y;
  case P::ne:
    return x != y;
  case P::slt:
    return x < y;
  case P::sle:
    return x <= y;
  case P::sgt:
    return x > y;
  case P::sge:
    return x >= y;
  case P::ult:
    return u(x) < u(y);
  case P::ule:
    return u(x) <= u(y);
  case P::ugt:
    return u(x) > u(y);
  case P::uge:
    return u(x) >= u(y);
  }
  return false;
}

static double apply(Operation *op, double x, double y, double z) {
  auto i = [](double v) { return static_cast<int64_t>(v); };
  if (isa<arith::AddFOp, arith::AddIOp>(op))
    return x + y;
  if (isa<arith::SubFOp, arith::SubIOp>(op))
    return x - y;
  if (isa<arith::MulFOp, arith::MulIOp>(op))
    return x * y;
  if (isa<arith::DivFOp>(op))
    return x / y;
  if (isa<arith::DivSIOp>(op))
    return i(y) == 0 ? 0 : static_cast<double>(i(x) / i(y));
  if (isa<arith::FloorDivSIOp>(op))
    return std::floor(x / y);
  if (isa<arith::RemSIOp>(op))
    return i(y) == 0 ? 0 : static_cast<double>(i(x) % i(y));
  if (isa<arith::NegFOp>(op))
    return -x;
  if (isa<arith::AndIOp>(op))
    return static_cast<double>(i(x) & i(y));
  if (isa<arith::OrIOp>(op))
    return static_cast<double>(i(x) | i(y));
  if (isa<arith::XOrIOp>(op))
    return static_cast<double>(i(x) ^ i(y));
  if (isa<arith::SelectOp>(op))
    return x != 0 ? y : z;
  if (auto compare = dyn_cast<arith::CmpIOp>(op))
    return compareInts(compare.getPredicate(), x, y);
  if (auto compare = dyn_cast<arith::CmpFOp>(op))
    return compareFloats(compare.getPredicate(), x, y);
  if (isa<arith::MaxSIOp, arith::MaximumFOp, arith::MaxNumFOp>(op))
    return std::max(x, y);
  if (isa<arith::MinSIOp, arith::MinimumFOp, arith::MinNumFOp>(op))
    return std::min(x, y);
  if (isa<math::AbsFOp, math::AbsIOp>(op))
    return std::fabs(x);
  if (isa<math::FloorOp>(op))
    return std::floor(x);
  if (isa<math::CeilOp>(op))
    return std::ceil(x);
  if (isa<math::CopySignOp>(op))
    return std::copysign(x, y);
  if (isa<arith::FPToSIOp>(op))
    return std::trunc(x);
  if (auto trunc = dyn_cast<arith::TruncIOp>(op)) {
    unsigned width = trunc.getType().getIntOrFloatBitWidth();
    if (width == 1)
      return static_cast<double>(i(x) & 1);
    return static_cast<double>(i(x) << (64 - width) >> (64 - width));
  }
  if (isa<arith::ExtSIOp>(op) && op->getOperand(0).getType().isInteger(1))
    return -x;
  return x; // other conversions keep the number
}

double Tape::evaluate(ArrayRef<VarId> loops, ArrayRef<int64_t> values) {
  results.resize(steps.size());
  for (auto [n, step] : llvm::enumerate(steps)) {
    switch (step.kind) {
    case Kind::Constant:
      results[n] = step.elements.empty()
                       ? step.constant
                       : step.elements[place(step.position, loops, values)];
      break;
    case Kind::Position:
      results[n] = static_cast<double>(place(step.position, loops, values));
      break;
    default: {
      double value =
          apply(step.op, results[step.operands[0]], results[step.operands[1]],
                results[step.operands[2]]);
      Type type = step.op->getResult(0).getType();
      results[n] = type.isF32() ? static_cast<float>(value) : value;
    }
    }
  }
  return results.back();
}

//===----------------------------------------------------------------------===//
// Ranges
//===----------------------------------------------------------------------===//

/// Ops that grow (or fall) with each operand while the others stay.
static bool isMonotone(Operation *op, bool otherIsPoint, double other) {
  if (isa<arith::AddFOp, arith::AddIOp, arith::SubFOp, arith::SubIOp,
          arith::NegFOp, arith::MaxSIOp, arith::MaximumFOp, arith::MaxNumFOp,
          arith::MinSIOp, arith::MinimumFOp, arith::MinNumFOp, arith::SIToFPOp,
          arith::IndexCastOp, arith::ExtFOp, arith::ExtSIOp, arith::TruncFOp,
          math::FloorOp, math::CeilOp>(op))
    return true;
  if (isa<arith::MulFOp, arith::MulIOp>(op))
    return otherIsPoint;
  return isa<arith::DivSIOp, arith::FloorDivSIOp>(op) && otherIsPoint &&
         other > 0;
}

static bool isComparison(Operation *op) {
  using P = arith::CmpIPredicate;
  if (auto compare = dyn_cast<arith::CmpIOp>(op))
    return llvm::is_contained({P::slt, P::sle, P::sgt, P::sge},
                              compare.getPredicate());
  using F = arith::CmpFPredicate;
  auto compare = dyn_cast<arith::CmpFOp>(op);
  return compare && llvm::is_contained({F::OLT, F::OLE, F::OGT, F::OGE, F::ULT,
                                        F::ULE, F::UGT, F::UGE},
                                       compare.getPredicate());
}

Tape::Range Tape::rangeOf(const Range *known, Operation *op,
                          const int *operands) const {
  unsigned count = op->getNumOperands();
  const Range &x = known[operands[0]];
  const Range &y = count > 1 ? known[operands[1]] : x;
  const Range &z = count > 2 ? known[operands[2]] : x;
  bool isF32 = op->getResult(0).getType().isF32();
  auto at = [&](double a, double b, double c) {
    double value = apply(op, a, b, c);
    return isF32 ? static_cast<double>(static_cast<float>(value)) : value;
  };
  auto among = [](std::initializer_list<double> values) {
    Range range{*values.begin(), *values.begin(), true};
    for (double v : values) {
      range.low = std::min(range.low, v);
      range.high = std::max(range.high, v);
      range.known &= !std::isnan(v);
    }
    return range;
  };
  if (isa<arith::SelectOp>(op)) {
    if (x.isPoint())
      return x.low != 0 ? y : z;
    return y.known && z.known ? among({y.low, y.high, z.low, z.high}) : Range();
  }
  // One false operand decides a conjunction, a true one a disjunction.
  if (op->getResult(0).getType().isInteger(1)) {
    for (const Range *side : {&x, &y})
      if (side->isPoint() && ((isa<arith::AndIOp>(op) && side->low == 0) ||
                              (isa<arith::OrIOp>(op) && side->low == 1)))
        return *side;
  }
  if (!x.known || !y.known || !z.known)
    return {};
  if (x.isPoint() && y.isPoint() && z.isPoint())
    return among({at(x.low, y.low, z.low)});
  if (count > 2)
    return {};
  // Both depend on the ends alone.
  if (isComparison(op) || isMonotone(op, y.isPoint(), y.low) ||
      (isa<arith::MulFOp, arith::MulIOp>(op) && x.isPoint()))
    return among({at(x.low, y.low, 0), at(x.low, y.high, 0),
                  at(x.high, y.low, 0), at(x.high, y.high, 0)});
  return {};
}

std::optional<double> Tape::evaluateRange(ArrayRef<VarId> loops,
                                          ArrayRef<int64_t> values, int64_t low,
                                          int64_t high) {
  SmallVector<int64_t> first(values), last(values);
  first.back() = low;
  last.back() = high - 1;
  ranges.assign(steps.size(), {});
  for (auto [n, step] : llvm::enumerate(steps)) {
    double a = 0, b = 0;
    switch (step.kind) {
    case Kind::Constant:
    case Kind::Position:
      if (step.kind == Kind::Constant && step.elements.empty()) {
        a = b = step.constant;
      } else {
        a = static_cast<double>(place(step.position, loops, first));
        b = static_cast<double>(place(step.position, loops, last));
        if (step.kind == Kind::Constant && a != b)
          continue; // different elements
        if (step.kind == Kind::Constant)
          a = b = step.elements[static_cast<size_t>(a)];
      }
      ranges[n] = {std::min(a, b), std::max(a, b),
                   !std::isnan(a) && !std::isnan(b)};
      break;
    default:
      ranges[n] = rangeOf(ranges.data(), step.op, step.operands);
    }
  }
  return ranges.back().isPoint() ? std::optional(ranges.back().low)
                                 : std::nullopt;
}
