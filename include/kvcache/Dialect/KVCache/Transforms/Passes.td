//===- Passes.td - Passes of the kvcache dialect -----------*- tablegen -*-===//
//
// Passes that stay within the dialect. Lowerings are in lib/Conversion.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_TRANSFORMS_PASSES
#define KVCACHE_DIALECT_KVCACHE_TRANSFORMS_PASSES

include "mlir/Pass/PassBase.td"

def VerifyLinearPass : Pass<"kvcache-verify-linear"> {
  let summary = "refuse uses of a cache after append or seal replaced it";
  let description = [{
    `append` and `seal` return a cache that takes the place of their operand, so
    that later stages can work in place. This pass follows every path through
    blocks, branches, regions and calls within the module and refuses a use of
    the old value that can run after it was replaced.

    ```
    %new = kvcache.append %old, %k, %v rows(%r) : ...
    %o, %lse = kvcache.attention %q, %old : ...  // error: %old was replaced
    ```
  }];
}

def FuseAttentionPass : Pass<"kvcache-fuse-attention"> {
  let summary = "attend to the cache itself instead of its decoded contents";
  let description = [{
    Two rewrites of `kvcache.attention` on tensors:

    1. `read` followed by attention becomes attention on the cache:

    ```
    %k, %v, %n = kvcache.read %c : ...
    %o, %lse = kvcache.attention %q, %k, %v lengths(%n : ...) : ...
    // becomes
    %o, %lse = kvcache.attention %q, %c : ...
    ```

    2. `page_gather` and `dequantize`, in either order, followed by attention
       become a `view` with an external layout and attention on it:

    ```
    %kc = kvcache.page_gather %kcodes, %table : ...
    %ks = kvcache.page_gather %kscales, %table : ...
    %k = kvcache.dequantize %kc, %ks {...} : ...
    %o, %lse = kvcache.attention %q, %k, %v lengths(%n : ...) : ...
    // becomes
    %c = kvcache.view pools(%kcodes, %vcodes : ...) table(%table : ...)
           lengths(%n : ...) scales(%kscales, ...) -> !kvcache.cache<..., #kvcache.external<...>>
    %o, %lse = kvcache.attention %q, %c : ...
    ```

    Slices, reshapes, transposes and casts between an array and its gather become
    part of the array's affine map. Nothing is fused when an intermediate value
    has other users, since it would then have to exist anyway. A remark on each
    attention that stays on tensors says why. Rounding of the decoded values to
    a narrower result type is dropped: the fused form is the more exact one.
  }];
  let dependentDialects = ["::kvcache::KVCacheDialect",
                           "::mlir::arith::ArithDialect"];
  let options = [Option<"onlyMissed", "only-missed", "bool", "false",
                        "no remark on attention that has no cache behind it">];
  let statistics = [Statistic<"numFused", "fused",
                              "attentions that now use a cache">,
                    Statistic<"numKept", "kept",
                              "attentions that stay on tensors">];
}

def FlattenQueriesPass : Pass<"kvcache-flatten-queries"> {
  let summary = "bring queries of rank 4 on a cache to [row, head, d]";
  let description = [{
    Imported graphs have queries [seq, head, q_len, d] or [seq, q_len, head, d];
    kernels take rows. Reshapes and, where q_len is not 1, transposes go around
    the attention, and a constant `q_indptr` says whose the rows are.

    ```
    %o, %lse = kvcache.attention %q, %c : tensor<4x8x1x128xf16>, !kvcache.cache<...> -> ...
    // becomes
    %rows = tensor.collapse_shape %q ... : tensor<4x8x1x128xf16> into tensor<4x8x128xf16>
    %flat, %flat_lse = kvcache.attention %rows, %c : tensor<4x8x128xf16>, ...
    ```
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect",
                           "::mlir::linalg::LinalgDialect",
                           "::mlir::tensor::TensorDialect"];
}

def AssignLayoutPass : Pass<"kvcache-assign-layout"> {
  let summary = "give unassigned caches the page image of a target";
  let description = [{
    Replaces `unassigned` in every cache type by the `#kvcache.image` that
    follows from format, head dims and the target's family. Caches that have a
    layout keep it.

    ```
    !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
    // becomes, with target=sm_80
    !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, #kvcache.image<"sm_8x", hash = "...">>
    ```
  }];
  let options = [Option<"target", "target", "std::string", "\"x86-64\"",
                        "target whose family the image is for">];
}

def VerifyTargetLegalPass : Pass<"verify-target-legal"> {
  let summary = "refuse by name what a target cannot compile";
  let description = [{
    Every cache op must be one that the target's kernels can compute: elements,
    scale kinds, head dims, page sizes, layout, and what an attention carries.
    The message names the value and what is accepted. Runs before any lowering,
    so that no later stage aborts or silently takes another path.

    ```
    // target=sm_80
    %c = kvcache.seal %0 : !kvcache.cache<kv = 8, d = 72, ...>
    // error: sm_80 compiles head dims that are multiples of 16 up to 256, got 72
    ```
  }];
  let options = [Option<"target", "target", "std::string", "\"x86-64\"",
                        "target to check for">];
}

#endif // KVCACHE_DIALECT_KVCACHE_TRANSFORMS_PASSES
