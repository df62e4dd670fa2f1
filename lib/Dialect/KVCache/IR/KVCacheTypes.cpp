//===- KVCacheTypes.cpp - The cache type ----------------------------------===//
//
// Parsing, printing and the constraints T1..T7 of KVCacheTypes.td.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

#define GET_TYPEDEF_CLASSES
#include "kvcache/Dialect/KVCache/IR/KVCacheTypes.cpp.inc"

namespace kvcache {

void KVCacheDialect::registerTypes() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "kvcache/Dialect/KVCache/IR/KVCacheTypes.cpp.inc"
      >();
}

static ParseResult parseNamed(AsmParser &parser, StringRef name,
                              int64_t &value) {
  return failure(parser.parseKeyword(name) || parser.parseEqual() ||
                 parser.parseInteger(value) || parser.parseComma());
}

Type CacheType::parse(AsmParser &parser) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  int64_t kv, d, dv;
  if (parser.parseLess() || parseNamed(parser, "kv", kv) ||
      parseNamed(parser, "d", d))
    return {};
  dv = d;
  bool latent = false;
  if (succeeded(parser.parseOptionalKeyword("dv")))
    if (parser.parseEqual() || parser.parseInteger(dv) || parser.parseComma())
      return {};
  if (succeeded(parser.parseOptionalKeyword("latent"))) {
    latent = true;
    if (parser.parseComma())
      return {};
  }
  Type open;
  FormatAttr format;
  Attribute layout;
  if (parser.parseKeyword("open") || parser.parseEqual() ||
      parser.parseType(open) || parser.parseComma() ||
      parser.parseAttribute(format))
    return {};
  if (succeeded(parser.parseOptionalComma()))
    if (failed(parser.parseOptionalKeyword("unassigned")))
      if (parser.parseAttribute(layout))
        return {};
  if (parser.parseGreater())
    return {};
  return parser.getChecked<CacheType>(loc, parser.getContext(), kv, d, dv,
                                      latent, open, format, layout);
}

void CacheType::print(AsmPrinter &printer) const {
  printer << "<kv = " << getKvHeads() << ", d = " << getHeadDim();
  if (getValueDim() != getHeadDim())
    printer << ", dv = " << getValueDim();
  if (getLatent())
    printer << ", latent";
  printer << ", open = " << getOpen() << ", " << getFormatAttr() << ", ";
  if (isUnassigned())
    printer << "unassigned";
  else
    printer << getLayout();
  printer << '>';
}

/// T6 and T7 for one side.
static LogicalResult
verifyExternalSide(llvm::function_ref<InFlightDiagnostic()> emitError,
                   StringRef side, ExternalTensorAttr tensor,
                   const Encoding &encoding) {
  if (tensor.getElement() != encoding.element)
    return emitError() << "expected the external layout's " << side
                       << " element to be the format's "
                       << nameOf(encoding.element) << ", got "
                       << nameOf(tensor.getElement());
  bool hasScales = encoding.scale != ScaleKind::None;
  if (hasScales != static_cast<bool>(tensor.getScales()))
    return emitError() << "expected the external layout to have "
                       << (hasScales ? "" : "no ") << side
                       << " scales, as the format has "
                       << (hasScales ? "them" : "none");
  if (encoding.asymmetric != static_cast<bool>(tensor.getZeros()))
    return emitError() << "expected the external layout to have "
                       << (encoding.asymmetric ? "" : "no ") << side
                       << " zeros, as the format is "
                       << (encoding.asymmetric ? "asymmetric" : "symmetric");
  return success();
}

static LogicalResult
verifyExternal(llvm::function_ref<InFlightDiagnostic()> emitError,
               ExternalAttr external, const Format &format) {
  if (failed(verifyExternalSide(emitError, "key", external.getKey(),
                                format.key)) ||
      failed(verifyExternalSide(emitError, "value", external.getValue(),
                                format.value)))
    return failure();
  // T7
  if (format.sinks != 0 || format.recent != 0)
    return emitError() << "expected an external cache without sinks and recent "
                          "window, got sinks = "
                       << format.sinks << ", recent = " << format.recent;
  return success();
}

LogicalResult
CacheType::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                  int64_t kv, int64_t d, int64_t dv, bool latent, Type open,
                  FormatAttr format, Attribute layout) {
  // T1
  for (auto [name, value] :
       {std::pair<StringRef, int64_t>{"kv", kv}, {"d", d}, {"dv", dv}})
    if (value <= 0)
      return emitError() << "expected '" << name << "' to be positive, got "
                         << value;
  // T2
  if (!elementOf(open))
    return emitError() << "expected 'open' to be f16, bf16 or f32, got "
                       << open;
  // T3
  auto external = llvm::dyn_cast_if_present<ExternalAttr>(layout);
  if (!external && failed(format.resolve(d, dv, emitError)))
    return failure();
  // T4
  if (latent && dv > d)
    return emitError() << "expected latent values to be at most d = " << d
                       << " channels, got dv = " << dv;
  if (latent && format.getFormat().key != format.getFormat().value)
    return emitError()
           << "expected a latent cache to have one encoding, got key = "
           << format.getFormat().key.str()
           << " and value = " << format.getFormat().value.str();
  // T5
  if (layout && !llvm::isa<ImageAttr, ExternalAttr>(layout))
    return emitError() << "expected the layout to be unassigned, "
                          "#kvcache.image or #kvcache.external, got "
                       << layout;
  // T6, T7
  if (external)
    return verifyExternal(emitError, external, format.getFormat());
  return success();
}

Format CacheType::getFormat() const { return getFormatAttr().getFormat(); }

Format CacheType::getResolvedFormat() const {
  Expected<Format> format = resolve(getFormat(), getHeadDim(), getValueDim());
  // Only an external layout may not resolve: its maps carry the groups.
  if (errorOf(format))
    return getFormat();
  return std::get<Format>(format);
}

ImageAttr CacheType::getImage() const {
  return llvm::dyn_cast_if_present<ImageAttr>(getLayout());
}

ExternalAttr CacheType::getExternal() const {
  return llvm::dyn_cast_if_present<ExternalAttr>(getLayout());
}

CacheType CacheType::withLayout(Attribute layout) const {
  return CacheType::get(getContext(), getKvHeads(), getHeadDim(), getValueDim(),
                        getLatent(), getOpen(), getFormatAttr(), layout);
}

Element CacheType::getOpenElement() const { return *elementOf(getOpen()); }

} // namespace kvcache
