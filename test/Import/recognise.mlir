// One attention and one near miss: what is built, and what is said.
// RUN: kv-opt %s --kvcache-import 2>%t.err | FileCheck %s --enable-var-scope
// RUN: FileCheck %s --check-prefix=REMARK --input-file=%t.err
// RUN: kv-opt %s --kvcache-import=fuse=false | FileCheck %s --check-prefix=PLAIN

// PLAIN-NOT: kvcache.attention

// CHECK-LABEL: @causal
// CHECK-SAME: %[[Q:[^:]*]]: tensor<2x4x8xf32>, %[[K:[^:]*]]: tensor<2x4x8xf32>, %[[V:[^:]*]]: tensor<2x4x8xf32>
// CHECK: %[[O:.*]], %{{.*}} = kvcache.attention %{{.*}}, %{{.*}}, %{{.*}} {causal = #kvcache.causal<top_left>, scale = 5.000000e-01 : f64}
// CHECK-SAME: tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>
// CHECK-NOT: math.exp
// REMARK: recognise.mlir:[[#]]:{{[0-9]+}}: remark: fused attention {"alignment":"top-left","batch":1,"cache":null,"causal":true
func.func @causal(%q: tensor<2x4x8xf32>, %k: tensor<2x4x8xf32>, %v: tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  %half = stablehlo.constant dense<0.5> : tensor<2x4x8xf32>
  %scaled = stablehlo.multiply %half, %q : tensor<2x4x8xf32>
  %s = stablehlo.dot_general %k, %scaled, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x4xf32>
  %t = stablehlo.transpose %s, dims = [0, 2, 1] : (tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %i = stablehlo.iota dim = 1 : tensor<2x4x4xi32>
  %j = stablehlo.iota dim = 2 : tensor<2x4x4xi32>
  %hidden = stablehlo.compare LT, %i, %j : (tensor<2x4x4xi32>, tensor<2x4x4xi32>) -> tensor<2x4x4xi1>
  %low = stablehlo.constant dense<-1.0e30> : tensor<2x4x4xf32>
  %x = stablehlo.select %hidden, %low, %t : tensor<2x4x4xi1>, tensor<2x4x4xf32>
  %p = func.call @softmax(%x) : (tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %o = stablehlo.dot_general %v, %p, batching_dims = [0] x [0], contracting_dims = [1] x [2] : (tensor<2x4x8xf32>, tensor<2x4x4xf32>) -> tensor<2x8x4xf32>
  %r = stablehlo.transpose %o, dims = [0, 2, 1] : (tensor<2x8x4xf32>) -> tensor<2x4x8xf32>
  return %r : tensor<2x4x8xf32>
}

// CHECK-LABEL: @dropout
// CHECK-NOT: kvcache.attention
// REMARK: recognise.mlir:[[#]]:{{[0-9]+}}: remark: attention left alone: the probabilities are multiplied after the softmax (dropout, a mask or scales)
func.func @dropout(%q: tensor<2x4x8xf32>, %k: tensor<2x4x8xf32>, %v: tensor<2x4x8xf32>, %keep: tensor<2x4x4xf32>) -> tensor<2x4x8xf32> {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x4xf32>
  %p = func.call @softmax(%s) : (tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %d = stablehlo.multiply %p, %keep : tensor<2x4x4xf32>
  %o = stablehlo.dot_general %d, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x4x4xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  return %o : tensor<2x4x8xf32>
}

func.func private @softmax(%x: tensor<2x4x4xf32>) -> tensor<2x4x4xf32> {
  %inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %max = stablehlo.reduce(%x init: %inf) applies stablehlo.maximum across dimensions = [2] : (tensor<2x4x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x4xf32>
  %d = stablehlo.subtract %x, %maxes : tensor<2x4x4xf32>
  %e = stablehlo.exponential %d : tensor<2x4x4xf32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x4x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x4xf32>
  %p = stablehlo.divide %e, %sums : tensor<2x4x4xf32>
  return %p : tensor<2x4x4xf32>
}
