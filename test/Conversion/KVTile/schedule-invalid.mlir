// RUN: kv-opt %s --split-input-file --verify-diagnostics --kvtile-verify-schedule

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">

// expected-error @below {{expected a schedule; run kvtile-choose-schedule}}
kvtile.kernel @none spec(#spec)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{expected tile_tokens to be the page (64) on x86-64 avx512, got 32}}
kvtile.kernel @tile spec(#spec) schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 2, vector_bits = 512>)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{expected vector_bits from 128 to 512 on x86-64 avx512, got 0}}
kvtile.kernel @bits spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2>)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{expected dot_kind f32 or u8s8x2 on x86-64 avx512, got e4m3}}
kvtile.kernel @dot spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2, dot_kind = e4m3, vector_bits = 512>)

// -----

#spec = #kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">
// expected-error @below {{dot_kind u8s8x2 needs vpdpbusd on 512 bits, which x86-64 avx512 with vector_bits = 256 does not have; use f32}}
kvtile.kernel @vnni spec(#spec) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2, dot_kind = u8s8x2, vector_bits = 256>)
