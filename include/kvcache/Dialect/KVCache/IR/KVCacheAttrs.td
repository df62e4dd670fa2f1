//===- KVCacheAttrs.td - Attributes of the kvcache dialect -*- tablegen -*-===//
//
// Storage formats and the ways in which bytes lie.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_IR_KVCACHEATTRS
#define KVCACHE_DIALECT_KVCACHE_IR_KVCACHEATTRS

include "kvcache/Dialect/KVCache/IR/KVCacheEnums.td"
include "mlir/IR/AttrTypeBase.td"

class KVCache_Attr<string name, string attrMnemonic>
    : AttrDef<KVCache_Dialect, name> {
  let mnemonic = attrMnemonic;
}

def KVCache_FormatAttr : KVCache_Attr<"Format", "format"> {
  let summary = "a storage format";
  let description = [{
    How keys and values of a cache are coded: the format strings of
    docs/spec.md ("Formats"), with one attribute per string and back. A preset
    comes first and may be followed by overrides; a name that is no MLIR keyword
    is quoted, and a whole string may be.

    ```mlir
    func.func private @formats() attributes {
      a = #kvcache.format<key = i4:channel:g32:asym, value = i4:token:g32:asym, page = 64, recent = 128>,
      b = #kvcache.format<kivi4, page = 128, sinks = 4>,
      c = #kvcache.format<"sparse24-fp8">,
      d = #kvcache.format<"key=f16,value=i8:token:asym,page=16">
    }
    ```
  }];
  let parameters = (ins AttrParameter<"::kvcache::Format", "format">:$format);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    /// The format for these dims: adaptive groups are fitted, others checked.
    ::mlir::FailureOr<::kvcache::Format>
    resolve(int64_t headDim, int64_t valueDim,
            ::llvm::function_ref<::mlir::InFlightDiagnostic()> emitError) const;
  }];
}

def KVCache_EncodingAttr : KVCache_Attr<"Encoding", "encoding"> {
  let summary = "how one tensor is coded";
  let description = [{
    One side of a format string: `ELEM[:SCALE][:gN][:asym|:sym][:sTYPE]...`.

    ```mlir
    func.func private @encoding() attributes {
      a = #kvcache.encoding<i4:channel:g32:asym>,
      b = #kvcache.encoding<"i8:token:sym:sf32">
    }
    ```
  }];
  let parameters =
      (ins AttrParameter<"::kvcache::Encoding", "the encoding">:$encoding);
  let hasCustomAssemblyFormat = 1;
}

def KVCache_PackingAttr : KVCache_Attr<"Packing", "packing"> {
  let summary = "several codes in one container integer";
  let description = [{
    Codes narrower than their container share it: the neighbours along `axis`
    (`token` or `channel`), the first of them in the low (`low_first`) or in the
    high bits (`high_first`). A container iN holds N / bits codes.

    ```mlir
    func.func private @packing() attributes {
      p = #kvcache.packing<channel, low_first>
    }
    ```
  }];
  let parameters = (ins EnumParameter<KVCache_PackAxisEnum>:$axis,
      EnumParameter<KVCache_PackOrderEnum>:$order);
  let assemblyFormat = "`<` $axis `,` $order `>`";
}

def KVCache_WindowAttr : KVCache_Attr<"Window", "window"> {
  let summary = "a sliding window, in neighbours";
  let description = [{
    A query at position i sees keys from i - left to i + right. A side that is
    not given is unbounded (the right one then only by `causal`). A window of N
    tokens that counts the query's own is `left = N - 1`.

    ```mlir
    func.func private @window() attributes {
      last_four = #kvcache.window<left = 3>,
      both = #kvcache.window<left = 3, right = 0>
    }
    ```
  }];
  let parameters = (ins OptionalParameter<"std::optional<int64_t>">:$left,
      OptionalParameter<"std::optional<int64_t>">:$right);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def KVCache_ImageAttr : KVCache_Attr<"Image", "image"> {
  let summary = "the page image of a target family";
  let description = [{
    The bytes lie as our own code wants them on a family of targets: one
    contiguous aligned record per page and head. The image follows from format,
    head dims and family alone; `kvcache-assign-layout` writes it. `hash` names
    the exact order of bytes; kernels, packages and saved caches must agree on it.

    ```mlir
    func.func private @image() attributes {
      i = #kvcache.image<"x86-64", hash = "00c0ffee00c0ffee">
    }
    ```
  }];
  let parameters = (ins StringRefParameter<"target family">:$family,
      StringRefParameter<"hash of the image, hexadecimal">:$hash);
  let assemblyFormat = "`<` $family `,` `hash` `=` $hash `>`";
  let genVerifyDecl = 1;
}

def KVCache_ExternalArrayAttr
    : KVCache_Attr<"ExternalArray", "external_array"> {
  let summary = "where one array of an external cache lies";
  let description = [{
    `array` counts the tensors that `kvcache.view` was given (`pools`, then
    `scales`). The map takes (page, token in page, kv head, channel) to an index
    of that tensor; it may be a permutation, or have constants for gaps and
    interleaving, or divide for scale groups. All of it is 64-bit.

    ```mlir
    func.func private @array() attributes {
      nhd = #kvcache.external_array<0, affine_map<(p, t, h, c) -> (p, t, h, c)>>,
      flat = #kvcache.external_array<0, affine_map<(p, t, h, c) -> (p * 131072 + t * 1024 + h * 128 + c)>>
    }
    ```
  }];
  let parameters = (ins "int64_t":$array, "::mlir::AffineMapAttr":$map);
  let assemblyFormat = "`<` $array `,` $map `>`";
  let genVerifyDecl = 1;
}

def KVCache_ExternalTensorAttr
    : KVCache_Attr<"ExternalTensor", "external_tensor"> {
  let summary = "where the keys, or the values, of an external cache lie";
  let description = [{
    The element of the codes, how they are packed, and one array each for codes,
    scales (optional) and zeros (optional). With packing the coordinate of the
    packed axis counts containers in the map of the codes.

    ```mlir
    func.func private @tensor() attributes {
      keys = #kvcache.external_tensor<i4, packed(channel, low_first),
        codes(0, affine_map<(p, t, h, c) -> (p, t, h, c)>)
        scales(1, affine_map<(p, t, h, c) -> (p, t floordiv 32, h, c)>)
        zeros(2, affine_map<(p, t, h, c) -> (p, t floordiv 32, h, c)>)>
    }
    ```
  }];
  let parameters = (ins "::kvcache::Element":$element,
      OptionalParameter<"::kvcache::PackingAttr">:$packing,
      "::kvcache::ExternalArrayAttr":$codes,
      OptionalParameter<"::kvcache::ExternalArrayAttr">:$scales,
      OptionalParameter<"::kvcache::ExternalArrayAttr">:$zeros);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Parses and prints without the angle brackets (for #kvcache.external).
    static ::mlir::Attribute parseBody(::mlir::AsmParser &parser);
    void printBody(::mlir::AsmPrinter &printer) const;
  }];
}

def KVCache_ExternalAttr : KVCache_Attr<"External", "external"> {
  let summary = "a cache that somebody else lays out";
  let description = [{
    Describes caches of other engines and of imported graphs: keys and values in
    any arrays, each by its affine map, packed either way, K and V in one tensor
    if they are, with any gaps. It has no sinks, no recent window, no sealed and
    open pages: every token is coded as the format of the type says. The tokens
    per page are the format's. `table` says what page numbers out of range mean.

    Grammar:

    ```
    external   ::= `<` `key` `=` tensor `,` `value` `=` tensor `,` `table` `=` rule `>`
    tensor     ::= element (`,` `packed` `(` axis `,` order `)`)?
                   `,` `codes` array (`scales` array (`zeros` array)?)?
    array      ::= `(` integer `,` affine-map-attribute `)`
    rule       ::= `raw` | `clamp` | `wrap` | `none`
    ```

    A pool of 16-token pages, [page, 2, token, head, channel], keys and values in
    one tensor:

    ```mlir
    func.func private @external() attributes {
      paged = #kvcache.external<
        key = f16, codes(0, affine_map<(p, t, h, c) -> (p, 0, t, h, c)>),
        value = f16, codes(0, affine_map<(p, t, h, c) -> (p, 1, t, h, c)>),
        table = raw>
    }
    ```
  }];
  let parameters = (ins "::kvcache::ExternalTensorAttr":$key,
      "::kvcache::ExternalTensorAttr":$value,
      EnumParameter<KVCache_TableRuleEnum>:$table);
  let hasCustomAssemblyFormat = 1;
}

#endif // KVCACHE_DIALECT_KVCACHE_IR_KVCACHEATTRS
