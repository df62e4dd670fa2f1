// RUN: kv-opt %s --split-input-file --verify-diagnostics

func.func @unknown_op(%a: tensor<2xf32>) {
  // expected-error @below {{custom op 'stablehlo.fft' is unknown}}
  %0 = stablehlo.fft %a, type = FFT : tensor<2xf32>
}

// -----

func.func @broadcast(%a: tensor<3xf32>) {
  // expected-error @below {{'stablehlo.broadcast_in_dim' op expected operand size 1 or 4 for result dimension 1, got 3}}
  %0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<3xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @reshape(%a: tensor<3xf32>) {
  // expected-error @below {{expected as many elements in 'tensor<2x4xf32>' as in 'tensor<3xf32>'}}
  %0 = stablehlo.reshape %a : (tensor<3xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @transpose(%a: tensor<3x4xf32>) {
  // expected-error @below {{expected permutation to be distinct and in [0, 2), got 1}}
  %0 = stablehlo.transpose %a, dims = [1, 1] : (tensor<3x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @slice(%a: tensor<3x4xf32>) {
  // expected-error @below {{expected 0 <= start <= limit <= 4 and stride >= 1, got 0:5:1}}
  %0 = stablehlo.slice %a [0:3, 0:5] : (tensor<3x4xf32>) -> tensor<3x5xf32>
  return
}

// -----

func.func @dot(%a: tensor<3x4xf32>, %b: tensor<3x4xf32>) {
  // expected-error @below {{expected equal sizes, got 4 (lhs dimension 1) and 3 (rhs dimension 0)}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @reduce(%a: tensor<3x4xf32>, %z: tensor<f32>) {
  // expected-error @below {{expected shape [3], got 'tensor<4xf32>'}}
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<4xf32>
  return
}

// -----

func.func @concatenate(%a: tensor<3x4xf32>) {
  // expected-error @below {{expected size 8 in dimension 1, got 'tensor<3x9xf32>'}}
  %0 = stablehlo.concatenate %a, %a, dim = 1 : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x9xf32>
  return
}

// -----

func.func @gather(%a: tensor<3x4xf32>, %i: tensor<2x1xi32>) {
  // expected-error @below {{expected 1 entries in offset_dims, got 0}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<3x4xf32>, tensor<2x1xi32>) -> tensor<2xf32>
  return
}

// -----

func.func @composite(%a: tensor<3xf32>) {
  // expected-error @below {{'missing' does not reference a function}}
  %0 = stablehlo.composite "x" %a {decomposition = @missing} : (tensor<3xf32>) -> tensor<3xf32>
  return
}
