// Ops that the shipped graphs do not contain, and older spellings.
// RUN: kv-opt %s | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --mlir-print-op-generic | kv-opt | FileCheck %s --enable-var-scope

// CHECK-LABEL: @shapes
func.func @shapes(%a: tensor<4x6xf32>, %z: tensor<f32>, %i: tensor<i32>) -> tensor<4x3xf32> {
  // CHECK: stablehlo.pad %{{.*}}, %{{.*}}, low = [1, 0], high = [0, -1], interior = [0, 0]
  %0 = stablehlo.pad %a, %z, low = [1, 0], high = [0, -1], interior = [0, 0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<5x5xf32>
  // CHECK: stablehlo.reverse %{{.*}}, dims = [0, 1] : tensor<5x5xf32>
  %1 = stablehlo.reverse %0, dims = [0, 1] : tensor<5x5xf32>
  // CHECK: stablehlo.slice %{{.*}} [0:4, 0:5:2]
  %2 = stablehlo.slice %1 [0:4, 0:5:2] : (tensor<5x5xf32>) -> tensor<4x3xf32>
  // CHECK: stablehlo.dynamic_slice %{{.*}}, %{{.*}}, %{{.*}}, sizes = [4, 3]
  %3 = stablehlo.dynamic_slice %2, %i, %i, sizes = [4, 3] : (tensor<4x3xf32>, tensor<i32>, tensor<i32>) -> tensor<4x3xf32>
  // CHECK: stablehlo.reduce_precision %{{.*}}, format = e5m10 : tensor<4x3xf32>
  %4 = stablehlo.reduce_precision %3, format = e5m10 : tensor<4x3xf32>
  return %4 : tensor<4x3xf32>
}

// CHECK-LABEL: @regions
func.func @regions(%a: tensor<4x6xf32>, %z: tensor<f32>, %p: tensor<i1>) -> (tensor<4xf32>, tensor<4x6xf32>) {
  // CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) across dimensions = [1]
  // CHECK-NEXT: reducer(%[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>) {
  %0 = stablehlo.reduce(%a init: %z) across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
   reducer(%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.add %y, %x : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }
  // CHECK: "stablehlo.sort"
  %1 = "stablehlo.sort"(%a) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %c = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // CHECK: "stablehlo.if"
  %2 = "stablehlo.if"(%p) ({
    stablehlo.return %1 : tensor<4x6xf32>
  }, {
    stablehlo.return %a : tensor<4x6xf32>
  }) : (tensor<i1>) -> tensor<4x6xf32>
  return %0, %2 : tensor<4xf32>, tensor<4x6xf32>
}

// Lists as dense elements, attributes in braces, `constant()`.
// CHECK-LABEL: @older
func.func @older(%a: tensor<4xf32>) -> tensor<2x4xf32> {
  // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [1]
  %0 = "stablehlo.broadcast_in_dim"(%a) {broadcast_dimensions = dense<1> : tensor<1xi64>} : (tensor<4xf32>) -> tensor<2x4xf32>
  // CHECK: stablehlo.constant dense<1.000000e+00> : tensor<2x4xf32>
  %1 = stablehlo.constant() {value = dense<1.0> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  // CHECK: stablehlo.add
  %2 = "stablehlo.add"(%0, %1) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  // CHECK: stablehlo.dot %{{.*}}, %{{.*}}, precision = [DEFAULT, HIGH]
  %3 = stablehlo.dot %2, %a, precision = [DEFAULT, HIGH] : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2xf32>
  // CHECK: chlo.erf %{{.*}} : tensor<2x4xf32> -> tensor<2x4xf32>
  %4 = chlo.erf %2 : tensor<2x4xf32> -> tensor<2x4xf32>
  return %4 : tensor<2x4xf32>
}

// Calls of libraries, as JAX writes them.
// CHECK-LABEL: @library_call
func.func @library_call(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: stablehlo.custom_call @lapack_spotrf_ffi
  // CHECK-SAME: output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>]
  // CHECK-SAME: sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([k, l], []) {i=8, j=8, k=8, l=8}, custom>
  %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>], sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([k, l], []) {i=8, j=8, k=8, l=8}, custom>} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i32>)
  return %0#0 : tensor<8x8xf32>
}
