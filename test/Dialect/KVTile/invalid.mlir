// RUN: kv-opt %s --split-input-file --verify-diagnostics

// expected-error @below {{expected a tensor of rank 2 for layout 'acc', got rank 1}}
func.func private @layout_rank(tensor<4xf32, #kvtile.layout<acc>>)

// -----

// expected-error @below {{expected element type f32 or i1 for layout 'acc', got 'f16'}}
func.func private @layout_element(tensor<4x4xf16, #kvtile.layout<acc>>)

// -----

// expected-error @below {{expected element type f32 for layout 'out', got 'i1'}}
func.func private @layout_out(tensor<4x4xi1, #kvtile.layout<out>>)

// -----

// expected-error @below {{expected static dimensions for layout 'rows'}}
func.func private @layout_dynamic(tensor<?xf32, #kvtile.layout<rows>>)

// -----

// expected-error @below {{C1: 3 query heads cannot share 2 key/value heads: the number of query heads must be a multiple of the number of key/value heads}}
kvtile.kernel @spec_c1 spec(#kvtile.spec<q_heads = 3, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)

// -----

// expected-error @below {{C1: expected dtype f32, f16 or bf16}}
kvtile.kernel @spec_c1_dtype spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f64, format = "f16">)

// -----

// expected-error @below {{C1: expected tile_tokens to be a power of two up to 256, got 48}}
#s = #kvtile.schedule<tile_tokens = 48, q_pack = 4>

// -----

// expected-error @below {{C1: expected q_pack from 1 to 16, got 17}}
#s = #kvtile.schedule<tile_tokens = 64, q_pack = 17>

// -----

// expected-error @below {{C1: expected warps and stages to be positive, got 0 and 1}}
#s = #kvtile.schedule<tile_tokens = 64, q_pack = 8, warps = 0>

// -----

// expected-error @below {{C1: expected split_tokens, prefetch_bytes and exp_bias not to be negative, got -1, 0 and 0}}
#s = #kvtile.schedule<tile_tokens = 64, q_pack = 8, split_tokens = -1>

// -----

// expected-error @below {{C1: expected vector_bits 0, 128, 256 or 512, got 64}}
#s = #kvtile.schedule<tile_tokens = 64, q_pack = 8, vector_bits = 64>

// -----

// expected-error @below {{C1: expected a schedule, since the kernel has a body}}
kvtile.kernel @kernel_c1 spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">) {
  kvtile.return
}

// -----

kvtile.kernel @kernel_c2 spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2>) {
  // expected-error @below {{C2: expected tensors of layout 'query' to be 'tensor<2x64xf32, #kvtile.layout<query>>' under the kernel's spec and schedule, got 'tensor<4x64xf32, #kvtile.layout<query>>'}}
  %q = kvtile.load_query : tensor<4x64xf32, #kvtile.layout<query>>
  kvtile.return
}

// -----

// expected-error @below {{expected the body to end with 'kvtile.return'}}
kvtile.kernel @no_return spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2>) {
  %q = kvtile.load_query : tensor<2x64xf32, #kvtile.layout<query>>
}

// -----

kvtile.kernel @loop_c1 spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2>) {
  %m = arith.constant dense<0.0> : tensor<2xf32, #kvtile.layout<rows>>
  // expected-error @below {{C1: expected the types of the yielded values to be those of the inits ('tensor<2xf32, #kvtile.layout<rows>>'), got ()}}
  %r = kvtile.page_loop sealed(%m : tensor<2xf32, #kvtile.layout<rows>>) {
  ^bb0(%tile: !kvtile.tile, %x: tensor<2xf32, #kvtile.layout<rows>>):
    kvtile.yield
  }
  kvtile.return
}

// -----

kvtile.kernel @loop_c2 spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2>) {
  // expected-error @below {{C2: expected the first body argument to be a !kvtile.tile}}
  kvtile.page_loop sealed() {
    kvtile.yield
  }
  kvtile.return
}

// -----

kvtile.kernel @loop_class spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2>) {
  // expected-error @below {{expected a page class (sealed, open or external), got 'shut'}}
  kvtile.page_loop shut() {
  ^bb0(%tile: !kvtile.tile):
    kvtile.yield
  }
  kvtile.return
}

// -----

kvtile.kernel @external spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">) schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 2, vector_bits = 512>) {
  // expected-error @below {{C3: expected class 'external' in array kernels and 'sealed' or 'open' in others, got 'external'}}
  kvtile.page_loop external() {
  ^bb0(%tile: !kvtile.tile):
    kvtile.yield
  }
  kvtile.return
}

// -----

// expected-error @below {{C1: expected group, head_dim and value_dim to be positive, got 1, 0 and 64}}
#arrays = #kvtile.arrays<group = 1, head_dim = 0, value_dim = 64, query = f32, key = f32, value = f32, out = f32, scale = 1.0 : f64>

// -----

// expected-error @below {{C2: expected elements f32, f16 or bf16, got 'i8'}}
#arrays = #kvtile.arrays<group = 1, head_dim = 64, value_dim = 64, query = f32, key = i8, value = f32, out = f32, scale = 1.0 : f64>

// -----

// expected-error @below {{C2: expected mask_operand i1, f32, f16 or bf16, got 'i8'}}
#arrays = #kvtile.arrays<group = 1, head_dim = 64, value_dim = 64, query = f32, key = f32, value = f32, out = f32, scale = 1.0 : f64, mask_operand = i8>

// -----

// expected-error @below {{C1: expected q_rows from 1 to 64, got 65}}
#schedule = #kvtile.schedule<tile_tokens = 64, q_pack = 1, q_rows = 65>

// -----

// expected-error @below {{C1: expected a schedule, since the kernel has a body; run kvtile-choose-schedule before kvtile-expand-attend}}
kvtile.array_kernel @c1 spec(<group = 1, head_dim = 64, value_dim = 64, query = f32, key = f32, value = f32, out = f32, scale = 1.0 : f64>) {
  kvtile.return
}

// -----

kvtile.array_kernel @c2 spec(<group = 1, head_dim = 64, value_dim = 64, query = f32, key = f32, value = f32, out = f32, scale = 1.0 : f64>)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 1, q_rows = 16>) {
  // expected-error @below {{C2: expected tensors of layout 'query' to be 'tensor<16x64xf32, #kvtile.layout<query>>' under the kernel's spec and schedule, got 'tensor<1x64xf32, #kvtile.layout<query>>'}}
  %q = kvtile.load_query : tensor<1x64xf32, #kvtile.layout<query>>
  kvtile.return
}
