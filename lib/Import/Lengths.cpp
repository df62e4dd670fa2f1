// Masks that say how many keys a sequence has, and biases that fall with the
// distance (ALiBi).

#include "Rewrite.h"
#include "Static.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <cmath>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

static bool has(ArrayRef<VarId> digits, VarId digit) {
  return llvm::is_contained(digits, digit);
}

/// a and b visible: each is a mask of its own.
void Rewriter::splitMasks() {
  std::vector<MaskTerm> work(m.masks.rbegin(), m.masks.rend()), done;
  while (!work.empty()) {
    MaskTerm mask = work.back();
    work.pop_back();
    Node node = read.resolve(mask.condition);
    if (node.kind == Kind::Op && isa<arith::XOrIOp>(node.op)) {
      bool flipped = false;
      for (unsigned i : {0u, 1u})
        if (auto value = read.number(node.operands[i]);
            !flipped && value && *value != 0) {
          MaskTerm inner = mask;
          inner.condition = node.operands[1 - i];
          inner.visibleWhen = !mask.visibleWhen;
          work.push_back(inner);
          flipped = true;
        }
      if (flipped)
        continue;
    }
    bool both = node.kind == Kind::Op &&
                (mask.visibleWhen ? isa<arith::AndIOp>(node.op)
                                  : isa<arith::OrIOp>(node.op));
    if (!both || work.size() + done.size() > 30) {
      done.push_back(mask);
      continue;
    }
    for (unsigned i : {1u, 0u}) {
      mask.condition = node.operands[i];
      work.push_back(mask);
    }
  }
  m.masks = done;
}

/// o when the expression is the number of the key plus o.
std::optional<int64_t> Rewriter::keyOffset(Cursor cursor) {
  std::vector<double> grid;
  if (!staticGrid(cursor, [&](double value) { grid.push_back(value); }) ||
      grid.empty())
    return std::nullopt;
  size_t keys = product(key);
  double offset = grid.front();
  for (auto [i, value] : llvm::enumerate(grid))
    if (value != offset + static_cast<double>(i % keys))
      return std::nullopt;
  return static_cast<int64_t>(offset);
}

/// The mask as `key < bound + add`, the bound one number per sequence.
bool Rewriter::matchLength(const MaskTerm &mask, LengthTerm &length) {
  Node node = read.resolve(mask.condition);
  auto compare = node.kind == Kind::Op ? dyn_cast<arith::CmpIOp>(node.op)
                                       : arith::CmpIOp();
  if (!compare)
    return false;
  using P = arith::CmpIPredicate;
  for (unsigned i : {0u, 1u}) {
    auto offset = keyOffset(node.operands[i]);
    if (!offset)
      continue;
    // Brought to: key + offset < y, or <= y.
    P p = compare.getPredicate();
    bool less =
        i == 0 ? p == P::slt || p == P::sle : p == P::sgt || p == P::sge;
    bool more =
        i == 0 ? p == P::sgt || p == P::sge : p == P::slt || p == P::sle;
    if (mask.visibleWhen ? !less : !more)
      return false;
    bool strict = p == P::slt || p == P::sgt;
    bool inclusive = mask.visibleWhen ? !strict : strict;
    Cursor bound = node.operands[1 - i];
    Digits used;
    if (!collect(bound, used))
      return false;
    refresh(used);
    refreshAll();
    if (!llvm::all_of(used, [&](VarId d) { return has(batch, d); }))
      return false;
    length = {bound, (inclusive ? 1 : 0) - *offset};
    return true;
  }
  return false;
}

/// Lengths hide what lies behind them without a mask. Rows keep their
/// positions only where nothing counts them from the end.
void Rewriter::planLengths() {
  bool fromEnd = causalBottomRight || left || right;
  // Fills that are numbers beside low biases need the mask.
  if (hiddenFill)
    return;
  if (fromEnd || (cached && product(query) != 1) || product(batch) == 0)
    return;
  std::vector<MaskTerm> others;
  for (const MaskTerm &mask : dynamicMasks) {
    LengthTerm length;
    if (matchLength(mask, length))
      lengths.push_back(length);
    else
      others.push_back(mask);
  }
  dynamicMasks = others;
}

/// [sequence] numbers in [0, keys].
Value Rewriter::lengthOperand(ImplicitLocOpBuilder &b) {
  if (lengths.empty())
    return {};
  SmallVector<Cursor> sources;
  for (const LengthTerm &length : lengths)
    sources.push_back(length.bound);
  Type i64 = b.getI64Type();
  Value each = gather(
      b, batch, sources, i64,
      [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
        auto constant = [&](int64_t v) -> Value {
          return arith::ConstantOp::create(in, in.getI64IntegerAttr(v));
        };
        Value least = constant(product(key));
        for (auto [length, x] : llvm::zip(lengths, args)) {
          Value y = x;
          if (y.getType().isIndex())
            y = arith::IndexCastOp::create(in, i64, y);
          else if (y.getType() != i64)
            y = arith::ExtSIOp::create(in, i64, y);
          if (length.add != 0) {
            // Numbers near the largest must not wrap around.
            y = arith::MinSIOp::create(in, y, constant(int64_t(1) << 40));
            y = arith::MaxSIOp::create(in, y, constant(-(int64_t(1) << 40)));
            y = arith::AddIOp::create(in, y, constant(length.add));
          }
          least = arith::MinSIOp::create(in, least, y);
        }
        return arith::MaxSIOp::create(in, least, constant(0));
      });
  return reshape(b, each, {product(batch)});
}

/// Biases of slope * key plus a number per row: ALiBi, whose slopes are then
/// an attribute. A number per row changes no probability.
bool Rewriter::planSlopes(const BiasTerm &bias) {
  // What a row has in common would matter beside sinks and other biases.
  if (m.biases.size() != 1 || m.sink)
    return false;
  llvm::SmallVector<VarId> found;
  Tape tape(read, space);
  if (!read.dependence(bias.value, found) || !tape.compile(bias.value))
    return false;
  refreshAll();
  Digits heads = kv, loops;
  llvm::append_range(heads, group);
  loops = heads;
  llvm::append_range(loops, query);
  llvm::append_range(loops, key);
  for (VarId var : found)
    for (VarId d : space.digits(var))
      if (!has(loops, d))
        return false;
  int64_t keys = product(key), count = product(loops), rows = product(query);
  if (keys < 2 || count > (int64_t(1) << 24))
    return false;
  SmallVector<int64_t> at(loops.size(), 0);
  std::vector<double> row(keys);
  std::vector<float> result;
  for (int64_t i = 0; i < count; ++i) {
    row[i % keys] = tape.evaluate(loops, at) * bias.factor;
    for (int d = static_cast<int>(at.size()) - 1; d >= 0; --d) {
      if (++at[d] < space.extent(loops[d]))
        break;
      at[d] = 0;
    }
    if (i % keys != keys - 1)
      continue;
    double slope = (row[keys - 1] - row[0]) / static_cast<double>(keys - 1);
    bool first = i / keys % rows == 0;
    if (first)
      result.push_back(static_cast<float>(slope));
    slope = result.back();
    double bound = 1e-6 * std::max(std::fabs(slope) * keys, 1e-30);
    for (int64_t j = 0; j < keys; ++j)
      if (!std::isfinite(row[j]) ||
          !(std::fabs(row[j] - row[0] - slope * j) <= bound))
        return false;
  }
  if (llvm::all_of(result, [](float s) { return s == 0; }))
    return false;
  slopes = result;
  return true;
}
