// Contractions, ops with regions, calls, and the chlo, sdy and tm_tensor ops.
// Included by StableHLOOps.td.

#ifndef KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLOREGIONOPS_TD
#define KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLOREGIONOPS_TD

//===----------------------------------------------------------------------===//
// Contractions
//===----------------------------------------------------------------------===//

def StableHLO_DotGeneralOp : StableHLO_OneToOne<"dot_general", "contraction"> {
  let arguments = (ins AnyTensor:$lhs, AnyTensor:$rhs,
      StableHLO_DotAttr:$dot_dimension_numbers,
      OptionalAttr<ArrayAttr>:$precision_config,
      OptionalAttr<StableHLO_DotAlgorithmAttr>:$algorithm);
  let assemblyFormat = [{
    $lhs `,` $rhs `,` custom<DotDims>($dot_dimension_numbers) ``
    custom<PrecisionConfig>($precision_config, $algorithm) attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_DotOp : StableHLO_OneToOne<"dot", "matrix product (deprecated)"> {
  let arguments = (ins AnyTensor:$lhs, AnyTensor:$rhs,
                   OptionalAttr<ArrayAttr>:$precision_config);
  let assemblyFormat = [{
    $lhs `,` $rhs `` custom<Precision>($precision_config) attr-dict `:`
    functional-type(operands, results)
  }];
}

//===----------------------------------------------------------------------===//
// Regions
//===----------------------------------------------------------------------===//

def StableHLO_ReturnOp : StableHLO_Op<"return", [Pure, Terminator]> {
  let summary = "end a region";
  let arguments = (ins Variadic<AnyTensor>:$operands_);
  let assemblyFormat =
      "($operands_^ `:` type($operands_))? attr-dict";
}

class StableHLO_RegionOp<string mnemonic, string text, list<Trait> traits = []>
    : StableHLO_Op<mnemonic, [RecursiveMemoryEffects,
                              RecursivelySpeculatable] # traits> {
  let summary = text;
  let results = (outs Variadic<AnyTensor>:$outs);
}

def StableHLO_ReduceOp : StableHLO_RegionOp<"reduce", "reduce dimensions",
    [SameVariadicOperandSize, SingleBlock]> {
  let arguments = (ins Variadic<AnyTensor>:$inputs,
      Variadic<AnyTensor>:$init_values, StableHLO_IntsAttr:$dimensions);
  let regions = (region SizedRegion<1>:$body);
  // `reduce(%x init: %i) applies stablehlo.add across dimensions = [1]`, or
  // with the body written out as `reducer(..) {..}`.
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def StableHLO_ReduceWindowOp : StableHLO_RegionOp<"reduce_window",
    "reduce sliding windows", [SameVariadicOperandSize, SingleBlock]> {
  let arguments = (ins Variadic<AnyTensor>:$inputs,
      Variadic<AnyTensor>:$init_values, StableHLO_IntsAttr:$window_dimensions,
      OptionalAttr<StableHLO_IntsAttr>:$window_strides,
      OptionalAttr<StableHLO_IntsAttr>:$base_dilations,
      OptionalAttr<StableHLO_IntsAttr>:$window_dilations,
      OptionalAttr<I64ElementsAttr>:$padding);
  let regions = (region SizedRegion<1>:$body);
}

def StableHLO_ScatterOp : StableHLO_RegionOp<"scatter",
    "write slices by index through an update computation",
    [SameVariadicOperandSize, SingleBlock]> {
  let arguments = (ins Variadic<AnyTensor>:$inputs, AnyTensor:$scatter_indices,
      Variadic<AnyTensor>:$updates,
      StableHLO_ScatterAttr:$scatter_dimension_numbers,
      OptionalAttr<BoolAttr>:$indices_are_sorted,
      OptionalAttr<BoolAttr>:$unique_indices);
  let regions = (region SizedRegion<1>:$update_computation);
  let hasVerifier = 1;
}

def StableHLO_SortOp : StableHLO_RegionOp<"sort", "sort along one dimension",
                                          [SingleBlock]> {
  let arguments = (ins Variadic<AnyTensor>:$inputs,
      DefaultValuedOptionalAttr<I64Attr, "-1">:$dimension,
      DefaultValuedOptionalAttr<BoolAttr, "false">:$is_stable);
  let regions = (region SizedRegion<1>:$comparator);
}

def StableHLO_MapOp : StableHLO_RegionOp<"map", "apply a scalar function",
                                         [SingleBlock]> {
  let arguments = (ins Variadic<AnyTensor>:$inputs,
                   StableHLO_IntsAttr:$dimensions);
  let regions = (region SizedRegion<1>:$computation);
}

def StableHLO_WhileOp : StableHLO_RegionOp<"while", "loop while true",
    [SingleBlock, DeclareOpInterfaceMethods<OpAsmOpInterface,
                                            ["getAsmBlockArgumentNames"]>]> {
  let arguments = (ins Variadic<AnyTensor>:$operand);
  let regions = (region SizedRegion<1>:$cond, SizedRegion<1>:$body);
  // `while(%iterArg = %init) : types cond {..} do {..}`
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def StableHLO_IfOp : StableHLO_RegionOp<"if", "one of two regions",
                                        [SingleBlock]> {
  let arguments = (ins AnyTensor:$pred);
  let regions = (region SizedRegion<1>:$true_branch,
                 SizedRegion<1>:$false_branch);
}

def StableHLO_CaseOp : StableHLO_RegionOp<"case",
    "one of several regions; the last when out of range", [SingleBlock]> {
  let arguments = (ins AnyTensor:$index);
  let regions = (region VariadicRegion<SizedRegion<1>>:$branches);
}

//===----------------------------------------------------------------------===//
// Calls and barriers
//===----------------------------------------------------------------------===//

def StableHLO_OptimizationBarrierOp
    : StableHLO_Op<"optimization_barrier", [Pure]> {
  let summary = "the operands, not moved across";
  let arguments = (ins Variadic<AnyTensor>:$operands_);
  let results = (outs Variadic<AnyTensor>:$outs);
  let assemblyFormat = [{
    attr-dict
    ($operands_^ `:` custom<Pairwise>(type($operands_), type($outs))) : (`(` `)`)?
  }];
}

def StableHLO_CustomCallOp : StableHLO_Op<"custom_call", []> {
  let summary = "a call the exporter gave no StableHLO for";
  let description = [{
    Read and kept. Only annotations without effect on values (shape assertions,
    sharding marks) can be lowered; any other target is refused by name.
  }];
  let arguments = (ins Variadic<AnyType>:$inputs, StrAttr:$call_target_name,
      OptionalAttr<BoolAttr>:$has_side_effect,
      OptionalAttr<AnyAttr>:$backend_config,
      OptionalAttr<I32Attr>:$api_version,
      OptionalAttr<ArrayAttr>:$called_computations,
      OptionalAttr<ArrayAttr>:$operand_layouts,
      OptionalAttr<ArrayAttr>:$result_layouts,
      OptionalAttr<ArrayAttr>:$output_operand_aliases);
  let results = (outs Variadic<AnyType>:$outs);
  let assemblyFormat = [{
    custom<CallTarget>($call_target_name) `(` $inputs `)` attr-dict `:`
    functional-type(operands, results)
  }];
}

def StableHLO_CompositeOp : StableHLO_Op<"composite",
    [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "an op defined by a function of the module";
  let arguments = (ins Variadic<AnyType>:$inputs, StrAttr:$name,
      OptionalAttr<DictionaryAttr>:$composite_attributes,
      FlatSymbolRefAttr:$decomposition,
      DefaultValuedOptionalAttr<I32Attr, "0">:$version,
      OptionalAttr<ArrayAttr>:$composite_regions);
  let results = (outs Variadic<AnyType>:$outs);
  let assemblyFormat =
      "$name $inputs attr-dict `:` functional-type(operands, results)";
}

//===----------------------------------------------------------------------===//
// chlo
//===----------------------------------------------------------------------===//

class CHLO_Unary<string mnemonic, string text>
    : Op<CHLO_Dialect, mnemonic, [Pure, SameOperandsAndResultShape]> {
  let summary = text;
  let arguments = (ins AnyTensor:$operand);
  let results = (outs AnyTensor:$result);
  let assemblyFormat =
      "$operand attr-dict `:` type($operand) `->` type($result)";
}

def CHLO_ErfOp : CHLO_Unary<"erf", "error function">;
def CHLO_ErfcOp : CHLO_Unary<"erfc", "1 - erf(x)">;
def CHLO_SquareOp : CHLO_Unary<"square", "x * x">;
def CHLO_SinhOp : CHLO_Unary<"sinh", "hyperbolic sine">;
def CHLO_CoshOp : CHLO_Unary<"cosh", "hyperbolic cosine">;
def CHLO_IsInfOp : CHLO_Unary<"is_inf", "infinite of either sign">;
def CHLO_IsPosInfOp : CHLO_Unary<"is_pos_inf", "+infinity">;
def CHLO_IsNegInfOp : CHLO_Unary<"is_neg_inf", "-infinity">;

def CHLO_TopKOp : Op<CHLO_Dialect, "top_k", [Pure]> {
  let summary = "the k largest of the last dimension and their positions";
  let arguments = (ins AnyTensor:$operand, I64Attr:$k);
  let results = (outs AnyTensor:$values, AnyTensor:$indices);
  let assemblyFormat = [{
    `(` $operand `,` `k` `=` custom<Int>($k) `)` attr-dict `:` type($operand)
    `->` `(` type($values) `,` type($indices) `)`
  }];
}

//===----------------------------------------------------------------------===//
// sdy
//===----------------------------------------------------------------------===//

class Sdy_TextAttr<string name, string mn> : AttrDef<Sdy_Dialect, name> {
  let mnemonic = mn;
  let parameters = (ins StringRefParameter<>:$text);
  // The text between `<` and `>` is kept as it is.
  let hasCustomAssemblyFormat = 1;
}

def Sdy_MeshAttr : Sdy_TextAttr<"Mesh", "mesh">;
def Sdy_ShardingAttr : Sdy_TextAttr<"Sharding", "sharding">;
def Sdy_OpShardingRuleAttr
    : Sdy_TextAttr<"OpShardingRule", "op_sharding_rule">;

def Sdy_MeshOp : Op<Sdy_Dialect, "mesh", [Symbol]> {
  let summary = "a named device mesh";
  let arguments = (ins SymbolNameAttr:$sym_name, Sdy_MeshAttr:$mesh);
  let assemblyFormat = "$sym_name `=` $mesh attr-dict";
}

def Sdy_ShardingConstraintOp : Op<Sdy_Dialect, "sharding_constraint", [Pure]> {
  let summary = "its operand";
  let arguments = (ins AnyTensor:$input, Sdy_ShardingAttr:$sharding);
  let results = (outs AnyTensor:$result);
  let assemblyFormat = [{
    $input $sharding attr-dict `:` custom<SameTypes>(type($input), type($result))
  }];
}

//===----------------------------------------------------------------------===//
// tm_tensor
//===----------------------------------------------------------------------===//

class TMTensor_Op<string mnemonic, string text>
    : Op<TMTensor_Dialect, mnemonic, [RecursiveMemoryEffects,
                                      AttrSizedOperandSegments]> {
  let summary = text;
  let regions = (region SizedRegion<1>:$region);
  let results = (outs Variadic<AnyTensor>:$outs);
}

def TMTensor_ScanOp : TMTensor_Op<"scan", "running reduction"> {
  let arguments = (ins Variadic<AnyTensor>:$inputs,
      Variadic<AnyTensor>:$outputs, I64Attr:$dimension,
      DefaultValuedAttr<BoolAttr, "true">:$inclusive);
  let assemblyFormat = [{
    `dimension` `(` custom<Int>($dimension) `)`
    `inclusive` `(` custom<Flag>($inclusive) `)` attr-dict
    `ins` `(` $inputs `:` type($inputs) `)`
    `outs` `(` $outputs `:` type($outputs) `)` $region `->` type($outs)
  }];
}

def TMTensor_ScatterOp : TMTensor_Op<"scatter", "write slices by index"> {
  let arguments = (ins Variadic<AnyTensor>:$inputs,
      Variadic<AnyTensor>:$outputs, DenseI64ArrayAttr:$dimension_map,
      DefaultValuedAttr<BoolAttr, "true">:$unique_indices);
  let assemblyFormat = [{
    attr-dict `unique_indices` `(` custom<Flag>($unique_indices) `)`
    `ins` `(` $inputs `:` type($inputs) `)`
    `outs` `(` $outputs `:` type($outputs) `)` $region `->` type($outs)
  }];
}

def TMTensor_YieldOp : Op<TMTensor_Dialect, "yield", [Pure, Terminator]> {
  let summary = "end a region";
  let arguments = (ins Variadic<AnyType>:$operands_);
  let assemblyFormat = "attr-dict ($operands_^ `:` type($operands_))?";
}

#endif
