//===- KVTileAttrs.td - Spec, schedule, layouts, masks ------*- tablegen -*-===//
#ifndef KVCACHE_DIALECT_KVTILE_ATTRS_TD
#define KVCACHE_DIALECT_KVTILE_ATTRS_TD

include "kvcache/Dialect/KVTile/IR/KVTileDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/TensorEncoding.td"
include "mlir/IR/EnumAttr.td"

class KVTile_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<KVTile_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

class KVTile_Enum<string name, string text, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, text, cases> {
  let cppNamespace = "::kvcache::tile";
}

def KVTile_LayoutKind : KVTile_Enum<"LayoutKind", "role of a tile's tensor", [
  I32EnumAttrCase<"Query", 0, "query">, I32EnumAttrCase<"Acc", 1, "acc">,
  I32EnumAttrCase<"Rows", 2, "rows">, I32EnumAttrCase<"Out", 3, "out">]>;

def KVTile_PageClass : KVTile_Enum<"PageClass", "class of pages", [
  I32EnumAttrCase<"Sealed", 0, "sealed">, I32EnumAttrCase<"Open", 1, "open">,
  I32EnumAttrCase<"External", 2, "external">]>;

def KVTile_ReduceKind : KVTile_Enum<"ReduceKind", "reduction over tokens", [
  I32EnumAttrCase<"Max", 0, "max">, I32EnumAttrCase<"Add", 1, "add">]>;

def KVTile_DotKind : KVTile_Enum<"DotKind", "arithmetic of a dot product", [
  I32EnumAttrCase<"F32", 0, "f32">, I32EnumAttrCase<"F16", 1, "f16">,
  I32EnumAttrCase<"BF16", 2, "bf16">, I32EnumAttrCase<"U8S8x2", 3, "u8s8x2">,
  I32EnumAttrCase<"S8", 4, "s8">, I32EnumAttrCase<"E4M3", 5, "e4m3">]>;

def KVTile_Orientation : KVTile_Enum<"Orientation", "operand A of the MMA", [
  I32EnumAttrCase<"KeysA", 0, "keys_a">,
  I32EnumAttrCase<"QueriesA", 1, "queries_a">]>;

def KVTile_EmptyRows : KVTile_Enum<"EmptyRows", "rows without a visible key", [
  I32EnumAttrCase<"Zero", 0, "zero">, I32EnumAttrCase<"NaN", 1, "nan">,
  I32EnumAttrCase<"MeanAll", 2, "mean_all">]>;

def KVTile_LayoutAttr : KVTile_Attr<"Layout", "layout",
    [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "Tells which role a tile's tensor plays";
  let description = [{
    C1: `query` is N x D f32; C2: `acc` is T x N, f32 or i1; C3: `rows` is N,
    f32 or i1; C4: `out` is V x N f32. All dimensions are static.

    Example: `tensor<64x4xf32, #kvtile.layout<acc>>`.
  }];
  let parameters = (ins EnumParameter<KVTile_LayoutKind>:$kind);
  let assemblyFormat = "`<` $kind `>`";
}

def KVTile_MaskAttr : KVTile_Attr<"Mask", "mask"> {
  let summary = "Which keys a query may see";
  let description = [{
    A query at position i sees the key at position j iff j <= i when `causal`,
    j >= i - left, and j <= i + right. Negative `left` or `right`: unbounded.

    Example: `#kvtile.mask<causal = true, left = 4095>`.
  }];
  let parameters = (ins DefaultValuedParameter<"bool", "true">:$causal,
                        DefaultValuedParameter<"int64_t", "-1">:$left,
                        DefaultValuedParameter<"int64_t", "-1">:$right);
  let assemblyFormat = "`<` struct(params) `>`";
}

def KVTile_SpecAttr : KVTile_Attr<"Spec", "spec"> {
  let summary = "What determines a kernel besides target and schedule";
  let description = [{
    `kvcache::KernelSpec` as an attribute. `format` is a format string of
    docs/spec.md. C1: the spec verifies (heads divide, dims are multiples of 8,
    groups divide the page or the channels, ...). A missing `scale` is
    1/sqrt(head_dim), a missing `softcap` none.

    Example: `#kvtile.spec<q_heads = 32, kv_heads = 8, head_dim = 128,
    value_dim = 128, dtype = f16, format = "kivi4">`.
  }];
  let parameters = (ins "int64_t":$q_heads, "int64_t":$kv_heads,
      "int64_t":$head_dim, "int64_t":$value_dim, "::mlir::Type":$dtype,
      StringRefParameter<"format string">:$format,
      OptionalParameter<"MaskAttr">:$mask,
      OptionalParameter<"::mlir::FloatAttr">:$softcap,
      OptionalParameter<"::mlir::FloatAttr">:$scale,
      DefaultValuedParameter<"bool", "false">:$alibi);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The same as a plain value, groups resolved.
    ::kvcache::KernelSpec getKernelSpec() const;
    static SpecAttr fromKernelSpec(::mlir::MLIRContext *context,
                                   const ::kvcache::KernelSpec &spec);
  }];
}

def KVTile_ArraysAttr : KVTile_Attr<"Arrays", "arrays"> {
  let summary = "What determines a kernel on keys and values in plain arrays";
  let description = [{
    Sizes, strides and addresses are arguments; what code depends on is here:
    query heads per kv head (`group`), channels, element types of the queries,
    keys, values and the result, the softmax `scale`, what is added to scores
    and what hides them. `mask_operand` is the element type of a mask array: i1
    (true: visible) or a float that is added. A missing `mask` shows every key.

    C1: sizes are positive. C2: elements are f32, f16 or bf16 (`mask_operand`:
    also i1).

    Example: `#kvtile.arrays<group = 4, head_dim = 64, value_dim = 64, query =
    f32, key = f32, value = f32, out = f32, scale = 0.125>`.
  }];
  let parameters = (ins "int64_t":$group, "int64_t":$head_dim,
      "int64_t":$value_dim, "::mlir::Type":$query, "::mlir::Type":$key,
      "::mlir::Type":$value, "::mlir::Type":$out, "::mlir::FloatAttr":$scale,
      OptionalParameter<"MaskAttr">:$mask,
      OptionalParameter<"::mlir::Type">:$mask_operand,
      OptionalParameter<"::mlir::FloatAttr">:$softcap,
      DefaultValuedParameter<"bool", "false">:$alibi,
      DefaultValuedParameter<"bool", "false">:$sinks,
      DefaultValuedParameter<"::kvcache::tile::EmptyRows",
                             "::kvcache::tile::EmptyRows::Zero">:$empty_rows);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def KVTile_ScheduleAttr : KVTile_Attr<"Schedule", "schedule"> {
  let summary = "How a kernel cuts its work";
  let description = [{
    Written by `kvtile-choose-schedule`, checked by `kvtile-verify-schedule`,
    obeyed by the lowerings, which never look at the target to decide.

    - `tile_tokens`: tokens per iteration of a page loop (T).
    - `q_pack`: query heads of one kv head handled together (N), at most 16.
    - `warps`: warps of a block, which split the tokens between them.
    - `stages`: tiles in flight (copies issued ahead).
    - `split_tokens`: tokens per split; 0 is auto, `kvcache_split_tokens` of
      the sequence's length.
    - `dot_kind`: arithmetic of products with sealed codes; an operand the kind
      does not apply to (floats for `u8s8x2`) is multiplied in f32 on CPUs and
      in f16 on GPUs.
    - `orientation`: what operand A of a tensor-core product is; on CPUs (array
      kernels) whether the lanes of a vector run over channels and tokens
      (`keys_a`: few rows) or over queries (`queries_a`).
    - `prefetch_bytes`: how far ahead a CPU prefetches.
    - `exp_bias`: probabilities carry a factor 2^exp_bias that keeps them within
      f16; the stored maximum is lowered alike, so partials need no change.
    - `vector_bits`: register width of a CPU tier, 0 on GPUs.
    - `q_rows`: query rows handled together (array kernels; N = q_pack * q_rows,
      columns of one head next to each other).
    - `subnormal_codes`: GPUs use integer codes as f16 subnormals (n * 2^-24,
      no instruction to convert); otherwise as 1024 + n less 1024.

    C1: all sizes positive, `q_pack` at most 16, `q_rows` at most 64,
    `tile_tokens` a power of two.

    Example: `#kvtile.schedule<tile_tokens = 64, q_pack = 4, vector_bits = 512,
    prefetch_bytes = 4096>`.
  }];
  let parameters = (ins "int64_t":$tile_tokens, "int64_t":$q_pack,
      DefaultValuedParameter<"int64_t", "1">:$warps,
      DefaultValuedParameter<"int64_t", "1">:$stages,
      DefaultValuedParameter<"int64_t", "0">:$split_tokens,
      DefaultValuedParameter<"::kvcache::tile::DotKind",
                             "::kvcache::tile::DotKind::F32">:$dot_kind,
      DefaultValuedParameter<"::kvcache::tile::Orientation",
                     "::kvcache::tile::Orientation::KeysA">:$orientation,
      DefaultValuedParameter<"int64_t", "0">:$prefetch_bytes,
      DefaultValuedParameter<"int64_t", "0">:$exp_bias,
      DefaultValuedParameter<"int64_t", "0">:$vector_bits,
      DefaultValuedParameter<"bool", "false">:$subnormal_codes,
      DefaultValuedParameter<"int64_t", "1">:$q_rows);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def KVTile_TileType : TypeDef<KVTile_Dialect, "Tile"> {
  let mnemonic = "tile";
  let summary = "The stored keys and values of one iteration of a page loop";
  let description = [{
    An opaque handle: a page (or the part of a page, or the pages) that a page
    loop visits, together with the position of its first token. Only valid
    within the loop's body.
  }];
}

#endif // KVCACHE_DIALECT_KVTILE_ATTRS_TD
