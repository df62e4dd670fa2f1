// RUN: kv-opt %s --split-input-file --verify-diagnostics

// attention: each constraint.

func.func @c1(%q: tensor<4x8x16xf16>, %k: tensor<4x2x9x16xf16>) {
  // expected-error @below {{expected one cache, or two tensors k and v, got 1 operands}}
  %o, %l = kvcache.attention %q, %k : tensor<4x8x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x8x16xf16>, tensor<4x8xf32>
  return
}

// -----

func.func @c2(%q: tensor<8x16xf16>, %k: tensor<4x2x9x16xf16>) {
  // expected-error @below {{expected 'q' of rank 3 ([row, head, d]) or 4, got 'tensor<8x16xf16>'}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<8x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<8x16xf16>, tensor<8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c3(%q: tensor<4x8x32xf16>, %c: !cache) {
  // expected-error @below {{expected queries of the keys' head dim 16, got 32}}
  %o, %l = kvcache.attention %q, %c : tensor<4x8x32xf16>, !cache -> tensor<4x8x16xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c4(%q: tensor<4x3x16xf16>, %c: !cache) {
  // expected-error @below {{3 query heads cannot share 2 key/value heads: expected a multiple, or a head_map}}
  %o, %l = kvcache.attention %q, %c : tensor<4x3x16xf16>, !cache -> tensor<4x3x16xf16>, tensor<4x3xf32>
  return
}

// -----

func.func @c4_fewer(%q: tensor<4x2x16xf16>, %k: tensor<4x4x9x16xf16>) {
  // expected-error @below {{2 query heads cannot share 4 key/value heads: expected a multiple, or a head_map}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<4x2x16xf16>, tensor<4x4x9x16xf16>, tensor<4x4x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c5(%q: tensor<4x3x16xf16>, %c: !cache) {
  // expected-error @below {{expected a head_map of 3 entries, one per query head, got 2}}
  %o, %l = kvcache.attention %q, %c {head_map = array<i64: 0, 1>} : tensor<4x3x16xf16>, !cache -> tensor<4x3x16xf16>, tensor<4x3xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c5_range(%q: tensor<4x3x16xf16>, %c: !cache) {
  // expected-error @below {{expected head_map entries in [0, 2), got 2}}
  %o, %l = kvcache.attention %q, %c {head_map = array<i64: 0, 2, 1>} : tensor<4x3x16xf16>, !cache -> tensor<4x3x16xf16>, tensor<4x3xf32>
  return
}

// -----

func.func @c6(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>, %v: tensor<4x2x8x16xf16>) {
  // expected-error @below {{expected 'v' to have shape 4x2x9x?, got 4x2x8x16}}
  %o, %l = kvcache.attention %q, %k, %v : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x8x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

func.func @c6_rank(%q: tensor<4x2x16xf16>, %k: tensor<4x9x16xf16>) {
  // expected-error @below {{expected k and v of rank 4, got 'tensor<4x9x16xf16>' and 'tensor<4x9x16xf16>'}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<4x2x16xf16>, tensor<4x9x16xf16>, tensor<4x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c7(%q: tensor<4x2x16xf16>, %c: !cache, %n: tensor<4xi32>) {
  // expected-error @below {{expected no lengths beside a cache: it has its own}}
  %o, %l = kvcache.attention %q, %c lengths(%n : tensor<4xi32>) : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

func.func @c7_shape(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>, %n: tensor<5xi32>) {
  // expected-error @below {{expected 'lengths' to have shape 4, got 5}}
  %o, %l = kvcache.attention %q, %k, %k lengths(%n : tensor<5xi32>) : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

func.func @c8(%q: tensor<4x2x3x16xf16>, %k: tensor<4x2x9x16xf16>, %n: tensor<5xi32>) {
  // expected-error @below {{expected q_indptr only with queries of rank 3, got 'tensor<4x2x3x16xf16>'}}
  %o, %l = kvcache.attention %q, %k, %k q_indptr(%n : tensor<5xi32>) : tensor<4x2x3x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x3x16xf16>, tensor<4x2x3xf32>
  return
}

// -----

func.func @c8_shape(%q: tensor<12x2x16xf16>, %k: tensor<4x2x9x16xf16>, %n: tensor<4xi32>) {
  // expected-error @below {{expected 'q_indptr' to have shape 5, got 4}}
  %o, %l = kvcache.attention %q, %k, %k q_indptr(%n : tensor<4xi32>) : tensor<12x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<12x2x16xf16>, tensor<12x2xf32>
  return
}

// -----

func.func @c9(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>, %p: tensor<4x2x8xi32>) {
  // expected-error @below {{expected 'positions' to have shape 4x2x9, got 4x2x8}}
  %o, %l = kvcache.attention %q, %k, %k positions(%p : tensor<4x2x8xi32>) : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

func.func @c10(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>, %m: tensor<4x9xi1>) {
  // expected-error @below {{expected a mask of rank 3, as the queries have, got 'tensor<4x9xi1>'}}
  %o, %l = kvcache.attention %q, %k, %k mask(%m : tensor<4x9xi1>) : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

func.func @c10_head(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>, %m: tensor<4x3x9xi1>) {
  // expected-error @below {{expected size 1 or 2 of the mask in dimension 1, got 3}}
  %o, %l = kvcache.attention %q, %k, %k mask(%m : tensor<4x3x9xi1>) : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

func.func @c10_tokens(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>, %m: tensor<4x1x1xi1>) {
  // expected-error @below {{expected a mask over 9 tokens, got 1}}
  %o, %l = kvcache.attention %q, %k, %k mask(%m : tensor<4x1x1xi1>) : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c11(%q: tensor<4x2x16xf16>, %c: !cache, %s: tensor<3xf32>) {
  // expected-error @below {{expected 'slopes' to have shape 2, got 3}}
  %o, %l = kvcache.attention %q, %c slopes(%s : tensor<3xf32>) : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c11_both(%q: tensor<4x2x16xf16>, %c: !cache, %s: tensor<2xf32>) {
  // expected-error @below {{expected slopes as an operand or as 'alibi', not both}}
  %o, %l = kvcache.attention %q, %c slopes(%s : tensor<2xf32>) {alibi = array<f32>} : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c11_alibi(%q: tensor<4x2x16xf16>, %c: !cache) {
  // expected-error @below {{expected 'alibi' to have no or 2 slopes, got 3}}
  %o, %l = kvcache.attention %q, %c {alibi = array<f32: 1.0, 2.0, 3.0>} : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c12(%q: tensor<4x2x16xf16>, %c: !cache, %s: tensor<4xf32>) {
  // expected-error @below {{expected 'sink_logits' to have shape 2, got 4}}
  %o, %l = kvcache.attention %q, %c sink_logits(%s : tensor<4xf32>) : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c13(%q: tensor<4x2x16xf16>, %c: !cache) {
  // expected-error @below {{expected 'softcap' to be positive and finite, got 0.0}}
  %o, %l = kvcache.attention %q, %c {softcap = 0.0} : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c13_scale(%q: tensor<4x2x16xf16>, %c: !cache) {
  // expected-error @below {{expected a finite 'scale', got}}
  %o, %l = kvcache.attention %q, %c {scale = 0x7FF0000000000000 : f64} : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c14(%q: tensor<4x2x16xf16>, %c: !cache) {
  // expected-error @below {{expected empty_rows zero on a cache of our own layout, got mean_all}}
  %o, %l = kvcache.attention %q, %c {empty_rows = #kvcache.empty_rows<mean_all>} : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @c15(%q: tensor<4x2x16xf32>, %c: !cache) {
  // expected-error @below {{expected queries of the cache's open dtype 'f16', got 'tensor<4x2x16xf32>'}}
  %o, %l = kvcache.attention %q, %c : tensor<4x2x16xf32>, !cache -> tensor<4x2x16xf32>, tensor<4x2xf32>
  return
}

// -----

func.func @c16(%q: tensor<12x2x16xf16>, %k: tensor<4x2x9x16xf16>) {
  // expected-error @below {{expected queries of 4 sequences, got 12 (several rows per sequence need q_indptr)}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<12x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<12x2x16xf16>, tensor<12x2xf32>
  return
}

// -----

func.func @c17(%q: tensor<4x2x16xf16>, %k: tensor<4x2x9x16xf16>) {
  // expected-error @below {{expected results 'tensor<4x2x16xf16>', 'tensor<4x2xf32>', got 'tensor<4x2x16xf32>', 'tensor<4x2xf32>'}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<4x2x16xf16>, tensor<4x2x9x16xf16>, tensor<4x2x9x16xf16> -> tensor<4x2x16xf32>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @scale_type(%q: tensor<4x2x16xf16>, %c: !cache) {
  // expected-error @below {{attribute 'scale' failed to satisfy constraint: 64-bit float attribute}}
  %o, %l = kvcache.attention %q, %c {scale = 1 : i32} : tensor<4x2x16xf16>, !cache -> tensor<4x2x16xf16>, tensor<4x2xf32>
  return
}
