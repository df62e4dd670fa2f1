// Ops of the stablehlo subset. Semantics are those of the StableHLO
// specification; descriptions here say only what a reader of a graph needs.

#ifndef KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLOOPS_TD
#define KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLOOPS_TD

include "kvcache/Dialect/StableHLO/IR/StableHLODialect.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

// A list of integers: `array<i64: ..>`, or `dense<..>` as older files have it.
def StableHLO_IntsAttr : Attr<
    CPred<"::kvcache::stablehlo::isIntList($_self)">, "list of integers"> {
  let storageType = "::mlir::Attribute";
  let returnType = "::mlir::Attribute";
  let convertFromStorage = "$_self";
}

class StableHLO_Op<string mnemonic, list<Trait> traits = []>
    : Op<StableHLO_Dialect, mnemonic, traits>;

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

class StableHLO_Elementwise<string mnemonic, list<Trait> traits>
    : StableHLO_Op<mnemonic, [Pure, SameOperandsAndResultShape] # traits> {
  let results = (outs AnyTensor:$result);
}

class StableHLO_Unary<string mnemonic, string text>
    : StableHLO_Elementwise<mnemonic, [SameOperandsAndResultElementType]> {
  let summary = text;
  let arguments = (ins AnyTensor:$operand);
  let assemblyFormat = [{
    $operand attr-dict `:` custom<SameTypes>(type($operand), type($result))
  }];
}

class StableHLO_Binary<string mnemonic, string text>
    : StableHLO_Elementwise<mnemonic, [SameOperandsAndResultElementType]> {
  let summary = text;
  let arguments = (ins AnyTensor:$lhs, AnyTensor:$rhs);
  let assemblyFormat = [{
    $lhs `,` $rhs attr-dict `:`
    custom<SameTypes2>(type($lhs), type($rhs), type($result))
  }];
}

def StableHLO_AbsOp : StableHLO_Unary<"abs", "absolute value">;
def StableHLO_CbrtOp : StableHLO_Unary<"cbrt", "cube root">;
def StableHLO_CeilOp : StableHLO_Unary<"ceil", "round up">;
def StableHLO_CosineOp : StableHLO_Unary<"cosine", "cosine">;
def StableHLO_ExpOp : StableHLO_Unary<"exponential", "e^x">;
def StableHLO_Expm1Op : StableHLO_Unary<"exponential_minus_one", "e^x - 1">;
def StableHLO_FloorOp : StableHLO_Unary<"floor", "round down">;
def StableHLO_LogOp : StableHLO_Unary<"log", "natural logarithm">;
def StableHLO_Log1pOp : StableHLO_Unary<"log_plus_one", "log(1 + x)">;
def StableHLO_LogisticOp : StableHLO_Unary<"logistic", "1 / (1 + e^-x)">;
def StableHLO_NegOp : StableHLO_Unary<"negate", "sign change">;
def StableHLO_NotOp : StableHLO_Unary<"not", "bitwise complement">;
def StableHLO_PopcntOp : StableHLO_Unary<"popcnt", "number of set bits">;
def StableHLO_RoundAfzOp
    : StableHLO_Unary<"round_nearest_afz", "round, ties away from zero">;
def StableHLO_RoundEvenOp
    : StableHLO_Unary<"round_nearest_even", "round, ties to even">;
def StableHLO_RsqrtOp : StableHLO_Unary<"rsqrt", "1 / sqrt(x)">;
def StableHLO_SignOp : StableHLO_Unary<"sign", "-1, 0 or 1">;
def StableHLO_SineOp : StableHLO_Unary<"sine", "sine">;
def StableHLO_SqrtOp : StableHLO_Unary<"sqrt", "square root">;
def StableHLO_TanOp : StableHLO_Unary<"tan", "tangent">;
def StableHLO_TanhOp : StableHLO_Unary<"tanh", "hyperbolic tangent">;

def StableHLO_AddOp : StableHLO_Binary<"add", "sum; on i1 a disjunction">;
def StableHLO_AndOp : StableHLO_Binary<"and", "bitwise conjunction">;
def StableHLO_Atan2Op : StableHLO_Binary<"atan2", "angle of (rhs, lhs)">;
def StableHLO_DivOp : StableHLO_Binary<"divide", "quotient">;
def StableHLO_MaxOp : StableHLO_Binary<"maximum", "the larger; NaN wins">;
def StableHLO_MinOp : StableHLO_Binary<"minimum", "the smaller; NaN wins">;
def StableHLO_MulOp : StableHLO_Binary<"multiply", "product">;
def StableHLO_OrOp : StableHLO_Binary<"or", "bitwise disjunction">;
def StableHLO_PowOp : StableHLO_Binary<"power", "lhs raised to rhs">;
def StableHLO_RemOp : StableHLO_Binary<"remainder", "signed as the dividend">;
def StableHLO_ShlOp : StableHLO_Binary<"shift_left", "shift left">;
def StableHLO_ShrAOp
    : StableHLO_Binary<"shift_right_arithmetic", "shift right, sign kept">;
def StableHLO_ShrLOp
    : StableHLO_Binary<"shift_right_logical", "shift right, zero filled">;
def StableHLO_SubOp : StableHLO_Binary<"subtract", "difference">;
def StableHLO_XorOp : StableHLO_Binary<"xor", "bitwise exclusive or">;

def StableHLO_ConvertOp : StableHLO_Elementwise<"convert", []> {
  let summary = "change the element type";
  let arguments = (ins AnyTensor:$operand);
  let assemblyFormat = [{
    $operand attr-dict `:` custom<SameTypes>(type($operand), type($result))
  }];
}

def StableHLO_IsFiniteOp : StableHLO_Elementwise<"is_finite", []> {
  let summary = "true where neither infinite nor NaN";
  let arguments = (ins AnyTensor:$operand);
  let assemblyFormat =
      "$operand attr-dict `:` functional-type(operands, results)";
}

def StableHLO_CompareOp : StableHLO_Elementwise<"compare", []> {
  let summary = "compare elements";
  let arguments = (ins AnyTensor:$lhs, AnyTensor:$rhs,
      StableHLO_DirectionAttr:$comparison_direction,
      OptionalAttr<StableHLO_ComparisonTypeAttr>:$compare_type);
  let assemblyFormat = [{
    custom<Direction>($comparison_direction) `,` $lhs `,` $rhs ``
    custom<CompareType>($compare_type) attr-dict `:`
    functional-type(operands, results)
  }];
}

def StableHLO_SelectOp : StableHLO_Op<"select", [Pure]> {
  let summary = "choose by a predicate, which may be a scalar";
  let arguments = (ins AnyTensor:$pred, AnyTensor:$on_true, AnyTensor:$on_false);
  let results = (outs AnyTensor:$result);
  let assemblyFormat = [{
    operands attr-dict `:`
    custom<SelectTypes>(type($pred), type($on_true), type($on_false),
                        type($result))
  }];
  let hasVerifier = 1;
}

def StableHLO_ClampOp : StableHLO_Op<"clamp", [Pure]> {
  let summary = "minimum(maximum(x, min), max); the limits may be scalars";
  let arguments = (ins AnyTensor:$min, AnyTensor:$operand, AnyTensor:$max);
  let results = (outs AnyTensor:$result);
  let assemblyFormat = [{
    $min `,` $operand `,` $max attr-dict `:`
    custom<SameTypes3>(type($min), type($operand), type($max), type($result))
  }];
  let hasVerifier = 1;
}

def StableHLO_BitcastConvertOp : StableHLO_Op<"bitcast_convert", [Pure]> {
  let summary = "reinterpret the bits of each element";
  let arguments = (ins AnyTensor:$operand);
  let results = (outs AnyTensor:$result);
  let assemblyFormat =
      "$operand attr-dict `:` functional-type(operands, results)";
}

def StableHLO_ReducePrecisionOp
    : StableHLO_Elementwise<"reduce_precision",
                            [SameOperandsAndResultElementType]> {
  let summary = "round to fewer exponent and mantissa bits";
  let arguments = (ins AnyTensor:$operand, I32Attr:$exponent_bits,
                   I32Attr:$mantissa_bits);
  let assemblyFormat = [{
    $operand `,` `format` `=`
    custom<ExponentMantissa>($exponent_bits, $mantissa_bits) attr-dict `:`
    custom<SameTypes>(type($operand), type($result))
  }];
}

//===----------------------------------------------------------------------===//
// Creation, shape
//===----------------------------------------------------------------------===//

def StableHLO_ConstantOp : StableHLO_Op<"constant", [Pure, ConstantLike,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "a tensor of known elements";
  let arguments = (ins ElementsAttr:$value);
  let results = (outs AnyTensor:$output);
  // Prints the value with its own type, as `arith.constant` does.
  let hasCustomAssemblyFormat = 1;
  let hasFolder = 1;
  let hasVerifier = 1;
}

def StableHLO_IotaOp : StableHLO_Op<"iota", [Pure]> {
  let summary = "each element's position along one dimension";
  let arguments = (ins I64Attr:$iota_dimension);
  let results = (outs AnyTensor:$output);
  let assemblyFormat =
      "`dim` `=` custom<Int>($iota_dimension) attr-dict `:` type($output)";
  let hasVerifier = 1;
}

def StableHLO_DynamicIotaOp : StableHLO_Op<"dynamic_iota", [Pure]> {
  let summary = "iota of a shape given at run time";
  let arguments = (ins AnyTensor:$output_shape, I64Attr:$iota_dimension);
  let results = (outs AnyTensor:$result);
  let assemblyFormat = [{
    $output_shape `,` `dim` `=` custom<Int>($iota_dimension) attr-dict `:`
    functional-type(operands, results)
  }];
}

class StableHLO_OneToOne<string mnemonic, string text>
    : StableHLO_Op<mnemonic, [Pure]> {
  let summary = text;
  let results = (outs AnyTensor:$result);
}

def StableHLO_BroadcastInDimOp
    : StableHLO_OneToOne<"broadcast_in_dim", "repeat along new dimensions"> {
  let arguments = (ins AnyTensor:$operand,
                   StableHLO_IntsAttr:$broadcast_dimensions);
  let assemblyFormat = [{
    $operand `,` `dims` `=` custom<Ints>($broadcast_dimensions) attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_DynamicBroadcastInDimOp
    : StableHLO_OneToOne<"dynamic_broadcast_in_dim",
                         "broadcast_in_dim to a shape known at run time"> {
  let arguments = (ins AnyTensor:$operand, AnyTensor:$output_dimensions,
      StableHLO_IntsAttr:$broadcast_dimensions,
      OptionalAttr<StableHLO_IntsAttr>:$known_expanding_dimensions,
      OptionalAttr<StableHLO_IntsAttr>:$known_nonexpanding_dimensions);
  let assemblyFormat = [{
    $operand `,` $output_dimensions `,` `dims` `=`
    custom<Ints>($broadcast_dimensions) attr-dict `:`
    functional-type(operands, results)
  }];
}

def StableHLO_ReshapeOp
    : StableHLO_OneToOne<"reshape", "same elements, another shape"> {
  let arguments = (ins AnyTensor:$operand);
  let assemblyFormat =
      "$operand attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def StableHLO_DynamicReshapeOp
    : StableHLO_OneToOne<"dynamic_reshape", "reshape to a run-time shape"> {
  let arguments = (ins AnyTensor:$operand, AnyTensor:$output_shape);
  let assemblyFormat = [{
    $operand `,` $output_shape attr-dict `:` functional-type(operands, results)
  }];
}

def StableHLO_TransposeOp
    : StableHLO_OneToOne<"transpose", "permute dimensions"> {
  let arguments = (ins AnyTensor:$operand, StableHLO_IntsAttr:$permutation);
  let assemblyFormat = [{
    $operand `,` `dims` `=` custom<Ints>($permutation) attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_SliceOp : StableHLO_OneToOne<"slice", "a strided part"> {
  let arguments = (ins AnyTensor:$operand, StableHLO_IntsAttr:$start_indices,
      StableHLO_IntsAttr:$limit_indices, StableHLO_IntsAttr:$strides);
  let assemblyFormat = [{
    $operand custom<Ranges>($start_indices, $limit_indices, $strides)
    attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_DynamicSliceOp
    : StableHLO_OneToOne<"dynamic_slice", "a part that starts at run time"> {
  let arguments = (ins AnyTensor:$operand, Variadic<AnyTensor>:$start_indices,
                   StableHLO_IntsAttr:$slice_sizes);
  let assemblyFormat = [{
    $operand `,` custom<OperandsSizes>($start_indices, $slice_sizes)
    attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_DynamicUpdateSliceOp
    : StableHLO_OneToOne<"dynamic_update_slice", "write a part"> {
  let arguments = (ins AnyTensor:$operand, AnyTensor:$update,
                   Variadic<AnyTensor>:$start_indices);
  let assemblyFormat =
      "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def StableHLO_ConcatenateOp
    : StableHLO_OneToOne<"concatenate", "join along one dimension"> {
  let arguments = (ins Variadic<AnyTensor>:$inputs, I64Attr:$dimension);
  let assemblyFormat = [{
    custom<OperandsDim>($inputs, $dimension) attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_PadOp : StableHLO_OneToOne<"pad", "pad with one value"> {
  let arguments = (ins AnyTensor:$operand, AnyTensor:$padding_value,
      StableHLO_IntsAttr:$edge_padding_low,
      StableHLO_IntsAttr:$edge_padding_high,
      StableHLO_IntsAttr:$interior_padding);
  let assemblyFormat = [{
    $operand `,` $padding_value `,`
    `low` `=` custom<Ints>($edge_padding_low) `,`
    `high` `=` custom<Ints>($edge_padding_high) `,`
    `interior` `=` custom<Ints>($interior_padding)
    attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def StableHLO_ReverseOp : StableHLO_OneToOne<"reverse", "reverse dimensions"> {
  let arguments = (ins AnyTensor:$operand, StableHLO_IntsAttr:$dimensions);
  let assemblyFormat = [{
    $operand `,` `dims` `=` custom<Ints>($dimensions) attr-dict `:`
    custom<SameTypes>(type($operand), type($result))
  }];
}

def StableHLO_GetDimensionSizeOp
    : StableHLO_OneToOne<"get_dimension_size", "size of one dimension"> {
  let arguments = (ins AnyTensor:$operand, I64Attr:$dimension);
  let assemblyFormat = [{
    $operand `,` `dim` `=` custom<Int>($dimension) attr-dict `:`
    functional-type(operands, results)
  }];
}

def StableHLO_GatherOp : StableHLO_OneToOne<"gather", "read slices by index"> {
  let arguments = (ins AnyTensor:$operand, AnyTensor:$start_indices,
      StableHLO_GatherAttr:$dimension_numbers, StableHLO_IntsAttr:$slice_sizes,
      OptionalAttr<BoolAttr>:$indices_are_sorted);
  let hasVerifier = 1;
}

include "kvcache/Dialect/StableHLO/IR/StableHLORegionOps.td"

#endif
