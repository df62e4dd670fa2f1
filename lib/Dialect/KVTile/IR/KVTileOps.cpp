//===- KVTileOps.cpp - Operations of kvtile -------------------------------===//
//
// Builders, verifiers and the page loop's syntax.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Dialect/KVTile/IR/KVTile.h"

#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace kvcache::tile;

//===----------------------------------------------------------------------===//
// kernel
//===----------------------------------------------------------------------===//

void KernelOp::build(OpBuilder &builder, OperationState &state, StringRef name,
                     SpecAttr spec, ScheduleAttr schedule) {
  state.addAttribute(SymbolTable::getSymbolAttrName(),
                     builder.getStringAttr(name));
  state.addAttribute("spec", spec);
  if (schedule)
    state.addAttribute("schedule", schedule);
  state.addRegion();
}

void ArrayKernelOp::build(OpBuilder &builder, OperationState &state,
                          StringRef name, ArraysAttr spec,
                          ScheduleAttr schedule) {
  state.addAttribute(SymbolTable::getSymbolAttrName(),
                     builder.getStringAttr(name));
  state.addAttribute("spec", spec);
  if (schedule)
    state.addAttribute("schedule", schedule);
  state.addRegion();
}

/// Checks one tensor type of a body against the kernel's sizes.
template <typename Spec>
static LogicalResult verifyTileType(Operation *op, Type type, Spec spec,
                                    ScheduleAttr schedule) {
  std::optional<LayoutKind> kind = getLayout(type);
  if (!kind)
    return success();
  auto tensor = cast<RankedTensorType>(type);
  RankedTensorType expected =
      tileType(spec, schedule, *kind, tensor.getElementType());
  if (tensor != expected)
    return op->emitOpError("C2: expected tensors of layout '")
           << stringifyLayoutKind(*kind) << "' to be " << expected
           << " under the kernel's spec and schedule, got " << tensor;
  return success();
}

/// C1, C2 of both kinds of kernels.
template <typename Kernel>
static LogicalResult verifyBody(Kernel kernel) {
  if (kernel.getBody().empty())
    return success();
  if (!kernel.getSchedule())
    return kernel.emitOpError(
        "C1: expected a schedule, since the kernel has a body; "
        "run kvtile-choose-schedule before kvtile-expand-attend");
  Block &block = kernel.getBody().front();
  if (block.empty() || !isa<ReturnOp>(block.back()))
    return kernel.emitOpError("expected the body to end with 'kvtile.return'");
  WalkResult result = kernel.getBody().walk([&](Operation *op) {
    for (Type type : op->getResultTypes())
      if (failed(verifyTileType(op, type, kernel.getSpec(),
                                *kernel.getSchedule())))
        return WalkResult::interrupt();
    return WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}

LogicalResult KernelOp::verifyRegions() { return verifyBody(*this); }
LogicalResult ArrayKernelOp::verifyRegions() { return verifyBody(*this); }

//===----------------------------------------------------------------------===//
// page_loop
//===----------------------------------------------------------------------===//

void PageLoopOp::build(OpBuilder &builder, OperationState &state,
                       PageClass pageClass, ValueRange inits) {
  OpBuilder::InsertionGuard guard(builder);
  state.addAttribute(getPageClassAttrName(state.name),
                     PageClassAttr::get(builder.getContext(), pageClass));
  state.addOperands(inits);
  state.addTypes(inits.getTypes());
  Region *region = state.addRegion();
  Block *body = builder.createBlock(region);
  body->addArgument(TileType::get(builder.getContext()), state.location);
  for (Value init : inits)
    body->addArgument(init.getType(), init.getLoc());
}

YieldOp PageLoopOp::getYield() {
  return cast<YieldOp>(getBody().front().getTerminator());
}

LogicalResult PageLoopOp::verifyRegions() {
  bool inArrays = isa<ArrayKernelOp>((*this)->getParentOp());
  if (inArrays != (getPageClass() == PageClass::External))
    return emitOpError("C3: expected class 'external' in array kernels and "
                       "'sealed' or 'open' in others, got '")
           << stringifyPageClass(getPageClass()) << "'";
  Block &body = getBody().front();
  if (body.getNumArguments() == 0 ||
      !isa<TileType>(body.getArgument(0).getType()))
    return emitOpError("C2: expected the first body argument to be a "
                       "!kvtile.tile");
  auto yield = dyn_cast_or_null<YieldOp>(body.empty() ? nullptr : &body.back());
  if (!yield)
    return emitOpError("expected the body to end with 'kvtile.yield'");
  TypeRange types = getInits().getTypes();
  auto check = [&](TypeRange got, StringRef what) -> LogicalResult {
    if (got == types)
      return success();
    return emitOpError("C1: expected the types of ")
           << what << " to be those of the inits (" << types << "), got ("
           << got << ")";
  };
  if (failed(check(TypeRange(body.getArgumentTypes()).drop_front(),
                   "the body arguments")))
    return failure();
  if (failed(check(yield.getOperandTypes(), "the yielded values")))
    return failure();
  return check(getResultTypes(), "the results");
}

ParseResult PageLoopOp::parse(OpAsmParser &parser, OperationState &result) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseKeyword(&keyword))
    return failure();
  std::optional<PageClass> pageClass = symbolizePageClass(keyword);
  if (!pageClass)
    return parser.emitError(loc, "expected a page class (sealed, open or "
                                 "external), got '")
           << keyword << "'";
  result.addAttribute(getPageClassAttrName(result.name),
                      PageClassAttr::get(parser.getContext(), *pageClass));
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SmallVector<Type> types;
  SMLoc operandLoc = parser.getCurrentLocation();
  if (parser.parseLParen() || parser.parseOperandList(operands))
    return failure();
  if (!operands.empty() && parser.parseColonTypeList(types))
    return failure();
  Region *region = result.addRegion();
  if (parser.parseRParen() ||
      parser.parseOptionalAttrDictWithKeyword(result.attributes) ||
      parser.parseRegion(*region) ||
      parser.resolveOperands(operands, types, operandLoc, result.operands))
    return failure();
  result.addTypes(types);
  return success();
}

void PageLoopOp::print(OpAsmPrinter &printer) {
  printer << ' ' << stringifyPageClass(getPageClass()) << '(';
  if (!getInits().empty())
    printer << getInits() << " : " << getInits().getTypes();
  printer << ')';
  printer.printOptionalAttrDictWithKeyword((*this)->getAttrs(),
                                           {getPageClassAttrName()});
  printer << ' ';
  printer.printRegion(getBody());
}

#define GET_OP_CLASSES
#include "kvcache/Dialect/KVTile/IR/KVTileOps.cpp.inc"
