// RUN: kv-opt %s --split-input-file --verify-target-legal=target=x86-64 --verify-diagnostics

// What the CPU compiles: any scale kind, any head dim that is a multiple of 8,
// several rows per sequence, external layouts.
!mixed = !kvcache.cache<kv = 3, d = 72, dv = 40, open = f32, #kvcache.format<key = i4:head:asym:sf32, value = bf16, page = 1>, unassigned>
#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!external = !kvcache.cache<kv = 3, d = 72, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(0, #id), table = raw>>
func.func @good(%q: tensor<9x3x72xf32>, %c: !mixed, %i: tensor<?xi32>, %p: tensor<4x3x72xf16>, %d: !external) {
  %o, %l = kvcache.attention %q, %c q_indptr(%i : tensor<?xi32>) : tensor<9x3x72xf32>, !mixed -> tensor<9x3x40xf32>, tensor<9x3xf32>
  %o2, %l2 = kvcache.attention %p, %d : tensor<4x3x72xf16>, !external -> tensor<4x3x72xf16>, tensor<4x3xf32>
  return
}

// -----

func.func @dense(%q: tensor<4x8x128xf16>, %k: tensor<4x8x9x128xf16>) {
  // expected-error @below {{x86-64 compiles attention to a cache, got tensors k and v (kvcache-fuse makes a cache of them)}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<4x8x128xf16>, tensor<4x8x9x128xf16>, tensor<4x8x9x128xf16> -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @rank_4(%q: tensor<4x8x2x128xf16>, %c: !cache) {
  // expected-error @below {{x86-64 compiles queries [row, head, d], got 'tensor<4x8x2x128xf16>' (collapse it and give q_indptr)}}
  %o, %l = kvcache.attention %q, %c : tensor<4x8x2x128xf16>, !cache -> tensor<4x8x2x128xf16>, tensor<4x8x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @positions(%q: tensor<4x8x128xf16>, %c: !cache, %p: tensor<4x1x9xi32>) {
  // expected-error @below {{x86-64 compiles no attention with key positions yet}}
  %o, %l = kvcache.attention %q, %c positions(%p : tensor<4x1x9xi32>) : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @mask(%q: tensor<4x8x128xf16>, %c: !cache, %m: tensor<4x1x9xi1>) {
  // expected-error @below {{x86-64 compiles no attention with a mask operand yet}}
  %o, %l = kvcache.attention %q, %c mask(%m : tensor<4x1x9xi1>) : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @sink_logits(%q: tensor<4x8x128xf16>, %c: !cache, %s: tensor<8xf32>) {
  // expected-error @below {{x86-64 compiles no attention with sink logits yet}}
  %o, %l = kvcache.attention %q, %c sink_logits(%s : tensor<8xf32>) : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 1, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @head_map(%q: tensor<4x2x128xf16>, %c: !cache) {
  // expected-error @below {{x86-64 compiles no attention with a head_map yet}}
  %o, %l = kvcache.attention %q, %c {head_map = array<i64: 0, 0>} : tensor<4x2x128xf16>, !cache -> tensor<4x2x128xf16>, tensor<4x2xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @top_left(%q: tensor<4x8x128xf16>, %c: !cache) {
  // expected-error @below {{x86-64 compiles no attention with causal top_left yet}}
  %o, %l = kvcache.attention %q, %c {causal = #kvcache.causal<top_left>} : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>, unassigned>
func.func @dynamic_heads(%q: tensor<4x?x128xf16>, %c: !cache) {
  // expected-error @below {{no kernel is generated for a dynamic number of query heads}}
  %o, %l = kvcache.attention %q, %c : tensor<4x?x128xf16>, !cache -> tensor<4x?x128xf16>, tensor<4x?xf32>
  return
}
