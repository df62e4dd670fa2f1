// Matching, first half: from the product with the values back to what the
// softmax is taken of. Spellings: a quotient, a reciprocal, a deferred quotient
// after the product, exp(x - logsumexp); the row maximum behind maximum(-inf,
// ..), is_finite guards or sink logits.

#include "Match.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

using namespace mlir;
using namespace kvcache::import;

bool Matcher::refuse(const llvm::Twine &why) {
  if (reason.empty())
    reason = why.str();
  return false;
}

Cursor Matcher::strip(Cursor cursor) {
  cursor = read.peel(cursor);
  Node node = read.resolve(cursor);
  while (node.kind == Kind::Op &&
         isa<arith::ExtFOp, arith::TruncFOp>(node.op)) {
    cursor = read.peel(node.operands[0]);
    node = read.resolve(cursor);
  }
  return cursor;
}

bool Matcher::isContraction(const Node &node, Cursor &a, Cursor &b, Idxs &at) {
  if (node.kind != Kind::Reduce || !isa<arith::AddFOp>(node.op))
    return false;
  at.clear();
  for (int64_t size : node.sizes)
    at.push_back(space.newIdx(size));
  Node element = read.resolveNumber(read.element(node, at));
  if (element.kind != Kind::Op || !isa<arith::MulFOp>(element.op) ||
      element.operands[0].frame == nullptr)
    return false;
  // The product must be the reduction's own, not one computed before it.
  if (element.op->getBlock() != node.op->getBlock())
    return false;
  a = element.operands[0];
  b = element.operands[1];
  return true;
}

void Matcher::inspect(Cursor cursor, Contents &contents) {
  if (contents.budget == 0)
    return;
  --contents.budget;
  Node node = read.resolve(cursor);
  if (node.kind == Kind::Reduce) {
    Cursor a, b;
    Idxs at;
    if (isContraction(node, a, b, at))
      contents.product = true;
    else
      contents.reduction = true;
    return;
  }
  if (node.kind != Kind::Op)
    return;
  contents.exp |= isa<math::ExpOp, math::Exp2Op>(node.op);
  for (const Cursor &operand : node.operands)
    inspect(operand, contents);
}

bool Matcher::holdsProduct(Cursor cursor) {
  Contents contents;
  inspect(cursor, contents);
  return contents.product;
}

/// The divisor when the expression is 1 / x.
static std::optional<Cursor> reciprocal(Reader &read, Cursor cursor) {
  Node node = read.resolveNumber(cursor);
  if (node.kind == Kind::Op && isa<arith::DivFOp>(node.op) &&
      read.number(node.operands[0]) == 1.0)
    return node.operands[1];
  return std::nullopt;
}

bool Matcher::run(Value root, bool &isCandidate) {
  match = Match();
  match.root = root;
  // A result without elements takes nothing to compute.
  auto type = cast<RankedTensorType>(root.getType());
  if (type.hasStaticShape() && type.getNumElements() == 0)
    return false;
  Cursor start = read.fresh(root);
  match.rootAt = start.at;
  Node node = read.resolve(start);
  if (node.kind == Kind::Reduce)
    return node.cursor.value == root && matchRoot(node, {}, isCandidate);
  if (node.kind != Kind::Op)
    return false;
  // A quotient after the product.
  auto tryDeferred = [&](Cursor product, Cursor divisor) {
    Node dot = read.resolveNumber(product);
    return dot.kind == Kind::Reduce && matchRoot(dot, divisor, isCandidate);
  };
  if (isa<arith::DivFOp>(node.op))
    return tryDeferred(node.operands[0], node.operands[1]);
  if (isa<arith::MulFOp>(node.op))
    for (unsigned i : {0u, 1u})
      if (auto divisor = reciprocal(read, node.operands[i]))
        return tryDeferred(node.operands[1 - i], *divisor);
  return false;
}

bool Matcher::matchRoot(const Node &dot, Cursor divisor, bool &isCandidate) {
  Cursor a, b;
  if (!isContraction(dot, a, b, match.keyAt))
    return false;
  for (auto [p, v] : {std::pair(a, b), std::pair(b, a)}) {
    Contents contents;
    inspect(p, contents);
    if (divisor)
      inspect(divisor, contents);
    if (!contents.exp || !contents.reduction)
      continue;
    // A deferred quotient is another root's; the plain product is its own.
    isCandidate = true;
    match.v = read.peel(v);
    while (true) {
      Node value = read.resolve(match.v);
      if (value.kind != Kind::Op || !isa<arith::ExtFOp>(value.op))
        break;
      match.v = read.peel(value.operands[0]);
    }
    match.probabilities = read.peel(p);
    if (!matchProbability(p, divisor))
      return false;
    peelShift();
    return matchScores(match.scores, 1) && checkOuterSelects() &&
           checkRounding();
  }
  return false;
}

/// A softmax of scores from which the row's maximum was subtracted already is
/// the softmax of those scores, the sink shifted alike.
void Matcher::peelShift() {
  Node node = read.resolveNumber(match.scores);
  if (node.kind != Kind::Op || !isa<arith::SubFOp>(node.op))
    return;
  Cursor scores = match.scores, sink = match.sink;
  match.scores = strip(node.operands[0]);
  match.sink = {};
  bool shifted = matchRowMax(node.operands[1]);
  reason.clear();
  if (shifted && sink) {
    Node moved = read.resolveNumber(sink);
    shifted = match.sink && moved.kind == Kind::Op &&
              isa<arith::SubFOp>(moved.op) &&
              read.same(strip(moved.operands[0]), match.sink) &&
              read.same(strip(moved.operands[1]), strip(node.operands[1]));
  } else if (match.sink) {
    shifted = false;
  }
  if (shifted)
    return;
  match.scores = scores;
  match.sink = sink;
}

/// Past where(isnan(p), 0, p). The whole of nan_to_num is left alone: a graph
/// that has it expects numbers that are none.
Cursor Matcher::peelNaNs(Cursor p) {
  Node node = read.resolveNumber(p);
  if (node.kind != Kind::Op || !isa<arith::SelectOp>(node.op) ||
      read.number(node.operands[1]) != 0.0)
    return p;
  Node compare = read.resolve(node.operands[0]);
  auto op = compare.kind == Kind::Op ? dyn_cast<arith::CmpFOp>(compare.op)
                                     : arith::CmpFOp();
  using P = arith::CmpFPredicate;
  if (!op || (op.getPredicate() != P::UNO && op.getPredicate() != P::UNE))
    return p;
  for (unsigned i : {0u, 1u})
    if (!read.same(strip(compare.operands[i]), strip(node.operands[2])))
      return p;
  match.zeroNaNs = true;
  return node.operands[2];
}

bool Matcher::matchProbability(Cursor p, Cursor divisor) {
  while (true) {
    p = peelNaNs(p);
    Node node = read.resolveNumber(p);
    if (node.kind != Kind::Op || !isa<arith::SelectOp>(node.op))
      break;
    // Zero under a condition: allowed only where it repeats a mask or guards
    // rows without keys, which is checked once the masks are known.
    bool zeroIfTrue = read.number(node.operands[1]) == 0.0;
    bool zeroIfFalse = read.number(node.operands[2]) == 0.0;
    if (zeroIfTrue == zeroIfFalse)
      return refuse("the probabilities are replaced under a condition after "
                    "the softmax");
    outer.push_back({node.operands[0], zeroIfTrue});
    p = node.operands[zeroIfTrue ? 2 : 1];
  }
  return matchQuotient(p, divisor);
}

bool Matcher::matchQuotient(Cursor p, Cursor divisor) {
  if (divisor)
    return matchNumerator(p) && matchRowSum(divisor, p);
  Node node = read.resolveNumber(p);
  if (node.kind == Kind::Op && isa<arith::DivFOp>(node.op))
    return matchNumerator(node.operands[0]) &&
           matchRowSum(node.operands[1], node.operands[0]);
  if (node.kind == Kind::Op && isa<arith::MulFOp>(node.op)) {
    for (unsigned i : {0u, 1u})
      if (auto sum = reciprocal(read, node.operands[i]))
        return matchNumerator(node.operands[1 - i]) &&
               matchRowSum(*sum, node.operands[1 - i]);
    return refuse("the probabilities are multiplied after the softmax "
                  "(dropout, a mask or scales)");
  }
  if (node.kind == Kind::Op && isa<math::ExpOp>(node.op))
    return matchLogSumExp(node);
  if (node.kind == Kind::Op)
    return refuse("the probabilities come from '" +
                  node.op->getName().getStringRef() +
                  "', not from a normalised exponential");
  return refuse("the probabilities are not a normalised exponential");
}

bool Matcher::isDifference(Cursor cursor, Cursor &a, Cursor &b) {
  Node node = read.resolveNumber(cursor);
  if (node.kind != Kind::Op)
    return false;
  if (isa<arith::SubFOp>(node.op)) {
    a = node.operands[0];
    b = node.operands[1];
    return true;
  }
  if (isa<arith::NegFOp>(node.op))
    return isDifference(node.operands[0], b, a);
  if (!isa<arith::AddFOp>(node.op))
    return false;
  for (unsigned i : {1u, 0u}) {
    Node negated = read.resolveNumber(node.operands[i]);
    if (negated.kind != Kind::Op || !isa<arith::NegFOp>(negated.op))
      continue;
    a = node.operands[1 - i];
    b = negated.operands[0];
    return true;
  }
  return false;
}

/// Whether `term` is exp(scores - shift).
bool Matcher::isShiftedExp(Cursor term, Cursor scores, Cursor shift) {
  Node exp = read.resolveNumber(term);
  Cursor a, b;
  return exp.kind == Kind::Op && isa<math::ExpOp>(exp.op) &&
         isDifference(exp.operands[0], a, b) &&
         read.same(strip(a), strip(scores)) &&
         read.same(strip(b), strip(shift));
}

/// log(sum over the keys of exp(match.scores - rowMax)).
bool Matcher::matchLogOfSum(Cursor cursor) {
  Node log = read.resolveNumber(cursor);
  if (log.kind != Kind::Op || !isa<math::LogOp>(log.op))
    return false;
  Cursor sum = log.operands[0];
  Node abs = read.resolveNumber(sum);
  if (abs.kind == Kind::Op && isa<math::AbsFOp>(abs.op))
    sum = abs.operands[0]; // of a sum of exponentials
  Node reduce = read.resolveNumber(sum);
  match.sink = {};
  if (reduce.kind != Kind::Reduce || !isa<arith::AddFOp>(reduce.op) ||
      read.number(read.initial(reduce)) != 0.0 || !matchRowMax(rowMax))
    return false;
  auto isNumerator = [&](Cursor term) {
    return isShiftedExp(term, match.scores, rowMax);
  };
  Cursor extra;
  if (!rowElement(reduce, isNumerator, extra))
    return false;
  return extra ? match.sink && matchSinkTerm(extra) : !match.sink;
}

/// exp(x - (log(sum(exp(x - m))) + m)), or exp((x - m) - log(sum(exp(x - m)))).
bool Matcher::matchLogSumExp(const Node &exp) {
  Cursor x, lse, shifted, shift;
  if (!isDifference(exp.operands[0], x, lse))
    return refuse("no division by the row's sum");
  Node sum = read.resolveNumber(lse);
  if (sum.kind == Kind::Op && isa<arith::AddFOp>(sum.op))
    for (unsigned i : {0u, 1u}) {
      match.scores = strip(x);
      rowMax = sum.operands[1 - i];
      if (matchLogOfSum(sum.operands[i]))
        return true;
    }
  if (isDifference(x, shifted, shift)) {
    match.scores = strip(shifted);
    rowMax = shift;
    if (matchLogOfSum(lse))
      return true;
  }
  reason.clear();
  return refuse("no division by the row's sum");
}

bool Matcher::matchNumerator(Cursor e) {
  Node node = read.resolveNumber(e);
  if (node.kind == Kind::Op && isa<arith::SelectOp>(node.op) &&
      read.number(node.operands[2]) == 0.0) {
    inner.push_back({node.operands[0], false});
    node = read.resolveNumber(node.operands[1]);
  }
  if (node.kind != Kind::Op || !isa<math::ExpOp>(node.op))
    return refuse("the numerator is not an exponential");
  Cursor scores, shift;
  if (!isDifference(node.operands[0], scores, shift))
    return refuse("no row maximum is subtracted before the exponential");
  match.scores = strip(scores);
  rowMax = shift;
  return matchRowMax(rowMax);
}

/// Whether the reduction runs over the keys of `accept`ed elements, or over
/// those and one more, which is then `extra`.
bool Matcher::rowElement(const Node &reduce,
                         llvm::function_ref<bool(Cursor)> accept,
                         Cursor &extra) {
  if (reduce.sizes.size() != match.keyAt.size())
    return false;
  bool equal = true;
  for (auto [size, idx] : llvm::zip(reduce.sizes, match.keyAt))
    equal &= space.range(idx).second + 1 == size;
  if (equal)
    return accept(read.element(reduce, match.keyAt));
  if (reduce.sizes.size() != 1)
    return false;
  int64_t keys = space.range(match.keyAt[0]).second + 1;
  if (reduce.sizes[0] != keys + 1)
    return false;
  for (int64_t offset : {0, 1}) {
    Idx at = space.affine(match.keyAt[0], 1, offset);
    if (!accept(read.element(reduce, at)))
      continue;
    extra = read.element(reduce, Idx::constant(offset == 0 ? keys : 0));
    return true;
  }
  return false;
}

bool Matcher::matchRowMax(Cursor max, unsigned depth) {
  auto fail = [&] {
    return refuse("the number subtracted is not the row's maximum");
  };
  Node node = read.resolveNumber(max);
  if (depth == 0)
    return fail();
  if (node.kind == Kind::Reduce &&
      isa<arith::MaximumFOp, arith::MaxNumFOp>(node.op)) {
    Cursor extra;
    auto isScore = [&](Cursor x) { return read.same(strip(x), match.scores); };
    if (!rowElement(node, isScore, extra))
      return fail();
    if (extra)
      match.sink = strip(extra);
    auto initial = read.number(read.initial(node));
    return (initial && *initial <= -6e4) || fail();
  }
  if (node.kind != Kind::Op)
    return fail();
  if (isa<arith::MaximumFOp, arith::MaxNumFOp>(node.op)) {
    for (unsigned i : {0u, 1u}) {
      auto low = read.number(node.operands[i]);
      if (low && *low <= -6e4)
        return matchRowMax(node.operands[1 - i], depth - 1);
    }
    for (unsigned i : {0u, 1u}) {
      Contents contents;
      inspect(node.operands[i], contents);
      if (contents.reduction) {
        match.sink = strip(node.operands[1 - i]);
        return matchRowMax(node.operands[i], depth - 1);
      }
    }
    return fail();
  }
  // is_finite(max) ? max : 0, or is_inf(max) ? 0 : max.
  if (isa<arith::SelectOp>(node.op))
    for (unsigned zero : {1u, 2u})
      if (Cursor kept = node.operands[3 - zero];
          read.number(node.operands[zero]) == 0.0 &&
          isInfinityTest(node.operands[0], kept, zero == 1))
        return matchRowMax(kept, depth - 1);
  return fail();
}

/// Whether the condition says that `max` is -inf (or either infinity), or, with
/// `whenTrue` false, that it is not.
bool Matcher::isInfinityTest(Cursor condition, Cursor max, bool whenTrue) {
  using P = arith::CmpFPredicate;
  Node node = read.resolve(condition);
  auto compare = node.kind == Kind::Op ? dyn_cast<arith::CmpFOp>(node.op)
                                       : arith::CmpFOp();
  if (!compare)
    return false;
  P predicate = compare.getPredicate();
  bool equal = predicate == P::OEQ || predicate == P::UEQ;
  for (unsigned i : {0u, 1u}) {
    auto limit = read.number(node.operands[1 - i]);
    if (!limit || !std::isinf(*limit))
      continue;
    Node magnitude = read.resolveNumber(node.operands[i]);
    bool isAbs = magnitude.kind == Kind::Op && isa<math::AbsFOp>(magnitude.op);
    Cursor tested = isAbs ? magnitude.operands[0] : node.operands[i];
    if ((*limit > 0) != isAbs || !read.same(strip(tested), strip(max)))
      continue;
    bool unequal = predicate == P::ONE || predicate == P::UNE ||
                   (isAbs && i == 0 && predicate == P::OLT) ||
                   (isAbs && i == 1 && predicate == P::OGT) ||
                   (!isAbs && i == 0 && predicate == P::OGT);
    if (whenTrue ? equal : unequal)
      return true;
  }
  return false;
}

/// exp(sink - max), the share of a logit without a key.
bool Matcher::matchSinkTerm(Cursor term) {
  Node exp = read.resolveNumber(term);
  if (exp.kind != Kind::Op || !isa<math::ExpOp>(exp.op))
    return false;
  Node difference = read.resolveNumber(exp.operands[0]);
  if (difference.kind != Kind::Op || !isa<arith::SubFOp>(difference.op) ||
      !read.same(strip(difference.operands[1]), strip(rowMax)))
    return false;
  Cursor sink = strip(difference.operands[0]);
  if (match.sink && !read.same(match.sink, sink))
    return false;
  match.sink = sink;
  return true;
}

bool Matcher::matchRowSum(Cursor sum, Cursor numerator) {
  Node node = read.resolveNumber(sum);
  bool sinkAdded = false;
  if (node.kind == Kind::Op && isa<arith::AddFOp>(node.op))
    for (unsigned i : {0u, 1u})
      if (read.resolveNumber(node.operands[i]).kind == Kind::Reduce &&
          matchSinkTerm(node.operands[1 - i])) {
        node = read.resolveNumber(node.operands[i]);
        sinkAdded = true;
        break;
      }
  if (node.kind != Kind::Reduce || !isa<arith::AddFOp>(node.op))
    return refuse("the divisor is not the row's sum");
  numerator = strip(numerator);
  auto accept = [&](Cursor term) {
    term = strip(term);
    if (read.same(term, numerator))
      return true;
    Node select = read.resolveNumber(term);
    if (select.kind != Kind::Op || !isa<arith::SelectOp>(select.op) ||
        read.number(select.operands[2]) != 0.0 ||
        !read.same(strip(select.operands[1]), numerator))
      return false;
    inner.push_back({select.operands[0], false});
    return true;
  };
  Cursor extra;
  if (!rowElement(node, accept, extra))
    return refuse("the divisor is not the sum of this row's numerators");
  if (read.number(read.initial(node)) != 0.0)
    return refuse("the row's sum does not start from zero");
  // With a sink in the sum it must be the one that the maximum saw, so that a
  // sink far above all scores cannot overflow.
  if (extra && !match.sink)
    return refuse("the row's sum has a term that the maximum does not have");
  if (match.sink && !extra && !sinkAdded)
    return refuse("the row's maximum has a term that the sum does not have");
  if (extra && sinkAdded)
    return refuse("two sinks in one sum");
  return true;
}

/// all over keys of score == -inf.
bool Matcher::isAllMasked(Cursor condition) {
  Node all = read.resolve(condition);
  if (all.kind != Kind::Reduce || !isa<arith::AndIOp>(all.op))
    return false;
  Cursor extra;
  return rowElement(
             all,
             [&](Cursor term) {
               Node compare = read.resolve(term);
               if (compare.kind != Kind::Op)
                 return false;
               auto op = dyn_cast<arith::CmpFOp>(compare.op);
               if (!op || op.getPredicate() != arith::CmpFPredicate::OEQ)
                 return false;
               for (unsigned i : {0u, 1u}) {
                 auto value = read.number(compare.operands[i]);
                 if (value && std::isinf(*value) && *value < 0)
                   return read.same(strip(compare.operands[1 - i]),
                                    match.scores);
               }
               return false;
             },
             extra) &&
         !extra;
}

bool Matcher::checkOuterSelects() {
  auto repeatsMask = [&](const OuterSelect &select) {
    return llvm::any_of(match.masks, [&](const MaskTerm &mask) {
      return std::isinf(mask.fill) && mask.fill < 0 &&
             mask.visibleWhen != select.zeroWhen &&
             read.same(mask.condition, select.condition);
    });
  };
  for (const OuterSelect &select : inner)
    if (!repeatsMask(select))
      return refuse("a condition on the exponentials is not the mask of the "
                    "scores");
  if (match.zeroNaNs)
    match.zeroEmptyRows = true;
  for (const OuterSelect &select : outer) {
    if (select.zeroWhen && isAllMasked(select.condition)) {
      match.zeroEmptyRows = true;
      continue;
    }
    if (match.masks.size() != 1 || !repeatsMask(select))
      return refuse("the probabilities are replaced under a condition after "
                    "the softmax (dropout, a mask or nan_to_num)");
    match.zeroEmptyRows = true;
  }
  return true;
}
