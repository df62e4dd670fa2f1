//===- KVCacheTypes.td - Types of the kvcache dialect ------*- tablegen -*-===//
//
// One type: a cache.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_IR_KVCACHETYPES
#define KVCACHE_DIALECT_KVCACHE_IR_KVCACHETYPES

include "kvcache/Dialect/KVCache/IR/KVCacheAttrs.td"

def KVCache_CacheType : TypeDef<KVCache_Dialect, "Cache"> {
  let mnemonic = "cache";
  let summary = "the cache of a batch of sequences";
  let description = [{
    `!kvcache.cache<kv = 8, d = 128, dv = 64, open = f16, FORMAT, LAYOUT>`

    Heads, key and value head dims (`dv` defaults to `d`), the dtype of open
    pages, the storage format, and how bytes lie. `latent` after `dv` says that
    the values are the first dv channels of the keys and are not stored.
    LAYOUT is `unassigned` (the default), `#kvcache.image` or `#kvcache.external`.

    - T1: kv, d and dv are positive
    - T2: open is f16, bf16 or f32
    - T3: unless the layout is external, the format can store d and dv channels
    - T4: latent: dv is at most d, and keys and values have one encoding
    - T5: the layout is `unassigned`, an image or external
    - T6: external: elements are the format's, scales are there iff the format has
      scales, zeros iff it is asymmetric
    - T7: external: sinks and recent are 0

    ```mlir
    func.func private @types(
      !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>>,
      !kvcache.cache<kv = 8, d = 192, dv = 128, open = bf16, #kvcache.format<bf16>, unassigned>,
      !kvcache.cache<kv = 1, d = 576, dv = 512, latent, open = bf16, #kvcache.format<bf16>, unassigned>)
    ```
  }];
  let parameters = (ins "int64_t":$kvHeads, "int64_t":$headDim,
      "int64_t":$valueDim, "bool":$latent, "::mlir::Type":$open,
      "::kvcache::FormatAttr":$formatAttr,
      OptionalParameter<"::mlir::Attribute">:$layout);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The format as written (groups may still be adaptive, see resolve()).
    ::kvcache::Format getFormat() const;
    /// The format with groups fitted to the head dims.
    ::kvcache::Format getResolvedFormat() const;
    ::kvcache::ImageAttr getImage() const;
    ::kvcache::ExternalAttr getExternal() const;
    bool isUnassigned() const { return !getLayout(); }
    ::kvcache::CacheType withLayout(::mlir::Attribute layout) const;
    /// The dtype of open pages as an element of the format algebra.
    ::kvcache::Element getOpenElement() const;
  }];
}

#endif // KVCACHE_DIALECT_KVCACHE_IR_KVCACHETYPES
