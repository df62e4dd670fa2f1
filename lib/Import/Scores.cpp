// Matching, second half: from what the softmax is taken of to the product of
// queries and keys, through masks, biases, soft cap and scale.

#include "Match.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

using namespace mlir;
using namespace kvcache::import;

bool Matcher::matchScores(Cursor s, double factor) {
  Node node = read.resolveNumber(s);
  auto product = [&] {
    DotTerm term;
    term.scale = factor;
    return matchProduct(s, term);
  };
  if (node.kind == Kind::Reduce)
    return product();
  if (node.kind != Kind::Op)
    return refuse("the softmax is not taken of a product of queries and keys");
  if (isa<arith::MulFOp>(node.op)) {
    for (unsigned i : {0u, 1u})
      if (auto number = read.number(node.operands[i]))
        return matchScores(node.operands[1 - i], factor * *number);
    return product();
  }
  if (isa<arith::DivFOp>(node.op)) {
    if (auto number = read.number(node.operands[1]); number && *number != 0)
      return matchScores(node.operands[0], factor / *number);
    return product();
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
  bool left = holdsProduct(sum.operands[0]),
       right = holdsProduct(sum.operands[1]);
  if (left && right) {
    DotTerm term;
    term.scale = factor;
    return matchProductSum(sum, term);
  }
  if (match.softcap != 0)
    return refuse("something is added to the scores inside the soft cap");
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
void Matcher::peelScale(Cursor &cursor, double &scale) {
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
          scale *= *number;
          cursor = node.operands[1 - i];
          found = true;
        }
      if (!found)
        return;
    } else if (auto number = isa<arith::DivFOp>(node.op)
                                 ? read.number(node.operands[1])
                                 : std::nullopt;
               number && *number != 0) {
      scale /= *number;
      cursor = node.operands[0];
    } else {
      return;
    }
  }
}

/// q1.k1 + q2.k2 is one product over the channels of both.
bool Matcher::matchProductSum(const Node &sum, const DotTerm &term) {
  auto refuseMore = [&] {
    return refuse("the scores are a sum of more than two products");
  };
  if (match.second)
    return refuseMore();
  DotTerm right = term;
  if (isa<arith::SubFOp>(sum.op))
    right.scale = -right.scale;
  if (!matchProduct(sum.operands[1], right))
    return false;
  if (match.second)
    return refuseMore();
  match.second = match.dot;
  return matchProduct(sum.operands[0], term);
}

/// Nothing but factors between the product and what is masked.
bool Matcher::matchProduct(Cursor s, DotTerm term) {
  Node node = read.resolveNumber(s);
  if (node.kind == Kind::Reduce)
    return matchDot(node, term);
  if (node.kind != Kind::Op)
    return refuse("the softmax is not taken of a product of queries and keys");
  if (isa<arith::NegFOp>(node.op)) {
    term.scale = -term.scale;
    return matchProduct(node.operands[0], term);
  }
  if (isa<arith::AddFOp, arith::SubFOp>(node.op)) {
    if (holdsProduct(node.operands[0]) && holdsProduct(node.operands[1]))
      return matchProductSum(node, term);
    return refuse("the scores are multiplied after something was added");
  }
  if (isa<arith::MulFOp, arith::DivFOp>(node.op)) {
    bool divides = isa<arith::DivFOp>(node.op);
    for (unsigned i : {1u, 0u}) {
      if (divides && i == 0)
        break;
      Cursor other = node.operands[i];
      if (!holdsProduct(node.operands[1 - i]) || holdsProduct(other))
        continue;
      if (auto number = read.number(other); number && *number != 0)
        term.scale = divides ? term.scale / *number : term.scale * *number;
      else
        term.factors.push_back({other, divides});
      return matchProduct(node.operands[1 - i], term);
    }
  }
  return refuse("the scores go through '" + node.op->getName().getStringRef() +
                "' before they are multiplied");
}

bool Matcher::matchDot(const Node &dot, DotTerm term) {
  Cursor a, b;
  if (!isContraction(dot, a, b, term.depthAt))
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
  for (const ScoreFactor &factor : term.factors)
    if (usesKeys(factor.value))
      return refuse("the scores are multiplied by something that differs "
                    "between keys");
  term.q = first ? b : a;
  term.k = first ? a : b;
  term.op = dot.cursor.value.getDefiningOp();
  peelScale(term.q, term.scale);
  peelScale(term.k, term.scale);
  if (!std::isfinite(term.scale))
    return refuse("the scale is not finite");
  match.dot = term;
  return true;
}
