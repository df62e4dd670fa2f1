// RUN: kv-opt %s --split-input-file --verify-diagnostics

// view, append, seal, read: each constraint.

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c1(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected pools(sealed, open), got 1 tensors}}
  %c = kvcache.view pools(%b : tensor<?xi8>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c1_bytes(%b: tensor<?xf16>, %t: tensor<?x?xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected pools of bytes (i8), got 'tensor<?xf16>'}}
  %c = kvcache.view pools(%b, %b : tensor<?xf16>, tensor<?xf16>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c2(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected table(sealed, open), got 1 tensors}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t : tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c3(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected 'sealed_pages' for our own layout}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<key = i8:tensor, value = f16>, unassigned>
func.func @view_c4(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected 1 static scales (one per side with tensor scales), got 0}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<key = i8:tensor, value = f16>, unassigned>
func.func @view_c4_shape(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>, %s: tensor<3xf32>) {
  // expected-error @below {{expected 'scales' to have shape 2, got 3}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) scales(%s : tensor<3xf32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<key = i8:tensor, value = f16>, unassigned>
func.func @view_c4_type(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>, %s: tensor<2xf16>) {
  // expected-error @below {{expected static scales of f32, got 'tensor<2xf16>'}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) scales(%s : tensor<2xf16>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c5(%b: tensor<?xi8>, %t: tensor<?x?xi32>, %n: tensor<?xi32>, %m: tensor<2x16xf32>) {
  // expected-error @below {{expected 'means' exactly when the key is centred}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?x?xi32>, tensor<?x?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) means(%m : tensor<2x16xf32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c6(%b: tensor<?xi8>, %t: tensor<?xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected a table [seq, page] or [seq, kv or 1, page], got 'tensor<?xi32>'}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?xi32>, tensor<?xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c6_heads(%b: tensor<?xi8>, %t: tensor<?x3x4xi32>, %n: tensor<?xi32>) {
  // expected-error @below {{expected page lists for 1 or 2 heads, got 3}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<?x3x4xi32>, tensor<?x3x4xi32>) sealed_pages(%n : tensor<?xi32>) lengths(%n : tensor<?xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c7(%b: tensor<?xi8>, %t: tensor<3x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected tables of 4 sequences, as lengths has, got 3}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<3x4xi32>, tensor<3x4xi32>) sealed_pages(%n : tensor<4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @view_c7_sealed(%b: tensor<?xi8>, %t: tensor<4x4xi32>, %n: tensor<4xi32>, %p: tensor<5xi32>) {
  // expected-error @below {{expected 'sealed_pages' to have shape 4, got 5}}
  %c = kvcache.view pools(%b, %b : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<4x4xi32>, tensor<4x4xi32>) sealed_pages(%p : tensor<5xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(1, #id), table = raw>>
func.func @view_c3_external(%p: tensor<9x64x2x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected no 'sealed_pages' for an external layout}}
  %c = kvcache.view pools(%p, %p : tensor<9x64x2x16xf16>, tensor<9x64x2x16xf16>) table(%t : tensor<4x4xi32>) sealed_pages(%n : tensor<4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(1, #id), table = raw>>
func.func @view_c5_external(%p: tensor<9x64x2x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>, %m: tensor<2x16xf32>) {
  // expected-error @below {{expected no 'means' for an external layout}}
  %c = kvcache.view pools(%p, %p : tensor<9x64x2x16xf16>, tensor<9x64x2x16xf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) means(%m : tensor<2x16xf32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(1, #id), table = none>>
func.func @view_c8(%p: tensor<9x64x2x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected 0 tables with table rule none, got 1}}
  %c = kvcache.view pools(%p, %p : tensor<9x64x2x16xf16>, tensor<9x64x2x16xf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(1, #id), table = raw>>
func.func @view_c9(%p: tensor<9x64x2x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected value codes to be one of the view's 1 arrays, got 1}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#flat = affine_map<(p, t, h, c) -> (p, t, h * 16 + c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #flat), value = f16, codes(0, #flat), table = raw>>
func.func @view_c9_rank(%p: tensor<9x64x2x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected array 0 (key codes) to have rank 3, got 'tensor<9x64x2x16xf16>'}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(0, #id), table = raw>>
func.func @view_c10(%p: tensor<9x64x2x16xbf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected key codes to hold f16, got 'tensor<9x64x2x16xbf16>'}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xbf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
#s = affine_map<(p, t, h, c) -> (p)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<key = i4:head:sym>, #kvcache.external<key = i4, packed(channel, low_first), codes(0, #id) scales(1, #s), value = i4, packed(channel, low_first), codes(0, #id) scales(1, #s), table = raw>>
func.func @view_c10_packed(%p: tensor<9x64x2x16xi6>, %s: tensor<9xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected key codes to hold i4 packed, got 'tensor<9x64x2x16xi6>'}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xi6>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) scales(%s : tensor<9xf16>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
#s = affine_map<(p, t, h, c) -> (p)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<key = i4:head:sym>, #kvcache.external<key = i4, packed(channel, low_first), codes(0, #id) scales(1, #s), value = i4, packed(channel, low_first), codes(0, #id) scales(1, #s), table = raw>>
func.func @view_c10_divide(%p: tensor<9x64x2x16xi96>, %s: tensor<9xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected key codes packed by 24 to divide channels, got 16}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xi96>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) scales(%s : tensor<9xf16>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
#s = affine_map<(p, t, h, c) -> (p)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<key = i8:head:sym>, #kvcache.external<key = i8, codes(0, #id) scales(1, #s), value = i8, codes(0, #id) scales(1, #s), table = raw>>
func.func @view_c10_scales(%p: tensor<9x64x2x16xi8>, %s: tensor<9xf32>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected key scales of 'f16', got 'tensor<9xf32>'}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xi8>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) scales(%s : tensor<9xf32>) -> !cache
  return
}

// -----

// The heads stand where the layout has tokens.
#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(0, #id), table = raw>>
func.func @view_c11(%p: tensor<9x2x64x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected the map of key codes to stay within 'tensor<9x2x64x16xf16>', got index 63 in dimension 1}}
  %c = kvcache.view pools(%p : tensor<9x2x64x16xf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#by_zero = affine_map<(p, t, h, c) -> (p, t, h, c mod 0)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #by_zero), value = f16, codes(0, #by_zero), table = raw>>
func.func @view_c11_zero(%p: tensor<9x64x2x16xf16>, %t: tensor<4x4xi32>, %n: tensor<4xi32>) {
  // expected-error @below {{expected the map of key codes to have no division by zero}}
  %c = kvcache.view pools(%p : tensor<9x64x2x16xf16>) table(%t : tensor<4x4xi32>) lengths(%n : tensor<4xi32>) -> !cache
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(0, #id), table = raw>>
func.func @append_c1(%c: !cache, %k: tensor<1x2x16xf16>, %r: tensor<1xi32>) {
  // expected-error @below {{expected a cache of our own layout: an external one can only be read}}
  %n = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x2x16xf16>, tensor<1x2x16xf16> rows(tensor<1xi32>)
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @append_c2(%c: !cache, %k: tensor<1x3x16xf16>, %r: tensor<1xi32>) {
  // expected-error @below {{expected 'k' to have shape 1x2x16, got 1x3x16}}
  %n = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x3x16xf16>, tensor<1x3x16xf16> rows(tensor<1xi32>)
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @append_c2_dtype(%c: !cache, %k: tensor<1x2x16xf32>, %r: tensor<1xi32>) {
  // expected-error @below {{expected 'k' to have the open dtype 'f16', got 'tensor<1x2x16xf32>'}}
  %n = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x2x16xf32>, tensor<1x2x16xf32> rows(tensor<1xi32>)
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, dv = 8, open = f16, #kvcache.format<f16>, unassigned>
func.func @append_c3(%c: !cache, %k: tensor<1x2x16xf16>, %r: tensor<1xi32>) {
  // expected-error @below {{expected 'v' to have shape 1x2x8, got 1x2x16}}
  %n = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x2x16xf16>, tensor<1x2x16xf16> rows(tensor<1xi32>)
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @append_c3_absent(%c: !cache, %k: tensor<1x2x16xf16>, %r: tensor<1xi32>) {
  // expected-error @below {{expected 'v': the cache stores values}}
  %n = kvcache.append %c, %k rows(%r) : !cache, tensor<1x2x16xf16> rows(tensor<1xi32>)
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, dv = 8, latent, open = f16, #kvcache.format<f16>, unassigned>
func.func @append_c3_latent(%c: !cache, %k: tensor<1x2x16xf16>, %r: tensor<1xi32>) {
  // expected-error @below {{expected no 'v': the values of a latent cache are its keys' first channels}}
  %n = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x2x16xf16>, tensor<1x2x16xf16> rows(tensor<1xi32>)
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @append_c4(%c: !cache, %k: tensor<1x2x16xf16>, %r: tensor<1x1xi32>) {
  // expected-error @below {{'kvcache.append' op operand #3 must be 1D tensor}}
  %n = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<1x2x16xf16>, tensor<1x2x16xf16> rows(tensor<1x1xi32>)
  return
}

// -----

#id = affine_map<(p, t, h, c) -> (p, t, h, c)>
!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, #kvcache.external<key = f16, codes(0, #id), value = f16, codes(0, #id), table = raw>>
func.func @seal_c1(%c: !cache) {
  // expected-error @below {{expected a cache of our own layout: an external one can only be read}}
  %n = kvcache.seal %c : !cache
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @read_c1(%c: !cache) {
  // expected-error @below {{expected 'k' to have shape ?x?x2x16, got ?x?x3x16}}
  %k, %v, %n = kvcache.read %c {layout = #kvcache.layout<nhd>} : !cache -> tensor<?x?x3x16xf32>, tensor<?x?x2x16xf32>, tensor<?xi32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, dv = 8, open = f16, #kvcache.format<f16>, unassigned>
func.func @read_c2(%c: !cache) {
  // expected-error @below {{expected 'v' to have shape ?x2x?x8, got ?x2x?x16}}
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x2x?x16xf32>, tensor<?x2x?x16xf32>, tensor<?xi32>
  return
}

// -----

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<f16>, unassigned>
func.func @read_c3(%c: !cache) {
  // expected-error @below {{expected 'v' to have shape 3x2x10x16, got 3x2x11x16}}
  %k, %v, %n = kvcache.read %c : !cache -> tensor<3x2x10x16xf32>, tensor<3x2x11x16xf32>, tensor<3xi32>
  return
}
