// A mask kept at the end of the file is read as any other constant.
// RUN: kv-opt %s --kvcache-import 2>/dev/null | FileCheck %s

// CHECK-LABEL: @causal
// CHECK: kvcache.attention {{.*}} {causal = #kvcache.causal<top_left>
func.func @causal(%q: tensor<2x8xf32>, %k: tensor<2x8xf32>, %v: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %mask = stablehlo.constant dense_resource<mask> : tensor<2x2xf32>
  %inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x2xf32>
  %x = stablehlo.add %s, %mask : tensor<2x2xf32>
  %max = stablehlo.reduce(%x init: %inf) applies stablehlo.maximum across dimensions = [1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0] : (tensor<2xf32>) -> tensor<2x2xf32>
  %d = stablehlo.subtract %x, %maxes : tensor<2x2xf32>
  %e = stablehlo.exponential %d : tensor<2x2xf32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<2xf32>) -> tensor<2x2xf32>
  %p = stablehlo.divide %e, %sums : tensor<2x2xf32>
  %o = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %o : tensor<2x8xf32>
}

{-#
  dialect_resources: {
    builtin: {
      mask: "0x0400000000000000000080FF0000000000000000"
    }
  }
#-}
