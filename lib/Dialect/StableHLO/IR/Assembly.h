// Pieces of pretty syntax that the declarative formats of the ops name.

#ifndef KVCACHE_LIB_DIALECT_STABLEHLO_IR_ASSEMBLY_H
#define KVCACHE_LIB_DIALECT_STABLEHLO_IR_ASSEMBLY_H

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"

namespace kvcache::stablehlo::detail {
using namespace mlir;

/// One type when all are the same, else a function type.
inline ParseResult parseTypes(OpAsmParser &parser, ArrayRef<Type *> operands,
                              Type &result) {
  SMLoc loc = parser.getCurrentLocation();
  Type type;
  if (parser.parseType(type))
    return failure();
  auto function = dyn_cast<FunctionType>(type);
  if (!function) {
    for (Type *operand : operands)
      *operand = type;
    result = type;
    return success();
  }
  if (function.getNumInputs() != operands.size() ||
      function.getNumResults() != 1)
    return parser.emitError(loc, "expected ")
           << operands.size() << " operand types and 1 result type";
  for (auto [operand, input] : llvm::zip(operands, function.getInputs()))
    *operand = input;
  result = function.getResult(0);
  return success();
}

inline void printTypes(OpAsmPrinter &printer, ArrayRef<Type> operands,
                       Type result) {
  if (llvm::all_of(operands, [&](Type type) { return type == result; })) {
    printer << result;
    return;
  }
  printer << '(';
  llvm::interleaveComma(operands, printer);
  printer << ") -> " << result;
}

inline ParseResult parseSameTypes(OpAsmParser &p, Type &a, Type &r) {
  return parseTypes(p, {&a}, r);
}
inline void printSameTypes(OpAsmPrinter &p, Operation *, Type a, Type r) {
  printTypes(p, {a}, r);
}
inline ParseResult parseSameTypes2(OpAsmParser &p, Type &a, Type &b, Type &r) {
  return parseTypes(p, {&a, &b}, r);
}
inline void printSameTypes2(OpAsmPrinter &p, Operation *, Type a, Type b,
                            Type r) {
  printTypes(p, {a, b}, r);
}
inline ParseResult parseSameTypes3(OpAsmParser &p, Type &a, Type &b, Type &c,
                                   Type &r) {
  return parseTypes(p, {&a, &b, &c}, r);
}
inline void printSameTypes3(OpAsmPrinter &p, Operation *, Type a, Type b,
                            Type c, Type r) {
  printTypes(p, {a, b, c}, r);
}

/// `pred, type` when both values have the result's type.
inline ParseResult parseSelectTypes(OpAsmParser &p, Type &pred, Type &a,
                                    Type &b, Type &r) {
  Type first;
  SMLoc loc = p.getCurrentLocation();
  if (p.parseType(first))
    return failure();
  if (auto function = dyn_cast<FunctionType>(first)) {
    if (function.getNumInputs() != 3 || function.getNumResults() != 1)
      return p.emitError(loc, "expected 3 operand types and 1 result type");
    pred = function.getInput(0);
    a = function.getInput(1);
    b = function.getInput(2);
    r = function.getResult(0);
    return success();
  }
  pred = first;
  if (p.parseComma() || p.parseType(r))
    return failure();
  a = b = r;
  return success();
}
inline void printSelectTypes(OpAsmPrinter &p, Operation *, Type pred, Type a,
                             Type b, Type r) {
  if (a == r && b == r)
    p << pred << ", " << r;
  else
    p << '(' << pred << ", " << a << ", " << b << ") -> " << r;
}

inline ParseResult parsePairwise(OpAsmParser &p, SmallVectorImpl<Type> &a,
                                 SmallVectorImpl<Type> &r) {
  if (p.parseTypeList(a))
    return failure();
  r.assign(a.begin(), a.end());
  return success();
}
inline void printPairwise(OpAsmPrinter &p, Operation *, TypeRange a,
                          TypeRange) {
  llvm::interleaveComma(a, p);
}

inline ParseResult parseInt(OpAsmParser &p, IntegerAttr &attr) {
  int64_t value;
  if (p.parseInteger(value))
    return failure();
  attr = p.getBuilder().getI64IntegerAttr(value);
  return success();
}
inline void printInt(OpAsmPrinter &p, Operation *, IntegerAttr attr) {
  p << attr.getInt();
}

inline ParseResult parseFlag(OpAsmParser &p, BoolAttr &attr) {
  StringRef word;
  SMLoc loc = p.getCurrentLocation();
  if (p.parseKeyword(&word))
    return failure();
  if (word != "true" && word != "false")
    return p.emitError(loc, "expected 'true' or 'false'");
  attr = p.getBuilder().getBoolAttr(word == "true");
  return success();
}
inline void printFlag(OpAsmPrinter &p, Operation *, BoolAttr attr) {
  p << (attr.getValue() ? "true" : "false");
}

inline ParseResult parseInts(OpAsmParser &p, Attribute &attr) {
  SmallVector<int64_t> ints;
  if (p.parseCommaSeparatedList(OpAsmParser::Delimiter::Square, [&] {
        return p.parseInteger(ints.emplace_back());
      }))
    return failure();
  attr = p.getBuilder().getDenseI64ArrayAttr(ints);
  return success();
}
inline void printIntList(OpAsmPrinter &p, ArrayRef<int64_t> ints) {
  p << '[';
  llvm::interleaveComma(ints, p);
  p << ']';
}
inline void printInts(OpAsmPrinter &p, Operation *, Attribute attr) {
  printIntList(p, getInts(attr));
}

/// `%a, %b, dim = 1`: the list ends at the keyword.
inline ParseResult
parseOperandsUntil(OpAsmParser &p,
                   SmallVectorImpl<OpAsmParser::UnresolvedOperand> &operands,
                   StringRef keyword) {
  while (failed(p.parseOptionalKeyword(keyword)))
    if (p.parseOperand(operands.emplace_back()) || p.parseComma())
      return failure();
  return p.parseEqual();
}
inline ParseResult
parseOperandsDim(OpAsmParser &p,
                 SmallVectorImpl<OpAsmParser::UnresolvedOperand> &operands,
                 IntegerAttr &dim) {
  return failure(parseOperandsUntil(p, operands, "dim") || parseInt(p, dim));
}
inline void printOperandsDim(OpAsmPrinter &p, Operation *op, OperandRange range,
                             IntegerAttr dim) {
  p << range << ", dim = ";
  printInt(p, op, dim);
}
inline ParseResult
parseOperandsSizes(OpAsmParser &p,
                   SmallVectorImpl<OpAsmParser::UnresolvedOperand> &operands,
                   Attribute &sizes) {
  return failure(parseOperandsUntil(p, operands, "sizes") ||
                 parseInts(p, sizes));
}
inline void printOperandsSizes(OpAsmPrinter &p, Operation *op,
                               OperandRange range, Attribute sizes) {
  for (Value operand : range)
    p << operand << ", ";
  p << "sizes = ";
  printInts(p, op, sizes);
}

inline ParseResult parseDirection(OpAsmParser &p,
                                  ComparisonDirectionAttr &attr) {
  StringRef word;
  SMLoc loc = p.getCurrentLocation();
  if (p.parseKeyword(&word))
    return failure();
  std::optional<ComparisonDirection> value = symbolizeComparisonDirection(word);
  if (!value)
    return p.emitError(loc, "unknown comparison direction '") << word << "'";
  attr = ComparisonDirectionAttr::get(p.getContext(), *value);
  return success();
}
inline void printDirection(OpAsmPrinter &p, Operation *,
                           ComparisonDirectionAttr attr) {
  p << stringifyComparisonDirection(attr.getValue());
}
inline ParseResult parseCompareType(OpAsmParser &p, ComparisonTypeAttr &attr) {
  if (failed(p.parseOptionalComma()))
    return success();
  StringRef word;
  SMLoc loc = p.getCurrentLocation();
  if (p.parseKeyword(&word))
    return failure();
  std::optional<ComparisonType> value = symbolizeComparisonType(word);
  if (!value)
    return p.emitError(loc, "unknown comparison type '") << word << "'";
  attr = ComparisonTypeAttr::get(p.getContext(), *value);
  return success();
}
inline void printCompareType(OpAsmPrinter &p, Operation *,
                             ComparisonTypeAttr attr) {
  if (attr)
    p << ", " << stringifyComparisonType(attr.getValue());
}

/// `[start:limit:stride, ..]`, a stride of 1 left out.
inline ParseResult parseRanges(OpAsmParser &p, Attribute &start,
                               Attribute &limit, Attribute &strides) {
  SmallVector<int64_t> s, l, t;
  if (p.parseCommaSeparatedList(
          OpAsmParser::Delimiter::Square, [&]() -> ParseResult {
            t.push_back(1);
            if (p.parseInteger(s.emplace_back()) || p.parseColon() ||
                p.parseInteger(l.emplace_back()))
              return failure();
            if (succeeded(p.parseOptionalColon()))
              return p.parseInteger(t.back());
            return success();
          }))
    return failure();
  start = p.getBuilder().getDenseI64ArrayAttr(s);
  limit = p.getBuilder().getDenseI64ArrayAttr(l);
  strides = p.getBuilder().getDenseI64ArrayAttr(t);
  return success();
}
inline void printRanges(OpAsmPrinter &p, Operation *, Attribute start,
                        Attribute limit, Attribute strides) {
  p << '[';
  llvm::interleaveComma(
      llvm::zip(getInts(start), getInts(limit), getInts(strides)), p,
      [&](auto range) {
        auto [s, l, t] = range;
        p << s << ':' << l;
        if (t != 1)
          p << ':' << t;
      });
  p << ']';
}

/// `batching_dims = [..] x [..], contracting_dims = [..] x [..]`; without
/// batching the first half is left out.
inline ParseResult parseDotDims(OpAsmParser &p, DotDimensionNumbersAttr &dims) {
  SmallVector<int64_t> lb, rb, lc, rc;
  auto list = [&](SmallVector<int64_t> &ints) -> ParseResult {
    return p.parseCommaSeparatedList(OpAsmParser::Delimiter::Square, [&] {
      return p.parseInteger(ints.emplace_back());
    });
  };
  auto pair = [&](SmallVector<int64_t> &a, SmallVector<int64_t> &b) {
    return ParseResult(
        failure(p.parseEqual() || list(a) || p.parseKeyword("x") || list(b)));
  };
  if (succeeded(p.parseOptionalKeyword("batching_dims")) &&
      (pair(lb, rb) || p.parseComma()))
    return failure();
  if (p.parseKeyword("contracting_dims") || pair(lc, rc))
    return failure();
  dims = DotDimensionNumbersAttr::get(p.getContext(), lb, rb, lc, rc);
  return success();
}
inline void printDotDims(OpAsmPrinter &p, Operation *,
                         DotDimensionNumbersAttr dims) {
  auto pair = [&](ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
    printIntList(p, a);
    p << " x ";
    printIntList(p, b);
  };
  if (!dims.getLhsBatching().empty() || !dims.getRhsBatching().empty()) {
    p << "batching_dims = ";
    pair(dims.getLhsBatching(), dims.getRhsBatching());
    p << ", ";
  }
  p << "contracting_dims = ";
  pair(dims.getLhsContracting(), dims.getRhsContracting());
}

/// `, precision = [DEFAULT, DEFAULT], algorithm = <..>`, both optional.
inline ParseResult parsePrecisionList(OpAsmParser &p, ArrayAttr &config) {
  SmallVector<Attribute> values;
  if (p.parseEqual() ||
      p.parseCommaSeparatedList(
          OpAsmParser::Delimiter::Square, [&]() -> ParseResult {
            StringRef word;
            SMLoc loc = p.getCurrentLocation();
            if (p.parseKeyword(&word))
              return failure();
            std::optional<Precision> precision = symbolizePrecision(word);
            if (!precision)
              return p.emitError(loc, "unknown precision '") << word << "'";
            values.push_back(PrecisionAttr::get(p.getContext(), *precision));
            return success();
          }))
    return failure();
  config = p.getBuilder().getArrayAttr(values);
  return success();
}
inline ParseResult parsePrecisionConfig(OpAsmParser &p, ArrayAttr &config,
                                        DotAlgorithmAttr &algorithm) {
  while (succeeded(p.parseOptionalComma())) {
    if (!config && !algorithm &&
        succeeded(p.parseOptionalKeyword("precision"))) {
      if (parsePrecisionList(p, config))
        return failure();
      continue;
    }
    if (algorithm || p.parseKeyword("algorithm") || p.parseEqual())
      return failure();
    algorithm = dyn_cast_if_present<DotAlgorithmAttr>(
        DotAlgorithmAttr::parse(p, Type()));
    if (!algorithm)
      return failure();
  }
  return success();
}
inline void printPrecision(OpAsmPrinter &p, Operation *, ArrayAttr config) {
  if (!config)
    return;
  p << ", precision = [";
  llvm::interleaveComma(config, p, [&](Attribute value) {
    if (auto precision = dyn_cast<PrecisionAttr>(value))
      p << stringifyPrecision(precision.getValue());
    else
      p << value;
  });
  p << ']';
}
inline void printPrecisionConfig(OpAsmPrinter &p, Operation *op,
                                 ArrayAttr config, DotAlgorithmAttr algorithm) {
  printPrecision(p, op, config);
  if (algorithm) {
    p << ", algorithm = ";
    algorithm.print(p);
  }
}
inline ParseResult parsePrecision(OpAsmParser &p, ArrayAttr &config) {
  if (failed(p.parseOptionalComma()))
    return success();
  if (p.parseKeyword("precision"))
    return failure();
  return parsePrecisionList(p, config);
}

/// `e5m10`.
inline ParseResult parseExponentMantissa(OpAsmParser &p, IntegerAttr &e,
                                         IntegerAttr &m) {
  StringRef word;
  SMLoc loc = p.getCurrentLocation();
  if (p.parseKeyword(&word))
    return failure();
  int32_t exponent, mantissa;
  auto [head, tail] = word.drop_front().split('m');
  if (!word.starts_with("e") || head.getAsInteger(10, exponent) ||
      tail.getAsInteger(10, mantissa))
    return p.emitError(loc, "expected a format as 'e5m10', got '")
           << word << "'";
  e = p.getBuilder().getI32IntegerAttr(exponent);
  m = p.getBuilder().getI32IntegerAttr(mantissa);
  return success();
}
inline void printExponentMantissa(OpAsmPrinter &p, Operation *, IntegerAttr e,
                                  IntegerAttr m) {
  p << 'e' << e.getInt() << 'm' << m.getInt();
}

inline ParseResult parseCallTarget(OpAsmParser &p, StringAttr &name) {
  return p.parseSymbolName(name);
}
inline void printCallTarget(OpAsmPrinter &p, Operation *, StringAttr name) {
  p.printSymbolName(name);
}

} // namespace kvcache::stablehlo::detail

#endif // KVCACHE_LIB_DIALECT_STABLEHLO_IR_ASSEMBLY_H
