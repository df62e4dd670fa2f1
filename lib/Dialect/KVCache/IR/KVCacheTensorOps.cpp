//===- KVCacheTensorOps.cpp - Verifiers of the ops on plain tensors -------===//
//
// quantize, dequantize, page_gather, merge_states. Labels (C1, C2, ...) are
// those of KVCacheOps.td.
//
//===----------------------------------------------------------------------===//
#include "Shape.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"

using namespace mlir;

namespace kvcache {

/// The rank rule that quantize and dequantize share (their C1).
static LogicalResult verifyRank(Operation *op, StringRef name,
                                RankedTensorType type, Layout layout) {
  int64_t least = layout == Layout::NHD ? 3 : 2;
  if (type.getRank() >= least)
    return success();
  return op->emitOpError("expected '")
         << name << "' of rank " << least << " or more for layout "
         << stringifyLayout(layout) << ", got " << type;
}

/// Transforms belong to caches: only they can undo them in the query.
static LogicalResult verifyPlainEncoding(Operation *op,
                                         const Encoding &encoding) {
  if (!encoding.sparse24 && !encoding.hadamard && !encoding.center)
    return success();
  return op->emitOpError("expected an encoding without 2of4, hadamard and "
                         "center, got ")
         << encoding.str();
}

static unsigned paramCount(const Encoding &encoding, bool staticIsGiven) {
  if (encoding.scale == ScaleKind::None)
    return 0;
  if (encoding.scale == ScaleKind::Tensor && staticIsGiven)
    return 0;
  return encoding.asymmetric ? 2 : 1;
}

//===----------------------------------------------------------------------===//
// QuantizeOp
//===----------------------------------------------------------------------===//

/// Number of groups along `size` items with `group` items each; 0: one group.
static int64_t groupsOf(int64_t size, int64_t group) {
  if (group == 0)
    return 1;
  return ShapedType::isDynamic(size) ? size : size / group;
}

LogicalResult QuantizeOp::inferReturnTypes(MLIRContext *context,
                                           std::optional<Location> location,
                                           Adaptor op,
                                           SmallVectorImpl<Type> &types) {
  auto x = dyn_cast<RankedTensorType>(op.getX().getType());
  Layout layout = op.getLayout();
  if (!x || x.getRank() < (layout == Layout::NHD ? 3 : 2))
    return emitOptionalError(location, "expected 'x' of rank ",
                             layout == Layout::NHD ? 3 : 2,
                             " or more for layout ", stringifyLayout(layout),
                             ", got ", op.getX().getType());
  Encoding e = op.getEncoding().getEncoding();
  types.push_back(
      RankedTensorType::get(x.getShape(), elementType(context, e.element)));
  LayoutDims dims = layoutDims(layout, x.getRank());
  SmallVector<int64_t> shape(x.getShape());
  shape[dims.token] = e.scale == ScaleKind::Token ? shape[dims.token]
                      : e.scale == ScaleKind::Channel
                          ? groupsOf(shape[dims.token], e.group)
                          : 1;
  shape[dims.channel] = e.scale == ScaleKind::Channel ? shape[dims.channel]
                        : e.scale == ScaleKind::Token
                            ? groupsOf(shape[dims.channel], e.group)
                            : 1;
  types.append(paramCount(e, /*staticIsGiven=*/true),
               RankedTensorType::get(shape, scaleType(context, e.scaleType)));
  return success();
}

bool QuantizeOp::isCompatibleReturnTypes(TypeRange a, TypeRange b) {
  return typesAgree(a, b);
}

LogicalResult QuantizeOp::verify() {
  auto x = tensorType(getX());
  Encoding e = getEncoding().getEncoding();
  // C1
  if (failed(verifyRank(*this, "x", x, getLayout())))
    return failure();
  // C2
  if ((e.scale == ScaleKind::Tensor) != static_cast<bool>(getStaticScale()))
    return emitOpError("expected a static scale exactly when the encoding has "
                       "tensor scales, got ")
           << (getStaticScale() ? "one" : "none") << " with " << e.str();
  // C3
  if (failed(verifyPlainEncoding(*this, e)))
    return failure();
  // C4
  LayoutDims dims = layoutDims(getLayout(), x.getRank());
  bool overTokens = e.scale == ScaleKind::Channel;
  int64_t size = x.getDimSize(overTokens ? dims.token : dims.channel);
  if (e.group != 0 && !ShapedType::isDynamic(size) && size % e.group != 0)
    return emitOpError("expected group ")
           << e.group << " to divide the " << size
           << (overTokens ? " tokens" : " channels") << " of 'x'";
  // C5
  return verifyInferredTypes(*this);
}

//===----------------------------------------------------------------------===//
// DequantizeOp
//===----------------------------------------------------------------------===//

/// C3: whether `container` can hold codes of `e`, packed or one each.
static bool holdsCodes(Type container, const Encoding &e, PackingAttr packing) {
  if (!isInteger(e.element))
    return !packing &&
           container == elementType(container.getContext(), e.element);
  if (!container.isSignlessInteger())
    return false;
  unsigned width = container.getIntOrFloatBitWidth();
  return packing ? width % bitsOf(e.element) == 0 : width >= bitsOf(e.element);
}

/// C5, C7 and C8 for one of the params.
static LogicalResult verifyParam(DequantizeOp op, Value param,
                                 const LayoutDims &dims) {
  auto type = tensorType(param), result = tensorType(op.getResult());
  Encoding e = op.getEncoding().getEncoding();
  // C8
  Type expected = scaleType(op.getContext(), e.scaleType);
  if (type.getElementType() != expected)
    return op.emitOpError("expected scales and zeros of ")
           << expected << ", got " << type;
  // C5
  if (type.getRank() != result.getRank())
    return op.emitOpError("expected scales and zeros of rank ")
           << result.getRank() << ", got " << type;
  for (int64_t d = 0; d < type.getRank(); ++d) {
    int64_t have = type.getDimSize(d), all = result.getDimSize(d);
    if (ShapedType::isDynamic(have) || ShapedType::isDynamic(all) || have == 1)
      continue;
    bool grouped = d == dims.token || d == dims.channel;
    if (have == 0 || (grouped ? all % have != 0 : all != have))
      return op.emitOpError("expected size ")
             << have << " of scales and zeros in dimension " << d
             << (grouped ? " to divide " : " to be 1 or ") << all;
  }
  // C7
  int64_t d = e.scale == ScaleKind::Channel ? dims.token : dims.channel;
  int64_t have = type.getDimSize(d), all = result.getDimSize(d);
  if (e.group != 0 && !ShapedType::isDynamic(have) &&
      !ShapedType::isDynamic(all) && have * e.group != all)
    return op.emitOpError("expected ")
           << all / e.group << " groups of " << e.group << " in dimension " << d
           << ", got " << have;
  return success();
}

LogicalResult DequantizeOp::verify() {
  auto codes = tensorType(getCodes());
  Encoding e = getEncoding().getEncoding();
  // C1
  if (failed(verifyRank(*this, "codes", codes, getLayout())))
    return failure();
  // C2
  unsigned count = paramCount(e, /*staticIsGiven=*/false);
  if (getParams().size() != count)
    return emitOpError("expected ")
           << count << " params (scale, zero) for " << e.str() << ", got "
           << getParams().size();
  // C3
  if (!holdsCodes(codes.getElementType(), e, getPackingAttr()))
    return emitOpError("expected codes to hold ")
           << nameOf(e.element) << (getPackingAttr() ? " packed" : "")
           << ", got " << codes;
  // C4
  if (failed(verifyPlainEncoding(*this, e)))
    return failure();
  // C6
  LayoutDims dims = layoutDims(getLayout(), codes.getRank());
  SmallVector<int64_t> shape(codes.getShape());
  if (PackingAttr packing = getPackingAttr()) {
    int64_t per = codesPerContainer(codes.getElementType(), e.element, packing);
    int64_t &size =
        shape[packing.getAxis() == PackAxis::Token ? dims.token : dims.channel];
    size = ShapedType::isDynamic(size) ? size : size * per;
  }
  if (failed(verifyShape(*this, "result", tensorType(getResult()), shape)))
    return failure();
  for (Value param : getParams())
    if (failed(verifyParam(*this, param, dims)))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// PageGatherOp
//===----------------------------------------------------------------------===//

LogicalResult PageGatherOp::inferReturnTypes(MLIRContext *,
                                             std::optional<Location> location,
                                             Adaptor op,
                                             SmallVectorImpl<Type> &types) {
  auto pool = dyn_cast<RankedTensorType>(op.getPool().getType());
  auto table = dyn_cast<RankedTensorType>(op.getTable().getType());
  // C1
  if (!pool || pool.getRank() != 4)
    return emitOptionalError(location, "expected a pool of rank 4, got ",
                             op.getPool().getType());
  // C2
  if (!table || (table.getRank() != 2 && table.getRank() != 3))
    return emitOptionalError(
        location,
        "expected a table [seq, page] or [seq, head or 1, page], "
        "got ",
        op.getTable().getType());
  LayoutDims dims = layoutDims(op.getLayout(), 4);
  SmallVector<int64_t> shape(pool.getShape());
  shape[0] = table.getDimSize(0);
  int64_t pages = table.getShape().back();
  int64_t &tokens = shape[dims.token];
  tokens = ShapedType::isDynamic(tokens) || ShapedType::isDynamic(pages)
               ? ShapedType::kDynamic
               : tokens * pages;
  types.push_back(RankedTensorType::get(shape, pool.getElementType()));
  return success();
}

bool PageGatherOp::isCompatibleReturnTypes(TypeRange a, TypeRange b) {
  return typesAgree(a, b);
}

LogicalResult PageGatherOp::verify() {
  // C1, C2 (rank), C4
  if (failed(verifyInferredTypes(*this)))
    return failure();
  auto table = tensorType(getTable());
  int64_t heads =
      tensorType(getPool()).getDimSize(layoutDims(getLayout(), 4).head);
  // C2
  if (table.getRank() == 3 && table.getDimSize(1) != 1 &&
      !sizesAgree(table.getDimSize(1), heads))
    return emitOpError("expected page lists for 1 or ")
           << heads << " heads, got " << table.getDimSize(1);
  // C3
  if (getTableRule() == TableRule::None)
    return emitOpError("expected table rule raw, clamp or wrap, got none");
  return success();
}

//===----------------------------------------------------------------------===//
// MergeStatesOp
//===----------------------------------------------------------------------===//

LogicalResult MergeStatesOp::inferReturnTypes(MLIRContext *,
                                              std::optional<Location> location,
                                              Adaptor op,
                                              SmallVectorImpl<Type> &types) {
  // C1
  ValueRange operands = op.getOperands();
  if (operands.empty() || operands.size() % 2 != 0)
    return emitOptionalError(location, "expected one or more parts");
  types.push_back(operands[0].getType());
  types.push_back(operands[operands.size() / 2].getType());
  return success();
}

bool MergeStatesOp::isCompatibleReturnTypes(TypeRange a, TypeRange b) {
  return typesAgree(a, b);
}

LogicalResult MergeStatesOp::verify() {
  // C1
  if (failed(verifyInferredTypes(*this)))
    return failure();
  // C2
  for (auto values : {getOuts(), getLses()})
    for (Value value : values)
      if (value.getType() != values.front().getType())
        return emitOpError("expected parts of one type, got ")
               << values.front().getType() << " and " << value.getType();
  // C3
  auto out = tensorType(getOut());
  if (out.getRank() == 0)
    return emitOpError("expected outs of rank 1 or more, got ") << out;
  return verifyShape(*this, "lse", tensorType(getLse()),
                     out.getShape().drop_back());
}

// outs(%a, %b) lses(%x, %y) attr-dict : out type, lse type. Custom because the
// declarative format would repeat each type for every part.
ParseResult MergeStatesOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::UnresolvedOperand> outs, lses;
  Type out, lse;
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword("outs") ||
      parser.parseOperandList(outs, OpAsmParser::Delimiter::Paren) ||
      parser.parseKeyword("lses") ||
      parser.parseOperandList(lses, OpAsmParser::Delimiter::Paren) ||
      parser.parseOptionalAttrDict(result.attributes) || parser.parseColon() ||
      parser.parseType(out) || parser.parseComma() || parser.parseType(lse))
    return failure();
  if (outs.empty() || outs.size() != lses.size())
    return parser.emitError(loc, "expected as many lses as outs and at least "
                                 "one, got ")
           << outs.size() << " outs and " << lses.size() << " lses";
  if (parser.resolveOperands(outs, out, result.operands) ||
      parser.resolveOperands(lses, lse, result.operands))
    return failure();
  result.addTypes({out, lse});
  return success();
}

void MergeStatesOp::print(OpAsmPrinter &printer) {
  printer << " outs(" << getOuts() << ") lses(" << getLses() << ")";
  printer.printOptionalAttrDict((*this)->getAttrs());
  printer << " : " << getOut().getType() << ", " << getLse().getType();
}

} // namespace kvcache
