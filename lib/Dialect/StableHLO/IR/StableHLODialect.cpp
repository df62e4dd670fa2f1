// Dialect set-up and attribute syntax of stablehlo, chlo and tm_tensor.

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"

#include "llvm/ADT/TypeSwitch.h"

#include "mlir/IR/DialectImplementation.h"

using namespace mlir;
using namespace kvcache::stablehlo;

#include "kvcache/Dialect/StableHLO/IR/CHLODialect.cpp.inc"
#include "kvcache/Dialect/StableHLO/IR/StableHLODialect.cpp.inc"
#include "kvcache/Dialect/StableHLO/IR/StableHLOEnums.cpp.inc"
#include "kvcache/Dialect/StableHLO/IR/TMTensorDialect.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/StableHLO/IR/StableHLOAttrs.cpp.inc"

bool kvcache::stablehlo::isIntList(Attribute attr) {
  if (isa<DenseI64ArrayAttr>(attr))
    return true;
  auto dense = dyn_cast<DenseIntElementsAttr>(attr);
  return dense && dense.getElementType().isInteger(64);
}

SmallVector<int64_t> kvcache::stablehlo::getInts(Attribute attr) {
  if (!attr)
    return {};
  if (auto array = dyn_cast<DenseI64ArrayAttr>(attr))
    return SmallVector<int64_t>(array.asArrayRef());
  SmallVector<int64_t> ints;
  for (APInt value : cast<DenseIntElementsAttr>(attr).getValues<APInt>())
    ints.push_back(value.getSExtValue());
  return ints;
}

void kvcache::stablehlo::registerStableHLODialect(DialectRegistry &registry) {
  registry.insert<StableHLODialect, chlo::CHLODialect, sdy::SdyDialect,
                  tm_tensor::TMTensorDialect>();
}

//===----------------------------------------------------------------------===//
// Attributes with named fields
//===----------------------------------------------------------------------===//

namespace {
/// One `name = value` field: a list, a number or a type.
struct Field {
  StringRef name;
  SmallVector<int64_t> *list = nullptr;
  int64_t *number = nullptr;
  Type *type = nullptr;
  bool *flag = nullptr;
  bool seen = false;
};
} // namespace

static ParseResult parseFlag(AsmParser &parser, bool &flag) {
  StringRef word;
  if (parser.parseKeyword(&word))
    return failure();
  if (word != "true" && word != "false")
    return parser.emitError(parser.getCurrentLocation(),
                            "expected 'true' or 'false', got '")
           << word << "'";
  flag = word == "true";
  return success();
}

static ParseResult parseIntList(AsmParser &parser, SmallVector<int64_t> &ints) {
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
    return parser.parseInteger(ints.emplace_back());
  });
}

/// Parses `<a = .., b = ..>`: fields in any order, each at most once.
static ParseResult parseFields(AsmParser &parser,
                               MutableArrayRef<Field> fields) {
  return parser.parseCommaSeparatedList(
      AsmParser::Delimiter::LessGreater, [&]() -> ParseResult {
        StringRef name;
        SMLoc loc = parser.getCurrentLocation();
        if (parser.parseKeyword(&name) || parser.parseEqual())
          return failure();
        Field *field = llvm::find_if(
            fields, [&](const Field &f) { return f.name == name; });
        if (field == fields.end() || field->seen)
          return parser.emitError(loc, "unknown or repeated field '")
                 << name << "'";
        field->seen = true;
        if (field->list)
          return parseIntList(parser, *field->list);
        if (field->number)
          return parser.parseInteger(*field->number);
        if (field->type)
          return parser.parseType(*field->type);
        return parseFlag(parser, *field->flag);
      });
}

static void printLists(AsmPrinter &printer,
                       ArrayRef<std::pair<StringRef, ArrayRef<int64_t>>> lists,
                       std::pair<StringRef, int64_t> number = {"", 0}) {
  printer << '<';
  StringRef separator = "";
  for (auto [name, ints] : lists) {
    if (ints.empty())
      continue;
    printer << separator << name << " = [";
    llvm::interleaveComma(ints, printer);
    printer << ']';
    separator = ", ";
  }
  if (number.second != 0)
    printer << separator << number.first << " = " << number.second;
  printer << '>';
}

Attribute DotDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> lb, rb, lc, rc;
  Field fields[] = {{"lhs_batching_dimensions", &lb},
                    {"rhs_batching_dimensions", &rb},
                    {"lhs_contracting_dimensions", &lc},
                    {"rhs_contracting_dimensions", &rc}};
  if (parseFields(parser, fields))
    return {};
  return get(parser.getContext(), lb, rb, lc, rc);
}

void DotDimensionNumbersAttr::print(AsmPrinter &printer) const {
  printLists(printer, {{"lhs_batching_dimensions", getLhsBatching()},
                       {"rhs_batching_dimensions", getRhsBatching()},
                       {"lhs_contracting_dimensions", getLhsContracting()},
                       {"rhs_contracting_dimensions", getRhsContracting()}});
}

Attribute GatherDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> offset, collapsed, operandBatch, indicesBatch, map;
  int64_t vectorDim = 0;
  Field fields[] = {{"offset_dims", &offset},
                    {"collapsed_slice_dims", &collapsed},
                    {"operand_batching_dims", &operandBatch},
                    {"start_indices_batching_dims", &indicesBatch},
                    {"start_index_map", &map},
                    {"index_vector_dim", nullptr, &vectorDim}};
  if (parseFields(parser, fields))
    return {};
  return get(parser.getContext(), offset, collapsed, operandBatch, indicesBatch,
             map, vectorDim);
}

void GatherDimensionNumbersAttr::print(AsmPrinter &printer) const {
  printLists(printer,
             {{"offset_dims", getOffsetDims()},
              {"collapsed_slice_dims", getCollapsedSliceDims()},
              {"operand_batching_dims", getOperandBatchingDims()},
              {"start_indices_batching_dims", getStartIndicesBatchingDims()},
              {"start_index_map", getStartIndexMap()}},
             {"index_vector_dim", getIndexVectorDim()});
}

Attribute ScatterDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> window, inserted, inputBatch, indicesBatch, map;
  int64_t vectorDim = 0;
  Field fields[] = {{"update_window_dims", &window},
                    {"inserted_window_dims", &inserted},
                    {"input_batching_dims", &inputBatch},
                    {"scatter_indices_batching_dims", &indicesBatch},
                    {"scatter_dims_to_operand_dims", &map},
                    {"index_vector_dim", nullptr, &vectorDim}};
  if (parseFields(parser, fields))
    return {};
  return get(parser.getContext(), window, inserted, inputBatch, indicesBatch,
             map, vectorDim);
}

void ScatterDimensionNumbersAttr::print(AsmPrinter &printer) const {
  printLists(
      printer,
      {{"update_window_dims", getUpdateWindowDims()},
       {"inserted_window_dims", getInsertedWindowDims()},
       {"input_batching_dims", getInputBatchingDims()},
       {"scatter_indices_batching_dims", getScatterIndicesBatchingDims()},
       {"scatter_dims_to_operand_dims", getScatterDimsToOperandDims()}},
      {"index_vector_dim", getIndexVectorDim()});
}

Attribute DotAlgorithmAttr::parse(AsmParser &parser, Type) {
  Type lhs, rhs, acc;
  int64_t lhsCount = 1, rhsCount = 1, operations = 1;
  bool imprecise = false;
  Field fields[] = {
      {"lhs_precision_type", nullptr, nullptr, &lhs},
      {"rhs_precision_type", nullptr, nullptr, &rhs},
      {"accumulation_type", nullptr, nullptr, &acc},
      {"lhs_component_count", nullptr, &lhsCount},
      {"rhs_component_count", nullptr, &rhsCount},
      {"num_primitive_operations", nullptr, &operations},
      {"allow_imprecise_accumulation", nullptr, nullptr, nullptr, &imprecise}};
  if (parseFields(parser, fields))
    return {};
  if (!lhs || !rhs || !acc) {
    parser.emitError(parser.getCurrentLocation(),
                     "expected the precision and accumulation types");
    return {};
  }
  return get(parser.getContext(), lhs, rhs, acc, lhsCount, rhsCount, operations,
             imprecise);
}

void DotAlgorithmAttr::print(AsmPrinter &printer) const {
  printer << "<lhs_precision_type = " << getLhsPrecisionType()
          << ", rhs_precision_type = " << getRhsPrecisionType()
          << ", accumulation_type = " << getAccumulationType()
          << ", lhs_component_count = " << getLhsComponentCount()
          << ", rhs_component_count = " << getRhsComponentCount()
          << ", num_primitive_operations = " << getNumPrimitiveOperations()
          << ", allow_imprecise_accumulation = "
          << (getAllowImpreciseAccumulation() ? "true" : "false") << '>';
}

Attribute OutputOperandAliasAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> output, operand;
  int64_t index = 0;
  Field fields[] = {{"output_tuple_indices", &output},
                    {"operand_index", nullptr, &index},
                    {"operand_tuple_indices", &operand}};
  if (parseFields(parser, fields))
    return {};
  return get(parser.getContext(), output, index, operand);
}

void OutputOperandAliasAttr::print(AsmPrinter &printer) const {
  printer << "<output_tuple_indices = [";
  llvm::interleaveComma(getOutputTupleIndices(), printer);
  printer << "], operand_index = " << getOperandIndex()
          << ", operand_tuple_indices = [";
  llvm::interleaveComma(getOperandTupleIndices(), printer);
  printer << "]>";
}

//===----------------------------------------------------------------------===//
// Dialects
//===----------------------------------------------------------------------===//

void StableHLODialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "kvcache/Dialect/StableHLO/IR/StableHLOAttrs.cpp.inc"
      >();
  registerStableHLOOps();
}

Operation *StableHLODialect::materializeConstant(OpBuilder &builder,
                                                 Attribute value, Type type,
                                                 Location loc) {
  auto elements = dyn_cast<ElementsAttr>(value);
  if (!elements || elements.getType() != type)
    return nullptr;
  return ConstantOp::create(builder, loc, type, elements);
}

void kvcache::chlo::CHLODialect::initialize() { registerCHLOOps(); }
void kvcache::tm_tensor::TMTensorDialect::initialize() {
  registerTMTensorOps();
}
