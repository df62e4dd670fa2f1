// RUN: kv-opt %s --split-input-file --kvcache-outline-kernels --verify-diagnostics | FileCheck %s --enable-var-scope

// One kernel per distinct spec; the functions go.

// CHECK-NOT: func.func
// CHECK: kvtile.kernel @attend spec(<q_heads = 32, kv_heads = 8, head_dim = 128, value_dim = 128, dtype = f16, format = "key=i4:channel:g32,value=i4:g32,recent=128"
// CHECK: kvtile.kernel @attend_0 spec(<q_heads = 8, kv_heads = 8, {{.*}}mask = <causal = false>, scale = 5.000000e-01 : f64>
// CHECK-NOT: kvtile.kernel
!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
func.func @f(%q: tensor<4x32x128xf16>, %c: !cache) -> tensor<4x32x128xf16> {
  %o, %l = kvcache.attention %q, %c {causal = #kvcache.causal<bottom_right>} : tensor<4x32x128xf16>, !cache -> tensor<4x32x128xf16>, tensor<4x32xf32>
  %o2, %l2 = kvcache.attention %o, %c {causal = #kvcache.causal<bottom_right>} : tensor<4x32x128xf16>, !cache -> tensor<4x32x128xf16>, tensor<4x32xf32>
  return %o2 : tensor<4x32x128xf16>
}
func.func @g(%q: tensor<4x8x128xf16>, %c: !cache) -> tensor<4x8x128xf16> {
  %o, %l = kvcache.attention %q, %c {scale = 0.5} : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return %o : tensor<4x8x128xf16>
}

// -----

// CHECK: func.func @nothing_of_ours
func.func @nothing_of_ours(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
func.func @no_attention(%c: !cache) -> !cache {
  // expected-error @below {{'kvcache.seal' op has no kernel of its own here: expected an attention on a cache in the module}}
  %o = kvcache.seal %c : !cache
  return %o : !cache
}

// -----

func.func @tensors(%q: tensor<4x8x128xf16>, %k: tensor<4x8x9x128xf16>) {
  // expected-error @below {{no kernel is generated for keys and values that are tensors (make a cache of them first)}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<4x8x128xf16>, tensor<4x8x9x128xf16>, tensor<4x8x9x128xf16> -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return
}
