// What the op can say of a match: which digits of the positions are batches,
// heads, groups and queries; which masks are known now; what rows without keys
// become.

#include "Rewrite.h"
#include "Static.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include <cmath>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

/// Largest query x key grid that is evaluated, and most positions of masks and
/// of biases that are looked at one by one.
static constexpr int64_t kMaxGrid = 1 << 26;
static constexpr int64_t kMaxMask = 1 << 24, kMaxBias = 1 << 22;
/// A score added to such a fill is lost in f32: exactly below the first, for
/// scores of usual size below the second.
static constexpr double kAbsorbing = -1e30, kMostlyAbsorbing = -9.99e8;

bool Rewriter::refuse(const llvm::Twine &why) {
  if (reason.empty())
    reason = why.str();
  return false;
}

int64_t Rewriter::product(ArrayRef<VarId> digits) const {
  int64_t n = 1;
  for (VarId d : digits)
    n *= space.extent(d);
  return n;
}

static bool has(ArrayRef<VarId> digits, VarId digit) {
  return llvm::is_contained(digits, digit);
}

static Digits without(ArrayRef<VarId> from, ArrayRef<VarId> removed) {
  Digits result;
  for (VarId d : from)
    if (!has(removed, d))
      result.push_back(d);
  return result;
}

static bool within(ArrayRef<VarId> digits, ArrayRef<VarId> a,
                   ArrayRef<VarId> b) {
  return llvm::all_of(digits, [&](VarId d) { return has(a, d) || has(b, d); });
}

/// Digits may have been divided by reading further: names the parts.
void Rewriter::refresh(Digits &digits) {
  Digits result;
  for (VarId d : digits)
    for (VarId part : space.digits(d))
      if (!has(result, part))
        result.push_back(part);
  digits = result;
}

void Rewriter::refreshAll() {
  for (Digits *digits :
       {&rootDigits, &batch, &kv, &group, &query, &key, &depth, &value,
        &maskDigits, &sinkDigits, &depth2, &columns, &pageTokens, &subPages})
    refresh(*digits);
}

/// Digits that the expression reads at; false when it cannot be rebuilt.
bool Rewriter::collect(Cursor cursor, Digits &digits) {
  cursor = read.peel(cursor);
  auto add = [&](ArrayRef<Idx> at) {
    for (const Idx &idx : at)
      space.collectDigits(idx, digits);
  };
  if (cursor.isTensor()) {
    add(cursor.at);
    return true;
  }
  Operation *op = cursor.value.getDefiningOp();
  if (!cursor.frame || !op)
    return !cursor.frame || !isa<BlockArgument>(cursor.value);
  linalg::GenericOp generic = cursor.frame->op;
  if (op->getBlock() != generic.getBody())
    return true;
  if (auto index = dyn_cast<linalg::IndexOp>(op)) {
    add(cursor.frame->loops[index.getDim()]);
    return true;
  }
  if (isa<tensor::ExtractOp>(op) || op->getNumRegions() != 0 || !isPure(op))
    return false;
  return llvm::all_of(op->getOperands(), [&](Value operand) {
    return collect(Cursor{operand, {}, cursor.frame}, digits);
  });
}

/// Whether scores or anything made of them leaves the match, other than through
/// the root.
bool Rewriter::isUsedElsewhere() {
  Operation *root = m.root.getDefiningOp();
  SmallVector<Operation *> work{m.dot.op};
  if (m.second)
    work.push_back(m.second->op);
  llvm::SmallPtrSet<Operation *, 32> seen;
  while (!work.empty()) {
    Operation *op = work.pop_back_val();
    for (Operation *user : op->getUsers()) {
      if (user == root || !seen.insert(user).second)
        continue;
      // A use inside a body counts for the op that has the body.
      if (auto generic = user->getParentOfType<linalg::GenericOp>())
        user = generic;
      if (!isPure(user) && !isa<linalg::LinalgOp>(user))
        return true;
      if (user->hasTrait<OpTrait::IsTerminator>())
        return true;
      work.push_back(user);
    }
  }
  return false;
}

void Rewriter::chooseQueryDigits(ArrayRef<VarId> queryOnly, bool &batchFirst) {
  // The last dimension of the probabilities that is not keys, if only queries
  // have it. Any choice is right; this one gives the usual names.
  Cursor p = m.probabilities;
  if (p.isTensor())
    for (const Idx &idx : llvm::reverse(p.at)) {
      Digits digits;
      space.collectDigits(idx, digits);
      if (llvm::any_of(digits, [&](VarId d) { return has(key, d); }))
        continue;
      if (!llvm::all_of(digits, [&](VarId d) { return has(queryOnly, d); }))
        continue;
      query = without(digits, {});
      break;
    }
  // A single shared digit is a batch when it is the first of four dimensions.
  Digits first;
  if (p.isTensor() && p.at.size() >= 4)
    space.collectDigits(p.at.front(), first);
  batchFirst = !first.empty();
  // A mask over positions says better which digits are positions.
  Digits masked;
  for (const MaskTerm &mask : m.masks) {
    llvm::SmallVector<VarId> digits;
    if (!read.dependence(mask.condition, digits))
      continue;
    for (VarId d : digits)
      if (has(queryOnly, d) && !has(masked, d))
        masked.push_back(d);
  }
  if (!masked.empty() &&
      llvm::none_of(masked, [&](VarId d) { return has(query, d); })) {
    query.clear();
    for (VarId d : rootDigits)
      if (has(masked, d))
        query.push_back(d);
  }
}

bool Rewriter::classify() {
  Digits q, k, v, masks;
  bool readable = collect(m.dot.q, q) && collect(m.dot.k, k) && collect(m.v, v);
  if (m.second)
    readable &= collect(m.second->q, q) && collect(m.second->k, k);
  for (const DotTerm *term : {&m.dot, m.second ? &*m.second : nullptr})
    if (term)
      for (const ScoreFactor &factor : term->factors)
        readable &= collect(factor.value, q);
  for (const MaskTerm &mask : m.masks)
    readable &= collect(mask.condition, masks);
  for (const BiasTerm &bias : m.biases)
    readable &= collect(bias.value, masks);
  if (m.sink)
    readable &= collect(m.sink, sinkDigits);
  if (!readable)
    return refuse("an operand is computed in a way that cannot be repeated");
  for (Digits *digits : {&q, &k, &v, &masks, &sinkDigits})
    refresh(*digits);
  auto digitsOf = [&](ArrayRef<Idx> at, Digits &out) {
    for (const Idx &idx : at)
      space.collectDigits(idx, out);
  };
  digitsOf(m.keyAt, key);
  digitsOf(m.dot.depthAt, depth);
  if (m.second)
    digitsOf(m.second->depthAt, depth2);
  digitsOf(m.rootAt, rootDigits);
  for (VarId d : rootDigits)
    if (has(v, d) && !has(q, d) && !has(k, d) && !has(masks, d) &&
        !has(sinkDigits, d))
      value.push_back(d);
  Digits rows = without(rootDigits, value), queryOnly;
  Digits shared;
  for (VarId d : rows)
    (has(k, d) || has(v, d) ? shared : queryOnly).push_back(d);
  if (!within(without(q, depth2), rows, depth) ||
      !within(without(without(k, depth), depth2), rows, key) ||
      !within(without(v, key), rows, value) || !within(masks, rows, key) ||
      !within(sinkDigits, rows, {}))
    return refuse("an operand has positions that the result does not have");
  Digits keyRows, valueRows;
  for (VarId d : shared) {
    if (has(k, d) && !has(v, d))
      keyRows.push_back(d);
    if (has(v, d) && !has(k, d))
      valueRows.push_back(d);
  }
  if (!keyRows.empty() && !valueRows.empty())
    return refuse("keys and values belong to different rows (heads are mixed "
                  "between them)");
  if (m.second && m.dot.scale == 0)
    return refuse("the first of two products is multiplied by 0");
  if (m.second && !classifySecond(rows, v))
    return refuse("the second product has keys of its own for every query");
  bool batchFirst = false;
  chooseQueryDigits(queryOnly, batchFirst);
  group = without(queryOnly, query);
  unsigned heads = shared.size() > 1 || !batchFirst ? 1 : 0;
  for (auto [i, d] : llvm::enumerate(shared))
    (i + heads >= shared.size() ? kv : batch).push_back(d);
  if (!m.sink)
    return true;
  for (VarId d : sinkDigits)
    if (!has(kv, d) && !has(group, d))
      return refuse("the sink logit differs between rows of one head");
  return true;
}

/// Both products have keys for the rows that values have, or for fewer: keys
/// that differ between queries would be made for every query.
bool Rewriter::classifySecond(const Digits &rows, const Digits &v) {
  Digits first, second;
  collect(m.dot.k, first);
  collect(m.second->k, second);
  refresh(first);
  refresh(second);
  auto ofValues = [&](const Digits &digits) {
    return llvm::all_of(digits,
                        [&](VarId d) { return !has(rows, d) || has(v, d); });
  };
  return ofValues(first) && ofValues(second);
}

/// A bias of 0 and -inf under a condition is a mask.
bool Rewriter::convertBiasToMask(const BiasTerm &bias) {
  Node node = read.resolveNumber(bias.value);
  if (node.kind != Kind::Op || !isa<arith::SelectOp>(node.op))
    return false;
  for (unsigned i : {1u, 2u}) {
    auto fill = read.number(node.operands[i]);
    auto zero = read.number(node.operands[3 - i]);
    if (!fill || !zero || *zero != 0)
      continue;
    double value = *fill * bias.factor;
    if (!std::isinf(value) || value > 0)
      continue;
    m.masks.push_back({node.operands[0], i == 2, value, 0, bias.sumType});
    return true;
  }
  return false;
}

namespace {
/// Evaluates a tape over a grid.
struct Evaluation {
  Tape &tape;
  ArrayRef<VarId> loops; ///< the last one fastest
  int64_t budget;        ///< positions that may be looked at one by one
  llvm::function_ref<void(double)> take;
  SmallVector<int64_t> at;

  /// False, with some values given, when the budget is spent.
  bool run(const Space &space);
  bool segment(int64_t low, int64_t high);
};
} // namespace

/// Where the last variable is in [low, high): at once where the value is the
/// same, in halves where that is not seen.
bool Evaluation::segment(int64_t low, int64_t high) {
  constexpr int64_t few = 4;
  if (high - low > few) {
    --budget;
    if (auto value = tape.evaluateRange(loops, at, low, high)) {
      for (int64_t n = low; n < high; ++n)
        take(*value);
      return true;
    }
    int64_t middle = low + (high - low) / 2;
    return segment(low, middle) && segment(middle, high);
  }
  budget -= high - low;
  for (at.back() = low; at.back() < high; ++at.back())
    take(tape.evaluate(loops, at));
  return budget >= 0;
}

bool Evaluation::run(const Space &space) {
  at.assign(loops.size(), 0);
  if (loops.empty())
    return take(tape.evaluate(loops, at)), true;
  int64_t count = 1;
  for (VarId d : loops.drop_back())
    count *= space.extent(d);
  for (int64_t n = 0; n < count; ++n) {
    if (!segment(0, space.extent(loops.back())))
      return false;
    for (int d = static_cast<int>(loops.size()) - 2; d >= 0; --d) {
      if (++at[d] < space.extent(loops[d]))
        break;
      at[d] = 0;
    }
  }
  return true;
}

/// Hands over the values over [query][key]; false, perhaps after some of them,
/// when they depend on more or are too many.
bool Rewriter::staticGrid(Cursor cursor,
                          llvm::function_ref<void(double)> take) {
  llvm::SmallVector<VarId> found;
  Tape tape(read, space);
  if (!read.dependence(cursor, found) || !tape.compile(cursor))
    return false;
  Digits used(found.begin(), found.end());
  refresh(used);
  refreshAll();
  Digits loops = query;
  llvm::append_range(loops, key);
  if (!llvm::all_of(used, [&](VarId d) { return has(loops, d); }) ||
      product(loops) > kMaxGrid)
    return false;
  return Evaluation{tape, loops, kMaxMask, take, {}}.run(space);
}

/// The lowest value of a bias; nullopt when data decide it.
std::optional<double> Rewriter::lowest(const BiasTerm &bias) {
  llvm::SmallVector<VarId> found;
  Tape tape(read, space);
  if (!read.dependence(bias.value, found) || !tape.compile(bias.value))
    return std::nullopt;
  Digits loops(found.begin(), found.end());
  refresh(loops);
  refreshAll();
  if (product(loops) > kMaxGrid)
    return std::nullopt;
  double low = std::numeric_limits<double>::infinity();
  auto take = [&](double v) { low = std::min(low, v * bias.factor); };
  if (!Evaluation{tape, loops, kMaxBias, take, {}}.run(space))
    return std::nullopt;
  return low;
}

/// Masks known now fold into `visible`; the rest stays in `dynamicMasks`.
void Rewriter::planStatic() {
  size_t size = product(query) * product(key);
  auto hide = [&](llvm::function_ref<bool(size_t)> isVisible) {
    if (visible.empty())
      visible.assign(size, 1);
    for (size_t i = 0; i < size; ++i)
      visible[i] &= isVisible(i);
  };
  for (const MaskTerm &mask : m.masks) {
    std::vector<char> grid;
    if (!staticGrid(mask.condition, [&](double v) {
          grid.push_back((v != 0) == mask.visibleWhen);
        })) {
      dynamicMasks.push_back(mask);
      continue;
    }
    if (visible.empty())
      visible = std::move(grid);
    else
      hide([&](size_t i) { return grid[i] != 0; });
  }
  size_t keys = product(key);
  SmallVector<std::optional<double>> low;
  for (const BiasTerm &bias : m.biases)
    low.push_back(lowest(bias));
  // Finite fills are numbers in rows that see nothing else, so that nothing
  // unknown may hide the rest of a row.
  bool known = dynamicMasks.empty() &&
               llvm::all_of(low, [](auto l) { return l.has_value(); });
  for (auto [bias, least] : llvm::zip(m.biases, low)) {
    std::vector<char> grid, before = visible;
    bool fills = true;
    auto take = [&](double v) {
      double x = v * bias.factor;
      fills &= x == 0 || x <= kNegligible;
      grid.push_back(x == 0);
    };
    if (known && staticGrid(bias.value, take) && fills) {
      hide([&](size_t i) { return grid[i] != 0; });
      bool emptyRow = false;
      for (size_t row = 0; row < size && !emptyRow; row += keys)
        emptyRow = !llvm::is_contained(ArrayRef<char>(visible).slice(row, keys),
                                       char(1));
      if (!emptyRow)
        continue;
      visible = before;
    }
    if (planSlopes(bias))
      continue;
    biases.push_back(bias);
    lowBias |= !least || *least <= kNegligible;
  }
}

double kvcache::import::absorbing(double value, Type sumType) {
  auto limit = absorbingLimit(sumType);
  if (!limit || value > *limit || std::isinf(value))
    return value;
  return std::max(value * kAbsorbingFactor, kLowestFloat);
}

/// Where biases may hide the visible keys of a row, hidden keys with a finite
/// fill win there: the fill has to stay a number.
bool Rewriter::planHiddenFill() {
  bool finite = llvm::any_of(
      m.masks, [](const MaskTerm &mask) { return std::isfinite(mask.fill); });
  if (!lowBias || !finite)
    return true;
  const MaskTerm &first = m.masks.front();
  bool outside = first.biasesOutside != 0;
  for (const MaskTerm &mask : m.masks)
    if (mask.fill != first.fill || (mask.biasesOutside != 0) != outside ||
        (outside && mask.biasesOutside != numBiases))
      return refuse("masks and biases are nested, and a bias may hide all "
                    "keys that a mask leaves");
  hiddenFill = absorbing(first.fill, first.fillType);
  if (*hiddenFill > kMostlyAbsorbing)
    return refuse("masked scores are filled with " +
                  llvm::Twine(std::to_string(first.fill)) +
                  ", and a bias may be lower than that");
  fillAdds = outside;
  return true;
}

/// Causal masks and windows; anything else becomes an operand.
bool Rewriter::recogniseVisible() {
  if (visible.empty() || !llvm::is_contained(visible, char(0))) {
    visible.clear();
    return true;
  }
  if (hiddenFill) {
    staticMask = true;
    return true;
  }
  int64_t rows = product(query), keys = product(key);
  auto matches = [&](int64_t shift, int64_t l, int64_t r) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < keys; ++j) {
        int64_t p = i + shift;
        bool see = j >= p - l && j <= p + r;
        if (see != static_cast<bool>(visible[i * keys + j]))
          return false;
      }
    return true;
  };
  // The reach to both sides, read off the rows.
  for (int64_t shift : {int64_t(0), keys - rows}) {
    int64_t l = -keys, r = -keys;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < keys; ++j)
        if (visible[i * keys + j]) {
          l = std::max(l, i + shift - j);
          r = std::max(r, j - i - shift);
        }
    if (l < 0 || r < 0 || !matches(shift, l, r))
      continue;
    bool boundLeft = !matches(shift, keys + rows, r),
         boundRight = !matches(shift, l, keys + rows);
    bool anchored = shift == keys - rows || (r == 0 && boundRight);
    if (!anchored)
      continue;
    causalTopLeft = r == 0 && boundRight && shift == 0;
    causalBottomRight = r == 0 && boundRight && !causalTopLeft;
    if (boundLeft)
      left = l;
    if (boundRight && r != 0)
      right = r;
    // Top-left anchors the window only together with the causal mask.
    if (left && shift != keys - rows) {
      left.reset();
      causalTopLeft = false;
      continue;
    }
    return true;
  }
  staticMask = true;
  return true;
}

bool Rewriter::planEmptyRows() {
  bool possible = !dynamicMasks.empty() || !lengths.empty();
  int64_t keys = product(key);
  for (size_t row = 0; row < visible.size() && !possible; row += keys)
    possible =
        !llvm::is_contained(ArrayRef<char>(visible).slice(row, keys), char(1));
  if (m.sink)
    return true;
  if (!possible || m.masks.empty() || hiddenFill) {
    // A bias given at run time may be -inf for a whole row.
    if (!biases.empty() && !m.zeroEmptyRows)
      emptyRows = EmptyRows::NaN;
    return true;
  }
  double fill = m.masks.front().fill;
  for (const MaskTerm &mask : m.masks)
    if (mask.fill != fill)
      return refuse("masks fill with different numbers, and rows without keys "
                    "may occur");
  for (const MaskTerm &mask : m.masks)
    if (fill > kAbsorbing && mask.biasesOutside != 0)
      return refuse("a bias is added to the finite fill of a mask, and rows "
                    "without keys may occur");
  if (!std::isinf(fill))
    emptyRows = EmptyRows::MeanAll;
  else
    emptyRows = m.zeroEmptyRows ? EmptyRows::Zero : EmptyRows::NaN;
  return true;
}

bool Rewriter::planMasks() {
  std::vector<BiasTerm> numbers;
  for (const BiasTerm &bias : m.biases)
    if (!convertBiasToMask(bias))
      numbers.push_back(bias);
  numBiases = m.biases.size();
  m.biases = numbers;
  splitMasks();
  planStatic();
  if (!planHiddenFill() || !recogniseVisible())
    return false;
  planCache();
  planLengths();
  return planEmptyRows();
}

bool Rewriter::plan() {
  if (isUsedElsewhere())
    return refuse("the scores or probabilities have another use");
  auto type = cast<RankedTensorType>(m.root.getType());
  if (!type.hasStaticShape())
    return refuse("sizes are not known");
  if (!classify())
    return false;
  if (product(key) == 0 || product(depth) == 0)
    return refuse("there are no keys");
  if (!planMasks())
    return false;
  for (const MaskTerm &mask : dynamicMasks)
    collect(mask.condition, maskDigits);
  for (const BiasTerm &bias : biases)
    collect(bias.value, maskDigits);
  refreshAll();
  return true;
}
