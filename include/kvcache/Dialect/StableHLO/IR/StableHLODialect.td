// The `stablehlo` subset and the few `chlo`, `sdy` and `tm_tensor` ops that
// exporters write beside it. Public names and syntax, own C++ classes.

#ifndef KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLODIALECT_TD
#define KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLODIALECT_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def StableHLO_Dialect : Dialect {
  let name = "stablehlo";
  let cppNamespace = "::kvcache::stablehlo";
  let summary = "The part of StableHLO that exported attention graphs use";
  let description = [{
    Ops keep the names, attributes, pretty and generic syntax of the StableHLO
    specification, so a file reads and prints back unchanged. An op outside the
    subset is a parse error that names it.
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 1;
  let extraClassDeclaration = "void registerStableHLOOps();";
}

def CHLO_Dialect : Dialect {
  let name = "chlo";
  let cppNamespace = "::kvcache::chlo";
  let summary = "The chlo ops that exports contain";
  let extraClassDeclaration = "void registerCHLOOps();";
}

def Sdy_Dialect : Dialect {
  let name = "sdy";
  let cppNamespace = "::kvcache::sdy";
  let summary = "Sharding annotations, read and ignored";
  let description = [{
    Meshes and shardings are kept as text: on one device they mean nothing.
  }];
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = "void registerSdyOps();";
}

def TMTensor_Dialect : Dialect {
  let name = "tm_tensor";
  let cppNamespace = "::kvcache::tm_tensor";
  let summary = "torch-mlir's scan and scatter beside linalg";
  let extraClassDeclaration = "void registerTMTensorOps();";
}

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

class StableHLO_Enum<string name, list<string> cases>
    : I32EnumAttr<name, name,
                  !foreach(i, !range(!size(cases)),
                           I32EnumAttrCase<cases[i], i>)> {
  let cppNamespace = "::kvcache::stablehlo";
  let genSpecializedAttr = 0;
}

def StableHLO_DirectionEnum : StableHLO_Enum<
    "ComparisonDirection",
    ["EQ", "NE", "GE", "GT", "LE", "LT"]>;
def StableHLO_ComparisonTypeEnum : StableHLO_Enum<
    "ComparisonType",
    ["NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"]>;
def StableHLO_PrecisionEnum : StableHLO_Enum<
    "Precision", ["DEFAULT", "HIGH", "HIGHEST"]>;

def StableHLO_DirectionAttr : EnumAttr<
    StableHLO_Dialect, StableHLO_DirectionEnum, "comparison_direction">;
def StableHLO_ComparisonTypeAttr : EnumAttr<
    StableHLO_Dialect, StableHLO_ComparisonTypeEnum, "comparison_type">;
def StableHLO_PrecisionAttr : EnumAttr<
    StableHLO_Dialect, StableHLO_PrecisionEnum, "precision">;

class StableHLO_Attr<string name, string mn> : AttrDef<StableHLO_Dialect, name> {
  let mnemonic = mn;
  // Fields are named and those that are empty are left out, which the
  // declarative format cannot say for lists.
  let hasCustomAssemblyFormat = 1;
}

def StableHLO_DotAttr : StableHLO_Attr<"DotDimensionNumbers", "dot"> {
  let summary = "Batching and contracting dimensions of a dot_general";
  let parameters = (ins
    ArrayRefParameter<"int64_t">:$lhsBatching,
    ArrayRefParameter<"int64_t">:$rhsBatching,
    ArrayRefParameter<"int64_t">:$lhsContracting,
    ArrayRefParameter<"int64_t">:$rhsContracting);
}

def StableHLO_GatherAttr : StableHLO_Attr<"GatherDimensionNumbers", "gather"> {
  let summary = "How a gather reads its operand";
  let parameters = (ins
    ArrayRefParameter<"int64_t">:$offsetDims,
    ArrayRefParameter<"int64_t">:$collapsedSliceDims,
    ArrayRefParameter<"int64_t">:$operandBatchingDims,
    ArrayRefParameter<"int64_t">:$startIndicesBatchingDims,
    ArrayRefParameter<"int64_t">:$startIndexMap, "int64_t":$indexVectorDim);
}

def StableHLO_ScatterAttr
    : StableHLO_Attr<"ScatterDimensionNumbers", "scatter"> {
  let summary = "How a scatter writes its operand";
  let parameters = (ins
    ArrayRefParameter<"int64_t">:$updateWindowDims,
    ArrayRefParameter<"int64_t">:$insertedWindowDims,
    ArrayRefParameter<"int64_t">:$inputBatchingDims,
    ArrayRefParameter<"int64_t">:$scatterIndicesBatchingDims,
    ArrayRefParameter<"int64_t">:$scatterDimsToOperandDims,
    "int64_t":$indexVectorDim);
}

def StableHLO_DotAlgorithmAttr
    : StableHLO_Attr<"DotAlgorithm", "dot_algorithm"> {
  let summary = "The precision a dot_general is carried out in";
  let parameters = (ins "::mlir::Type":$lhsPrecisionType,
    "::mlir::Type":$rhsPrecisionType, "::mlir::Type":$accumulationType,
    "int64_t":$lhsComponentCount, "int64_t":$rhsComponentCount,
    "int64_t":$numPrimitiveOperations, "bool":$allowImpreciseAccumulation);
}

def StableHLO_OutputOperandAliasAttr
    : StableHLO_Attr<"OutputOperandAlias", "output_operand_alias"> {
  let summary = "A result of a custom_call in the memory of an operand";
  let parameters = (ins
    ArrayRefParameter<"int64_t">:$outputTupleIndices,
    "int64_t":$operandIndex,
    ArrayRefParameter<"int64_t">:$operandTupleIndices);
}

#endif
