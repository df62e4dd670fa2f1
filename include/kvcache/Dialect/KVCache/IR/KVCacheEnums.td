//===- KVCacheEnums.td - Enumerations of the kvcache dialect -*- tablegen -*-=//
//
// The words that attributes of the dialect may take.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_IR_KVCACHEENUMS
#define KVCACHE_DIALECT_KVCACHE_IR_KVCACHEENUMS

include "kvcache/Dialect/KVCache/IR/KVCacheDialect.td"
include "mlir/IR/EnumAttr.td"

class KVCache_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::kvcache";
  let genSpecializedAttr = 0;
}

class KVCache_EnumAttr<EnumAttrInfo info, string mnemonic>
    : EnumAttr<KVCache_Dialect, info, mnemonic> {
  let assemblyFormat = "`<` $value `>`";
}

def KVCache_CausalEnum
    : KVCache_Enum<"Causal", "where the causal mask is anchored",
                   [I32EnumAttrCase<"BottomRight", 0, "bottom_right">,
                    I32EnumAttrCase<"TopLeft", 1, "top_left">]>;
def KVCache_CausalAttr : KVCache_EnumAttr<KVCache_CausalEnum, "causal"> {
  let summary = "causal masking";
  let description = [{
    `bottom_right`: queries are the newest tokens, the last query sees every key.
    `top_left`: query i sees keys 0..i, as framework ops have it.
  }];
}

def KVCache_EmptyRowsEnum
    : KVCache_Enum<"EmptyRows", "what a row without a visible key becomes",
                   [I32EnumAttrCase<"Zero", 0, "zero">,
                    I32EnumAttrCase<"NaN", 1, "nan">,
                    I32EnumAttrCase<"MeanAll", 2, "mean_all">]>;
def KVCache_EmptyRowsAttr
    : KVCache_EnumAttr<KVCache_EmptyRowsEnum, "empty_rows"> {
  let summary = "meaning of rows without a visible key";
  let description = [{
    `zero`: out = 0, lse = -inf. `nan`: NaN, as softmax over a row of -inf gives.
    `mean_all`: the mean over all keys, as a row filled with a finite value gives.
  }];
}

def KVCache_LayoutEnum
    : KVCache_Enum<"Layout", "order of the head and the token dimension",
                   [I32EnumAttrCase<"HND", 0, "hnd">,
                    I32EnumAttrCase<"NHD", 1, "nhd">]>;
def KVCache_LayoutAttr : KVCache_EnumAttr<KVCache_LayoutEnum, "layout"> {
  let summary = "dimension order of plain key and value tensors";
  let description = [{
    `hnd`: [..., head, token, channel]. `nhd`: [..., token, head, channel].
  }];
}

def KVCache_TableRuleEnum
    : KVCache_Enum<"TableRule", "what a page number out of range means",
                   [I32EnumAttrCase<"Raw", 0, "raw">,
                    I32EnumAttrCase<"Clamp", 1, "clamp">,
                    I32EnumAttrCase<"Wrap", 2, "wrap">,
                    I32EnumAttrCase<"None", 3, "none">]>;
def KVCache_TableRuleAttr
    : KVCache_EnumAttr<KVCache_TableRuleEnum, "table_rule"> {
  let summary = "meaning of page numbers out of range";
  let description = [{
    `raw`: they are an error. `clamp`: clamped to [0, pages). `wrap`: negative
    numbers count from the end, then as `clamp`. `none`: there is no table, page
    p of the maps is sequence p.
  }];
}

def KVCache_PackAxisEnum
    : KVCache_Enum<"PackAxis", "the axis whose neighbours share a container",
                   [I32EnumAttrCase<"Token", 0, "token">,
                    I32EnumAttrCase<"Channel", 1, "channel">]>;
def KVCache_PackOrderEnum
    : KVCache_Enum<"PackOrder", "which neighbour has the low bits",
                   [I32EnumAttrCase<"LowFirst", 0, "low_first">,
                    I32EnumAttrCase<"HighFirst", 1, "high_first">]>;

#endif // KVCACHE_DIALECT_KVCACHE_IR_KVCACHEENUMS
