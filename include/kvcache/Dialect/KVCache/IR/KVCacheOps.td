//===- KVCacheOps.td - Operations of the kvcache dialect ---*- tablegen -*-===//
//
// Each description says what the op computes; docs/spec.md says it with
// formulas. Constraints are numbered (C1, C2, ...): the verifiers and the tests
// carry the labels. The `mlir` fences are parsed and verified by a test.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_IR_KVCACHEOPS
#define KVCACHE_DIALECT_KVCACHE_IR_KVCACHEOPS

include "kvcache/Dialect/KVCache/IR/KVCacheAttrs.td"
include "kvcache/Dialect/KVCache/IR/KVCacheTypes.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class KVCache_Op<string mnemonic, list<Trait> traits = []>
    : Op<KVCache_Dialect, mnemonic, !listconcat(traits, [Pure])>;

// Ops whose result types follow from their operands, up to dynamic dims.
class KVCache_InferredOp<string mnemonic, list<Trait> traits = []>
    : KVCache_Op<mnemonic,
                 !listconcat(traits, [InferTypeOpAdaptorWithIsCompatible])>;

def KVCache_FloatTensor : RankedTensorOf<[F16, BF16, F32]>;
def KVCache_IntTensor : RankedTensorOf<[I32, I64]>;

//===----------------------------------------------------------------------===//
// Making and changing caches
//===----------------------------------------------------------------------===//

def KVCache_ViewOp : KVCache_Op<"view", [AttrSizedOperandSegments]> {
  let summary = "make a cache from arrays";
  let description = [{
    The cache of `lengths.size` sequences whose bytes are in the given tensors.

    Our own layout: `pools(sealed, open)` are bytes, `table(sealed, open)` hold
    page numbers indexed by the logical page, `sealed_pages` counts each
    sequence's sealed pages. `scales` gives the static scales ([kv], f32) of the
    sides that have `tensor` scales, key first; `means` the keys' channel means
    ([kv, d], f32) of a `center` format.

    External layout: `pools` are the arrays of codes and `scales` those of scales
    and zeros; the layout's array numbers count both, pools first. One `table`,
    or none with the rule `none`.

    Tables are [seq, page], or [seq, kv or 1, page] for one page list per head.
    Entries past a sequence's length are never interpreted.

    - C1: own layout: two pools of i8
    - C2: own layout: two tables
    - C3: `sealed_pages` iff own layout
    - C4: own layout: one [kv] f32 scale per side with `tensor` scales
    - C5: `means` [kv, d] f32 iff the key is centred (and the layout our own)
    - C6: tables have rank 2, or rank 3 with kv or 1 lists
    - C7: tables, `sealed_pages` and `lengths` agree in the number of sequences
    - C8: external: one table, none with the rule `none`
    - C9: external: arrays exist and have the rank of their map
    - C10: external: element types fit: codes hold the element (alone or packed),
      scales and zeros are the format's scale type
    - C11: external: no map leaves the static bounds of its array

    ```mlir
    func.func @view(%sealed: tensor<?xi8>, %open: tensor<?xi8>,
                    %st: tensor<4x32xi32>, %ot: tensor<4x32xi32>,
                    %sp: tensor<4xi32>, %n: tensor<4xi32>)
        -> !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned> {
      %c = kvcache.view pools(%sealed, %open : tensor<?xi8>, tensor<?xi8>)
        table(%st, %ot : tensor<4x32xi32>, tensor<4x32xi32>)
        sealed_pages(%sp : tensor<4xi32>) lengths(%n : tensor<4xi32>)
        -> !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
      return %c : !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
    }
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$pools,
      Variadic<KVCache_IntTensor>:$tables,
      Optional<KVCache_IntTensor>:$sealed_pages,
      1DTensorOf<[I32, I64]>:$lengths,
      Variadic<AnyRankedTensor>:$scales,
      Optional<RankedTensorOf<[F32]>>:$means);
  let results = (outs KVCache_CacheType:$cache);
  let assemblyFormat = [{
    `pools` `(` $pools `:` type($pools) `)`
    (`table` `(` $tables^ `:` type($tables) `)`)?
    (`sealed_pages` `(` $sealed_pages^ `:` type($sealed_pages) `)`)?
    `lengths` `(` $lengths `:` type($lengths) `)`
    (`scales` `(` $scales^ `:` type($scales) `)`)?
    (`means` `(` $means^ `:` type($means) `)`)?
    attr-dict `->` qualified(type($cache))
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The tensor with this number: pools first, then scales.
    ::mlir::Value getArray(int64_t number);
  }];
}

def KVCache_AppendOp
    : KVCache_Op<"append", [AllTypesMatch<["cache", "result"]>]> {
  let summary = "append tokens to sequences";
  let description = [{
    The cache with row i of `k` and `v` appended to sequence `row_seq[i]`, rows
    in order; rows of sequence -1 are padding and never read. The result takes
    the place of `cache`, which must not be used afterwards. A value that the
    format could not store later is an error (docs/spec.md, "Refusals").

    - C1: the layout is not external
    - C2: `k` is [rows, kv, d] in the open dtype
    - C3: `v` is [rows, kv, dv] in the open dtype; it is absent iff latent
    - C4: `row_seq` is [rows]

    ```mlir
    func.func @append(%c: !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>,
                      %k: tensor<?x8x128xf16>, %v: tensor<?x8x128xf16>, %row_seq: tensor<?xi32>)
        -> !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned> {
      %r = kvcache.append %c, %k, %v rows(%row_seq)
        : !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>,
          tensor<?x8x128xf16>, tensor<?x8x128xf16> rows(tensor<?xi32>)
      return %r : !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
    }
    ```
  }];
  let arguments = (ins KVCache_CacheType:$cache, KVCache_FloatTensor:$k,
      Optional<KVCache_FloatTensor>:$v, 1DTensorOf<[I32, I64]>:$row_seq);
  let results = (outs KVCache_CacheType:$result);
  let assemblyFormat = [{
    $cache `,` $k (`,` $v^)? `rows` `(` $row_seq `)` attr-dict `:` qualified(type($cache))
    `,` type($k) (`,` type($v)^)? `rows` `(` type($row_seq) `)`
  }];
  let hasVerifier = 1;
}

def KVCache_SealOp : KVCache_Op<"seal", [AllTypesMatch<["cache", "result"]>]> {
  let summary = "seal the pages that are due";
  let description = [{
    The cache with every page coded that is full, past the sinks and older than
    the recent window. The result takes the place of `cache`, which must not be
    used afterwards. Sealing is lossy unless the elements are the open dtype.

    - C1: the layout is not external

    ```mlir
    func.func @seal(%c: !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>)
        -> !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned> {
      %r = kvcache.seal %c : !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
      return %r : !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
    }
    ```
  }];
  let arguments = (ins KVCache_CacheType:$cache);
  let results = (outs KVCache_CacheType:$result);
  let assemblyFormat = "$cache attr-dict `:` qualified(type($cache))";
  let hasVerifier = 1;
}

def KVCache_ReadOp : KVCache_Op<"read"> {
  let summary = "decode the contents of a cache";
  let description = [{
    All tokens of all sequences, decoded in f32 and rounded to the result type:
    k and v in `layout` ([seq, kv, token, d] or [seq, token, kv, d]) and the
    lengths. Tokens past a sequence's length are 0. A window frees nothing:
    `read` returns all tokens.

    - C1: k has rank 4 with kv heads and d channels in the layout's places
    - C2: v has rank 4 with kv heads and dv channels in the layout's places
    - C3: k, v and lengths agree in sequences, k and v in tokens

    ```mlir
    func.func @read(%c: !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>)
        -> (tensor<?x8x?x128xf32>, tensor<?x8x?x128xf32>, tensor<?xi32>) {
      %k, %v, %n = kvcache.read %c
        : !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
        -> tensor<?x8x?x128xf32>, tensor<?x8x?x128xf32>, tensor<?xi32>
      return %k, %v, %n : tensor<?x8x?x128xf32>, tensor<?x8x?x128xf32>, tensor<?xi32>
    }
    ```
  }];
  let arguments = (ins KVCache_CacheType:$cache,
      DefaultValuedAttr<KVCache_LayoutAttr, "::kvcache::Layout::HND">:$layout);
  let results = (outs KVCache_FloatTensor:$k, KVCache_FloatTensor:$v,
      1DTensorOf<[I32, I64]>:$lengths);
  let assemblyFormat = [{
    $cache attr-dict `:` qualified(type($cache)) `->` type($k) `,` type($v) `,`
    type($lengths)
  }];
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Tensor ops: what importers leave
//===----------------------------------------------------------------------===//

def KVCache_QuantizeOp : KVCache_InferredOp<"quantize"> {
  let summary = "code a tensor";
  let description = [{
    Codes of `x` under `encoding`, its scales, and its zeros if the encoding is
    asymmetric (formulas: docs/spec.md). x is [..., token, channel] (`hnd`, the
    default) or [..., token, head, channel] (`nhd`); all its tokens are one page.
    Codes have x's shape, one element each; scales and zeros have x's shape with
    tokens and channels replaced by their number of groups. Floats have no
    scales. `tensor` scales are given (`static_scale`), not computed.
    Out of range: integers clamp (NaN to 0), fp8 saturates.

    - C1: x has rank 2 or more (`nhd`: 3 or more)
    - C2: `static_scale` iff the scale is `tensor`
    - C3: the encoding has neither 2:4 nor hadamard nor center (those are a
      cache's)
    - C4: the group divides the page (channel) or the channels (token)
    - C5: the results are what the encoding yields

    ```mlir
    func.func @quantize(%x: tensor<8x64x128xf32>)
        -> (tensor<8x64x128xi4>, tensor<8x2x128xf16>, tensor<8x2x128xf16>) {
      %codes, %params:2 = kvcache.quantize %x {encoding = #kvcache.encoding<i4:channel:g32:asym>}
        : tensor<8x64x128xf32> -> tensor<8x64x128xi4>, tensor<8x2x128xf16>, tensor<8x2x128xf16>
      return %codes, %params#0, %params#1 : tensor<8x64x128xi4>, tensor<8x2x128xf16>, tensor<8x2x128xf16>
    }
    ```
  }];
  let arguments = (ins KVCache_FloatTensor:$x,
      Optional<RankedTensorOf<[F16, BF16, F32]>>:$static_scale,
      KVCache_EncodingAttr:$encoding,
      DefaultValuedAttr<KVCache_LayoutAttr, "::kvcache::Layout::HND">:$layout);
  let results = (outs AnyRankedTensor:$codes,
      Variadic<KVCache_FloatTensor>:$params);
  let assemblyFormat = [{
    $x (`scale` `(` $static_scale^ `:` type($static_scale) `)`)? attr-dict `:`
    type($x) `->` type($codes) (`,` type($params)^)?
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::Value getScale() {
      return getParams().empty() ? ::mlir::Value() : getParams()[0];
    }
    ::mlir::Value getZero() {
      return getParams().size() < 2 ? ::mlir::Value() : getParams()[1];
    }
  }];
}

def KVCache_DequantizeOp : KVCache_Op<"dequantize"> {
  let summary = "decode a tensor";
  let description = [{
    `fma(code, scale, zero)`, or `code * scale` without a zero, in f32, rounded to
    the result type. Codes are
    [..., token, channel] or, `nhd`, [..., token, head, channel]. Scales and
    zeros have the same rank; along tokens and channels their sizes divide the
    codes' and each entry serves a run of neighbours, along other dims they may
    be 1 (statically: a dynamic size is the codes'). With `packing` the codes' tensor holds containers and its packed
    dimension counts them. Codes of symmetric encodings are signed.

    - C1: codes have rank 2 or more (`nhd`: 3 or more)
    - C2: as many params as the encoding has (scale; zero iff asymmetric)
    - C3: the codes' element type holds the encoding's element
    - C4: the encoding has neither 2:4 nor hadamard nor center
    - C5: params have the codes' rank, and sizes that divide (or are 1)
    - C6: the result has the (unpacked) shape of the codes
    - C7: a written group agrees with the sizes
    - C8: params have the encoding's scale type

    ```mlir
    func.func @dequantize(%codes: tensor<8x64x128xi4>, %s: tensor<8x2x128xf16>, %z: tensor<8x2x128xf16>)
        -> tensor<8x64x128xf32> {
      %x = kvcache.dequantize %codes, %s, %z {encoding = #kvcache.encoding<i4:channel:g32:asym>}
        : tensor<8x64x128xi4>, tensor<8x2x128xf16>, tensor<8x2x128xf16> -> tensor<8x64x128xf32>
      return %x : tensor<8x64x128xf32>
    }
    ```
  }];
  let arguments = (ins AnyRankedTensor:$codes,
      Variadic<KVCache_FloatTensor>:$params, KVCache_EncodingAttr:$encoding,
      DefaultValuedAttr<KVCache_LayoutAttr, "::kvcache::Layout::HND">:$layout,
      OptionalAttr<KVCache_PackingAttr>:$packing);
  let results = (outs KVCache_FloatTensor:$result);
  let assemblyFormat = [{
    $codes (`,` $params^)? attr-dict `:` type($codes) (`,` type($params)^)?
    `->` type($result)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
  let extraClassDeclaration = [{
    ::mlir::Value getScale() {
      return getParams().empty() ? ::mlir::Value() : getParams()[0];
    }
    ::mlir::Value getZero() {
      return getParams().size() < 2 ? ::mlir::Value() : getParams()[1];
    }
  }];
}

def KVCache_PageGatherOp : KVCache_InferredOp<"page_gather"> {
  let summary = "gather pages into sequences";
  let description = [{
    `pool` is [page, head, token, channel] (`hnd`, the default) or
    [page, token, head, channel] (`nhd`); the result has the sequence in place
    of the page and all its pages' tokens in a row. `table` is [seq, page], or
    [seq, head or 1, page] with one page list per head. `table_rule` says what
    page numbers out of range mean; `none` does not apply here.

    - C1: the pool has rank 4
    - C2: the table has rank 2, or rank 3 with heads or 1 lists
    - C3: the rule is raw, clamp or wrap
    - C4: the result is what pool and table yield

    ```mlir
    func.func @page_gather(%pool: tensor<100x8x16x128xi8>, %table: tensor<4x32xi32>)
        -> tensor<4x8x512x128xi8> {
      %x = kvcache.page_gather %pool, %table
        : tensor<100x8x16x128xi8>, tensor<4x32xi32> -> tensor<4x8x512x128xi8>
      return %x : tensor<4x8x512x128xi8>
    }
    ```
  }];
  let arguments = (ins AnyRankedTensor:$pool, KVCache_IntTensor:$table,
      DefaultValuedAttr<KVCache_LayoutAttr, "::kvcache::Layout::HND">:$layout,
      DefaultValuedAttr<KVCache_TableRuleAttr,
                        "::kvcache::TableRule::Raw">:$table_rule);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $pool `,` $table attr-dict `:` type($pool) `,` type($table) `->`
    type($result)
  }];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

def KVCache_AttentionOp
    : KVCache_InferredOp<"attention", [AttrSizedOperandSegments]> {
  let summary = "attend to a cache, or to keys and values";
  let description = [{
    For each query the softmax-weighted mean of the visible values, and the
    natural logarithm of the sum of exponentials (f32).

    Queries: `q` is [row, q_heads, d]; with `q_indptr` ([seq + 1]) the rows of
    sequence s are q_indptr[s]..q_indptr[s+1], without it sequence s has row s.
    Or q has rank 4: [seq, q_heads, q_len, d] (`hnd`), [seq, q_len, q_heads, d]
    (`nhd`). Queries are the newest tokens of their sequence.

    Keys and values: one cache, or `k` and `v` tensors in `layout`
    ([seq, kv, token, d] or [seq, token, kv, d]) with optional `lengths`.

    score(i, j) = softcap(scale * q_i.k_j) + slope_h * (j - i) + mask(i, j), then
    visibility: j < length, `causal`, `window`, boolean `mask` (true: visible).
    i and j are positions, or `positions[j]` ([seq, kv or 1, token]) where given.
    `sink_logits` ([q_heads]) adds one logit without a value per head. `alibi`
    gives the slopes as an attribute (empty: the usual powers of two), `slopes`
    as an operand. Query head h uses kv head h / (q_heads / kv), or
    `head_map[h]`. `scale` defaults to 1/sqrt(d).

    - C1: one cache, or two tensors k and v
    - C2: q has rank 3 or 4
    - C3: q, keys have the same head dim
    - C4: q_heads is a multiple of kv, unless there is a head_map
    - C5: head_map has q_heads entries in [0, kv)
    - C6: k and v have rank 4 and agree in sequences, heads and tokens
    - C7: lengths only with k and v, [seq]
    - C8: q_indptr only with q of rank 3
    - C9: positions are [seq, kv or 1, token]
    - C10: the mask is i1 or float, of q's rank with (row, head, token) or, in q's
      order, (seq, head, query, token); each size equal or 1, tokens equal
    - C11: slopes are [q_heads]; not both slopes and alibi; alibi has 0 or q_heads
      entries
    - C12: sink_logits are [q_heads]
    - C13: scale is finite; softcap is finite and positive
    - C14: empty_rows is zero on caches of our own layout; mean_all needs a table
      rule other than raw
    - C15: q has the open dtype of a cache of our own layout
    - C16: without q_indptr q, keys and lengths agree in sequences
    - C17: the results are what the operands yield

    ```mlir
    func.func @attention(%q: tensor<4x32x128xf16>,
                         %c: !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>)
        -> (tensor<4x32x128xf16>, tensor<4x32xf32>) {
      %o, %lse = kvcache.attention %q, %c {causal = #kvcache.causal<bottom_right>, softcap = 30.0}
        : tensor<4x32x128xf16>, !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
        -> tensor<4x32x128xf16>, tensor<4x32xf32>
      return %o, %lse : tensor<4x32x128xf16>, tensor<4x32xf32>
    }
    ```
  }];
  let arguments = (ins KVCache_FloatTensor:$q,
      Variadic<AnyTypeOf<[KVCache_CacheType, KVCache_FloatTensor]>>:$kv,
      Optional<1DTensorOf<[I32, I64]>>:$lengths,
      Optional<1DTensorOf<[I32, I64]>>:$q_indptr,
      Optional<KVCache_IntTensor>:$positions,
      Optional<RankedTensorOf<[I1, F16, BF16, F32]>>:$mask,
      Optional<1DTensorOf<[F32]>>:$slopes,
      Optional<1DTensorOf<[F32]>>:$sink_logits,
      OptionalAttr<F64Attr>:$scale, OptionalAttr<KVCache_CausalAttr>:$causal,
      OptionalAttr<KVCache_WindowAttr>:$window, OptionalAttr<F64Attr>:$softcap,
      OptionalAttr<DenseF32ArrayAttr>:$alibi,
      OptionalAttr<DenseI64ArrayAttr>:$head_map,
      DefaultValuedAttr<KVCache_EmptyRowsAttr,
                        "::kvcache::EmptyRows::Zero">:$empty_rows,
      DefaultValuedAttr<KVCache_LayoutAttr, "::kvcache::Layout::HND">:$layout);
  let results = (outs KVCache_FloatTensor:$out, RankedTensorOf<[F32]>:$lse);
  let assemblyFormat = [{
    $q `,` $kv
    (`lengths` `(` $lengths^ `:` type($lengths) `)`)?
    (`q_indptr` `(` $q_indptr^ `:` type($q_indptr) `)`)?
    (`positions` `(` $positions^ `:` type($positions) `)`)?
    (`mask` `(` $mask^ `:` type($mask) `)`)?
    (`slopes` `(` $slopes^ `:` type($slopes) `)`)?
    (`sink_logits` `(` $sink_logits^ `:` type($sink_logits) `)`)?
    attr-dict `:` type($q) `,` type($kv) `->` type($out) `,` type($lse)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The cache operand, null when k and v are tensors.
    ::mlir::TypedValue<::kvcache::CacheType> getCache();
    bool hasCache() { return static_cast<bool>(getCache()); }
    /// k and v when they are tensors, else null.
    ::mlir::Value getK();
    ::mlir::Value getV();
    int64_t getQHeads();
    int64_t getKvHeads();
    int64_t getHeadDim();
    int64_t getValueDim();
  }];
}

def KVCache_MergeStatesOp
    : KVCache_InferredOp<"merge_states", [SameVariadicOperandSize]> {
  let summary = "merge partial attention results";
  let description = [{
    The attention over the union of disjoint sets of keys, from the results over
    each, merged in operand order: m = max lse_i, w_i = exp(lse_i - m),
    out = sum w_i out_i / sum w_i, lse = m + log(sum w_i). Parts with lse = -inf
    do not count; if all are, out = 0 and lse = -inf.

    - C1: one or more parts
    - C2: all outs have one type, and so have all lses
    - C3: lse has out's shape without the last dimension

    ```mlir
    func.func @merge(%o1: tensor<4x32x128xf16>, %o2: tensor<4x32x128xf16>,
                     %l1: tensor<4x32xf32>, %l2: tensor<4x32xf32>)
        -> (tensor<4x32x128xf16>, tensor<4x32xf32>) {
      %o, %lse = kvcache.merge_states outs(%o1, %o2) lses(%l1, %l2)
        : tensor<4x32x128xf16>, tensor<4x32xf32>
      return %o, %lse : tensor<4x32x128xf16>, tensor<4x32xf32>
    }
    ```
  }];
  let arguments = (ins Variadic<KVCache_FloatTensor>:$outs,
      Variadic<RankedTensorOf<[F32]>>:$lses);
  let results = (outs KVCache_FloatTensor:$out, RankedTensorOf<[F32]>:$lse);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let hasFolder = 1;
}

#endif // KVCACHE_DIALECT_KVCACHE_IR_KVCACHEOPS
