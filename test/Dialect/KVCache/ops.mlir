// RUN: kv-opt %s | FileCheck %s --enable-var-scope
// RUN: kv-opt %s | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --mlir-print-op-generic | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --emit-bytecode | kv-opt | FileCheck %s --enable-var-scope

// Every op, with every optional part.

!kivi = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
!static = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = i8:tensor:center, value = i8:tensor>, unassigned>
!latent = !kvcache.cache<kv = 1, d = 576, dv = 512, latent, open = bf16, #kvcache.format<bf16>, unassigned>
#k = affine_map<(p, t, h, c) -> (p, 0, t, h, c)>
#v = affine_map<(p, t, h, c) -> (p, 1, t, h, c)>
!paged = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16, page = 16>,
  #kvcache.external<key = f16, codes(0, #k), value = f16, codes(0, #v), table = raw>>

// CHECK-LABEL: @view
func.func @view(%b: tensor<?xi8>, %t: tensor<4x32xi32>, %u: tensor<4x8x32xi64>, %n: tensor<4xi32>, %s: tensor<8xf32>,
                %m: tensor<8x128xf32>, %p: tensor<?x2x16x8x128xf16>) {
  // CHECK: kvcache.view pools(%{{.*}}, %{{.*}} : tensor<?xi8>, tensor<?xi8>) table(%{{.*}}, %{{.*}} : tensor<4x32xi32>, tensor<4x8x32xi64>) sealed_pages(%{{.*}} : tensor<4xi32>) lengths(%{{.*}} : tensor<4xi32>) -> !kvcache.cache<kv = 8
  %0 = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %u : tensor<4x32xi32>, tensor<4x8x32xi64>)
    sealed_pages(%n : tensor<4xi32>) lengths(%n : tensor<4xi32>) -> !kivi
  // CHECK: lengths(%{{.*}} : tensor<4xi32>) scales(%{{.*}}, %{{.*}} : tensor<8xf32>, tensor<8xf32>) means(%{{.*}} : tensor<8x128xf32>) -> !kvcache.cache
  %1 = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<4x32xi32>, tensor<4x32xi32>)
    sealed_pages(%n : tensor<4xi32>) lengths(%n : tensor<4xi32>) scales(%s, %s : tensor<8xf32>, tensor<8xf32>) means(%m : tensor<8x128xf32>) -> !static
  // CHECK: kvcache.view pools(%{{.*}} : tensor<?x2x16x8x128xf16>) table(%{{.*}} : tensor<4x32xi32>) lengths(%{{.*}} : tensor<4xi32>) -> !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16, page = 16>, #kvcache.external<
  %2 = kvcache.view pools(%p : tensor<?x2x16x8x128xf16>) table(%t : tensor<4x32xi32>) lengths(%n : tensor<4xi32>) -> !paged
  return
}

// CHECK-LABEL: @change
func.func @change(%c: !kivi, %l: !latent, %k: tensor<?x8x128xf16>, %kl: tensor<3x1x576xbf16>, %r: tensor<?xi32>, %rl: tensor<3xi64>) {
  // CHECK: kvcache.append %{{.*}}, %{{.*}}, %{{.*}} rows(%{{.*}}) : !kvcache.cache<{{.*}}>, tensor<?x8x128xf16>, tensor<?x8x128xf16> rows(tensor<?xi32>)
  %0 = kvcache.append %c, %k, %k rows(%r) : !kivi, tensor<?x8x128xf16>, tensor<?x8x128xf16> rows(tensor<?xi32>)
  // CHECK: kvcache.append %{{.*}}, %{{.*}} rows(%{{.*}}) : !kvcache.cache<{{.*}}>, tensor<3x1x576xbf16> rows(tensor<3xi64>)
  %1 = kvcache.append %l, %kl rows(%rl) : !latent, tensor<3x1x576xbf16> rows(tensor<3xi64>)
  // CHECK: kvcache.seal %{{.*}} : !kvcache.cache
  %2 = kvcache.seal %0 : !kivi
  // CHECK: kvcache.read %{{.*}} : !kvcache.cache<{{.*}}> -> tensor<4x8x32x128xf16>, tensor<4x8x32x128xf32>, tensor<4xi64>
  %3:3 = kvcache.read %2 : !kivi -> tensor<4x8x32x128xf16>, tensor<4x8x32x128xf32>, tensor<4xi64>
  // CHECK: kvcache.read %{{.*}} {layout = #kvcache.layout<nhd>} :
  %4:3 = kvcache.read %2 {layout = #kvcache.layout<nhd>} : !kivi -> tensor<?x?x8x128xf32>, tensor<?x?x8x128xf32>, tensor<?xi32>
  return
}

// CHECK-LABEL: @tensors
func.func @tensors(%x: tensor<2x8x64x128xf32>, %y: tensor<2x64x8x128xbf16>, %s: tensor<1x1x1x1xf32>, %packed: tensor<2x8x64x16xi32>,
                   %sc: tensor<2x8x64x1xf16>, %pool: tensor<9x8x16x128xi8>, %t: tensor<4x8x2xi64>) {
  // CHECK: kvcache.quantize %{{.*}} {encoding = #kvcache.encoding<i4:g32>} : tensor<2x8x64x128xf32> -> tensor<2x8x64x128xi4>, tensor<2x8x64x4xf16>, tensor<2x8x64x4xf16>
  %0, %p:2 = kvcache.quantize %x {encoding = #kvcache.encoding<i4:g32>} : tensor<2x8x64x128xf32> -> tensor<2x8x64x128xi4>, tensor<2x8x64x4xf16>, tensor<2x8x64x4xf16>
  // CHECK: kvcache.quantize %{{.*}} {encoding = #kvcache.encoding<i8:head:sym>, layout = #kvcache.layout<nhd>} : tensor<2x64x8x128xbf16> -> tensor<2x64x8x128xi8>, tensor<2x1x8x1xf16>
  %1, %p1 = kvcache.quantize %y {encoding = #kvcache.encoding<i8:head:sym>, layout = #kvcache.layout<nhd>} : tensor<2x64x8x128xbf16> -> tensor<2x64x8x128xi8>, tensor<2x1x8x1xf16>
  // CHECK: kvcache.quantize %{{.*}} scale(%{{.*}} : tensor<1x1x1x1xf32>) {encoding = #kvcache.encoding<e4m3:tensor>} : tensor<2x8x64x128xf32> -> tensor<2x8x64x128xf8E4M3FN>
  %2 = kvcache.quantize %x scale(%s : tensor<1x1x1x1xf32>) {encoding = #kvcache.encoding<e4m3:tensor>} : tensor<2x8x64x128xf32> -> tensor<2x8x64x128xf8E4M3FN>
  // CHECK: kvcache.quantize %{{.*}} {encoding = #kvcache.encoding<bf16>} : tensor<2x8x64x128xf32> -> tensor<2x8x64x128xbf16>
  %3 = kvcache.quantize %x {encoding = #kvcache.encoding<bf16>} : tensor<2x8x64x128xf32> -> tensor<2x8x64x128xbf16>
  // CHECK: kvcache.dequantize %{{.*}}, %{{.*}}, %{{.*}} {encoding = #kvcache.encoding<i4:g32>} : tensor<2x8x64x128xi4>, tensor<2x8x64x4xf16>, tensor<2x8x64x4xf16> -> tensor<2x8x64x128xf16>
  %4 = kvcache.dequantize %0, %p#0, %p#1 {encoding = #kvcache.encoding<i4:g32>} : tensor<2x8x64x128xi4>, tensor<2x8x64x4xf16>, tensor<2x8x64x4xf16> -> tensor<2x8x64x128xf16>
  // CHECK: kvcache.dequantize %{{.*}}, %{{.*}} {encoding = #kvcache.encoding<i4:sym>, packing = #kvcache.packing<channel, low_first>} : tensor<2x8x64x16xi32>, tensor<2x8x64x1xf16> -> tensor<2x8x64x128xf32>
  %5 = kvcache.dequantize %packed, %sc {encoding = #kvcache.encoding<i4:sym>, packing = #kvcache.packing<channel, low_first>} : tensor<2x8x64x16xi32>, tensor<2x8x64x1xf16> -> tensor<2x8x64x128xf32>
  // CHECK: kvcache.dequantize %{{.*}} {encoding = #kvcache.encoding<bf16>} : tensor<2x8x64x128xbf16> -> tensor<2x8x64x128xf32>
  %6 = kvcache.dequantize %3 {encoding = #kvcache.encoding<bf16>} : tensor<2x8x64x128xbf16> -> tensor<2x8x64x128xf32>
  // CHECK: kvcache.page_gather %{{.*}}, %{{.*}} {table_rule = #kvcache.table_rule<wrap>} : tensor<9x8x16x128xi8>, tensor<4x8x2xi64> -> tensor<4x8x32x128xi8>
  %7 = kvcache.page_gather %pool, %t {table_rule = #kvcache.table_rule<wrap>} : tensor<9x8x16x128xi8>, tensor<4x8x2xi64> -> tensor<4x8x32x128xi8>
  return
}

// CHECK-LABEL: @attention
func.func @attention(%q: tensor<6x24x128xf16>, %c: !kivi, %q4: tensor<4x3x24x128xf32>, %k: tensor<4x32x8x128xf16>, %v: tensor<4x32x8x64xf16>,
                     %i: tensor<?xi32>, %n: tensor<4xi64>, %pos: tensor<?x1x?xi32>, %m: tensor<1x24x?xf32>, %m4: tensor<4x1x24x32xi1>, %s: tensor<24xf32>) {
  // CHECK: kvcache.attention %{{.*}}, %{{.*}} q_indptr(%{{.*}} : tensor<?xi32>) positions(%{{.*}} : tensor<?x1x?xi32>) mask(%{{.*}} : tensor<1x24x?xf32>) slopes(%{{.*}} : tensor<24xf32>) sink_logits(%{{.*}} : tensor<24xf32>)
  // CHECK-SAME: {causal = #kvcache.causal<bottom_right>, scale = 1.250000e-01 : f64, softcap = 3.000000e+01 : f64, window = #kvcache.window<left = 3, right = 0>}
  // CHECK-SAME: : tensor<6x24x128xf16>, !kvcache.cache<{{.*}}> -> tensor<6x24x128xf16>, tensor<6x24xf32>
  %o0, %l0 = kvcache.attention %q, %c q_indptr(%i : tensor<?xi32>) positions(%pos : tensor<?x1x?xi32>) mask(%m : tensor<1x24x?xf32>)
    slopes(%s : tensor<24xf32>) sink_logits(%s : tensor<24xf32>)
    {scale = 0.125, softcap = 30.0, causal = #kvcache.causal<bottom_right>, window = #kvcache.window<left = 3, right = 0>}
    : tensor<6x24x128xf16>, !kivi -> tensor<6x24x128xf16>, tensor<6x24xf32>
  // CHECK: kvcache.attention %{{.*}}, %{{.*}}, %{{.*}} lengths(%{{.*}} : tensor<4xi64>) mask(%{{.*}} : tensor<4x1x24x32xi1>)
  // CHECK-SAME: {alibi = array<f32>, causal = #kvcache.causal<top_left>, empty_rows = #kvcache.empty_rows<mean_all>, head_map = array<i64: 0, 1{{.*}}>, layout = #kvcache.layout<nhd>}
  // CHECK-SAME: : tensor<4x3x24x128xf32>, tensor<4x32x8x128xf16>, tensor<4x32x8x64xf16> -> tensor<4x3x24x64xf32>, tensor<4x3x24xf32>
  %o1, %l1 = kvcache.attention %q4, %k, %v lengths(%n : tensor<4xi64>) mask(%m4 : tensor<4x1x24x32xi1>)
    {layout = #kvcache.layout<nhd>, empty_rows = #kvcache.empty_rows<mean_all>, alibi = array<f32>, causal = #kvcache.causal<top_left>,
     head_map = array<i64: 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7>}
    : tensor<4x3x24x128xf32>, tensor<4x32x8x128xf16>, tensor<4x32x8x64xf16> -> tensor<4x3x24x64xf32>, tensor<4x3x24xf32>
  // CHECK: kvcache.merge_states outs(%{{.*}}, %{{.*}}) lses(%{{.*}}, %{{.*}}) : tensor<6x24x128xf16>, tensor<6x24xf32>
  %o2, %l2 = kvcache.merge_states outs(%o0, %o0) lses(%l0, %l0) : tensor<6x24x128xf16>, tensor<6x24xf32>
  return
}
