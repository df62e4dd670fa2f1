//===- KVTileOps.td - Operations of a kernel ----------------*- tablegen -*-===//
#ifndef KVCACHE_DIALECT_KVTILE_OPS_TD
#define KVCACHE_DIALECT_KVTILE_OPS_TD

include "kvcache/Dialect/KVTile/IR/KVTileAttrs.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class KVTile_Op<string name, list<Trait> traits = []>
    : Op<KVTile_Dialect, name, traits>;

class KVTile_Tensor<string kind, string text>
    : Type<CPred<"::kvcache::tile::hasLayout($_self, "
                 "::kvcache::tile::LayoutKind::" # kind # ")">, text,
           "::mlir::RankedTensorType">;
def KVTile_Query : KVTile_Tensor<"Query", "tensor of layout 'query'">;
def KVTile_Acc : KVTile_Tensor<"Acc", "tensor of layout 'acc'">;
def KVTile_Rows : KVTile_Tensor<"Rows", "tensor of layout 'rows'">;
def KVTile_Out : KVTile_Tensor<"Out", "tensor of layout 'out'">;

def KVTile_KernelOp : KVTile_Op<"kernel",
    [IsolatedFromAbove, Symbol, NoTerminator, NoRegionArguments]> {
  let summary = "Define what one work item of attend computes";
  let description = [{
    Names a kernel by what it computes (`spec`). `kvtile-choose-schedule` adds
    the schedule, `kvtile-expand-attend` the body: one block, ended by
    `kvtile.return`, that runs once per work item. Row, kv head, chunk and split
    are implicit; ops that depend on them (`load_query`, `query_position`,
    `page_loop`, `store_partial`) say so.

    C1: a kernel with a body has a schedule. C2: every tensor in the body has
    the sizes of the spec and the schedule.

    Example:

    ```mlir
    kvtile.kernel @attend spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, KVTile_SpecAttr:$spec,
                       OptionalAttr<KVTile_ScheduleAttr>:$schedule);
  let regions = (region MaxSizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `spec` `(` $spec `)` (`schedule` `(` $schedule^ `)`)?
    attr-dict-with-keyword ($body^)?
  }];
  let builders = [OpBuilder<(ins "::llvm::StringRef":$name, "SpecAttr":$spec,
                                 CArg<"ScheduleAttr", "{}">:$schedule)>];
  let skipDefaultBuilders = 1;
  let hasRegionVerifier = 1;
}

def KVTile_ArrayKernelOp : KVTile_Op<"array_kernel",
    [IsolatedFromAbove, Symbol, NoTerminator, NoRegionArguments]> {
  let summary = "Define what one work item of attention on arrays computes";
  let description = [{
    The same as `kvtile.kernel` for keys and values in plain arrays, with the
    arguments of kvcache/ABI/ArrayKernelABI.h. A work item is a sequence, a kv
    head, a chunk of at most `q_pack` of its query heads and `q_rows` query rows;
    column n of a tile is the row n mod q_rows of the chunk's head n div q_rows.
    Tiles of keys are visited by one `page_loop external`, and the body ends with
    `store_result` and `return`.

    C1: a kernel with a body has a schedule. C2: every tensor in the body has
    the sizes of the spec and the schedule.

    Example:

    ```mlir
    kvtile.array_kernel @attend spec(<group = 4, head_dim = 64, value_dim = 64,
        query = f32, key = f32, value = f32, out = f32, scale = 0.125>)
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, KVTile_ArraysAttr:$spec,
                       OptionalAttr<KVTile_ScheduleAttr>:$schedule);
  let regions = (region MaxSizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `spec` `(` $spec `)` (`schedule` `(` $schedule^ `)`)?
    attr-dict-with-keyword ($body^)?
  }];
  let builders = [OpBuilder<(ins "::llvm::StringRef":$name, "ArraysAttr":$spec,
                                 CArg<"ScheduleAttr", "{}">:$schedule)>];
  let skipDefaultBuilders = 1;
  let hasRegionVerifier = 1;
}

def KVTile_LoadQueryOp : KVTile_Op<"load_query", [Pure, ParentOneOf<["KernelOp", "ArrayKernelOp"]>]> {
  let summary = "Load the queries of the work item's chunk";
  let description = [{
    Row `n` is the query of the chunk's n-th head, widened to f32 (exact for
    f16 and bf16); heads past the group are zero.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %q = kvtile.load_query : tensor<4x64xf32, #kvtile.layout<query>>
      kvtile.return
    }
    ```
  }];
  let results = (outs KVTile_Query:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def KVTile_LoadSlopesOp
    : KVTile_Op<"load_slopes", [Pure, ParentOneOf<["KernelOp", "ArrayKernelOp"]>]> {
  let summary = "Load the ALiBi slopes of the work item's chunk";
  let description = [{
    Element `n` is the slope of the chunk's n-th head; heads past the group have
    slope 0.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %s = kvtile.load_slopes : tensor<4xf32, #kvtile.layout<rows>>
      kvtile.return
    }
    ```
  }];
  let results = (outs KVTile_Rows:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def KVTile_LoadSinksOp
    : KVTile_Op<"load_sinks", [Pure, HasParent<"ArrayKernelOp">]> {
  let summary = "Load the sink logits of the work item's columns";
  let description = [{
    Element `n` is the sink logit of column n's head.

    Example:

    ```mlir
    kvtile.array_kernel @example spec(<group = 1, head_dim = 64, value_dim = 64,
        query = f32, key = f32, value = f32, out = f32, scale = 0.125,
        sinks = true>) schedule(<tile_tokens = 64, q_pack = 1, q_rows = 16>) {
      %s = kvtile.load_sinks : tensor<16xf32, #kvtile.layout<rows>>
      kvtile.return
    }
    ```
  }];
  let results = (outs KVTile_Rows:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def KVTile_PageLoopOp : KVTile_Op<"page_loop",
    [ParentOneOf<["KernelOp", "ArrayKernelOp"]>, SingleBlock]> {
  let summary = "Visit the split's pages of one class in order";
  let description = [{
    Runs its body for every tile of the work item's split whose pages are of
    this class (`sealed`, `open`), in the order of their tokens, skipping tiles
    of which the kernel's mask shows no token to the row (such pages and their
    table entries are not touched). A split holds pages of one class only, so
    one of a kernel's loops runs zero times. `inits` are the carried values;
    the body gets the tile and the carried values, and yields the next ones. A
    target may let several threads visit different tiles, each with carried
    values of its own from the same inits, and combine them in `store_partial`.

    The class `external` is that of array kernels: tiles of `tile_tokens` keys.

    C1: inits, body arguments after the tile, yielded values and results have
    the same types. C2: the first body argument is a `!kvtile.tile`. C3: the
    class is `external` in array kernels, and only there.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %m0 = arith.constant dense<0.0>
          : tensor<4xf32, #kvtile.layout<rows>>
      %m = kvtile.page_loop sealed(%m0 : tensor<4xf32, #kvtile.layout<rows>>) {
      ^bb0(%tile: !kvtile.tile, %mi: tensor<4xf32, #kvtile.layout<rows>>):
        kvtile.yield %mi : tensor<4xf32, #kvtile.layout<rows>>
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_PageClass:$page_class,
                       Variadic<AnyRankedTensor>:$inits);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let builders = [OpBuilder<(ins "PageClass":$page_class,
                                 "::mlir::ValueRange":$inits)>];
  let skipDefaultBuilders = 1;
  let hasRegionVerifier = 1;
  // Custom: the results' types are the inits' and are not repeated.
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    ::mlir::Value getTile() { return getBody().getArgument(0); }
    ::mlir::ValueRange getCarried() {
      return getBody().getArguments().drop_front();
    }
    YieldOp getYield();
  }];
}

def KVTile_YieldOp : KVTile_Op<"yield",
    [Pure, Terminator, HasParent<"PageLoopOp">]> {
  let summary = "Give the next carried values of a page loop";
  let description = [{ See `kvtile.page_loop`. }];
  let arguments = (ins Variadic<AnyRankedTensor>:$operands);
  let assemblyFormat = "attr-dict ($operands^ `:` type($operands))?";
}

def KVTile_ReturnOp : KVTile_Op<"return",
    [Pure, Terminator, ParentOneOf<["KernelOp", "ArrayKernelOp"]>]> {
  let summary = "End a kernel's body";
  let description = [{ See `kvtile.kernel`. }];
  let assemblyFormat = "attr-dict";
}

def KVTile_ScoreOp : KVTile_Op<"score", [Pure, HasParent<"PageLoopOp">]> {
  let summary = "Multiply a tile's keys with the queries";
  let description = [{
    result[t, n] = sum over channels of key[t, c] * query[n, c], with the stored
    keys decoded (scales and zeros applied, folded into the query wherever that
    is cheaper). Unscaled. Rows of tokens that are not stored are unspecified
    (any bits, NaN included): `visible` is false for them.
    `dot_kind` is the arithmetic (see `#kvtile.schedule`).

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %q = kvtile.load_query : tensor<4x64xf32, #kvtile.layout<query>>
      kvtile.page_loop sealed() {
      ^bb0(%tile: !kvtile.tile):
        %s = kvtile.score f32 %tile, %q : tensor<4x64xf32, #kvtile.layout<query>>
               -> tensor<64x4xf32, #kvtile.layout<acc>>
        kvtile.yield
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_DotKind:$dot_kind, KVTile_TileType:$tile,
                       KVTile_Query:$query);
  let results = (outs KVTile_Acc:$result);
  let assemblyFormat = [{
    $dot_kind $tile `,` $query attr-dict `:` type($query) `->` type($result)
  }];
}

def KVTile_VisibleOp : KVTile_Op<"visible", [Pure, HasParent<"PageLoopOp">]> {
  let summary = "Tell which tokens of a tile the queries may see";
  let description = [{
    result[t, n] is true iff token t of the tile is stored (its position is
    below the sequence's length) and the mask shows it to the row's position.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      kvtile.page_loop sealed() {
      ^bb0(%tile: !kvtile.tile):
        %v = kvtile.visible %tile, <left = 127>
               : tensor<64x4xi1, #kvtile.layout<acc>>
        kvtile.yield
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_TileType:$tile, KVTile_MaskAttr:$mask);
  let results = (outs KVTile_Acc:$result);
  let assemblyFormat = "$tile `,` $mask attr-dict `:` type($result)";
}

def KVTile_DistanceOp : KVTile_Op<"distance", [Pure, HasParent<"PageLoopOp">]> {
  let summary = "Give the positions of a tile's tokens relative to the row";
  let description = [{
    result[t, n] = position of token t - position of the row, as f32.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      kvtile.page_loop sealed() {
      ^bb0(%tile: !kvtile.tile):
        %d = kvtile.distance %tile : tensor<64x4xf32, #kvtile.layout<acc>>
        kvtile.yield
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_TileType:$tile);
  let results = (outs KVTile_Acc:$result);
  let assemblyFormat = "$tile attr-dict `:` type($result)";
}

def KVTile_LoadMaskOp : KVTile_Op<"load_mask", [Pure, HasParent<"PageLoopOp">]> {
  let summary = "Load a tile of the mask array";
  let description = [{
    result[t, n] is the mask's entry for token t and column n: i1 (true: visible)
    or widened to f32. Unspecified where `visible` is false.

    Example:

    ```mlir
    kvtile.array_kernel @example spec(<group = 1, head_dim = 64, value_dim = 64,
        query = f32, key = f32, value = f32, out = f32, scale = 0.125,
        mask_operand = f32>) schedule(<tile_tokens = 64, q_pack = 1, q_rows = 16>) {
      kvtile.page_loop external() {
      ^bb0(%tile: !kvtile.tile):
        %m = kvtile.load_mask %tile : tensor<64x16xf32, #kvtile.layout<acc>>
        kvtile.yield
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_TileType:$tile);
  let results = (outs KVTile_Acc:$result);
  let assemblyFormat = "$tile attr-dict `:` type($result)";
}

def KVTile_ReduceOp : KVTile_Op<"reduce", [Pure, HasParent<"PageLoopOp">]> {
  let summary = "Reduce over the tokens of a tile";
  let description = [{
    result[n] is the maximum (NaN does not occur) or the sum over t of
    operand[t, n], in an order fixed by the schedule.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %s = arith.constant dense<0.0>
          : tensor<64x4xf32, #kvtile.layout<acc>>
      kvtile.page_loop sealed() {
      ^bb0(%tile: !kvtile.tile):
        %m = kvtile.reduce max %s : tensor<64x4xf32, #kvtile.layout<acc>>
               -> tensor<4xf32, #kvtile.layout<rows>>
        kvtile.yield
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_ReduceKind:$kind, KVTile_Acc:$operand);
  let results = (outs KVTile_Rows:$result);
  let assemblyFormat = [{
    $kind $operand attr-dict `:` type($operand) `->` type($result)
  }];
}

def KVTile_BroadcastOp : KVTile_Op<"broadcast", [Pure]> {
  let summary = "Repeat a statistic for every token of a tile";
  let description = [{
    result[t, n] = operand[n].

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %m = arith.constant dense<0.0>
          : tensor<4xf32, #kvtile.layout<rows>>
      %b = kvtile.broadcast %m : tensor<4xf32, #kvtile.layout<rows>>
             -> tensor<64x4xf32, #kvtile.layout<acc>>
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_Rows:$operand);
  let results = (outs KVTile_Acc:$result);
  let assemblyFormat = [{
    $operand attr-dict `:` type($operand) `->` type($result)
  }];
}

def KVTile_AccumulateOp
    : KVTile_Op<"accumulate", [Pure, HasParent<"PageLoopOp">,
                               AllTypesMatch<["out", "result"]>]> {
  let summary = "Rescale the output and add a tile's weighted values";
  let description = [{
    result[c, n] = out[c, n] * alpha[n] + sum over t of p[t, n] * value[t, c],
    with the stored values decoded (scales and zeros folded into p where that is
    cheaper). Tokens that are not stored do not contribute, whatever their bytes
    are.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %p = arith.constant dense<0.0>
          : tensor<64x4xf32, #kvtile.layout<acc>>
      %o = arith.constant dense<0.0>
          : tensor<64x4xf32, #kvtile.layout<out>>
      %alpha = arith.constant dense<0.0>
          : tensor<4xf32, #kvtile.layout<rows>>
      kvtile.page_loop sealed() {
      ^bb0(%tile: !kvtile.tile):
        %o1 = kvtile.accumulate f32 %tile, %p, %o, %alpha
                : tensor<64x4xf32, #kvtile.layout<acc>>,
                  tensor<64x4xf32, #kvtile.layout<out>>,
                  tensor<4xf32, #kvtile.layout<rows>>
        kvtile.yield
      }
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_DotKind:$dot_kind, KVTile_TileType:$tile,
                       KVTile_Acc:$p, KVTile_Out:$out, KVTile_Rows:$alpha);
  let results = (outs KVTile_Out:$result);
  let assemblyFormat = [{
    $dot_kind $tile `,` $p `,` $out `,` $alpha attr-dict
    `:` type($p) `,` type($out) `,` type($alpha)
  }];
}

def KVTile_StorePartialOp
    : KVTile_Op<"store_partial", [HasParent<"KernelOp">,
                                  TypesMatchWith<"sum has the type of max",
                                                 "max", "sum", "$_self">]> {
  let summary = "Write the work item's partial result";
  let description = [{
    Writes, for every head of the chunk, O (not normalised), the base-2 maximum m
    (-inf: nothing was visible) and the sum l to the item's place in the
    workspace. Where several threads visited different tiles, their states are
    combined first, in a fixed order: m = max m_i, l = sum l_i 2^(m_i - m), O
    alike.

    Example:

    ```mlir
    kvtile.kernel @example spec(<q_heads = 4, kv_heads = 1, head_dim = 64,
        value_dim = 64, dtype = f16, format = "int8">)
        schedule(<tile_tokens = 64, q_pack = 4>) {
      %m = arith.constant dense<0.0>
          : tensor<4xf32, #kvtile.layout<rows>>
      %l = arith.constant dense<0.0>
          : tensor<4xf32, #kvtile.layout<rows>>
      %o = arith.constant dense<0.0>
          : tensor<64x4xf32, #kvtile.layout<out>>
      kvtile.store_partial %m, %l, %o : tensor<4xf32, #kvtile.layout<rows>>,
                                        tensor<64x4xf32, #kvtile.layout<out>>
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_Rows:$max, KVTile_Rows:$sum, KVTile_Out:$out);
  let assemblyFormat = [{
    $max `,` $sum `,` $out attr-dict `:` type($max) `,` type($out)
  }];
}

def KVTile_StoreResultOp
    : KVTile_Op<"store_result", [HasParent<"ArrayKernelOp">,
                                 TypesMatchWith<"sum has the type of max",
                                                "max", "sum", "$_self">]> {
  let summary = "Write the work item's rows of the result";
  let description = [{
    out = O / l and lse = m + log(l), m being the natural maximum and l the sum
    of exp(x - m), for every column that exists. Where l is 0 the row had no key:
    the spec's `empty_rows` says what out becomes, and lse is -inf.

    Example:

    ```mlir
    kvtile.array_kernel @example spec(<group = 1, head_dim = 64, value_dim = 64,
        query = f32, key = f32, value = f32, out = f32, scale = 0.125>)
        schedule(<tile_tokens = 64, q_pack = 1, q_rows = 16>) {
      %m = arith.constant dense<0.0>
          : tensor<16xf32, #kvtile.layout<rows>>
      %l = arith.constant dense<0.0>
          : tensor<16xf32, #kvtile.layout<rows>>
      %o = arith.constant dense<0.0>
          : tensor<64x16xf32, #kvtile.layout<out>>
      kvtile.store_result %m, %l, %o : tensor<16xf32, #kvtile.layout<rows>>,
                                       tensor<64x16xf32, #kvtile.layout<out>>
      kvtile.return
    }
    ```
  }];
  let arguments = (ins KVTile_Rows:$max, KVTile_Rows:$sum, KVTile_Out:$out);
  let assemblyFormat = [{
    $max `,` $sum `,` $out attr-dict `:` type($max) `,` type($out)
  }];
}

#endif // KVCACHE_DIALECT_KVTILE_OPS_TD
