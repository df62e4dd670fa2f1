// Building page_gather and dequantize for planned caches. Arrays stay where
// they are: slices, reshapes and transposes bring them to [page, head, token,
// channel], which kvcache-fuse folds into the maps of an external layout.

#include "Rewrite.h"

#include "llvm/ADT/ScopeExit.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include <cmath>
#include <numeric>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

//===----------------------------------------------------------------------===//
// Views of arrays
//===----------------------------------------------------------------------===//

namespace {
/// Consecutive digits of one group in one dimension of an array.
struct Atom {
  int group = -1, place = 0; ///< place of the first digit in its group
  int64_t size = 1;
};
} // namespace

static Atom placeOf(VarId digit, const Space &space,
                    const Rewriter::Groups &groups) {
  for (auto [g, group] : llvm::enumerate(groups)) {
    const auto *found = llvm::find(group, digit);
    if (found != group.end())
      return {static_cast<int>(g), static_cast<int>(found - group.begin()),
              space.extent(digit)};
  }
  return {};
}

/// The part of the array that is read.
static Value slice(ImplicitLocOpBuilder &b, Value array, const Space &space,
                   ArrayRef<Idx> at) {
  auto type = cast<RankedTensorType>(array.getType());
  SmallVector<OpFoldResult> offsets, sizes, strides;
  bool whole = true;
  for (auto [d, idx] : llvm::enumerate(at)) {
    Idx flat = space.resolve(idx);
    int64_t size = 1,
            stride = flat.terms.empty() ? 1 : flat.terms.back().stride;
    for (const Term &term : flat.terms)
      size *= space.extent(term.var);
    whole &= flat.offset == 0 && stride == 1 && size == type.getDimSize(d);
    offsets.push_back(b.getIndexAttr(flat.offset));
    sizes.push_back(b.getIndexAttr(size));
    strides.push_back(b.getIndexAttr(stride));
  }
  if (whole)
    return array;
  return tensor::ExtractSliceOp::create(b, array, offsets, sizes, strides);
}

/// [groups ...] of size 1 where nothing stands for them, from one dimension per
/// atom in the order of the groups.
static Value joinGroups(ImplicitLocOpBuilder &b, Value x,
                        ArrayRef<Atom> atoms) {
  auto type = cast<RankedTensorType>(x.getType());
  SmallVector<ReassociationIndices> joined;
  SmallVector<int64_t> shape(4, 1), sizes;
  ReassociationIndices pending; // dimensions of size 1 go with the next group
  int last = -1;
  for (auto [i, atom] : llvm::enumerate(atoms)) {
    if (atom.group < 0) {
      pending.push_back(i);
      continue;
    }
    if (atom.group != last) {
      joined.push_back(pending);
      pending.clear();
      sizes.push_back(1);
    }
    last = atom.group;
    joined.back().push_back(i);
    shape[last] *= atom.size;
    sizes.back() *= atom.size;
  }
  if (joined.empty() && !pending.empty()) {
    joined.push_back(pending);
    sizes.push_back(1);
  }
  Type element = type.getElementType();
  if (static_cast<int64_t>(joined.size()) != type.getRank())
    x = tensor::CollapseShapeOp::create(
        b, RankedTensorType::get(sizes, element), x, joined);
  if (joined.size() == 4)
    return x;
  SmallVector<ReassociationIndices> parts(joined.size());
  unsigned next = 0;
  for (int64_t d = 0; d < 4; ++d) {
    if (!parts.empty())
      parts[std::min<size_t>(next, parts.size() - 1)].push_back(d);
    bool holds =
        next < sizes.size() &&
        llvm::any_of(atoms, [&](const Atom &a) { return a.group == d; });
    next += holds;
  }
  return tensor::ExpandShapeOp::create(b, RankedTensorType::get(shape, element),
                                       x, parts);
}

Value Rewriter::viewOf(ImplicitLocOpBuilder &b, const Cursor &cursor,
                       const Groups &groups) {
  Value x = slice(b, cursor.value, space, cursor.at);
  SmallVector<Atom> atoms;
  SmallVector<ReassociationIndices> parts;
  for (const Idx &idx : cursor.at) {
    parts.emplace_back();
    auto start = [&](const Atom &atom) {
      parts.back().push_back(atoms.size());
      atoms.push_back(atom);
    };
    int next = -1;
    for (const Term &term : space.resolve(idx).terms) {
      Atom atom = placeOf(term.var, space, groups);
      if (!parts.back().empty() && atoms.back().group == atom.group &&
          atom.place == next)
        atoms.back().size *= atom.size;
      else
        start(atom);
      next = atom.place + 1;
    }
    if (parts.back().empty())
      start({});
  }
  SmallVector<int64_t> sizes, order(atoms.size());
  for (const Atom &atom : atoms)
    sizes.push_back(atom.size);
  auto type = cast<RankedTensorType>(x.getType());
  if (atoms.size() != parts.size())
    x = tensor::ExpandShapeOp::create(b, type.clone(ArrayRef<int64_t>(sizes)),
                                      x, parts);
  std::iota(order.begin(), order.end(), 0);
  llvm::sort(order, [&](int64_t i, int64_t j) {
    return std::pair(atoms[i].group, atoms[i].place) <
           std::pair(atoms[j].group, atoms[j].place);
  });
  SmallVector<Atom> ordered;
  for (int64_t i : order)
    ordered.push_back(atoms[i]);
  if (!llvm::is_sorted(order)) {
    SmallVector<int64_t> moved;
    for (const Atom &atom : ordered)
      moved.push_back(atom.size);
    Value empty = tensor::EmptyOp::create(b, moved, type.getElementType());
    x = linalg::TransposeOp::create(b, x, empty, order).getResult()[0];
  }
  return joinGroups(b, x, ordered);
}

//===----------------------------------------------------------------------===//
// The page table
//===----------------------------------------------------------------------===//

static Value toI64(ImplicitLocOpBuilder &b, Value x) {
  Type i64 = b.getI64Type();
  if (x.getType().isIndex())
    return arith::IndexCastOp::create(b, i64, x);
  return x.getType() == i64 ? x : arith::ExtSIOp::create(b, i64, x);
}

/// The page of our own size that is part `part` of page `number`.
static Value subPage(ImplicitLocOpBuilder &b, Value number,
                     const PageTable &table, int64_t count, Value part) {
  auto constant = [&](int64_t v) {
    return arith::ConstantOp::create(b, b.getI64IntegerAttr(v)).getResult();
  };
  Value zero = constant(0);
  if (table.rule == TableRule::Wrap) {
    Value negative =
        arith::CmpIOp::create(b, arith::CmpIPredicate::slt, number, zero);
    Value sum = arith::AddIOp::create(b, number, constant(table.pages));
    number = arith::SelectOp::create(b, negative, sum, number);
  }
  number = arith::MaxSIOp::create(b, number, zero);
  number = arith::MinSIOp::create(b, number, constant(table.pages - 1));
  number = arith::MulIOp::create(b, number, constant(count));
  return arith::AddIOp::create(b, number, toI64(b, part));
}

/// [sequence, page] or [sequence, head, page].
Value Rewriter::pageTable(ImplicitLocOpBuilder &b) {
  if (table)
    return table;
  const PageTable &source = cache->tables.tables.front();
  Digits entry;
  collect(source.entry, entry);
  refresh(entry);
  bool perHead =
      llvm::any_of(entry, [&](VarId d) { return llvm::is_contained(kv, d); });
  Digits loops = batch;
  SmallVector<int64_t> shape{product(batch)};
  if (perHead) {
    llvm::append_range(loops, kv);
    shape.push_back(product(kv));
  }
  llvm::append_range(loops, columns);
  llvm::append_range(loops, subPages);
  shape.push_back(product(columns) * product(subPages));
  Type kept = getElementTypeOrSelf(source.entry.value.getType());
  bool keep = subPages.empty() && (kept.isInteger(32) || kept.isInteger(64));
  auto convert = [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
    if (keep)
      return args[0];
    Value number = toI64(in, args[0]);
    if (subPages.empty())
      return number;
    Value part = arith::ConstantIndexOp::create(in, 0);
    int64_t first = loops.size() - subPages.size();
    for (auto [i, d] : llvm::enumerate(subPages)) {
      Value size = arith::ConstantIndexOp::create(in, space.extent(d));
      part = arith::MulIOp::create(in, part, size);
      part = arith::AddIOp::create(in, part,
                                   linalg::IndexOp::create(in, first + i));
    }
    return subPage(in, number, source, product(subPages), part);
  };
  table = reshape(b,
                  gather(b, loops, source.entry,
                         keep ? kept : Type(b.getI64Type()), convert),
                  shape);
  return table;
}

Value Rewriter::gatherPages(ImplicitLocOpBuilder &b, Value pool) {
  TableRule rule =
      subPages.empty() ? cache->tables.tables.front().rule : TableRule::Clamp;
  Value list = pageTable(b);
  return PageGatherOp::create(b, pool, list,
                              LayoutAttr::get(b.getContext(), Layout::HND),
                              TableRuleAttr::get(b.getContext(), rule));
}

/// Rows of sequences with a page out of range are NaN where the graph says so.
Value Rewriter::validRows(ImplicitLocOpBuilder &b, Value out) {
  if (!valueSide.valid)
    return out;
  Digits loops = batch;
  llvm::append_range(loops, columns);
  Value each =
      gather(b, loops, valueSide.valid, b.getI1Type(),
             [](ImplicitLocOpBuilder &, ValueRange args) { return args[0]; });
  each = reshape(b, each, {product(batch), product(columns)});
  Value yes = arith::ConstantOp::create(b, b.getBoolAttr(true));
  Value start = tensor::SplatOp::create(
      b, yes, RankedTensorType::get({product(batch)}, b.getI1Type()));
  AffineMap both = b.getMultiDimIdentityMap(2),
            row = AffineMap::get(2, 0, b.getAffineDimExpr(0));
  using utils::IteratorType;
  Value all =
      linalg::GenericOp::create(
          b, TypeRange(start.getType()), each, start, ArrayRef{both, row},
          ArrayRef{IteratorType::parallel, IteratorType::reduction},
          [](OpBuilder &nested, Location loc, ValueRange args) {
            Value sum = arith::AndIOp::create(nested, loc, args[0], args[1]);
            linalg::YieldOp::create(nested, loc, sum);
          })
          .getResult(0);
  auto type = cast<RankedTensorType>(out.getType());
  AffineMap whole = b.getMultiDimIdentityMap(4),
            sequence = AffineMap::get(4, 0, b.getAffineDimExpr(0));
  Value empty = tensor::EmptyOp::create(b, type, ValueRange());
  return linalg::GenericOp::create(
             b, TypeRange(type), ValueRange{all, out}, empty,
             ArrayRef{sequence, whole, whole},
             SmallVector<IteratorType>(4, IteratorType::parallel),
             [&](OpBuilder &nested, Location loc, ValueRange args) {
               Value nan = arith::ConstantOp::create(
                   nested, loc, nested.getF32FloatAttr(std::nanf("")));
               Value x =
                   arith::SelectOp::create(nested, loc, args[0], args[1], nan);
               linalg::YieldOp::create(nested, loc, x);
             })
      .getResult(0);
}

//===----------------------------------------------------------------------===//
// Scales and codes
//===----------------------------------------------------------------------===//

/// The tensor element of a product that is one factor as it stands.
static std::optional<Cursor> plainFactor(Reader &read,
                                         ArrayRef<Product> terms) {
  if (terms.size() != 1 || terms[0].constant != 1 ||
      terms[0].factors.size() != 1 || terms[0].factors[0].inverse)
    return std::nullopt;
  Node node = read.resolve(terms[0].factors[0].value);
  while (node.kind == Kind::Op && isa<arith::ExtFOp>(node.op))
    node = read.resolve(node.operands[0]);
  if (node.kind != Kind::Leaf || !node.cursor.isTensor())
    return std::nullopt;
  Type type = getElementTypeOrSelf(node.cursor.value.getType());
  if (!type.isF16() && !type.isBF16() && !type.isF32())
    return std::nullopt;
  return node.cursor;
}

/// Whether a dimension of the array is a product of digits, each once.
static bool isViewable(const Space &space, const Cursor &cursor,
                       const Rewriter::Groups &groups) {
  llvm::SmallVector<VarId> seen;
  size_t wanted = 0;
  for (const Idx &idx : cursor.at) {
    Idx flat = space.resolve(idx);
    for (auto [i, term] : llvm::enumerate(flat.terms)) {
      if (term.stride < 0 || llvm::is_contained(seen, term.var) ||
          placeOf(term.var, space, groups).group < 0)
        return false;
      if (i + 1 < flat.terms.size() &&
          term.stride !=
              flat.terms[i + 1].stride * space.extent(flat.terms[i + 1].var))
        return false;
      seen.push_back(term.var);
    }
  }
  for (const Rewriter::Digits &group : groups)
    wanted += group.size();
  return seen.size() == wanted;
}

/// Scales or zeros over `groups`: the graph's array, or a new one.
Value Rewriter::param(ImplicitLocOpBuilder &b, ArrayRef<Product> terms,
                      Groups groups, Type element) {
  auto plain = plainFactor(read, terms);
  if (plain && isViewable(space, *plain, groups) &&
      getElementTypeOrSelf(plain->value.getType()) == element)
    return viewOf(b, *plain, groups);
  Digits loops;
  SmallVector<int64_t> shape;
  for (const Digits &group : groups) {
    llvm::append_range(loops, group);
    shape.push_back(product(group));
  }
  SmallVector<Cursor> sources;
  for (const Product &term : terms)
    for (const Product::Factor &factor : term.factors)
      sources.push_back(factor.value);
  auto number = [](ImplicitLocOpBuilder &in, double v) -> Value {
    return arith::ConstantOp::create(in, in.getF32FloatAttr(v));
  };
  Value made =
      gather(b, loops, sources, b.getF32Type(),
             [&](ImplicitLocOpBuilder &in, ValueRange args) -> Value {
               Value sum;
               unsigned next = 0;
               for (const Product &term : terms) {
                 Value x;
                 for (const Product::Factor &factor : term.factors) {
                   Value y = args[next++];
                   Type f32 = in.getF32Type();
                   if (isa<FloatType>(y.getType()))
                     y = toFloat(in, y);
                   else if (factor.isUnsigned)
                     y = arith::UIToFPOp::create(in, f32, y);
                   else
                     y = arith::SIToFPOp::create(in, f32, y);
                   if (factor.inverse)
                     x = arith::DivFOp::create(in, x ? x : number(in, 1), y);
                   else
                     x = x ? arith::MulFOp::create(in, x, y).getResult() : y;
                 }
                 if (!x)
                   x = number(in, term.constant);
                 else if (term.constant != 1)
                   x = arith::MulFOp::create(in, x, number(in, term.constant));
                 sum = sum ? arith::AddFOp::create(in, sum, x).getResult() : x;
               }
               return sum ? sum : number(in, 0);
             });
  return reshape(b, made, shape);
}

/// The element type that all plain factors have, else f32.
static Type paramType(ImplicitLocOpBuilder &b, Reader &read,
                      ArrayRef<ArrayRef<Product>> params) {
  Type common;
  for (ArrayRef<Product> terms : params) {
    auto plain = plainFactor(read, terms);
    Type type = plain ? getElementTypeOrSelf(plain->value.getType())
                      : Type(b.getF32Type());
    if (common && common != type)
      return b.getF32Type();
    common = type;
  }
  return common;
}

/// The digits of `group` up to the last that is used.
static void keepUsed(Rewriter::Digits &group, ArrayRef<VarId> used) {
  while (!group.empty() && !llvm::is_contained(used, group.back()))
    group.pop_back();
}

static std::string_view scaleTypeText(Type type) {
  return type.isF16() ? ":sf16" : type.isBF16() ? ":sbf16" : ":sf32";
}

/// The encoding whose groups are as fine as the scales.
std::string Rewriter::encodingText(const CachedSide &side, const Groups &groups,
                                   Type element, const Groups &used) const {
  int64_t rows = product(used[2]), cols = product(used[3]),
          tokens = product(groups[2]), channels = product(groups[3]);
  std::string text(nameOf(side.element));
  auto group = [&](const char *kind, int64_t size, int64_t all) {
    text += kind;
    if (size != all)
      text += ":g" + std::to_string(size);
  };
  if (rows == 1 && cols == 1)
    text += ":head";
  else if (cols == channels && rows < tokens)
    group(":channel", tokens / rows, tokens);
  else
    group(":token", channels / cols, channels);
  if (isInteger(side.element))
    text += side.isSigned ? ":sym" : ":asym";
  return text.append(scaleTypeText(element));
}

/// Keys or values as [sequence, head, token, channel].
Value Rewriter::cachedOperand(ImplicitLocOpBuilder &b, const CachedSide &side,
                              const Digits &channels) {
  read.indices = &cache->tables;
  llvm::scope_exit done([&] { read.indices = nullptr; });
  bool paged = !cache->tables.tables.empty();
  Groups groups = groupsOf(channels), stored = groups;
  PackingAttr packing;
  if (side.slot) {
    bool overTokens = llvm::is_contained(pageTokens, *side.slot);
    llvm::erase(stored[overTokens ? 2 : 3], *side.slot);
    packing = PackingAttr::get(b.getContext(),
                               overTokens ? PackAxis::Token : PackAxis::Channel,
                               side.order);
  }
  auto gathered = [&](Value pool) {
    return paged ? gatherPages(b, pool) : pool;
  };
  Value codes = gathered(viewOf(b, side.array, stored));
  if (!side.isDecoded)
    return codes;
  // Scales and zeros are equally fine along tokens and channels.
  bool hasZeros = isInteger(side.element) && !side.isSigned;
  SmallVector<ArrayRef<Product>, 2> params{ArrayRef(side.scale)};
  if (hasZeros)
    params.push_back(side.zeros);
  Digits used;
  SmallVector<Digits, 2> usedBy;
  for (ArrayRef<Product> terms : params) {
    usedBy.emplace_back();
    for (const Product &term : terms)
      for (const Product::Factor &factor : term.factors)
        collect(factor.value, usedBy.back());
    refresh(usedBy.back());
    llvm::append_range(used, usedBy.back());
  }
  Type element = paramType(b, read, params);
  Groups fine = groups;
  keepUsed(fine[2], used);
  keepUsed(fine[3], used);
  SmallVector<Value> values;
  for (auto [terms, digits] : llvm::zip(params, usedBy)) {
    Groups own = fine;
    for (unsigned g : {0u, 1u})
      if (llvm::none_of(own[g],
                        [&, &digits = digits](VarId d) {
                          return llvm::is_contained(digits, d);
                        }) &&
          (g == 1 || !paged || fine[2].empty()))
        own[g].clear();
    Value value = param(b, terms, own, element);
    values.push_back(own[0].empty() ? value : gathered(value));
  }
  std::string text = encodingText(side, groups, element, fine);
  auto encoding = parseEncoding(text);
  SmallVector<int64_t> shape{product(batch), product(kv), product(key),
                             product(channels)};
  return DequantizeOp::create(
      b, RankedTensorType::get(shape, b.getF32Type()), codes, values,
      EncodingAttr::get(b.getContext(), std::get<Encoding>(encoding)),
      LayoutAttr::get(b.getContext(), Layout::HND), packing);
}

llvm::json::Value Rewriter::cacheAttributes() const {
  if (!cached)
    return nullptr;
  auto text = [](const CachedSide &side) {
    std::string name(nameOf(side.element));
    if (side.slot)
      name += " packed";
    return name;
  };
  llvm::json::Object result{{"key", text(keySide)}, {"value", text(valueSide)}};
  if (cache->tables.tables.empty()) {
    result["kind"] = "contiguous";
    return result;
  }
  const PageTable &source = cache->tables.tables.front();
  result["kind"] = "paged";
  result["page"] = product(pageTokens) * product(subPages);
  result["pages"] = source.pages;
  result["table_rule"] = source.rule == TableRule::Wrap ? "wrap" : "clamp";
  return result;
}
