// RUN: kv-opt %s --split-input-file --verify-diagnostics --convert-kvtile-to-cpu

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{expected a scheduled kernel with a body; run kvtile-choose-schedule and kvtile-expand-attend first}}
kvtile.kernel @empty spec(#spec)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{the schedule is for a GPU (vector_bits = 0)}}
kvtile.kernel @gpu spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 8>) {
  kvtile.return
}

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
kvtile.kernel @op spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2, vector_bits = 512>) {
  %m = arith.constant dense<1.0> : tensor<2xf32, #kvtile.layout<rows>>
  // expected-error @below {{has no lowering to CPUs}}
  %s = math.sin %m : tensor<2xf32, #kvtile.layout<rows>>
  kvtile.return
}

// -----

#arrays = #kvtile.arrays<group = 1, head_dim = 64, value_dim = 64, query = f32, key = f32, value = f32, out = f32, scale = 0.125 : f64>
// expected-error @below {{expected a scheduled kernel with a body; run kvtile-choose-schedule and kvtile-expand-attend first}}
kvtile.array_kernel @empty spec(#arrays)

// -----

#arrays = #kvtile.arrays<group = 1, head_dim = 64, value_dim = 64, query = f32, key = f32, value = f32, out = f32, scale = 0.125 : f64>
kvtile.array_kernel @op spec(#arrays) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 1, q_rows = 16, vector_bits = 512>) {
  %m = arith.constant dense<1.0> : tensor<16xf32, #kvtile.layout<rows>>
  // expected-error @below {{has no lowering to CPUs}}
  %s = math.sin %m : tensor<16xf32, #kvtile.layout<rows>>
  kvtile.return
}
