// Matching, second half: from what the softmax is taken of to the product of
// queries and keys, through masks, biases, soft cap and scale.

#include "Match.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

using namespace mlir;
using namespace kvcache::import;

/// Fills at least this low leave no weight beside any ordinary score.
static constexpr double kNegligible = -9900.0; // bf16 has 9984 for 1e4

bool Matcher::matchScores(Cursor s, double factor) {
  Node node = read.resolveNumber(s);
  if (node.kind == Kind::Reduce)
    return matchDot(node, factor);
  if (node.kind != Kind::Op)
    return refuse("the softmax is not taken of a product of queries and keys");
  if (isa<arith::MulFOp>(node.op)) {
    for (unsigned i : {0u, 1u})
      if (auto number = read.number(node.operands[i]))
        return matchScores(node.operands[1 - i], factor * *number);
    return refuse("the scores are multiplied by something that is not one "
                  "constant");
  }
  if (isa<arith::DivFOp>(node.op)) {
    if (auto number = read.number(node.operands[1]); number && *number != 0)
      return matchScores(node.operands[0], factor / *number);
    return refuse("the scores are divided by something that is not one "
                  "constant");
  }
  if (isa<arith::NegFOp>(node.op))
    return matchScores(node.operands[0], -factor);
  if (isa<math::TanhOp>(node.op)) {
    if (match.softcap != 0 || factor <= 0)
      return refuse("the scores go through tanh in a way that is no soft cap");
    match.softcap = factor;
    return matchScores(node.operands[0], factor);
  }
  if (isa<arith::AddFOp, arith::SubFOp>(node.op))
    return matchSum(node, factor);
  if (isa<arith::SelectOp>(node.op))
    return matchSelect(node, factor);
  return refuse("the scores go through '" + node.op->getName().getStringRef() +
                "'");
}

bool Matcher::matchSum(const Node &sum, double factor) {
  if (match.softcap != 0)
    return refuse("something is added to the scores inside the soft cap");
  bool left = holdsProduct(sum.operands[0]),
       right = holdsProduct(sum.operands[1]);
  if (left && right)
    return refuse("the scores are a sum of two products");
  if (!left && !right)
    return refuse("the softmax is not taken of a product of queries and keys");
  double sign = isa<arith::SubFOp>(sum.op) ? -1 : 1;
  Type type = sum.op->getResult(0).getType();
  if (left) {
    match.biases.push_back({sum.operands[1], sign * factor, type});
    return matchScores(sum.operands[0], factor);
  }
  match.biases.push_back({sum.operands[0], factor, type});
  return matchScores(sum.operands[1], sign * factor);
}

bool Matcher::matchSelect(const Node &select, double factor) {
  if (match.softcap != 0)
    return refuse("the scores are masked inside the soft cap");
  if (holdsProduct(select.operands[0]))
    return refuse("the mask is computed from the scores");
  for (unsigned i : {1u, 2u}) {
    auto fill = read.number(select.operands[i]);
    if (!fill)
      continue;
    double value = *fill * factor;
    if (!(value <= kNegligible))
      return refuse("masked scores are filled with " + std::to_string(value) +
                    ", which still has weight");
    match.masks.push_back({select.operands[0], i == 2, value,
                           match.biases.size(),
                           select.op->getResult(0).getType()});
    return matchScores(select.operands[i == 2 ? 1 : 2], factor);
  }
  return refuse("masked scores are not filled with one number");
}

/// Constant factors of an operand in f32 belong to the scale.
void Matcher::peelScale(Cursor &cursor) {
  while (true) {
    cursor = read.peel(cursor);
    Node node = read.resolve(cursor);
    if (node.kind != Kind::Op)
      return;
    if (isa<arith::ExtFOp>(node.op)) {
      cursor = node.operands[0];
      continue;
    }
    if (!node.op->getResult(0).getType().isF32())
      return;
    if (isa<arith::MulFOp>(node.op)) {
      bool found = false;
      for (unsigned i : {0u, 1u})
        if (auto number = read.number(node.operands[i]); !found && number) {
          match.scale *= *number;
          cursor = node.operands[1 - i];
          found = true;
        }
      if (!found)
        return;
    } else if (auto number = isa<arith::DivFOp>(node.op)
                                 ? read.number(node.operands[1])
                                 : std::nullopt;
               number && *number != 0) {
      match.scale /= *number;
      cursor = node.operands[0];
    } else {
      return;
    }
  }
}

bool Matcher::matchDot(const Node &dot, double factor) {
  Cursor a, b;
  if (!isContraction(dot, a, b, match.depthAt))
    return refuse("the softmax is not taken of a product of queries and keys");
  SmallVector<VarId> keys;
  for (const Idx &idx : match.keyAt)
    space.collectDigits(idx, keys);
  auto usesKeys = [&](Cursor cursor) {
    SmallVector<VarId> digits;
    read.dependence(cursor, digits);
    return llvm::any_of(digits,
                        [&](VarId d) { return llvm::is_contained(keys, d); });
  };
  bool first = usesKeys(a), second = usesKeys(b);
  if (first == second)
    return refuse(first ? "both factors of the scores depend on the key"
                        : "the scores do not depend on the key");
  match.q = first ? b : a;
  match.k = first ? a : b;
  match.scale *= factor;
  match.scoresDot = dot.cursor.value.getDefiningOp();
  peelScale(match.q);
  peelScale(match.k);
  if (!std::isfinite(match.scale))
    return refuse("the scale is not finite");
  return true;
}
