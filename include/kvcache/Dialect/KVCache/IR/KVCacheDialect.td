//===- KVCacheDialect.td - The kvcache dialect -------------*- tablegen -*-===//
//
// The top level of the compiler: what a key/value cache is and what attention
// over it means. It knows nothing of hardware, of launches or of memory.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_IR_KVCACHEDIALECT
#define KVCACHE_DIALECT_KVCACHE_IR_KVCACHEDIALECT

include "mlir/IR/OpBase.td"

def KVCache_Dialect : Dialect {
  let name = "kvcache";
  let cppNamespace = "::kvcache";
  let summary = "key/value caches as values, and attention over them";
  let description = [{
    A cache is a *storage format* and attention is a *query over it*. The format
    is data (`#kvcache.format`), where the bytes lie is data
    (`#kvcache.image`, `#kvcache.external`), and every op has one meaning that
    does not depend on either: docs/spec.md.

    A cache is an SSA value. Ops that change one (`append`, `seal`) are pure and
    return the new cache; using the old one afterwards is refused by
    `kvcache-verify-linear`, so that they can be done in place.
  }];
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
  let extraClassDeclaration = [{
    void registerAttributes();
    void registerTypes();
  }];
}

#endif // KVCACHE_DIALECT_KVCACHE_IR_KVCACHEDIALECT
