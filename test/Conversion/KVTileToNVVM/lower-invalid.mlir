// RUN: kv-opt %s --split-input-file --verify-diagnostics --kvtile-to-nvvm

// expected-error @below {{expected a schedule; run kvtile-choose-schedule}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">) {}

// -----

// expected-error @below {{expected a body; run kvtile-expand-attend}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">)
    schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 4, warps = 4, dot_kind = f16>) {}

// -----

// expected-error @below {{dtype 'f32' has no kernel on PTX targets yet, accepted: 'f16' 'bf16'}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f32, format = "kivi4">)
    schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 4, warps = 4, dot_kind = f16>) {}

// -----

// expected-error @below {{expected q_pack of at most 8 on PTX targets, got 16}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 16, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">)
    schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 16, warps = 4, dot_kind = f16>) {}

// -----

// expected-error @below {{expected tile_tokens to be a multiple of 16 that divides the page (64), got 128}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">)
    schedule(#kvtile.schedule<tile_tokens = 128, q_pack = 4, warps = 4, dot_kind = f16>) {}

// -----

// expected-error @below {{expected 1, 2, 4 or 8 warps, got 3}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">)
    schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 4, warps = 3, dot_kind = f16>) {}

// -----

// expected-error @below {{dot_kind 'u8s8x2' has no kernel on PTX targets yet, accepted: 'f16'}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">)
    schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 4, warps = 4, dot_kind = u8s8x2>) {}

// -----

// expected-error @below {{scale kind 'channel' has no kernel on PTX targets yet, accepted: 'token'}}
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "key=i8:channel,value=i8:channel">)
    schedule(#kvtile.schedule<tile_tokens = 32, q_pack = 4, warps = 4, dot_kind = f16>) {}
