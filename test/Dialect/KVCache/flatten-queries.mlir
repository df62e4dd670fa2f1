// RUN: kv-opt %s --split-input-file --kvcache-flatten-queries --canonicalize --verify-diagnostics | FileCheck %s --enable-var-scope

!cache = !kvcache.cache<kv = 2, d = 16, dv = 8, open = f16, #kvcache.format<f16>, unassigned>

// CHECK-LABEL: @nhd
// CHECK-SAME: (%[[Q:.*]]: tensor<4x3x6x16xf16>, %[[C:.*]]: !kvcache
// CHECK-DAG: %[[I:.*]] = arith.constant dense<[0, 3, 6, 9, 12]> : tensor<5xi32>
// CHECK-DAG: %[[R:.*]] = tensor.collapse_shape %[[Q]] {{\[\[}}0, 1], [2], [3]] : tensor<4x3x6x16xf16> into tensor<12x6x16xf16>
// CHECK: %[[O:.*]], %[[L:.*]] = kvcache.attention %[[R]], %[[C]] q_indptr(%[[I]] : tensor<5xi32>) {causal = #kvcache.causal<bottom_right>} : tensor<12x6x16xf16>, {{.*}} -> tensor<12x6x8xf16>, tensor<12x6xf32>
// CHECK: tensor.expand_shape %[[O]] {{.*}} into tensor<4x3x6x8xf16>
// CHECK: tensor.expand_shape %[[L]] {{.*}} into tensor<4x3x6xf32>
func.func @nhd(%q: tensor<4x3x6x16xf16>, %c: !cache) -> (tensor<4x3x6x8xf16>, tensor<4x3x6xf32>) {
  %o, %l = kvcache.attention %q, %c {layout = #kvcache.layout<nhd>, causal = #kvcache.causal<bottom_right>} : tensor<4x3x6x16xf16>, !cache -> tensor<4x3x6x8xf16>, tensor<4x3x6xf32>
  return %o, %l : tensor<4x3x6x8xf16>, tensor<4x3x6xf32>
}

// CHECK-LABEL: @hnd
// CHECK: %[[T:.*]] = linalg.transpose ins(%{{.*}} : tensor<4x6x3x16xf16>) {{.*}} permutation = [0, 2, 1, 3]
// CHECK: %[[R:.*]] = tensor.collapse_shape %[[T]] {{.*}} into tensor<12x6x16xf16>
// CHECK: kvcache.attention %[[R]], %{{.*}} q_indptr
// CHECK: tensor.expand_shape {{.*}} into tensor<4x3x6x8xf16>
// CHECK: linalg.transpose {{.*}} outs(%{{.*}} : tensor<4x6x3x8xf16>) permutation = [0, 2, 1, 3]
// CHECK: linalg.transpose {{.*}} outs(%{{.*}} : tensor<4x6x3xf32>) permutation = [0, 2, 1]
func.func @hnd(%q: tensor<4x6x3x16xf16>, %c: !cache) -> (tensor<4x6x3x8xf16>, tensor<4x6x3xf32>) {
  %o, %l = kvcache.attention %q, %c : tensor<4x6x3x16xf16>, !cache -> tensor<4x6x3x8xf16>, tensor<4x6x3xf32>
  return %o, %l : tensor<4x6x3x8xf16>, tensor<4x6x3xf32>
}

// One query per sequence needs no q_indptr.
// CHECK-LABEL: @decode
// CHECK: kvcache.attention %{{.*}}, %{{.*}} : tensor<4x6x16xf16>, !kvcache
func.func @decode(%q: tensor<4x1x6x16xf16>, %c: !cache) -> tensor<4x1x6x8xf16> {
  %o, %l = kvcache.attention %q, %c {layout = #kvcache.layout<nhd>} : tensor<4x1x6x16xf16>, !cache -> tensor<4x1x6x8xf16>, tensor<4x1x6xf32>
  return %o : tensor<4x1x6x8xf16>
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>

func.func @dynamic(%q: tensor<?x6x3x16xf16>, %c: !cache) -> tensor<?x6x3x16xf16> {
  // expected-remark @below {{queries not flattened: queries of rank 4 must have a static shape}}
  %o, %l = kvcache.attention %q, %c : tensor<?x6x3x16xf16>, !cache -> tensor<?x6x3x16xf16>, tensor<?x6x3xf32>
  return %o : tensor<?x6x3x16xf16>
}

func.func @mask(%q: tensor<1x6x3x16xf16>, %c: !cache, %m: tensor<1x1x3x9xi1>) -> tensor<1x6x3x16xf16> {
  // expected-remark @below {{queries not flattened: it has a mask of rank 4}}
  %o, %l = kvcache.attention %q, %c mask(%m : tensor<1x1x3x9xi1>) : tensor<1x6x3x16xf16>, !cache -> tensor<1x6x3x16xf16>, tensor<1x6x3xf32>
  return %o : tensor<1x6x3x16xf16>
}
