// RUN: kv-opt %s --split-input-file --kvcache-fuse 2>&1 | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --split-input-file --kvcache-fuse | FileCheck %s --check-prefix=NODENSE
// Nothing of the dense cache survives.
// NODENSE-NOT: page_gather
// NODENSE-NOT: dequantize
// NODENSE-NOT: kvcache.read

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

// CHECK-LABEL: @read
// CHECK-SAME: (%[[Q:.*]]: tensor<3x8x64xf16>, %[[C:.*]]: !kvcache.cache
// CHECK-NEXT: %[[O:.*]], %[[L:.*]] = kvcache.attention %[[Q]], %[[C]] {causal = #kvcache.causal<bottom_right>}
// CHECK-NEXT: return %[[O]], %[[L]]
func.func @read(%q: tensor<3x8x64xf16>, %c: !cache) -> (tensor<3x8x64xf16>, tensor<3x8xf32>) {
  %k, %v, %n = kvcache.read %c {layout = #kvcache.layout<nhd>} : !cache -> tensor<?x?x8x64xf32>, tensor<?x?x8x64xf32>, tensor<?xi32>
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) {causal = #kvcache.causal<bottom_right>, layout = #kvcache.layout<nhd>}
    : tensor<3x8x64xf16>, tensor<?x?x8x64xf32>, tensor<?x?x8x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o, %l : tensor<3x8x64xf16>, tensor<3x8xf32>
}

// -----

// Gather, then decode; keys per channel by 32 tokens, values per token.
// CHECK: #[[$CODES:map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>
// CHECK: #[[$KSCALE:map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1 floordiv 32, d3)>
// CHECK: #[[$VSCALE:map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3 floordiv 32)>
// CHECK-LABEL: @gather_then_decode
// CHECK-SAME: %[[Q:.*]]: tensor<4x32x128xf16>, %[[KC:.*]]: tensor<99x8x64x128xi4>, %[[VC:.*]]: tensor<99x8x64x128xi4>
// CHECK-SAME: %[[KS:[^:]*]]: tensor<99x8x2x128xf16>, %[[KZ:[^:]*]]: tensor<99x8x2x128xf16>
// CHECK-SAME: %[[VS:[^:]*]]: tensor<99x8x64x4xf16>, %[[VZ:[^:]*]]: tensor<99x8x64x4xf16>
// CHECK-SAME: %[[T:[^:]*]]: tensor<4x10xi32>, %[[N:[^:]*]]: tensor<4xi32>
// CHECK-NEXT: %[[CACHE:.*]] = kvcache.view pools(%[[KC]], %[[VC]] : {{[^)]*}}) table(%[[T]] : {{[^)]*}}) lengths(%[[N]] : {{[^)]*}}) scales(%[[KS]], %[[KZ]], %[[VS]], %[[VZ]] : {{[^)]*}})
// CHECK-SAME: -> !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = i4:channel:g32, value = i4:g32>, #kvcache.external<key = i4, codes(0, #[[$CODES]]) scales(2, #[[$KSCALE]]) zeros(3, #[[$KSCALE]]), value = i4, codes(1, #[[$CODES]]) scales(4, #[[$VSCALE]]) zeros(5, #[[$VSCALE]]), table = clamp>>
// CHECK-NEXT: %[[O:.*]], %[[L:.*]] = kvcache.attention %[[Q]], %[[CACHE]] {softcap
// CHECK-NEXT: return
func.func @gather_then_decode(%q: tensor<4x32x128xf16>, %kc: tensor<99x8x64x128xi4>, %vc: tensor<99x8x64x128xi4>,
    %ks: tensor<99x8x2x128xf16>, %kz: tensor<99x8x2x128xf16>, %vs: tensor<99x8x64x4xf16>, %vz: tensor<99x8x64x4xf16>,
    %t: tensor<4x10xi32>, %n: tensor<4xi32>) -> (tensor<4x32x128xf16>, tensor<4x32xf32>) {
  %0 = kvcache.page_gather %kc, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<99x8x64x128xi4>, tensor<4x10xi32> -> tensor<4x8x640x128xi4>
  %1 = kvcache.page_gather %ks, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<99x8x2x128xf16>, tensor<4x10xi32> -> tensor<4x8x20x128xf16>
  %2 = kvcache.page_gather %kz, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<99x8x2x128xf16>, tensor<4x10xi32> -> tensor<4x8x20x128xf16>
  %k = kvcache.dequantize %0, %1, %2 {encoding = #kvcache.encoding<i4:channel:g32>}
    : tensor<4x8x640x128xi4>, tensor<4x8x20x128xf16>, tensor<4x8x20x128xf16> -> tensor<4x8x640x128xf16>
  %3 = kvcache.page_gather %vc, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<99x8x64x128xi4>, tensor<4x10xi32> -> tensor<4x8x640x128xi4>
  %4 = kvcache.page_gather %vs, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<99x8x64x4xf16>, tensor<4x10xi32> -> tensor<4x8x640x4xf16>
  %5 = kvcache.page_gather %vz, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<99x8x64x4xf16>, tensor<4x10xi32> -> tensor<4x8x640x4xf16>
  %v = kvcache.dequantize %3, %4, %5 {encoding = #kvcache.encoding<i4:token:g32>}
    : tensor<4x8x640x128xi4>, tensor<4x8x640x4xf16>, tensor<4x8x640x4xf16> -> tensor<4x8x640x128xf16>
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<4xi32>) {softcap = 20.0}
    : tensor<4x32x128xf16>, tensor<4x8x640x128xf16>, tensor<4x8x640x128xf16> -> tensor<4x32x128xf16>, tensor<4x32xf32>
  return %o, %l : tensor<4x32x128xf16>, tensor<4x32xf32>
}

// -----

// Decode the pool, then gather: turned around first. K and V are packed in one
// i32 tensor with gaps; a page list per head; scales come without a token axis;
// no lengths.
// CHECK-DAG: #[[$K:map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, 0, d1, d2, d3)>
// CHECK-DAG: #[[$V:map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, 1, d1, d2, d3)>
// CHECK-DAG: #[[$S:map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2)>
// CHECK-LABEL: @decode_then_gather
// CHECK-SAME: %[[Q:.*]]: tensor<2x4x16xf32>, %[[KV:.*]]: tensor<7x2x16x2x2xi32>, %[[S1:.*]]: tensor<7x2xf16>, %[[T:.*]]: tensor<2x2x3xi64>
// CHECK-NEXT: %[[N:.*]] = arith.constant dense<48> : tensor<2xi64>
// CHECK-NEXT: kvcache.view pools(%[[KV]] : tensor<7x2x16x2x2xi32>) table(%[[T]] : tensor<2x2x3xi64>) lengths(%[[N]] : tensor<2xi64>) scales(%[[S1]] : tensor<7x2xf16>)
// CHECK-SAME: -> !kvcache.cache<kv = 2, d = 16, open = f32, #kvcache.format<key = i4:head:sym, page = 16>, #kvcache.external<key = i4, packed(channel, high_first), codes(0, #[[$K]]) scales(1, #[[$S]]), value = i4, packed(channel, high_first), codes(0, #[[$V]]) scales(1, #[[$S]]), table = raw>>
// CHECK-NEXT: kvcache.attention %[[Q]], %{{.*}} : tensor<2x4x16xf32>, !kvcache.cache
// CHECK-NEXT: return
func.func @decode_then_gather(%q: tensor<2x4x16xf32>, %kv: tensor<7x2x16x2x2xi32>, %s: tensor<7x2xf16>, %t: tensor<2x2x3xi64>)
    -> (tensor<2x4x16xf32>, tensor<2x4xf32>) {
  %kc = tensor.extract_slice %kv[0, 0, 0, 0, 0] [7, 1, 16, 2, 2] [1, 1, 1, 1, 1] : tensor<7x2x16x2x2xi32> to tensor<7x16x2x2xi32>
  %vc = tensor.extract_slice %kv[0, 1, 0, 0, 0] [7, 1, 16, 2, 2] [1, 1, 1, 1, 1] : tensor<7x2x16x2x2xi32> to tensor<7x16x2x2xi32>
  %s4 = tensor.expand_shape %s [[0, 1], [2, 3]] output_shape [7, 1, 2, 1] : tensor<7x2xf16> into tensor<7x1x2x1xf16>
  %kd = kvcache.dequantize %kc, %s4 {encoding = #kvcache.encoding<i4:head:sym>, layout = #kvcache.layout<nhd>, packing = #kvcache.packing<channel, high_first>}
    : tensor<7x16x2x2xi32>, tensor<7x1x2x1xf16> -> tensor<7x16x2x16xf32>
  %vd = kvcache.dequantize %vc, %s4 {encoding = #kvcache.encoding<i4:head:sym>, layout = #kvcache.layout<nhd>, packing = #kvcache.packing<channel, high_first>}
    : tensor<7x16x2x2xi32>, tensor<7x1x2x1xf16> -> tensor<7x16x2x16xf32>
  %k = kvcache.page_gather %kd, %t {layout = #kvcache.layout<nhd>} : tensor<7x16x2x16xf32>, tensor<2x2x3xi64> -> tensor<2x48x2x16xf32>
  %v = kvcache.page_gather %vd, %t {layout = #kvcache.layout<nhd>} : tensor<7x16x2x16xf32>, tensor<2x2x3xi64> -> tensor<2x48x2x16xf32>
  %o, %l = kvcache.attention %q, %k, %v {layout = #kvcache.layout<nhd>} : tensor<2x4x16xf32>, tensor<2x48x2x16xf32>, tensor<2x48x2x16xf32> -> tensor<2x4x16xf32>, tensor<2x4xf32>
  return %o, %l : tensor<2x4x16xf32>, tensor<2x4xf32>
}
