// Page tables and decoding: element = code * scale + zeros, in any order of
// operations that says so. See Cache.h.

#include "Cache.h"
#include "Match.h"
#include "Static.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

//===----------------------------------------------------------------------===//
// Page tables
//===----------------------------------------------------------------------===//

static std::optional<int64_t> constantOf(Reader &read, const Cursor &cursor) {
  auto value = read.number(cursor);
  if (!value || *value != std::floor(*value))
    return std::nullopt;
  return static_cast<int64_t>(*value);
}

/// x for `x < 0 ? x + count : x`.
static std::optional<Cursor> unwrapped(Reader &read, const Node &select,
                                       int64_t count) {
  Node compare = read.resolve(select.operands[0]);
  if (compare.kind != Kind::Op)
    return std::nullopt;
  auto op = dyn_cast<arith::CmpIOp>(compare.op);
  if (!op)
    return std::nullopt;
  using P = arith::CmpIPredicate;
  bool left = op.getPredicate() == P::slt &&
              constantOf(read, compare.operands[1]) == 0,
       right = op.getPredicate() == P::sgt &&
               constantOf(read, compare.operands[0]) == 0;
  if (!left && !right)
    return std::nullopt;
  Cursor x = compare.operands[left ? 0 : 1];
  Node sum = read.resolve(select.operands[1]);
  if (sum.kind != Kind::Op || !isa<arith::AddIOp>(sum.op) ||
      !read.same(x, select.operands[2]))
    return std::nullopt;
  for (unsigned i : {0u, 1u})
    if (constantOf(read, sum.operands[i]) == count &&
        read.same(x, sum.operands[1 - i]))
      return x;
  return std::nullopt;
}

/// The table's element behind clamps and the wrapping of negative numbers.
static std::optional<PageTable> tableEntry(Reader &read, Cursor index,
                                           int64_t size) {
  PageTable table{0, {}, TableRule::Clamp, size};
  while (true) {
    Node node = read.resolve(index);
    if (node.kind != Kind::Op) {
      // What is left must be an element of a tensor of integers.
      if (node.kind != Kind::Leaf || !node.cursor.isTensor())
        return std::nullopt;
      table.entry = node.cursor;
      return table;
    }
    if (isa<arith::IndexCastOp>(node.op)) {
      index = node.operands[0];
    } else if (isa<arith::MaxSIOp, arith::MinSIOp>(node.op)) {
      int64_t bound = isa<arith::MaxSIOp>(node.op) ? 0 : size - 1;
      if (table.rule == TableRule::Wrap)
        break; // clamped before it is wrapped: not a rule
      if (constantOf(read, node.operands[1]) == bound)
        index = node.operands[0];
      else if (constantOf(read, node.operands[0]) == bound)
        index = node.operands[1];
      else
        break;
    } else if (auto x = isa<arith::SelectOp>(node.op) &&
                                table.rule != TableRule::Wrap
                            ? unwrapped(read, node, size)
                            : std::nullopt) {
      table.rule = TableRule::Wrap;
      index = *x;
    } else {
      break;
    }
  }
  // Any other arithmetic on the table is the graph's own.
  table.entry = index;
  return table;
}

std::optional<Idx> PageTables::position(Reader &read, const Cursor &index,
                                        int64_t size) {
  if (ShapedType::isDynamic(size))
    return std::nullopt;
  auto table = tableEntry(read, index, size);
  if (!table)
    return std::nullopt;
  for (const PageTable &known : tables)
    if (known.pages == size && known.rule == table->rule &&
        read.same(known.entry, table->entry))
      return Idx{{{known.page, 1}}, 0};
  if (size == 1)
    return Idx();
  table->page = read.space.newVar(size);
  tables.push_back(*table);
  return Idx{{{table->page, 1}}, 0};
}

//===----------------------------------------------------------------------===//
// Decoding
//===----------------------------------------------------------------------===//

/// An element of an array of 8-bit floats.
static bool matchFp8(const Node &node, CachedSide &side) {
  if (node.kind != Kind::Leaf || !node.cursor.isTensor())
    return false;
  Type type = getElementTypeOrSelf(node.cursor.value.getType());
  if (!isa<Float8E4M3FNType, Float8E5M2Type>(type))
    return false;
  side.array = node.cursor;
  side.element = isa<Float8E5M2Type>(type) ? Element::E5M2 : Element::E4M3;
  side.isDecoded = true;
  return true;
}

bool CacheReader::refuse(const llvm::Twine &why) {
  if (reason.empty())
    reason = why.str();
  return false;
}

std::optional<bool> CacheReader::truth(Cursor condition) {
  llvm::SmallVector<VarId> found;
  Tape tape(read, space);
  if (!read.dependence(condition, found) || !tape.compile(condition))
    return std::nullopt;
  llvm::SmallVector<VarId> loops;
  int64_t count = 1;
  for (VarId var : found)
    for (VarId digit : space.digits(var))
      if (!llvm::is_contained(loops, digit)) {
        loops.push_back(digit);
        count *= space.extent(digit);
      }
  if (count > 4096)
    return std::nullopt;
  llvm::SmallVector<int64_t> at(loops.size(), 0);
  bool first = tape.evaluate(loops, at) != 0;
  for (int64_t i = 1; i < count; ++i) {
    for (int d = static_cast<int>(at.size()) - 1; d >= 0; --d) {
      if (++at[d] < space.extent(loops[d]))
        break;
      at[d] = 0;
    }
    if ((tape.evaluate(loops, at) != 0) != first)
      return std::nullopt;
  }
  return first;
}

/// `resolve` past choices that are always the same, as shifts are guarded.
Node CacheReader::simplify(Cursor cursor) {
  Node node = read.resolve(cursor);
  while (node.kind == Kind::Op && isa<arith::SelectOp>(node.op)) {
    auto value = truth(node.operands[0]);
    if (!value)
      break;
    node = read.resolve(node.operands[*value ? 1 : 2]);
  }
  return node;
}

std::optional<int64_t> CacheReader::integer(Cursor cursor) {
  return constantOf(read, simplify(cursor).cursor);
}

static void multiply(CachedSide &side, const Product::Factor &factor) {
  side.scale.factors.push_back(factor);
  for (Product &zero : side.zeros)
    zero.factors.push_back(factor);
}

static void negate(CachedSide &side) {
  side.scale.constant = -side.scale.constant;
  for (Product &zero : side.zeros)
    zero.constant = -zero.constant;
}

/// A sum, difference or product of which one operand holds the code.
bool CacheReader::decodeSum(const Node &node, CachedSide &side) {
  for (unsigned i : {0u, 1u}) {
    CachedSide tried = side;
    if (!decode(node.operands[i], tried) || !tried.isDecoded)
      continue;
    side = tried;
    Product::Factor other{node.operands[1 - i]};
    if (isa<arith::MulFOp>(node.op)) {
      multiply(side, other);
      return true;
    }
    if (isa<arith::SubFOp>(node.op) && i == 1)
      negate(side);
    bool subtracted = isa<arith::SubFOp>(node.op) && i == 0;
    side.zeros.push_back({subtracted ? -1.0 : 1.0, {other}});
    return true;
  }
  return false;
}

/// Fills `side` from a floating point expression; false when it is an ordinary
/// one, or (with a reason) one that no cache has.
bool CacheReader::decode(Cursor x, CachedSide &side) {
  if (budget == 0)
    return false;
  --budget;
  Node node = read.resolve(x);
  if (node.kind != Kind::Op || !decodeOp(node, side))
    return false;
  if (isa<arith::TruncFOp, arith::MulFOp, arith::AddFOp, arith::SubFOp,
          arith::DivFOp>(node.op))
    side.width =
        std::min(side.width, floatWidth(node.op->getResult(0).getType()));
  return true;
}

bool CacheReader::decodeOp(const Node &node, CachedSide &side) {
  Operation *op = node.op;
  if (isa<arith::ExtFOp, arith::TruncFOp>(op)) {
    return matchFp8(read.resolve(node.operands[0]), side) ||
           decode(node.operands[0], side);
  }
  if (isa<arith::SIToFPOp, arith::UIToFPOp>(op))
    return decodeInteger(node.operands[0], isa<arith::SIToFPOp>(op), side);
  if (isa<arith::MulFOp, arith::AddFOp, arith::SubFOp>(op))
    return decodeSum(node, side);
  if (isa<arith::DivFOp>(op)) {
    if (!decode(node.operands[0], side))
      return false;
    multiply(side, {node.operands[1], /*inverse=*/true});
    return true;
  }
  if (isa<arith::NegFOp>(op)) {
    if (!decode(node.operands[0], side))
      return false;
    negate(side);
    return true;
  }
  if (isa<arith::SelectOp>(op)) {
    auto fill = read.number(node.operands[2]);
    if (!fill || !std::isnan(*fill) || side.valid)
      return false;
    side.valid = node.operands[0];
    return decode(node.operands[1], side);
  }
  return false;
}

/// Integer arithmetic before the conversion: code - zero point.
bool CacheReader::decodeInteger(Cursor x, bool isSigned, CachedSide &side) {
  Node node = simplify(x);
  if (node.kind == Kind::Op && isa<arith::AddIOp, arith::SubIOp>(node.op)) {
    // Wide enough that nothing wraps around: a code and a zero point of 8 bits.
    bool minus = isa<arith::SubIOp>(node.op);
    unsigned width = node.op->getResult(0).getType().getIntOrFloatBitWidth();
    for (unsigned i : {0u, 1u}) {
      if (minus && i == 1)
        break;
      CachedSide tried = side;
      if (width < 16 || !decodeInteger(node.operands[i], isSigned, tried))
        continue;
      side = tried;
      side.zeros.push_back(
          {minus ? -1.0 : 1.0, {{node.operands[1 - i], false, !isSigned}}});
      return true;
    }
  }
  if (!matchCode(x, isSigned, side))
    return false;
  side.isDecoded = true;
  return true;
}

bool CacheReader::match(Cursor source, CachedSide &side) {
  budget = 200;
  CachedSide decoded;
  if (decode(source, decoded)) {
    side = decoded;
    return true;
  }
  if (!reason.empty()) {
    sawCodes = true;
    return false;
  }
  // Numbers as they are: gathered, or just another tensor.
  Node node = read.resolveNumber(source);
  if (matchFp8(node, side))
    return true;
  if (node.kind == Kind::Op && isa<arith::SelectOp>(node.op)) {
    auto fill = read.number(node.operands[2]);
    if (fill && std::isnan(*fill)) {
      side.valid = node.operands[0];
      node = read.resolveNumber(node.operands[1]);
    }
  }
  if (node.kind != Kind::Leaf || !node.cursor.isTensor())
    return refuse("they are computed in a way that is no decoding of codes");
  Type type = getElementTypeOrSelf(node.cursor.value.getType());
  auto element = elementOf(type);
  if (!element || !isFloat(*element))
    return refuse("their array has elements that no cache stores");
  side.array = node.cursor;
  side.element = *element;
  return true;
}
