// The ops with syntax of their own (constant, reduce, while) and the op lists.

#include "Assembly.h"

using namespace mlir;
using namespace kvcache::stablehlo;
using namespace kvcache::stablehlo::detail;

#define GET_OP_CLASSES
#include "kvcache/Dialect/StableHLO/IR/StableHLOOps.cpp.inc"

void StableHLODialect::registerStableHLOOps() {
  addOperations<
#define GET_OP_LIST
#include "kvcache/Dialect/StableHLO/IR/stablehlo_ops.cpp.inc"
      >();
}
void kvcache::chlo::CHLODialect::registerCHLOOps() {
  addOperations<
#define GET_OP_LIST
#include "kvcache/Dialect/StableHLO/IR/chlo_ops.cpp.inc"
      >();
}
void kvcache::sdy::SdyDialect::registerSdyOps() {
  addOperations<
#define GET_OP_LIST
#include "kvcache/Dialect/StableHLO/IR/sdy_ops.cpp.inc"
      >();
}
void kvcache::tm_tensor::TMTensorDialect::registerTMTensorOps() {
  addOperations<
#define GET_OP_LIST
#include "kvcache/Dialect/StableHLO/IR/tm_tensor_ops.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// constant
//===----------------------------------------------------------------------===//

void ConstantOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  bool isInt = isa<IntegerType>(
      cast<ShapedType>(getOutput().getType()).getElementType());
  setName(getOutput(), isInt ? "c" : "cst");
}

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValueAttr(); }

ParseResult ConstantOp::parse(OpAsmParser &parser, OperationState &result) {
  // Older files: `constant() {value = dense<..>} : () -> tensor<..>`.
  if (succeeded(parser.parseOptionalLParen())) {
    if (parser.parseRParen() || parser.parseOptionalAttrDict(result.attributes))
      return failure();
    auto value =
        dyn_cast_if_present<ElementsAttr>(result.attributes.get("value"));
    if (!value)
      return parser.emitError(parser.getNameLoc(),
                              "expected the attribute 'value'");
    FunctionType function;
    if (parser.parseColonType(function))
      return failure();
    result.addTypes(value.getType());
    return success();
  }
  ElementsAttr value;
  if (parser.parseOptionalAttrDict(result.attributes) ||
      parser.parseAttribute(value, "value", result.attributes))
    return failure();
  result.addTypes(value.getType());
  return success();
}

void ConstantOp::print(OpAsmPrinter &printer) {
  printer.printOptionalAttrDict((*this)->getAttrs(), {"value"});
  printer << ' ' << getValue();
}

LogicalResult ConstantOp::verify() {
  if (getValue().getType() != getOutput().getType())
    return emitOpError("expected a result of the value's type ")
           << getValue().getType() << ", got " << getOutput().getType();
  return success();
}

//===----------------------------------------------------------------------===//
// reduce
//===----------------------------------------------------------------------===//

/// The body's only op when it combines the two block arguments in order, so
/// that `applies OP` says all there is to say.
static Operation *getCompactReducer(ReduceOp op) {
  if (op.getInputs().size() != 1 || op.getBody().empty())
    return nullptr;
  Block &block = op.getBody().front();
  if (block.getNumArguments() != 2 || block.getOperations().size() != 2)
    return nullptr;
  Operation &inner = block.front();
  auto isDialectBinary = [](Operation &o) {
    return o.getName().getDialectNamespace() == "stablehlo" &&
           o.getNumOperands() == 2 && o.getNumResults() == 1 &&
           o.getNumRegions() == 0 && o.getAttrs().empty() &&
           o.getOperand(0).getType() == o.getResult(0).getType() &&
           o.getOperand(1).getType() == o.getResult(0).getType();
  };
  if (!isDialectBinary(inner) || isa<CompareOp>(inner) ||
      inner.getOperand(0) != block.getArgument(0) ||
      inner.getOperand(1) != block.getArgument(1) ||
      block.getTerminator()->getNumOperands() != 1 ||
      block.getTerminator()->getOperand(0) != inner.getResult(0))
    return nullptr;
  if (block.getArgument(0).getType() != inner.getResult(0).getType() ||
      op.getInitValues().front().getType() != inner.getResult(0).getType())
    return nullptr;
  return &inner;
}

void ReduceOp::print(OpAsmPrinter &p) {
  for (auto [i, pair] :
       llvm::enumerate(llvm::zip(getInputs(), getInitValues()))) {
    p << (i ? ", (" : "(") << std::get<0>(pair)
      << " init: " << std::get<1>(pair) << ')';
  }
  Operation *inner = getCompactReducer(*this);
  if (inner)
    p << " applies " << inner->getName();
  p << " across dimensions = ";
  printIntList(p, getInts(getDimensions()));
  p.printOptionalAttrDict((*this)->getAttrs(), {"dimensions"});
  p << " : ";
  p.printFunctionalType(*this);
  if (inner)
    return;
  p.printNewline();
  p << " reducer";
  Block &block = getBody().front();
  unsigned half = block.getNumArguments() / 2;
  for (unsigned i = 0; i < half; ++i) {
    p << '(';
    p.printRegionArgument(block.getArgument(i));
    p << ", ";
    p.printRegionArgument(block.getArgument(i + half));
    p << ") ";
  }
  p << ' ';
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

/// Builds the body of `applies OP`.
static ParseResult buildCompactBody(OpAsmParser &parser, OperationState &result,
                                    OperationName name, Type elementType) {
  MLIRContext *context = parser.getContext();
  Region *region = result.addRegion();
  Block *block = new Block();
  region->push_back(block);
  Location loc = result.location;
  block->addArguments({elementType, elementType}, {loc, loc});
  OpBuilder builder(context);
  builder.setInsertionPointToEnd(block);
  OperationState state(loc, name);
  state.addOperands({block->getArgument(0), block->getArgument(1)});
  state.addTypes(elementType);
  Operation *inner = builder.create(state);
  ReturnOp::create(builder, loc, inner->getResults());
  return success();
}

static ParseResult parseReducer(OpAsmParser &parser, OperationState &result,
                                unsigned count) {
  if (parser.parseKeyword("reducer"))
    return failure();
  SmallVector<OpAsmParser::Argument> first, second;
  for (unsigned i = 0; i < count; ++i)
    if (parser.parseLParen() ||
        parser.parseArgument(first.emplace_back(), /*allowType=*/true) ||
        parser.parseComma() ||
        parser.parseArgument(second.emplace_back(), /*allowType=*/true) ||
        parser.parseRParen())
      return failure();
  llvm::append_range(first, second);
  return parser.parseRegion(*result.addRegion(), first);
}

ParseResult ReduceOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::UnresolvedOperand> inputs, inits;
  SMLoc loc = parser.getCurrentLocation();
  do {
    if (parser.parseLParen() || parser.parseOperand(inputs.emplace_back()) ||
        parser.parseKeyword("init") || parser.parseColon() ||
        parser.parseOperand(inits.emplace_back()) || parser.parseRParen())
      return failure();
  } while (succeeded(parser.parseOptionalComma()));
  std::optional<OperationName> applied;
  if (succeeded(parser.parseOptionalKeyword("applies"))) {
    FailureOr<OperationName> name = parser.parseCustomOperationName();
    if (failed(name) || inputs.size() != 1)
      return failure();
    if (!name->isRegistered() || name->getDialectNamespace() != "stablehlo" ||
        !name->hasTrait<OpTrait::SameOperandsAndResultElementType>())
      return parser.emitError(loc, "cannot reduce with '") << *name << "'";
    applied = *name;
  }
  Attribute dimensions;
  FunctionType type;
  if (parser.parseKeyword("across") || parser.parseKeyword("dimensions") ||
      parser.parseEqual() || parseInts(parser, dimensions) ||
      parser.parseOptionalAttrDict(result.attributes) ||
      parser.parseColonType(type))
    return failure();
  result.addAttribute("dimensions", dimensions);
  llvm::append_range(inputs, inits);
  if (parser.resolveOperands(inputs, type.getInputs(), loc, result.operands))
    return failure();
  result.addTypes(type.getResults());
  if (!applied)
    return parseReducer(parser, result, inits.size());
  return buildCompactBody(parser, result, *applied, type.getInputs().back());
}

//===----------------------------------------------------------------------===//
// while
//===----------------------------------------------------------------------===//

void WhileOp::getAsmBlockArgumentNames(Region &region,
                                       OpAsmSetValueNameFn setName) {
  if (!region.empty())
    for (BlockArgument arg : region.front().getArguments())
      setName(arg, "iterArg");
}

void WhileOp::print(OpAsmPrinter &p) {
  p << '(';
  if (!getBody().empty())
    llvm::interleaveComma(
        llvm::zip(getBody().front().getArguments(), getOperand()), p,
        [&](auto pair) {
          p << std::get<0>(pair) << " = " << std::get<1>(pair);
        });
  p << ')';
  if (!getOperand().empty()) {
    p << " : ";
    llvm::interleaveComma(getOperand().getTypes(), p);
  }
  p.printOptionalAttrDictWithKeyword((*this)->getAttrs());
  p.printNewline();
  p << "cond ";
  p.printRegion(getCond(), /*printEntryBlockArgs=*/false);
  p << " do ";
  p.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

ParseResult WhileOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::Argument> args;
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLParen())
    return failure();
  if (failed(parser.parseOptionalRParen())) {
    do {
      if (parser.parseArgument(args.emplace_back()) || parser.parseEqual() ||
          parser.parseOperand(operands.emplace_back()))
        return failure();
    } while (succeeded(parser.parseOptionalComma()));
    if (parser.parseRParen() || parser.parseColon() ||
        parser.parseTypeList(result.types))
      return failure();
  }
  if (parser.resolveOperands(operands, result.types, loc, result.operands) ||
      parser.parseOptionalAttrDictWithKeyword(result.attributes) ||
      parser.parseKeyword("cond"))
    return failure();
  for (auto [arg, type] : llvm::zip(args, result.types))
    arg.type = type;
  if (parser.parseRegion(*result.addRegion(), args) ||
      parser.parseKeyword("do"))
    return failure();
  return parser.parseRegion(*result.addRegion(), args);
}

//===----------------------------------------------------------------------===//
// composite
//===----------------------------------------------------------------------===//

LogicalResult CompositeOp::verifySymbolUses(SymbolTableCollection &tables) {
  if (!tables.lookupNearestSymbolFrom(*this, getDecompositionAttr()))
    return emitOpError("'")
           << getDecomposition() << "' does not reference a function";
  return success();
}
