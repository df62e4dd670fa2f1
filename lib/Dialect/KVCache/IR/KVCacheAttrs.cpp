//===- KVCacheAttrs.cpp - Attributes: parsing, printing, verifying --------===//
//
// Formats and encodings print the text of their own grammar (lib/Format), split
// into MLIR tokens; what such a token sequence cannot spell is quoted.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/KVCache/IR/KVCacheAttrs.cpp.inc"

namespace kvcache {

void KVCacheDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "kvcache/Dialect/KVCache/IR/KVCacheAttrs.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Formats and encodings
//===----------------------------------------------------------------------===//

/// Parses one word of the format grammar: a string, a keyword, or a keyword
/// that starts with digits (`2of4`), which MLIR lexes as two tokens.
static ParseResult parseWord(AsmParser &parser, std::string &text) {
  std::string string;
  StringRef keyword;
  int64_t number;
  if (succeeded(parser.parseOptionalString(&string))) {
    text += string;
    return success();
  }
  OptionalParseResult integer = parser.parseOptionalInteger(number);
  if (integer.has_value()) {
    if (failed(*integer))
      return failure();
    text += std::to_string(number);
    if (succeeded(parser.parseOptionalKeyword(&keyword)))
      text += keyword;
    return success();
  }
  if (failed(parser.parseOptionalKeyword(&keyword)))
    return parser.emitError(parser.getCurrentLocation(),
                            "expected a word of the format grammar");
  text += keyword;
  return success();
}

/// word (`:` word)*
static ParseResult parseColonWords(AsmParser &parser, std::string &text) {
  if (parseWord(parser, text))
    return failure();
  while (succeeded(parser.parseOptionalColon())) {
    text += ':';
    if (parseWord(parser, text))
      return failure();
  }
  return success();
}

/// Prints `text` bare if MLIR lexes it as keywords, colons and commas.
static void printWords(AsmPrinter &printer, StringRef text) {
  if (llvm::all_of(text, [](char c) {
        return llvm::isAlnum(c) || c == '_' || c == ':';
      }))
    printer << text;
  else
    printer << '"' << text << '"';
}

Attribute FormatAttr::parse(AsmParser &parser, Type) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  std::string text;
  auto parseItem = [&]() -> ParseResult {
    if (!text.empty())
      text += ',';
    if (parseColonWords(parser, text))
      return failure();
    if (failed(parser.parseOptionalEqual()))
      return success();
    text += '=';
    return parseColonWords(parser, text);
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                     parseItem, " in a format"))
    return {};
  Expected<Format> format = Format::parse(text);
  if (const FormatError *error = errorOf(format)) {
    parser.emitError(loc, error->message);
    return {};
  }
  return FormatAttr::get(parser.getContext(), std::get<Format>(format));
}

void FormatAttr::print(AsmPrinter &printer) const {
  std::string text = getFormat().str();
  printer << '<';
  llvm::interleaveComma(llvm::split(text, ','), printer, [&](StringRef item) {
    auto [name, value] = item.split('=');
    printWords(printer, name);
    if (!item.contains('='))
      return;
    printer << " = ";
    printWords(printer, value);
  });
  printer << '>';
}

FailureOr<Format>
FormatAttr::resolve(int64_t headDim, int64_t valueDim,
                    llvm::function_ref<InFlightDiagnostic()> emitError) const {
  Expected<Format> format = kvcache::resolve(getFormat(), headDim, valueDim);
  if (const FormatError *error = errorOf(format)) {
    emitError() << error->message;
    return failure();
  }
  return std::get<Format>(format);
}

Attribute EncodingAttr::parse(AsmParser &parser, Type) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  std::string text;
  if (parser.parseLess() || parseColonWords(parser, text) ||
      parser.parseGreater())
    return {};
  Expected<Encoding> encoding = parseEncoding(text);
  if (const FormatError *error = errorOf(encoding)) {
    parser.emitError(loc, error->message);
    return {};
  }
  return EncodingAttr::get(parser.getContext(), std::get<Encoding>(encoding));
}

void EncodingAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printWords(printer, getEncoding().str());
  printer << '>';
}

//===----------------------------------------------------------------------===//
// Window and image
//===----------------------------------------------------------------------===//

Attribute WindowAttr::parse(AsmParser &parser, Type) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  std::optional<int64_t> left, right;
  auto parseSide = [&]() -> ParseResult {
    StringRef keyword;
    llvm::SMLoc sideLoc = parser.getCurrentLocation();
    if (parser.parseKeyword(&keyword))
      return failure();
    std::optional<int64_t> *side = keyword == "left"    ? &left
                                   : keyword == "right" ? &right
                                                        : nullptr;
    if (!side)
      return parser.emitError(sideLoc, "expected 'left' or 'right', got '")
             << keyword << "'";
    if (*side)
      return parser.emitError(sideLoc, "'") << keyword << "' is given twice";
    int64_t value;
    if (parser.parseEqual() || parser.parseInteger(value))
      return failure();
    *side = value;
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                     parseSide, " in a window"))
    return {};
  return parser.getChecked<WindowAttr>(loc, parser.getContext(), left, right);
}

void WindowAttr::print(AsmPrinter &printer) const {
  printer << '<';
  if (getLeft())
    printer << "left = " << *getLeft();
  if (getLeft() && getRight())
    printer << ", ";
  if (getRight())
    printer << "right = " << *getRight();
  printer << '>';
}

LogicalResult
WindowAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                   std::optional<int64_t> left, std::optional<int64_t> right) {
  if (!left && !right)
    return emitError() << "expected a window to bound 'left' or 'right'";
  for (std::optional<int64_t> side : {left, right})
    if (side && *side < 0)
      return emitError() << "expected a window of 0 or more neighbours, got "
                         << *side;
  return success();
}

LogicalResult
ImageAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                  StringRef family, StringRef hash) {
  if (family != "x86-64" && family != "sm_8x" && family != "sm_90")
    return emitError() << "expected image family x86-64, sm_8x or sm_90, got '"
                       << family << "'";
  if (hash.empty() || hash.size() > 64 || !llvm::all_of(hash, [](char c) {
        return llvm::isDigit(c) || (c >= 'a' && c <= 'f');
      }))
    return emitError() << "expected an image hash of 1 to 64 lower-case "
                          "hexadecimal digits, got '"
                       << hash << "'";
  return success();
}

//===----------------------------------------------------------------------===//
// External layouts
//===----------------------------------------------------------------------===//

LogicalResult
ExternalArrayAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                          int64_t array, AffineMapAttr map) {
  if (array < 0)
    return emitError() << "expected an array number of 0 or more, got "
                       << array;
  AffineMap value = map.getValue();
  if (value.getNumDims() != 4 || value.getNumSymbols() != 0)
    return emitError() << "expected a map of (page, token, head, channel), got "
                       << value.getNumDims() << " dims and "
                       << value.getNumSymbols() << " symbols";
  if (value.getNumResults() == 0)
    return emitError() << "expected a map with one result per dimension of its "
                          "array, got none";
  return success();
}

LogicalResult
ExternalTensorAttr::verify(llvm::function_ref<InFlightDiagnostic()> emitError,
                           Element element, PackingAttr packing,
                           ExternalArrayAttr codes, ExternalArrayAttr scales,
                           ExternalArrayAttr zeros) {
  if (packing && bitsOf(element) > 8)
    return emitError() << "expected packed elements of at most 8 bits, got "
                       << nameOf(element);
  if (packing && isFp8(element))
    return emitError() << "expected packed elements to be integers, got "
                       << nameOf(element);
  if (zeros && !scales)
    return emitError() << "expected scales beside zeros";
  if (scales && isFloat(element))
    return emitError() << "expected no scales for " << nameOf(element)
                       << " elements";
  return success();
}

/// name `(` integer `,` map `)`
static FailureOr<ExternalArrayAttr> parseArray(AsmParser &parser) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  int64_t number;
  AffineMapAttr map;
  if (parser.parseLParen() || parser.parseInteger(number) ||
      parser.parseComma() || parser.parseAttribute(map) || parser.parseRParen())
    return failure();
  ExternalArrayAttr array = parser.getChecked<ExternalArrayAttr>(
      loc, parser.getContext(), number, map);
  if (!array)
    return failure();
  return array;
}

static FailureOr<PackingAttr> parsePacking(AsmParser &parser) {
  StringRef axisName, orderName;
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLParen() || parser.parseKeyword(&axisName) ||
      parser.parseComma() || parser.parseKeyword(&orderName) ||
      parser.parseRParen())
    return failure();
  std::optional<PackAxis> axis = symbolizePackAxis(axisName);
  std::optional<PackOrder> order = symbolizePackOrder(orderName);
  if (!axis || !order) {
    parser.emitError(loc, "expected packed(token|channel, "
                          "low_first|high_first), got packed(")
        << axisName << ", " << orderName << ")";
    return failure();
  }
  return PackingAttr::get(parser.getContext(), *axis, *order);
}

Attribute ExternalTensorAttr::parseBody(AsmParser &parser) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  std::string elementText;
  if (parseWord(parser, elementText))
    return {};
  // Only the element: a scale or group here would contradict the maps.
  Expected<Encoding> encoding = parseEncoding(elementText);
  if (const FormatError *error = errorOf(encoding)) {
    parser.emitError(loc, error->message);
    return {};
  }
  PackingAttr packing;
  if (parser.parseComma())
    return {};
  if (succeeded(parser.parseOptionalKeyword("packed"))) {
    FailureOr<PackingAttr> parsed = parsePacking(parser);
    if (failed(parsed) || parser.parseComma())
      return {};
    packing = *parsed;
  }
  // codes, then scales, then zeros; what follows (`value = ...`) is the
  // caller's, so a comma is only taken in front of ours.
  ExternalArrayAttr arrays[3];
  if (parser.parseKeyword("codes"))
    return {};
  FailureOr<ExternalArrayAttr> codes = parseArray(parser);
  if (failed(codes))
    return {};
  arrays[0] = *codes;
  if (succeeded(parser.parseOptionalKeyword("scales"))) {
    FailureOr<ExternalArrayAttr> scales = parseArray(parser);
    if (failed(scales))
      return {};
    arrays[1] = *scales;
    if (succeeded(parser.parseOptionalKeyword("zeros"))) {
      FailureOr<ExternalArrayAttr> zeros = parseArray(parser);
      if (failed(zeros))
        return {};
      arrays[2] = *zeros;
    }
  }
  return parser.getChecked<ExternalTensorAttr>(
      loc, parser.getContext(), std::get<Encoding>(encoding).element, packing,
      arrays[0], arrays[1], arrays[2]);
}

void ExternalTensorAttr::printBody(AsmPrinter &printer) const {
  printer << llvm::StringRef(nameOf(getElement()));
  if (PackingAttr packing = getPacking())
    printer << ", packed(" << stringifyPackAxis(packing.getAxis()) << ", "
            << stringifyPackOrder(packing.getOrder()) << ')';
  auto printArray = [&](StringRef name, ExternalArrayAttr array) {
    printer << name << '(' << array.getArray() << ", ";
    printer.printAttribute(array.getMap());
    printer << ')';
  };
  printArray(", codes", getCodes());
  if (getScales())
    printArray(" scales", getScales());
  if (getZeros())
    printArray(" zeros", getZeros());
}

Attribute ExternalTensorAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  Attribute attr = parseBody(parser);
  if (!attr || parser.parseGreater())
    return {};
  return attr;
}

void ExternalTensorAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printBody(printer);
  printer << '>';
}

Attribute ExternalAttr::parse(AsmParser &parser, Type) {
  auto parseSide = [&](StringRef name) -> ExternalTensorAttr {
    if (parser.parseKeyword(name) || parser.parseEqual())
      return {};
    return llvm::cast_or_null<ExternalTensorAttr>(
        ExternalTensorAttr::parseBody(parser));
  };
  if (parser.parseLess())
    return {};
  ExternalTensorAttr key = parseSide("key");
  if (!key || parser.parseComma())
    return {};
  ExternalTensorAttr value = parseSide("value");
  if (!value || parser.parseComma())
    return {};
  llvm::SMLoc loc = parser.getCurrentLocation();
  StringRef rule;
  if (parser.parseKeyword("table") || parser.parseEqual() ||
      parser.parseKeyword(&rule))
    return {};
  std::optional<TableRule> table = symbolizeTableRule(rule);
  if (!table) {
    parser.emitError(loc, "expected table rule raw, clamp, wrap or none, "
                          "got '")
        << rule << "'";
    return {};
  }
  if (parser.parseGreater())
    return {};
  return ExternalAttr::get(parser.getContext(), key, value, *table);
}

void ExternalAttr::print(AsmPrinter &printer) const {
  printer << "<key = ";
  getKey().printBody(printer);
  printer << ", value = ";
  getValue().printBody(printer);
  printer << ", table = " << stringifyTableRule(getTable()) << '>';
}

} // namespace kvcache
