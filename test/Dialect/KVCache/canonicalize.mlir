// RUN: kv-opt %s --canonicalize --split-input-file | FileCheck %s --enable-var-scope

// CHECK-LABEL: @merge_of_one
// CHECK-SAME: (%[[O:.*]]: tensor<4x8xf16>, %[[L:.*]]: tensor<4xf32>)
// CHECK-NEXT: return %[[O]], %[[L]]
func.func @merge_of_one(%o: tensor<4x8xf16>, %l: tensor<4xf32>) -> (tensor<4x8xf16>, tensor<4xf32>) {
  %m, %n = kvcache.merge_states outs(%o) lses(%l) : tensor<4x8xf16>, tensor<4xf32>
  return %m, %n : tensor<4x8xf16>, tensor<4xf32>
}

// -----

// The order of additions is part of the meaning.
// CHECK-LABEL: @nested_merge_stays
// CHECK-COUNT-2: kvcache.merge_states
func.func @nested_merge_stays(%o: tensor<4x8xf16>, %l: tensor<4xf32>) -> (tensor<4x8xf16>, tensor<4xf32>) {
  %a, %b = kvcache.merge_states outs(%o, %o) lses(%l, %l) : tensor<4x8xf16>, tensor<4xf32>
  %m, %n = kvcache.merge_states outs(%a, %o) lses(%b, %l) : tensor<4x8xf16>, tensor<4xf32>
  return %m, %n : tensor<4x8xf16>, tensor<4xf32>
}

// -----

// CHECK-LABEL: @floats_decode_to_themselves
// CHECK-SAME: (%[[X:.*]]: tensor<4x8xf16>)
// CHECK-NEXT: return %[[X]]
func.func @floats_decode_to_themselves(%x: tensor<4x8xf16>) -> tensor<4x8xf16> {
  %y = kvcache.dequantize %x {encoding = #kvcache.encoding<f16>} : tensor<4x8xf16> -> tensor<4x8xf16>
  return %y : tensor<4x8xf16>
}

// -----

// CHECK-LABEL: @floats_convert
// CHECK: kvcache.dequantize
func.func @floats_convert(%x: tensor<4x8xf16>) -> tensor<4x8xf32> {
  %y = kvcache.dequantize %x {encoding = #kvcache.encoding<f16>} : tensor<4x8xf16> -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// Coding is lossy: it may not vanish.
// CHECK-LABEL: @quantize_stays
// CHECK: kvcache.quantize
// CHECK: kvcache.dequantize
func.func @quantize_stays(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %c, %s = kvcache.quantize %x {encoding = #kvcache.encoding<i8:token:sym>} : tensor<4x8xf32> -> tensor<4x8xi8>, tensor<4x1xf16>
  %y = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<4x8xi8>, tensor<4x1xf16> -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// Cache ops are pure: without users they vanish.
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
// CHECK-LABEL: @unused
// CHECK-NEXT: return
func.func @unused(%c: !cache, %k: tensor<1x2x16xf16>, %r: tensor<1xi32>) {
  %0 = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x2x16xf16>, tensor<1x2x16xf16> rows(tensor<1xi32>)
  %1 = kvcache.seal %0 : !cache
  %2:3 = kvcache.read %1 : !cache -> tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi32>
  return
}

// -----

// CHECK-LABEL: @gather_before_dequantize
// CHECK-SAME: (%[[P:.*]]: tensor<9x2x16x64xi8>, %[[S:.*]]: tensor<9x2x1x64xf16>, %[[T:.*]]: tensor<1x3xi32>)
// CHECK-DAG: %[[C:.*]] = kvcache.page_gather %[[P]], %[[T]] {table_rule = #kvcache.table_rule<clamp>} : tensor<9x2x16x64xi8>, tensor<1x3xi32> -> tensor<1x2x48x64xi8>
// CHECK-DAG: %[[G:.*]] = kvcache.page_gather %[[S]], %[[T]] {table_rule = #kvcache.table_rule<clamp>} : tensor<9x2x1x64xf16>, tensor<1x3xi32> -> tensor<1x2x3x64xf16>
// CHECK: kvcache.dequantize %[[C]], %[[G]] {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<1x2x48x64xi8>, tensor<1x2x3x64xf16> -> tensor<1x2x48x64xf32>
func.func @gather_before_dequantize(%p: tensor<9x2x16x64xi8>, %s: tensor<9x2x1x64xf16>, %t: tensor<1x3xi32>) -> tensor<1x2x48x64xf32> {
  %d = kvcache.dequantize %p, %s {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<9x2x16x64xi8>, tensor<9x2x1x64xf16> -> tensor<9x2x16x64xf32>
  %x = kvcache.page_gather %d, %t {table_rule = #kvcache.table_rule<clamp>} : tensor<9x2x16x64xf32>, tensor<1x3xi32> -> tensor<1x2x48x64xf32>
  return %x : tensor<1x2x48x64xf32>
}

// -----

// Scales that all pages share are not gathered.
// CHECK-LABEL: @shared_scales
// CHECK-SAME: %[[S:[^:]*]]: tensor<1x2x1x1xf16>
// CHECK-COUNT-1: kvcache.page_gather
// CHECK-NOT: kvcache.page_gather
// CHECK: kvcache.dequantize %{{.*}}, %[[S]]
func.func @shared_scales(%p: tensor<9x2x16x64xi8>, %s: tensor<1x2x1x1xf16>, %t: tensor<1x3xi32>) -> tensor<1x2x48x64xf32> {
  %d = kvcache.dequantize %p, %s {encoding = #kvcache.encoding<i8:head:sym>} : tensor<9x2x16x64xi8>, tensor<1x2x1x1xf16> -> tensor<9x2x16x64xf32>
  %x = kvcache.page_gather %d, %t : tensor<9x2x16x64xf32>, tensor<1x3xi32> -> tensor<1x2x48x64xf32>
  return %x : tensor<1x2x48x64xf32>
}

// -----

// The decoded pool is needed anyway.
// CHECK-LABEL: @decoded_pool_used
// CHECK: %[[D:.*]] = kvcache.dequantize
// CHECK: kvcache.page_gather %[[D]]
func.func @decoded_pool_used(%p: tensor<9x2x16x64xi8>, %s: tensor<9x2x1x64xf16>, %t: tensor<1x3xi32>) -> (tensor<1x2x48x64xf32>, tensor<9x2x16x64xf32>) {
  %d = kvcache.dequantize %p, %s {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<9x2x16x64xi8>, tensor<9x2x1x64xf16> -> tensor<9x2x16x64xf32>
  %x = kvcache.page_gather %d, %t : tensor<9x2x16x64xf32>, tensor<1x3xi32> -> tensor<1x2x48x64xf32>
  return %x, %d : tensor<1x2x48x64xf32>, tensor<9x2x16x64xf32>
}

// -----

// One scale per token that all pages share repeats with each page.
// CHECK-LABEL: @shared_token_scales
// CHECK: %[[D:.*]] = kvcache.dequantize
// CHECK: kvcache.page_gather %[[D]]
func.func @shared_token_scales(%p: tensor<9x2x16x64xi8>, %s: tensor<1x2x16x1xf16>, %t: tensor<1x3xi32>) -> tensor<1x2x48x64xf32> {
  %d = kvcache.dequantize %p, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<9x2x16x64xi8>, tensor<1x2x16x1xf16> -> tensor<9x2x16x64xf32>
  %x = kvcache.page_gather %d, %t : tensor<9x2x16x64xf32>, tensor<1x3xi32> -> tensor<1x2x48x64xf32>
  return %x : tensor<1x2x48x64xf32>
}
