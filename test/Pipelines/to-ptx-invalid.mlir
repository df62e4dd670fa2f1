// RUN: kv-opt %s --split-input-file --kvcache-to-ptx=target=sm_80 --verify-diagnostics

// A gathered cache fuses into an external layout, which PTX targets refuse by name.
func.func @external(%q: tensor<4x8x128xf16>, %p: tensor<9x8x16x128xf16>, %t: tensor<4x2xi32>, %n: tensor<4xi32>) -> tensor<4x8x128xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x16x128xf16>, tensor<4x2xi32> -> tensor<4x8x32x128xf16>
  %v = kvcache.page_gather %p, %t : tensor<9x8x16x128xf16>, tensor<4x2xi32> -> tensor<4x8x32x128xf16>
  // expected-error @below {{sm_80 compiles caches of our own layout only, got an external layout}}
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<4xi32>) : tensor<4x8x128xf16>, tensor<4x8x32x128xf16>, tensor<4x8x32x128xf16> -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return %o : tensor<4x8x128xf16>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
func.func @linear(%q: tensor<4x8x128xf16>, %c: !cache) -> (tensor<4x8x128xf16>, !cache) {
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %c : !cache
  // expected-error @below {{uses a cache that was replaced}}
  %o, %l = kvcache.attention %q, %c : tensor<4x8x128xf16>, !cache -> tensor<4x8x128xf16>, tensor<4x8xf32>
  return %o, %new : tensor<4x8x128xf16>, !cache
}
