// RUN: kv-opt %s --split-input-file --verify-diagnostics

// quantize, dequantize, page_gather, merge_states: each constraint.

func.func @quantize_c1(%x: tensor<8xf32>) {
  // expected-error @below {{expected 'x' of rank 2 or more for layout hnd, got 'tensor<8xf32>'}}
  %c, %p = kvcache.quantize %x {encoding = #kvcache.encoding<i8:token:sym>} : tensor<8xf32> -> tensor<8xi8>, tensor<8xf16>
  return
}

// -----

func.func @quantize_c1_nhd(%x: tensor<8x8xf32>) {
  // expected-error @below {{expected 'x' of rank 3 or more for layout nhd, got 'tensor<8x8xf32>'}}
  %c, %p = kvcache.quantize %x {encoding = #kvcache.encoding<i8:token:sym>, layout = #kvcache.layout<nhd>} : tensor<8x8xf32> -> tensor<8x8xi8>, tensor<8x1xf16>
  return
}

// -----

func.func @quantize_c2(%x: tensor<8x8xf32>) {
  // expected-error @below {{expected a static scale exactly when the encoding has tensor scales, got none with i8:tensor}}
  %c = kvcache.quantize %x {encoding = #kvcache.encoding<i8:tensor:sym>} : tensor<8x8xf32> -> tensor<8x8xi8>
  return
}

// -----

func.func @quantize_c3(%x: tensor<8x8xf32>) {
  // expected-error @below {{expected an encoding without 2of4, hadamard and center, got i8:sym:hadamard}}
  %c, %p = kvcache.quantize %x {encoding = #kvcache.encoding<i8:token:sym:hadamard>} : tensor<8x8xf32> -> tensor<8x8xi8>, tensor<8x1xf16>
  return
}

// -----

func.func @quantize_c4(%x: tensor<60x8xf32>) {
  // expected-error @below {{expected group 32 to divide the 60 tokens of 'x'}}
  %c, %p = kvcache.quantize %x {encoding = #kvcache.encoding<i8:channel:g32:sym>} : tensor<60x8xf32> -> tensor<60x8xi8>, tensor<1x8xf16>
  return
}

// -----

func.func @quantize_c5(%x: tensor<64x8xf32>) {
  // expected-error @below {{expected results 'tensor<64x8xi8>', 'tensor<2x8xf16>', got 'tensor<64x8xi8>', 'tensor<1x8xf16>'}}
  %c, %p = kvcache.quantize %x {encoding = #kvcache.encoding<i8:channel:g32:sym>} : tensor<64x8xf32> -> tensor<64x8xi8>, tensor<1x8xf16>
  return
}

// -----

func.func @quantize_c5_zero(%x: tensor<64x8xf32>) {
  // expected-error @below {{expected results 'tensor<64x8xi8>', 'tensor<2x8xf16>', 'tensor<2x8xf16>', got 'tensor<64x8xi8>', 'tensor<2x8xf16>'}}
  %c, %p = kvcache.quantize %x {encoding = #kvcache.encoding<i8:channel:g32:asym>} : tensor<64x8xf32> -> tensor<64x8xi8>, tensor<2x8xf16>
  return
}

// -----

func.func @dequantize_c1(%c: tensor<8xi8>, %s: tensor<8xf16>) {
  // expected-error @below {{expected 'codes' of rank 2 or more for layout hnd, got 'tensor<8xi8>'}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<8xi8>, tensor<8xf16> -> tensor<8xf32>
  return
}

// -----

func.func @dequantize_c2(%c: tensor<8x8xi8>, %s: tensor<8x1xf16>) {
  // expected-error @below {{expected 2 params (scale, zero) for i8, got 1}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:asym>} : tensor<8x8xi8>, tensor<8x1xf16> -> tensor<8x8xf32>
  return
}

// -----

func.func @dequantize_c3(%c: tensor<8x8xi2>, %s: tensor<8x1xf16>) {
  // expected-error @below {{expected codes to hold i4, got 'tensor<8x8xi2>'}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i4:token:sym>} : tensor<8x8xi2>, tensor<8x1xf16> -> tensor<8x8xf32>
  return
}

// -----

func.func @dequantize_c3_packed(%c: tensor<8x8xf32>, %s: tensor<8x1xf16>) {
  // expected-error @below {{expected codes to hold i4 packed, got 'tensor<8x8xf32>'}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i4:token:sym>, packing = #kvcache.packing<channel, low_first>} : tensor<8x8xf32>, tensor<8x1xf16> -> tensor<8x8xf32>
  return
}

// -----

func.func @dequantize_c4(%c: tensor<8x8xi8>, %s: tensor<8x1xf16>) {
  // expected-error @below {{expected an encoding without 2of4, hadamard and center, got i8:sym:center}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym:center>} : tensor<8x8xi8>, tensor<8x1xf16> -> tensor<8x8xf32>
  return
}

// -----

func.func @dequantize_c5(%c: tensor<8x8xi8>, %s: tensor<3x1xf16>) {
  // expected-error @below {{expected size 3 of scales and zeros in dimension 0 to divide 8}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<8x8xi8>, tensor<3x1xf16> -> tensor<8x8xf32>
  return
}

// -----

func.func @dequantize_c5_head(%c: tensor<4x8x8xi8>, %s: tensor<2x8x1xf16>) {
  // expected-error @below {{expected size 2 of scales and zeros in dimension 0 to be 1 or 4}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<4x8x8xi8>, tensor<2x8x1xf16> -> tensor<4x8x8xf32>
  return
}

// -----

func.func @dequantize_c5_rank(%c: tensor<8x8xi8>, %s: tensor<8xf16>) {
  // expected-error @below {{expected scales and zeros of rank 2, got 'tensor<8xf16>'}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<8x8xi8>, tensor<8xf16> -> tensor<8x8xf32>
  return
}

// -----

func.func @dequantize_c6(%c: tensor<8x4xi8>, %s: tensor<8x1xf16>) {
  // expected-error @below {{expected 'result' to have shape 8x8, got 8x4}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i4:token:sym>, packing = #kvcache.packing<channel, low_first>} : tensor<8x4xi8>, tensor<8x1xf16> -> tensor<8x4xf32>
  return
}

// -----

func.func @dequantize_c7(%c: tensor<8x64xi8>, %s: tensor<8x4xf16>) {
  // expected-error @below {{expected 2 groups of 32 in dimension 1, got 4}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:g32:sym>} : tensor<8x64xi8>, tensor<8x4xf16> -> tensor<8x64xf32>
  return
}

// -----

func.func @dequantize_c8(%c: tensor<8x64xi8>, %s: tensor<8x1xf32>) {
  // expected-error @below {{expected scales and zeros of 'f16', got 'tensor<8x1xf32>'}}
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<8x64xi8>, tensor<8x1xf32> -> tensor<8x64xf32>
  return
}

// -----

func.func @page_gather_c1(%p: tensor<9x16x64xi8>, %t: tensor<1x2xi32>) {
  // expected-error @below {{expected a pool of rank 4, got 'tensor<9x16x64xi8>'}}
  %x = kvcache.page_gather %p, %t : tensor<9x16x64xi8>, tensor<1x2xi32> -> tensor<1x32x64xi8>
  return
}

// -----

func.func @page_gather_c2(%p: tensor<9x2x16x64xi8>, %t: tensor<2xi32>) {
  // expected-error @below {{expected a table [seq, page] or [seq, head or 1, page], got 'tensor<2xi32>'}}
  %x = kvcache.page_gather %p, %t : tensor<9x2x16x64xi8>, tensor<2xi32> -> tensor<1x2x32x64xi8>
  return
}

// -----

func.func @page_gather_c2_heads(%p: tensor<9x2x16x64xi8>, %t: tensor<1x3x2xi32>) {
  // expected-error @below {{expected page lists for 1 or 2 heads, got 3}}
  %x = kvcache.page_gather %p, %t : tensor<9x2x16x64xi8>, tensor<1x3x2xi32> -> tensor<1x2x32x64xi8>
  return
}

// -----

func.func @page_gather_c3(%p: tensor<9x2x16x64xi8>, %t: tensor<1x2xi32>) {
  // expected-error @below {{expected table rule raw, clamp or wrap, got none}}
  %x = kvcache.page_gather %p, %t {table_rule = #kvcache.table_rule<none>} : tensor<9x2x16x64xi8>, tensor<1x2xi32> -> tensor<1x2x32x64xi8>
  return
}

// -----

// Heads and tokens of equal size do not hide a wrong layout of the result.
func.func @page_gather_c4(%p: tensor<9x16x16x64xi8>, %t: tensor<1x2xi32>) {
  // expected-error @below {{expected results 'tensor<1x16x32x64xi8>', got 'tensor<1x32x16x64xi8>'}}
  %x = kvcache.page_gather %p, %t : tensor<9x16x16x64xi8>, tensor<1x2xi32> -> tensor<1x32x16x64xi8>
  return
}

// -----

func.func @merge_states_c1() {
  // expected-error @below {{expected one or more parts}}
  %o, %l = "kvcache.merge_states"() : () -> (tensor<4x8xf16>, tensor<4xf32>)
  return
}

// -----

func.func @merge_states_c1_count(%o: tensor<4x8xf16>, %l: tensor<4xf32>) {
  // expected-error @below {{expected as many lses as outs and at least one, got 2 outs and 1 lses}}
  %o2, %l2 = kvcache.merge_states outs(%o, %o) lses(%l) : tensor<4x8xf16>, tensor<4xf32>
  return
}

// -----

func.func @merge_states_c2(%o: tensor<4x8xf16>, %p: tensor<4x8xf32>, %l: tensor<4xf32>) {
  // expected-error @below {{expected parts of one type, got 'tensor<4x8xf16>' and 'tensor<4x8xf32>'}}
  %o2, %l2 = "kvcache.merge_states"(%o, %p, %l, %l) : (tensor<4x8xf16>, tensor<4x8xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4x8xf16>, tensor<4xf32>)
  return
}

// -----

func.func @merge_states_c3(%o: tensor<4x8xf16>, %l: tensor<4x8xf32>) {
  // expected-error @below {{expected 'lse' to have shape 4, got 4x8}}
  %o2, %l2 = kvcache.merge_states outs(%o) lses(%l) : tensor<4x8xf16>, tensor<4x8xf32>
  return
}

// -----

func.func @merge_states_c3_rank(%o: tensor<f16>, %l: tensor<f32>) {
  // expected-error @below {{expected outs of rank 1 or more, got 'tensor<f16>'}}
  %o2, %l2 = kvcache.merge_states outs(%o) lses(%l) : tensor<f16>, tensor<f32>
  return
}
