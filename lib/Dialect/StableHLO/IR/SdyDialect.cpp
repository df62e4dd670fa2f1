// sdy annotations: meshes and shardings kept as balanced text.

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"

#include "llvm/ADT/TypeSwitch.h"

#include "mlir/IR/DialectImplementation.h"

using namespace mlir;

#include "kvcache/Dialect/StableHLO/IR/SdyDialect.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/StableHLO/IR/SdyAttrs.cpp.inc"

/// Appends the next token of a sharding to `text`; false at the closing `>`.
static FailureOr<bool> parseShardingToken(AsmParser &parser,
                                          std::string &text) {
  struct Punctuation {
    ParseResult (AsmParser::*parse)();
    StringRef text;
  };
  static const Punctuation table[] = {{&AsmParser::parseOptionalLSquare, "["},
                                      {&AsmParser::parseOptionalRSquare, "]"},
                                      {&AsmParser::parseOptionalLBrace, "{"},
                                      {&AsmParser::parseOptionalRBrace, "}"},
                                      {&AsmParser::parseOptionalLParen, "("},
                                      {&AsmParser::parseOptionalRParen, ")"},
                                      {&AsmParser::parseOptionalComma, ", "},
                                      {&AsmParser::parseOptionalEqual, "="},
                                      {&AsmParser::parseOptionalColon, ":"},
                                      {&AsmParser::parseOptionalArrow, "->"},
                                      {&AsmParser::parseOptionalQuestion, "?"}};
  if (succeeded(parser.parseOptionalGreater()))
    return false;
  for (const Punctuation &p : table)
    if (succeeded((parser.*p.parse)())) {
      // The sizes of a sharding rule stand apart from its dimensions.
      if (p.text == "{" && StringRef(text).ends_with(")"))
        text += ' ';
      text += p.text;
      return true;
    }
  std::string string;
  StringAttr symbol;
  StringRef keyword;
  int64_t number;
  if (succeeded(parser.parseOptionalString(&string)))
    text += '"' + string + '"';
  else if (succeeded(parser.parseOptionalSymbolName(symbol)))
    text += "@" + symbol.str();
  else if (succeeded(parser.parseOptionalKeyword(&keyword)))
    text += keyword;
  else if (OptionalParseResult r = parser.parseOptionalInteger(number);
           r.has_value() && succeeded(*r))
    text += std::to_string(number);
  else {
    parser.emitError(parser.getCurrentLocation(),
                     "expected a mesh or sharding");
    return failure();
  }
  return true;
}

static FailureOr<std::string> parseShardingText(AsmParser &parser) {
  std::string text;
  if (parser.parseLess())
    return failure();
  while (true) {
    FailureOr<bool> more = parseShardingToken(parser, text);
    if (failed(more))
      return failure();
    if (!*more)
      return text;
  }
}

Attribute kvcache::sdy::MeshAttr::parse(AsmParser &parser, Type) {
  FailureOr<std::string> text = parseShardingText(parser);
  return failed(text) ? Attribute() : get(parser.getContext(), *text);
}
void kvcache::sdy::MeshAttr::print(AsmPrinter &printer) const {
  printer << '<' << getText() << '>';
}
Attribute kvcache::sdy::ShardingAttr::parse(AsmParser &parser, Type) {
  FailureOr<std::string> text = parseShardingText(parser);
  return failed(text) ? Attribute() : get(parser.getContext(), *text);
}
void kvcache::sdy::ShardingAttr::print(AsmPrinter &printer) const {
  printer << '<' << getText() << '>';
}

Attribute kvcache::sdy::OpShardingRuleAttr::parse(AsmParser &parser, Type) {
  FailureOr<std::string> text = parseShardingText(parser);
  return failed(text) ? Attribute() : get(parser.getContext(), *text);
}
void kvcache::sdy::OpShardingRuleAttr::print(AsmPrinter &printer) const {
  printer << '<' << getText() << '>';
}

void kvcache::sdy::SdyDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "kvcache/Dialect/StableHLO/IR/SdyAttrs.cpp.inc"
      >();
  registerSdyOps();
}
