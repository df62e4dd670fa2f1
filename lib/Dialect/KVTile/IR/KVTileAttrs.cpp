//===- KVTileAttrs.cpp - Attributes of kvtile -----------------------------===//
//
// Verifiers of layouts, specs and schedules, and the conversion between
// `#kvtile.spec` and KernelSpec.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Dialect/KVTile/IR/KVTile.h"

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

#include "kvcache/Dialect/KVTile/IR/KVTileEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/KVTile/IR/KVTileAttrs.cpp.inc"

void KVTileDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "kvcache/Dialect/KVTile/IR/KVTileAttrs.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Types and elements
//===----------------------------------------------------------------------===//

Type tile::toType(MLIRContext *context, Element element) {
  switch (element) {
  case Element::F32:
    return Float32Type::get(context);
  case Element::F16:
    return Float16Type::get(context);
  case Element::BF16:
    return BFloat16Type::get(context);
  default:
    return {};
  }
}

std::optional<Element> tile::toElement(Type type) {
  if (type.isF32())
    return Element::F32;
  if (type.isF16())
    return Element::F16;
  if (type.isBF16())
    return Element::BF16;
  return std::nullopt;
}

std::optional<LayoutKind> tile::getLayout(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor)
    return std::nullopt;
  auto layout = dyn_cast_or_null<LayoutAttr>(tensor.getEncoding());
  if (!layout)
    return std::nullopt;
  return layout.getKind();
}

bool tile::hasLayout(Type type, LayoutKind kind) {
  return getLayout(type) == kind;
}

template <typename Spec>
static RankedTensorType typeOf(Spec spec, ScheduleAttr schedule,
                               LayoutKind kind, Type element) {
  MLIRContext *context = spec.getContext();
  SmallVector<int64_t> shape;
  int64_t n = schedule.getQPack() * schedule.getQRows();
  switch (kind) {
  case LayoutKind::Query:
    shape = {n, spec.getHeadDim()};
    break;
  case LayoutKind::Acc:
    shape = {schedule.getTileTokens(), n};
    break;
  case LayoutKind::Rows:
    shape = {n};
    break;
  case LayoutKind::Out:
    shape = {spec.getValueDim(), n};
    break;
  }
  if (!element)
    element = Float32Type::get(context);
  return RankedTensorType::get(shape, element, LayoutAttr::get(context, kind));
}

RankedTensorType tile::tileType(SpecAttr spec, ScheduleAttr schedule,
                                LayoutKind kind, Type element) {
  return typeOf(spec, schedule, kind, element);
}

RankedTensorType tile::tileType(ArraysAttr spec, ScheduleAttr schedule,
                                LayoutKind kind, Type element) {
  return typeOf(spec, schedule, kind, element);
}

//===----------------------------------------------------------------------===//
// #kvtile.layout
//===----------------------------------------------------------------------===//

LogicalResult
LayoutAttr::verifyEncoding(ArrayRef<int64_t> shape, Type elementType,
                           function_ref<InFlightDiagnostic()> emitError) const {
  // The type parser asks also when the element type did not parse.
  if (!elementType)
    return emitError() << "expected an element type";
  StringRef name = stringifyLayoutKind(getKind());
  size_t rank = getKind() == LayoutKind::Rows ? 1 : 2;
  if (shape.size() != rank)
    return emitError() << "expected a tensor of rank " << rank
                       << " for layout '" << name << "', got rank "
                       << shape.size();
  if (llvm::any_of(shape, ShapedType::isDynamic))
    return emitError() << "expected static dimensions for layout '" << name
                       << "'";
  bool maskable = getKind() == LayoutKind::Acc || getKind() == LayoutKind::Rows;
  if (!elementType.isF32() && !(maskable && elementType.isInteger(1)))
    return emitError() << "expected element type f32"
                       << (maskable ? " or i1" : "") << " for layout '" << name
                       << "', got " << elementType;
  return success();
}

//===----------------------------------------------------------------------===//
// #kvtile.spec
//===----------------------------------------------------------------------===//

static Expected<KernelSpec> buildSpec(int64_t qHeads, int64_t kvHeads,
                                      int64_t headDim, int64_t valueDim,
                                      Type dtype, StringRef format,
                                      MaskAttr mask, FloatAttr softcap,
                                      FloatAttr scale, bool alibi) {
  KernelSpec spec;
  spec.qHeads = qHeads;
  spec.kvHeads = kvHeads;
  spec.headDim = headDim;
  spec.valueDim = valueDim;
  std::optional<Element> element = toElement(dtype);
  if (!element)
    return FormatError{"expected dtype f32, f16 or bf16"};
  spec.dtype = *element;
  Expected<Format> parsed = Format::parse(std::string_view(format));
  if (auto *error = std::get_if<FormatError>(&parsed))
    return *error;
  spec.format = std::get<Format>(parsed);
  spec.causal = mask ? mask.getCausal() : true;
  if (mask && mask.getLeft() >= 0)
    spec.windowLeft = mask.getLeft();
  if (mask && mask.getRight() >= 0)
    spec.windowRight = mask.getRight();
  if (softcap)
    spec.softcap = softcap.getValueAsDouble();
  if (scale)
    spec.scale = scale.getValueAsDouble();
  spec.alibi = alibi;
  if (std::optional<FormatError> error = spec.verify())
    return *error;
  return spec;
}

LogicalResult SpecAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               int64_t qHeads, int64_t kvHeads, int64_t headDim,
                               int64_t valueDim, Type dtype, StringRef format,
                               MaskAttr mask, FloatAttr softcap,
                               FloatAttr scale, bool alibi) {
  Expected<KernelSpec> spec =
      buildSpec(qHeads, kvHeads, headDim, valueDim, dtype, format, mask,
                softcap, scale, alibi);
  if (auto *error = std::get_if<FormatError>(&spec))
    return emitError() << "C1: " << error->message;
  return success();
}

KernelSpec SpecAttr::getKernelSpec() const {
  return std::get<KernelSpec>(buildSpec(
      getQHeads(), getKvHeads(), getHeadDim(), getValueDim(), getDtype(),
      getFormat(), getMask(), getSoftcap(), getScale(), getAlibi()));
}

SpecAttr SpecAttr::fromKernelSpec(MLIRContext *context,
                                  const KernelSpec &spec) {
  Builder builder(context);
  auto number = [&](std::optional<double> x) {
    return x ? builder.getF64FloatAttr(*x) : FloatAttr();
  };
  MaskAttr mask =
      MaskAttr::get(context, spec.causal, spec.windowLeft.value_or(-1),
                    spec.windowRight.value_or(-1));
  return SpecAttr::get(context, spec.qHeads, spec.kvHeads, spec.headDim,
                       spec.valueDim, toType(context, spec.dtype),
                       builder.getStringAttr(spec.format.str()).getValue(),
                       mask, number(spec.softcap), number(spec.scale),
                       spec.alibi);
}

//===----------------------------------------------------------------------===//
// #kvtile.arrays
//===----------------------------------------------------------------------===//

LogicalResult ArraysAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                 int64_t group, int64_t headDim,
                                 int64_t valueDim, Type query, Type key,
                                 Type value, Type out, FloatAttr /*scale*/,
                                 MaskAttr /*mask*/, Type maskOperand,
                                 FloatAttr /*softcap*/, bool /*alibi*/,
                                 bool /*sinks*/, EmptyRows /*emptyRows*/) {
  if (group < 1 || headDim < 1 || valueDim < 1)
    return emitError() << "C1: expected group, head_dim and value_dim to be "
                          "positive, got "
                       << group << ", " << headDim << " and " << valueDim;
  for (Type type : {query, key, value, out})
    if (!toElement(type))
      return emitError() << "C2: expected elements f32, f16 or bf16, got "
                         << type;
  if (maskOperand && !maskOperand.isInteger(1) && !toElement(maskOperand))
    return emitError() << "C2: expected mask_operand i1, f32, f16 or bf16, got "
                       << maskOperand;
  return success();
}

//===----------------------------------------------------------------------===//
// #kvtile.schedule
//===----------------------------------------------------------------------===//

LogicalResult ScheduleAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                   int64_t tileTokens, int64_t qPack,
                                   int64_t warps, int64_t stages,
                                   int64_t splitTokens, DotKind dotKind,
                                   Orientation orientation,
                                   int64_t prefetchBytes, int64_t expBias,
                                   int64_t vectorBits, bool /*subnormalCodes*/,
                                   int64_t qRows) {
  if (tileTokens < 1 || tileTokens > 256 || !llvm::isPowerOf2_64(tileTokens))
    return emitError() << "C1: expected tile_tokens to be a power of two up to "
                          "256, got "
                       << tileTokens;
  if (qPack < 1 || qPack > 16)
    return emitError() << "C1: expected q_pack from 1 to 16, got " << qPack;
  if (qRows < 1 || qRows > 64)
    return emitError() << "C1: expected q_rows from 1 to 64, got " << qRows;
  if (warps < 1 || stages < 1)
    return emitError() << "C1: expected warps and stages to be positive, got "
                       << warps << " and " << stages;
  if (splitTokens < 0 || prefetchBytes < 0 || expBias < 0)
    return emitError() << "C1: expected split_tokens, prefetch_bytes and "
                          "exp_bias not to be negative, got "
                       << splitTokens << ", " << prefetchBytes << " and "
                       << expBias;
  if (!llvm::is_contained({0, 128, 256, 512}, vectorBits))
    return emitError() << "C1: expected vector_bits 0, 128, 256 or 512, got "
                       << vectorBits;
  return success();
}
