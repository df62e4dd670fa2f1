// RUN: kv-opt %s --split-input-file --verify-target-legal=target=sm_80 --verify-diagnostics

// Everything that PTX targets cannot compile is refused by name.

// What they can: no diagnostics.
!kivi = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
!int8 = !kvcache.cache<kv = 8, d = 128, dv = 64, open = bf16, #kvcache.format<int8>, unassigned>
func.func @good(%q: tensor<4x24x128xf16>, %c: !kivi, %p: tensor<4x8x128xbf16>, %d: !int8, %s: tensor<24xf32>) {
  %0 = kvcache.seal %c : !kivi
  %o, %l = kvcache.attention %q, %c slopes(%s : tensor<24xf32>) {causal = #kvcache.causal<bottom_right>, softcap = 30.0, window = #kvcache.window<left = 3>}
    : tensor<4x24x128xf16>, !kivi -> tensor<4x24x128xf16>, tensor<4x24xf32>
  %o2, %l2 = kvcache.attention %p, %d : tensor<4x8x128xbf16>, !int8 -> tensor<4x8x64xbf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<fp8>, unassigned>
func.func @fp8(%c: !cache) {
  // expected-error @below {{sm_80 compiles elements f32, f16, bf16, i8 and i4, got key e4m3}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi2>, unassigned>
func.func @i2(%c: !cache) {
  // expected-error @below {{sm_80 compiles elements f32, f16, bf16, i8 and i4, got key i2}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = f16, value = f16:2of4>, unassigned>
func.func @sparse(%c: !cache) {
  // expected-error @below {{sm_80 compiles no 2of4 encodings, got value f16:2of4}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = i8:channel:hadamard>, unassigned>
func.func @hadamard(%c: !cache) {
  // expected-error @below {{sm_80 compiles no hadamard encodings, got key i8:channel:hadamard}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = i8:channel:center, value = f16>, unassigned>
func.func @center(%c: !cache) {
  // expected-error @below {{sm_80 compiles no center encodings, got key i8:channel:center}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = i8:token, value = i8:token>, unassigned>
func.func @keys_per_token(%c: !cache) {
  // expected-error @below {{sm_80 compiles integer keys with channel scales, got token}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = i8:channel, value = i4:head>, unassigned>
func.func @values_per_head(%c: !cache) {
  // expected-error @below {{sm_80 compiles integer values with token scales, got head}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<key = f32>, unassigned>
func.func @f32(%c: !cache) {
  // expected-error @below {{sm_80 compiles elements f16, bf16, i8 and i4, got key f32}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f32, #kvcache.format<f16>, unassigned>
func.func @open_f32(%c: !cache) {
  // expected-error @below {{sm_80 compiles open dtypes f16 and bf16, got f32}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 72, open = f16, #kvcache.format<f16>, unassigned>
func.func @head_dim(%c: !cache) {
  // expected-error @below {{sm_80 compiles head dims that are multiples of 16 up to 256, got d = 72}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, dv = 512, open = f16, #kvcache.format<f16>, unassigned>
func.func @value_dim(%c: !cache) {
  // expected-error @below {{sm_80 compiles head dims that are multiples of 16 up to 256, got dv = 512}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16, page = 8>, unassigned>
func.func @page(%c: !cache) {
  // expected-error @below {{sm_80 compiles pages of 16, 32, 64 and 128 tokens, got page = 8}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, latent, open = f16, #kvcache.format<f16>, unassigned>
func.func @latent(%c: !cache) {
  // expected-error @below {{sm_80 compiles caches that store keys and values, got a latent one}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, #kvcache.image<"x86-64", hash = "00">>
func.func @image(%c: !cache) {
  // expected-error-re @below {{sm_80 compiles image sm_8x {{[0-9a-f]+}}, got x86-64 00}}
  %0 = kvcache.seal %c : !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(0, #id), table = raw>>
func.func @external(%q: tensor<4x8x128xf16>, %c: !cache) {
  // expected-error @below {{sm_80 compiles caches of our own layout only, got an external layout}}
  %o, %l = kvcache.attention %q, %c : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @q_len(%q: tensor<9x8x128xf16>, %c: !cache, %i: tensor<?xi32>) {
  // expected-error @below {{sm_80 compiles one query row per sequence, got q_indptr (q_len above 1)}}
  %o, %l = kvcache.attention %q, %c q_indptr(%i : tensor<?xi32>) : tensor<9x8x128xf16>, !cache -> tensor<9x8x128xf16>, tensor<9x8xf32>
  return
}
