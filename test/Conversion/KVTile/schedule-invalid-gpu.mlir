// RUN: kv-opt %s --split-input-file --verify-diagnostics --kvtile-verify-schedule="target=sm_86"

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{expected dot_kind f16 or bf16 on sm_86, got f32}}
kvtile.kernel @dot spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 8>)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{expected stages to be 1 (codes are loaded straight to registers) on sm_86, got 3}}
kvtile.kernel @stages spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 8, stages = 3, dot_kind = f16>)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16,page=8">
// expected-error @below {{pages of 8 tokens have no kernel on sm_86, accepted: 16 32 64 128}}
kvtile.kernel @page spec(#spec) schedule(#kvtile.schedule<tile_tokens = 8, q_pack = 8, dot_kind = f16>)
