// RUN: kv-opt %s --split-input-file --verify-diagnostics --kvcache-lower-to-reference

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>>

func.func @argument(%q: tensor<2x4x16xf16>, %c: !cache) -> tensor<2x4x16xf16> {
  // expected-error @below {{'kvcache.attention' op uses a cache that is not made by 'kvcache.view' in this function: caches cannot cross functions, loops or branches in the reference}}
  %o, %l = kvcache.attention %q, %c : tensor<2x4x16xf16>, !cache -> tensor<2x4x16xf16>, tensor<2x4xf32>
  return %o : tensor<2x4x16xf16>
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>>

func.func @returned(%sp: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>) -> !cache {
  %c = kvcache.view pools(%sp, %sp : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  // expected-error @below {{'func.return' op uses a cache in a way that has no reference lowering: caches cannot cross functions, loops or branches}}
  return %c : !cache
}

// -----

!cache = !kvcache.cache<kv = 1, d = 16, dv = 8, latent, open = f16, #kvcache.format<f16>>

func.func @latent(%q: tensor<2x4x16xf16>, %sp: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>) -> tensor<2x4x8xf16> {
  %c = kvcache.view pools(%sp, %sp : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  // expected-error @below {{latent caches are not supported by the reference yet, got}}
  %o, %l = kvcache.attention %q, %c : tensor<2x4x16xf16>, !cache -> tensor<2x4x8xf16>, tensor<2x4xf32>
  return %o : tensor<2x4x8xf16>
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<"key=i8:channel:2of4,value=i8,page=16">>

func.func @sparse(%q: tensor<2x4x16xf16>, %sp: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>) -> tensor<2x4x16xf16> {
  %c = kvcache.view pools(%sp, %sp : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  // expected-error @below {{2of4}}
  %o, %l = kvcache.attention %q, %c : tensor<2x4x16xf16>, !cache -> tensor<2x4x16xf16>, tensor<2x4xf32>
  return %o : tensor<2x4x16xf16>
}

// -----

func.func @dynamic_heads(%q: tensor<2x?x16xf16>, %k: tensor<2x2x7x16xf16>) -> tensor<2x?x16xf16> {
  // expected-error @below {{'kvcache.attention' op expected static numbers of heads and channels}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<2x?x16xf16>, tensor<2x2x7x16xf16>, tensor<2x2x7x16xf16> -> tensor<2x?x16xf16>, tensor<2x?xf32>
  return %o : tensor<2x?x16xf16>
}
