//===- KVCacheOps.cpp - Verifiers of the ops that make or use caches ------===//
//
// view, append, seal, read. Labels (C1, C2, ...) are those of KVCacheOps.td.
//
//===----------------------------------------------------------------------===//
#include "Shape.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;

#define GET_OP_CLASSES
#include "kvcache/Dialect/KVCache/IR/KVCacheOps.cpp.inc"

namespace kvcache {

std::string shapeStr(ArrayRef<int64_t> shape) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleave(
      shape, os,
      [&](int64_t size) {
        if (ShapedType::isDynamic(size))
          os << '?';
        else
          os << size;
      },
      "x");
  return text;
}

LogicalResult verifyShape(Operation *op, StringRef name, RankedTensorType type,
                          ArrayRef<int64_t> expected) {
  bool agree = type.getRank() == static_cast<int64_t>(expected.size()) &&
               llvm::all_of(llvm::zip(type.getShape(), expected), [](auto p) {
                 return sizesAgree(std::get<0>(p), std::get<1>(p));
               });
  if (agree)
    return success();
  return op->emitOpError("expected '")
         << name << "' to have shape " << shapeStr(expected) << ", got "
         << shapeStr(type.getShape());
}

bool typesAgree(TypeRange a, TypeRange b) {
  if (a.size() != b.size())
    return false;
  for (auto [x, y] : llvm::zip(a, b)) {
    auto s = dyn_cast<RankedTensorType>(x), t = dyn_cast<RankedTensorType>(y);
    if (!s || !t ? x != y
                 : s.getElementType() != t.getElementType() ||
                       failed(verifyCompatibleShape(s, t)))
      return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// ViewOp
//===----------------------------------------------------------------------===//

Value ViewOp::getArray(int64_t number) {
  int64_t pools = getPools().size();
  return number < pools ? getPools()[number] : getScales()[number - pools];
}

/// C1..C5 for our own layout.
static LogicalResult verifyOwnView(ViewOp op, CacheType cache) {
  // C1
  if (op.getPools().size() != 2)
    return op.emitOpError("expected pools(sealed, open), got ")
           << op.getPools().size() << " tensors";
  for (Value pool : op.getPools())
    if (!tensorType(pool).getElementType().isInteger(8))
      return op.emitOpError("expected pools of bytes (i8), got ")
             << pool.getType();
  // C2
  if (op.getTables().size() != 2)
    return op.emitOpError("expected table(sealed, open), got ")
           << op.getTables().size() << " tensors";
  // C3
  if (!op.getSealedPages())
    return op.emitOpError("expected 'sealed_pages' for our own layout");
  // C4
  Format format = cache.getFormat();
  unsigned sides = (format.key.scale == ScaleKind::Tensor) +
                   (format.value.scale == ScaleKind::Tensor);
  if (op.getScales().size() != sides)
    return op.emitOpError("expected ")
           << sides << " static scales (one per side with tensor scales), got "
           << op.getScales().size();
  for (Value scale : op.getScales()) {
    if (!tensorType(scale).getElementType().isF32())
      return op.emitOpError("expected static scales of f32, got ")
             << scale.getType();
    if (failed(
            verifyShape(op, "scales", tensorType(scale), cache.getKvHeads())))
      return failure();
  }
  // C5
  if (format.key.center != static_cast<bool>(op.getMeans()))
    return op.emitOpError("expected 'means' exactly when the key is centred");
  if (op.getMeans())
    return verifyShape(op, "means", tensorType(op.getMeans()),
                       {cache.getKvHeads(), cache.getHeadDim()});
  return success();
}

/// C9 and C11 for one array: it exists, has the map's rank, and no corner of
/// the coordinates lies outside its static bounds. `size` are the coordinates'
/// sizes (page: 1, since it is the table's).
static FailureOr<RankedTensorType> verifyArray(ViewOp op, StringRef name,
                                               ExternalArrayAttr array,
                                               ArrayRef<int64_t> size) {
  int64_t count = op.getPools().size() + op.getScales().size();
  if (array.getArray() >= count)
    return op.emitOpError("expected ")
           << name << " to be one of the view's " << count << " arrays, got "
           << array.getArray();
  auto type = tensorType(op.getArray(array.getArray()));
  AffineMap map = array.getMap().getValue();
  if (type.getRank() != map.getNumResults())
    return op.emitOpError("expected array ")
           << array.getArray() << " (" << name << ") to have rank "
           << map.getNumResults() << ", got " << type;
  for (unsigned corner = 0; corner < 16; ++corner) {
    SmallVector<Attribute> coordinates, index;
    for (unsigned d = 0; d < 4; ++d)
      coordinates.push_back(
          IntegerAttr::get(IndexType::get(op.getContext()),
                           (corner >> d) & 1 ? size[d] - 1 : 0));
    if (failed(map.constantFold(coordinates, index)))
      return op.emitOpError("expected the map of ")
             << name << " to have no division by zero";
    for (auto [d, i] : llvm::enumerate(index)) {
      int64_t value = cast<IntegerAttr>(i).getInt();
      if (value < 0 || (!type.isDynamicDim(d) && value >= type.getDimSize(d)))
        return op.emitOpError("expected the map of ")
               << name << " to stay within " << type << ", got index " << value
               << " in dimension " << d;
    }
  }
  return type;
}

/// C9..C11 for the keys or the values.
static LogicalResult verifyExternalTensor(ViewOp op, StringRef side,
                                          ExternalTensorAttr tensor,
                                          const Encoding &encoding,
                                          int64_t channels) {
  CacheType cache = op.getCache().getType();
  SmallVector<int64_t> size = {1, cache.getFormat().page, cache.getKvHeads(),
                               channels};
  // Without a table the sequences' lengths say how many tokens there are.
  if (cache.getExternal().getTable() == TableRule::None)
    size[1] = 1;
  auto nameOfArray = [&](StringRef what) { return (side + " " + what).str(); };
  for (auto [what, array] :
       {std::pair<StringRef, ExternalArrayAttr>{"scales", tensor.getScales()},
        {"zeros", tensor.getZeros()}}) {
    if (!array)
      continue;
    FailureOr<RankedTensorType> type =
        verifyArray(op, nameOfArray(what), array, size);
    if (failed(type))
      return failure();
    // C10
    Type expected = scaleType(op.getContext(), encoding.scaleType);
    if (type->getElementType() != expected)
      return op.emitOpError("expected ")
             << side << " " << what << " of " << expected << ", got " << *type;
  }
  // The codes: their element first, since packing changes the coordinates.
  ExternalArrayAttr codes = tensor.getCodes();
  int64_t count = op.getPools().size() + op.getScales().size();
  if (codes.getArray() < count) {
    Type container = tensorType(op.getArray(codes.getArray())).getElementType();
    unsigned bits = bitsOf(tensor.getElement());
    bool fits = container == elementType(op.getContext(), tensor.getElement());
    if (isInteger(tensor.getElement()) && container.isSignlessInteger())
      fits = tensor.getPacking() ? container.getIntOrFloatBitWidth() % bits == 0
                                 : container.getIntOrFloatBitWidth() >= bits;
    // C10
    if (!fits)
      return op.emitOpError("expected ")
             << side << " codes to hold " << nameOf(tensor.getElement())
             << (tensor.getPacking() ? " packed" : "") << ", got "
             << op.getArray(codes.getArray()).getType();
    if (PackingAttr packing = tensor.getPacking()) {
      int64_t per = codesPerContainer(container, tensor.getElement(), packing);
      int64_t &packed = size[packing.getAxis() == PackAxis::Token ? 1 : 3];
      if (packed == 1 && cache.getExternal().getTable() == TableRule::None)
        packed = per;
      if (packed % per != 0)
        return op.emitOpError("expected ")
               << side << " codes packed by " << per << " to divide "
               << stringifyPackAxis(packing.getAxis()) << "s, got " << packed;
      packed /= per;
    }
  }
  return failure(failed(verifyArray(op, nameOfArray("codes"), codes, size)));
}

/// C3, C5, C8..C11 for an external layout.
static LogicalResult verifyExternalView(ViewOp op, CacheType cache) {
  ExternalAttr external = cache.getExternal();
  // C3
  if (op.getSealedPages())
    return op.emitOpError("expected no 'sealed_pages' for an external layout");
  // C5
  if (op.getMeans())
    return op.emitOpError("expected no 'means' for an external layout");
  // C8
  unsigned tables = external.getTable() == TableRule::None ? 0 : 1;
  if (op.getTables().size() != tables)
    return op.emitOpError("expected ")
           << tables << " tables with table rule "
           << stringifyTableRule(external.getTable()) << ", got "
           << op.getTables().size();
  Format format = cache.getFormat();
  if (failed(verifyExternalTensor(op, "key", external.getKey(), format.key,
                                  cache.getHeadDim())))
    return failure();
  return verifyExternalTensor(op, "value", external.getValue(), format.value,
                              cache.getValueDim());
}

LogicalResult ViewOp::verify() {
  CacheType cache = getCache().getType();
  LogicalResult layout = cache.getExternal() ? verifyExternalView(*this, cache)
                                             : verifyOwnView(*this, cache);
  if (failed(layout))
    return failure();
  int64_t seqs = tensorType(getLengths()).getDimSize(0);
  for (Value table : getTables()) {
    // C6
    auto type = tensorType(table);
    if (type.getRank() != 2 && type.getRank() != 3)
      return emitOpError("expected a table [seq, page] or [seq, kv or 1, "
                         "page], got ")
             << type;
    if (type.getRank() == 3 && type.getDimSize(1) != 1 &&
        !sizesAgree(type.getDimSize(1), cache.getKvHeads()))
      return emitOpError("expected page lists for 1 or ")
             << cache.getKvHeads() << " heads, got " << type.getDimSize(1);
    // C7
    if (!sizesAgree(type.getDimSize(0), seqs))
      return emitOpError("expected tables of ")
             << seqs << " sequences, as lengths has, got "
             << type.getDimSize(0);
  }
  if (getSealedPages())
    return verifyShape(*this, "sealed_pages", tensorType(getSealedPages()),
                       seqs);
  return success();
}

//===----------------------------------------------------------------------===//
// AppendOp, SealOp, ReadOp
//===----------------------------------------------------------------------===//

static LogicalResult verifyOwn(Operation *op, CacheType cache) {
  if (cache.getExternal())
    return op->emitOpError("expected a cache of our own layout: an external "
                           "one can only be read");
  return success();
}

LogicalResult AppendOp::verify() {
  CacheType cache = getCache().getType();
  // C1
  if (failed(verifyOwn(*this, cache)))
    return failure();
  int64_t rows = tensorType(getRowSeq()).getDimSize(0);
  // C2
  auto verifySide = [&](StringRef name, Value value,
                        int64_t dim) -> LogicalResult {
    if (tensorType(value).getElementType() != cache.getOpen())
      return emitOpError("expected '")
             << name << "' to have the open dtype " << cache.getOpen()
             << ", got " << value.getType();
    return verifyShape(*this, name, tensorType(value),
                       {rows, cache.getKvHeads(), dim});
  };
  if (failed(verifySide("k", getK(), cache.getHeadDim())))
    return failure();
  // C3
  if (cache.getLatent() == static_cast<bool>(getV()))
    return emitOpError("expected ")
           << (cache.getLatent() ? "no 'v': the values of a latent cache are "
                                   "its keys' first channels"
                                 : "'v': the cache stores values");
  if (getV())
    return verifySide("v", getV(), cache.getValueDim());
  return success();
}

LogicalResult SealOp::verify() {
  // C1
  return verifyOwn(*this, getCache().getType());
}

LogicalResult ReadOp::verify() {
  CacheType cache = getCache().getType();
  LayoutDims dims = layoutDims(getLayout(), 4);
  SmallVector<int64_t> shape(4, ShapedType::kDynamic);
  shape[0] = tensorType(getLengths()).getDimSize(0);
  shape[dims.head] = cache.getKvHeads();
  shape[dims.channel] = cache.getHeadDim();
  // C1, C3
  if (failed(verifyShape(*this, "k", tensorType(getK()), shape)))
    return failure();
  // C2, C3
  shape[dims.token] = tensorType(getK()).getDimSize(dims.token);
  shape[dims.channel] = cache.getValueDim();
  return verifyShape(*this, "v", tensorType(getV()), shape);
}

} // namespace kvcache
