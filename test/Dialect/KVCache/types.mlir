// RUN: kv-opt %s | FileCheck %s --enable-var-scope
// RUN: kv-opt %s | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --mlir-print-op-generic | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --emit-bytecode | kv-opt | FileCheck %s --enable-var-scope

// Attributes and the cache type print and parse back the same.

// CHECK-LABEL: @formats
// CHECK-SAME: a = #kvcache.format<key = i4:channel:g32, value = i4:g32, recent = 128>
// CHECK-SAME: b = #kvcache.format<kivi4, page = 128, sinks = 4>
// CHECK-SAME: c = #kvcache.format<"sparse24-fp8">
// CHECK-SAME: d = #kvcache.format<key = f16, value = i8, page = 16>
// CHECK-SAME: e = #kvcache.format<key = e4m3:2of4:hadamard:center
func.func private @formats() attributes {
  a = #kvcache.format<key = i4:channel:g32:asym, value = i4:token:g32:asym, page = 64, recent = 128>,
  b = #kvcache.format<kivi4, page = 128, sinks = 4>,
  c = #kvcache.format<"sparse24-fp8">,
  d = #kvcache.format<"key=f16,value=i8:token:asym,page=16">,
  e = #kvcache.format<key = e4m3:2of4:hadamard:center>
}

// CHECK-LABEL: @encodings
// CHECK-SAME: a = #kvcache.encoding<i4:channel:g32>
// CHECK-SAME: b = #kvcache.encoding<i8:sym:sf32>
// CHECK-SAME: c = #kvcache.encoding<f16:2of4>
func.func private @encodings() attributes {
  a = #kvcache.encoding<i4:channel:g32:asym>,
  b = #kvcache.encoding<"i8:token:sym:sf32">,
  c = #kvcache.encoding<f16:2of4>
}

// CHECK-LABEL: @words
// CHECK-SAME: a = #kvcache.causal<bottom_right>, b = #kvcache.causal<top_left>
// CHECK-SAME: c = #kvcache.empty_rows<zero>, d = #kvcache.empty_rows<nan>, e = #kvcache.empty_rows<mean_all>
// CHECK-SAME: f = #kvcache.layout<hnd>, g = #kvcache.layout<nhd>
// CHECK-SAME: h = #kvcache.table_rule<raw>, i = #kvcache.table_rule<clamp>, j = #kvcache.table_rule<wrap>, k = #kvcache.table_rule<none>
// CHECK-SAME: l = #kvcache.packing<token, high_first>
// CHECK-SAME: m = #kvcache.window<left = 3>, n = #kvcache.window<right = 2>, o = #kvcache.window<left = 0, right = 0>
// CHECK-SAME: p = #kvcache.image<"x86-64", hash = "00c0ffee00c0ffee">
func.func private @words() attributes {
  a = #kvcache.causal<bottom_right>, b = #kvcache.causal<top_left>,
  c = #kvcache.empty_rows<zero>, d = #kvcache.empty_rows<nan>, e = #kvcache.empty_rows<mean_all>,
  f = #kvcache.layout<hnd>, g = #kvcache.layout<nhd>,
  h = #kvcache.table_rule<raw>, i = #kvcache.table_rule<clamp>, j = #kvcache.table_rule<wrap>, k = #kvcache.table_rule<none>,
  l = #kvcache.packing<token, high_first>,
  m = #kvcache.window<left = 3>, n = #kvcache.window<right = 2>, o = #kvcache.window<right = 0, left = 0>,
  p = #kvcache.image<"x86-64", hash = "00c0ffee00c0ffee">
}

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
#far = affine_map<(p, t, h, c) -> (p * 8589934592 + t * 1024 + h * 128 + c + 64)>
// CHECK-LABEL: @caches
// CHECK-SAME: (!kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
// CHECK-SAME: !kvcache.cache<kv = 8, d = 192, dv = 128, open = bf16, #kvcache.format<bf16>, #kvcache.image<"sm_90", hash = "12ab">>
// CHECK-SAME: !kvcache.cache<kv = 1, d = 576, dv = 512, latent, open = bf16, #kvcache.format<bf16>, unassigned>
// CHECK-SAME: !kvcache.cache<kv = 2, d = 64, open = f32, #kvcache.format<key = i4:head:sym, value = f16>, #kvcache.external<key = i4, packed(token, low_first), codes(0, #{{.*}}) scales(1, #{{.*}}), value = f16, codes(2, #{{.*}}), table = wrap>>
func.func private @caches(
  !kvcache.cache<kv = 8, d = 128, dv = 128, open = f16, #kvcache.format<kivi4>>,
  !kvcache.cache<kv = 8, d = 192, dv = 128, open = bf16, #kvcache.format<bf16>, #kvcache.image<"sm_90", hash = "12ab">>,
  !kvcache.cache<kv = 1, d = 576, dv = 512, latent, open = bf16, #kvcache.format<bf16>, unassigned>,
  !kvcache.cache<kv = 2, d = 64, open = f32, #kvcache.format<key = i4:head:sym, value = f16>,
    #kvcache.external<key = i4, packed(token, low_first), codes(0, #id) scales(1, #id), value = f16, codes(2, #far), table = wrap>>)
