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
kvtile.kernel @external spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2, vector_bits = 512>) {
  // expected-error @below {{external pages have no lowering to CPUs}}
  kvtile.page_loop external() {
  ^bb0(%tile: !kvtile.tile):
    kvtile.yield
  }
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
