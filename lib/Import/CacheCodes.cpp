// Codes inside containers: nibbles taken out by masks and shifts, with a shift
// that varies along a dimension or with parts stacked afterwards. See Cache.h.

#include "Cache.h"
#include "Static.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

/// The inputs of a concatenation, written as one or as insertions side by side.
bool CacheReader::concatenated(Value tensor, int64_t &dim,
                               SmallVectorImpl<Value> &inputs) {
  if (auto concat = tensor.getDefiningOp<tensor::ConcatOp>()) {
    dim = concat.getDim();
    llvm::append_range(inputs, concat.getInputs());
    return true;
  }
  auto type = cast<RankedTensorType>(tensor.getType());
  std::vector<std::pair<int64_t, Value>> found;
  dim = -1;
  int64_t covered = 0;
  while (auto insert = tensor.getDefiningOp<tensor::InsertSliceOp>()) {
    auto part = insert.getSourceType();
    if (part.getRank() != type.getRank() || !part.hasStaticShape())
      return false;
    for (int64_t d = 0; d < type.getRank(); ++d) {
      if (insert.isDynamicOffset(d) || insert.isDynamicStride(d) ||
          insert.getStaticStride(d) != 1)
        return false;
      if (part.getDimSize(d) == type.getDimSize(d))
        continue;
      if (dim >= 0 && dim != d)
        return false;
      dim = d;
    }
    if (dim < 0)
      return false;
    found.push_back({insert.getStaticOffset(dim), insert.getSource()});
    covered += part.getDimSize(dim);
    tensor = insert.getDest();
    if (covered == type.getDimSize(dim))
      break;
  }
  if (dim < 0 || covered != type.getDimSize(dim))
    return false;
  llvm::sort(found, [](auto &a, auto &b) { return a.first < b.first; });
  int64_t next = 0;
  for (auto [offset, part] : found) {
    if (offset != next)
      return false; // one over another
    next += cast<RankedTensorType>(part.getType()).getDimSize(dim);
    inputs.push_back(part);
  }
  return true;
}

/// Equal parts side by side: the digit that says which, and each at the rest of
/// the position.
bool CacheReader::parts(const Cursor &tensor, VarId &which,
                        std::vector<Cursor> &out) {
  int64_t dim;
  SmallVector<Value> inputs;
  if (!tensor.isTensor() || !concatenated(tensor.value, dim, inputs) ||
      inputs.size() < 2)
    return false;
  auto sizeOf = [&](Value x) {
    return cast<RankedTensorType>(x.getType()).getDimSize(dim);
  };
  int64_t size = sizeOf(inputs.front()), count = inputs.size();
  if (!llvm::all_of(inputs, [&](Value x) { return sizeOf(x) == size; }))
    return false;
  auto at = space.delinearize(tensor.at[dim], {count, size});
  if (!at)
    return false;
  Idx part = space.resolve((*at)[0]);
  if (part.offset != 0 || part.terms.size() != 1 || part.terms[0].stride != 1 ||
      space.extent(part.terms[0].var) != count)
    return false;
  which = part.terms[0].var;
  for (Value input : inputs) {
    Cursor cursor{input, tensor.at, nullptr};
    cursor.at[dim] = (*at)[1];
    out.push_back(cursor);
  }
  return true;
}

/// A container: an element of an array of integers, extended or not.
bool CacheReader::matchContainer(Cursor x, Field &field) {
  Node node = simplify(x);
  unsigned reach = field.shift + field.bits;
  while (node.kind == Kind::Op &&
         isa<arith::ExtSIOp, arith::ExtUIOp, arith::TruncIOp>(node.op)) {
    Type from = getElementTypeOrSelf(node.operands[0].value.getType());
    field.width = from.getIntOrFloatBitWidth();
    if (field.width < reach)
      return false;
    node = simplify(node.operands[0]);
  }
  if (node.kind != Kind::Leaf || !node.cursor.isTensor())
    return false;
  Type type = getElementTypeOrSelf(node.cursor.value.getType());
  if (!type.isSignlessInteger() || type.getIntOrFloatBitWidth() < reach)
    return false;
  field.width = type.getIntOrFloatBitWidth();
  field.container = node.cursor;
  return true;
}

/// A container shifted right by a constant or by a step per digit.
bool CacheReader::matchShift(Cursor x, Field &field) {
  Node node = simplify(x);
  if (node.kind != Kind::Op || !isa<arith::ShRUIOp, arith::ShRSIOp>(node.op))
    return matchContainer(x, field);
  if (auto shift = integer(node.operands[1])) {
    field.shift += *shift;
    return *shift >= 0 && matchContainer(node.operands[0], field);
  }
  llvm::SmallVector<VarId> found;
  Tape tape(read, space);
  if (!read.dependence(node.operands[1], found) ||
      !tape.compile(node.operands[1]))
    return false;
  llvm::SmallVector<VarId> loops;
  for (VarId var : found)
    llvm::append_range(loops, space.digits(var));
  if (loops.size() != 1)
    return false;
  int64_t count = space.extent(loops[0]), step = 0, first = 0;
  for (int64_t i = 0; i < count; ++i) {
    auto shift = static_cast<int64_t>(tape.evaluate(loops, {i}));
    if (i == 0)
      first = shift;
    else if (i == 1)
      step = shift - first;
    if (shift < 0 || shift != first + i * step)
      return false;
  }
  field.digit = loops[0];
  field.step = step;
  field.shift = std::min(first, first + (count - 1) * step);
  return matchContainer(node.operands[0], field) &&
         std::max(first, first + (count - 1) * step) + field.bits <=
             field.width;
}

bool CacheReader::matchField(Cursor x, bool isSigned, Field &field) {
  Node node = simplify(x);
  if (node.kind == Kind::Op) {
    Operation *op = node.op;
    unsigned width = op->getResult(0).getType().getIntOrFloatBitWidth();
    if (isa<arith::ExtSIOp, arith::ExtUIOp>(op))
      return (isSigned || isa<arith::ExtUIOp>(op)) &&
             matchField(node.operands[0], isa<arith::ExtSIOp>(op), field);
    if (isa<arith::AndIOp>(op))
      for (unsigned i : {0u, 1u}) {
        auto mask = integer(node.operands[i]);
        if (!mask || (*mask != 1 && *mask != 3 && *mask != 15 && *mask != 255))
          continue;
        field.bits = llvm::countr_one(static_cast<uint64_t>(*mask));
        field.isSigned = field.bits == width && isSigned;
        return matchShift(node.operands[1 - i], field);
      }
    if (isa<arith::TruncIOp>(op)) {
      field.bits = width;
      field.isSigned = isSigned;
      return matchShift(node.operands[0], field);
    }
    if (isa<arith::ShRUIOp, arith::ShRSIOp>(op)) {
      // What a shift leaves at the top: as many bits as it leaves.
      auto shift = integer(node.operands[1]);
      if (!shift || *shift <= 0 || *shift >= width ||
          (isa<arith::ShRSIOp>(op) && !isSigned))
        return false;
      field.bits = width - *shift;
      field.isSigned = isa<arith::ShRSIOp>(op);
      Node up = simplify(node.operands[0]);
      auto left = up.kind == Kind::Op && isa<arith::ShLIOp>(up.op)
                      ? integer(up.operands[1])
                      : std::nullopt;
      field.shift = *shift - left.value_or(0);
      return field.shift >= 0 &&
             matchContainer(left ? up.operands[0] : node.operands[0], field);
    }
    // A field of a few bits has room for an offset: (x & 15) - 8.
    if (isa<arith::SubIOp, arith::AddIOp>(op)) {
      auto offset = integer(node.operands[1]);
      if (!offset || !matchField(node.operands[0], isSigned, field) ||
          field.bits >= width || std::abs(*offset) > (1 << (field.bits - 1)) ||
          field.offset != 0)
        return false;
      field.offset = isa<arith::SubIOp>(op) ? -*offset : *offset;
      return isSigned || field.offset >= 0;
    }
    return false;
  }
  if (node.kind != Kind::Leaf || !node.cursor.isTensor())
    return false;
  Type type = getElementTypeOrSelf(node.cursor.value.getType());
  if (!type.isSignlessInteger())
    return false;
  field.container = node.cursor;
  field.width = field.bits = type.getIntOrFloatBitWidth();
  field.isSigned = isSigned;
  return true;
}

/// The side's code from the field that holds it.
bool CacheReader::finish(const Field &field, CachedSide &side) {
  switch (field.bits) {
  case 8:
    side.element = Element::I8;
    break;
  case 4:
    side.element = Element::I4;
    break;
  case 2:
    side.element = Element::I2;
    break;
  case 1:
    side.element = Element::I1;
    break;
  default:
    return refuse("their codes have " + llvm::Twine(field.bits) + " bits");
  }
  side.array = field.container;
  side.isSigned = field.isSigned;
  if (field.offset != 0)
    side.zeros.push_back({static_cast<double>(field.offset), {}});
  return true;
}

bool CacheReader::matchParts(ArrayRef<Cursor> parts, bool isSigned,
                             CachedSide &side, VarId slot) {
  std::vector<Field> fields(parts.size());
  for (auto [part, field] : llvm::zip(parts, fields))
    if (!matchField(part, isSigned, field) || field.digit)
      return refuse("their codes are joined from parts that are no fields of "
                    "one array");
  const Field &first = fields.front();
  int64_t count = parts.size();
  bool low = first.shift == 0;
  for (auto [i, field] : llvm::enumerate(fields)) {
    int64_t at = low ? i : count - 1 - i;
    if (field.bits != first.bits || field.isSigned != first.isSigned ||
        field.offset != first.offset || field.shift != at * first.bits ||
        !read.same(field.container, first.container))
      return refuse("their codes are joined from parts that are no fields of "
                    "one array");
  }
  if (first.bits * count != first.width)
    return refuse("their codes do not fill their containers");
  side.slot = slot;
  side.order = low ? PackOrder::LowFirst : PackOrder::HighFirst;
  return finish(first, side);
}

bool CacheReader::matchCode(Cursor x, bool isSigned, CachedSide &side) {
  Node node = simplify(x);
  while (node.kind == Kind::Op &&
         isa<arith::ExtSIOp, arith::ExtUIOp>(node.op)) {
    if (!isSigned && isa<arith::ExtSIOp>(node.op))
      return false;
    isSigned = isa<arith::ExtSIOp>(node.op);
    node = simplify(node.operands[0]);
  }
  VarId slot;
  std::vector<Cursor> stacked;
  if ((node.kind == Kind::Concat || node.kind == Kind::Leaf) &&
      parts(node.cursor, slot, stacked))
    return matchParts(stacked, isSigned, side, slot);
  Field field;
  if (!matchField(node.cursor, isSigned, field))
    return false;
  if (!field.digit) {
    if (field.bits != field.width)
      return refuse("their codes do not fill their containers");
    return finish(field, side);
  }
  int64_t count = space.extent(*field.digit);
  if (field.shift != 0 || std::abs(field.step) != field.bits ||
      field.bits * count != field.width)
    return refuse("their codes do not fill their containers");
  side.slot = field.digit;
  side.order = field.step > 0 ? PackOrder::LowFirst : PackOrder::HighFirst;
  return finish(field, side);
}
