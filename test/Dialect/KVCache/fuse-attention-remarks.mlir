// RUN: kv-opt %s --split-input-file --kvcache-fuse-attention --verify-diagnostics | FileCheck %s --enable-var-scope

// What does not fuse stays as it is, with a remark that says why.

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

// CHECK-LABEL: @read_other_user
// CHECK: kvcache.read
// CHECK: kvcache.attention {{.*}} lengths
func.func @read_other_user(%q: tensor<3x8x64xf16>, %c: !cache) -> (tensor<3x8x64xf16>, tensor<?x8x?x64xf32>) {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  // expected-remark @below {{not fused: the result of 'kvcache.read' has other users}}
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o, %k : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @read_swapped(%q: tensor<3x8x64xf16>, %c: !cache) -> tensor<3x8x64xf16> {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  // expected-remark @below {{not fused: keys and values are not k and v of one read}}
  %o, %l = kvcache.attention %q, %v, %k lengths(%n : tensor<?xi32>) : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o : tensor<3x8x64xf16>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @read_layout(%q: tensor<3x8x64xf16>, %c: !cache) -> tensor<3x8x64xf16> {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x8x64xf32>, tensor<?x8x8x64xf32>, tensor<?xi32>
  // expected-remark @below {{not fused: the read's layout is not the attention's}}
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) {layout = #kvcache.layout<nhd>} : tensor<3x8x64xf16>, tensor<?x8x8x64xf32>, tensor<?x8x8x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o : tensor<3x8x64xf16>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @read_lengths(%q: tensor<3x8x64xf16>, %c: !cache) -> tensor<3x8x64xf16> {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  // expected-remark @below {{not fused: its lengths are not those of the read}}
  %o, %l = kvcache.attention %q, %k, %v : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o : tensor<3x8x64xf16>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @read_dtype(%q: tensor<3x8x64xf32>, %c: !cache) -> tensor<3x8x64xf32> {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  // expected-remark @below {{not fused: the queries do not have the cache's open dtype}}
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) : tensor<3x8x64xf32>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf32>, tensor<3x8xf32>
  return %o : tensor<3x8x64xf32>
}

// -----

func.func @plain(%q: tensor<1x8x64xf16>, %k: tensor<1x8x5x64xf16>) -> tensor<1x8x64xf16> {
  // expected-remark @below {{not fused: keys: it is not read, gathered or decoded}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x5x64xf16>, tensor<1x8x5x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @empty_rows(%q: tensor<3x8x64xf16>, %c: !cache) -> tensor<3x8x64xf16> {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  // expected-remark @below {{not fused: empty_rows nan is not possible on what a cache reads}}
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) {empty_rows = #kvcache.empty_rows<nan>} : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o : tensor<3x8x64xf16>
}

// -----

func.func @empty_rows_raw(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xf16>, %t: tensor<1x2xi32>) -> tensor<1x8x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x16x64xf16>, tensor<1x2xi32> -> tensor<1x8x32x64xf16>
  // expected-remark @below {{not fused: empty_rows mean_all is not possible with table rule raw}}
  %o, %l = kvcache.attention %q, %k, %k {empty_rows = #kvcache.empty_rows<mean_all>} : tensor<1x8x64xf16>, tensor<1x8x32x64xf16>, tensor<1x8x32x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @empty_rows_flat(%q: tensor<2x8x64xf16>, %p: tensor<32x8x64xi8>, %s: tensor<1x1x1x1xf16>) -> tensor<2x8x64xf16> {
  %e = tensor.expand_shape %p [[0, 1], [2], [3]] output_shape [2, 16, 8, 64] : tensor<32x8x64xi8> into tensor<2x16x8x64xi8>
  %k = kvcache.dequantize %e, %s {encoding = #kvcache.encoding<i8:head:sym>, layout = #kvcache.layout<nhd>} : tensor<2x16x8x64xi8>, tensor<1x1x1x1xf16> -> tensor<2x16x8x64xf16>
  // expected-remark @below {{not fused: empty_rows mean_all needs tokens in a dimension of their own}}
  %o, %l = kvcache.attention %q, %k, %k {empty_rows = #kvcache.empty_rows<mean_all>, layout = #kvcache.layout<nhd>} : tensor<2x8x64xf16>, tensor<2x16x8x64xf16>, tensor<2x16x8x64xf16> -> tensor<2x8x64xf16>, tensor<2x8xf32>
  return %o : tensor<2x8x64xf16>
}

// -----

func.func @more_queries_than_keys(%q: tensor<1x8x6x64xf16>, %p: tensor<9x8x4x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x6x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x4x64xf16>, tensor<1x1xi32> -> tensor<1x8x4x64xf16>
  // expected-remark @below {{not fused: there may be more queries than keys, and without causal they see keys that a cache hides}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x6x64xf16>, tensor<1x8x4x64xf16>, tensor<1x8x4x64xf16> -> tensor<1x8x6x64xf16>, tensor<1x8x6xf32>
  return %o : tensor<1x8x6x64xf16>
}

// -----

// CHECK-LABEL: @gather_other_user
// CHECK-COUNT-2: kvcache.page_gather
// CHECK-NOT: kvcache.view
func.func @gather_other_user(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xf16>, %t: tensor<1x2xi32>) -> (tensor<1x8x64xf16>, tensor<1x8x32x64xf16>) {
  %k = kvcache.page_gather %p, %t : tensor<9x8x16x64xf16>, tensor<1x2xi32> -> tensor<1x8x32x64xf16>
  %v = kvcache.page_gather %p, %t : tensor<9x8x16x64xf16>, tensor<1x2xi32> -> tensor<1x8x32x64xf16>
  // expected-remark @below {{not fused: the result of 'kvcache.page_gather' has other users}}
  %o, %l = kvcache.attention %q, %k, %v : tensor<1x8x64xf16>, tensor<1x8x32x64xf16>, tensor<1x8x32x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o, %v : tensor<1x8x64xf16>, tensor<1x8x32x64xf16>
}

// -----

func.func @decoded_pool_other_user(%q: tensor<1x8x64xf32>, %p: tensor<9x8x16x64xi8>, %s: tensor<9x8x16x1xf16>, %t: tensor<1x2xi32>) -> (tensor<1x8x64xf32>, tensor<9x8x16x64xf32>) {
  %d = kvcache.dequantize %p, %s {encoding = #kvcache.encoding<i8:token:sym>} : tensor<9x8x16x64xi8>, tensor<9x8x16x1xf16> -> tensor<9x8x16x64xf32>
  %k = kvcache.page_gather %d, %t : tensor<9x8x16x64xf32>, tensor<1x2xi32> -> tensor<1x8x32x64xf32>
  // expected-remark @below {{not fused: keys: its page_gather cannot move before its dequantize (another use, or scales that do not follow the pages)}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf32>, tensor<1x8x32x64xf32>, tensor<1x8x32x64xf32> -> tensor<1x8x64xf32>, tensor<1x8xf32>
  return %o, %d : tensor<1x8x64xf32>, tensor<9x8x16x64xf32>
}

// -----

func.func @two_tables(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xf16>, %t: tensor<1x2xi32>, %u: tensor<1x2xi32>) -> tensor<1x8x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x16x64xf16>, tensor<1x2xi32> -> tensor<1x8x32x64xf16>
  %v = kvcache.page_gather %p, %u : tensor<9x8x16x64xf16>, tensor<1x2xi32> -> tensor<1x8x32x64xf16>
  // expected-remark @below {{not fused: keys and values are not gathered with the same table and pages}}
  %o, %l = kvcache.attention %q, %k, %v : tensor<1x8x64xf16>, tensor<1x8x32x64xf16>, tensor<1x8x32x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @layouts(%q: tensor<1x8x64xf16>, %p: tensor<9x8x8x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %k = kvcache.page_gather %p, %t {layout = #kvcache.layout<nhd>} : tensor<9x8x8x64xf16>, tensor<1x1xi32> -> tensor<1x8x8x64xf16>
  // expected-remark @below {{not fused: keys: the page_gather's layout is not the attention's}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x8x64xf16>, tensor<1x8x8x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @dequantize_layout(%q: tensor<1x8x64xf16>, %p: tensor<1x8x8x64xi8>, %s: tensor<1x8x8x1xf16>) -> tensor<1x8x64xf16> {
  %k = kvcache.dequantize %p, %s {encoding = #kvcache.encoding<i8:token:sym>, layout = #kvcache.layout<nhd>} : tensor<1x8x8x64xi8>, tensor<1x8x8x1xf16> -> tensor<1x8x8x64xf16>
  // expected-remark @below {{not fused: keys: the dequantize's layout is not the attention's}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x8x64xf16>, tensor<1x8x8x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @dynamic_page(%q: tensor<1x8x64xf16>, %p: tensor<9x8x?x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x?x64xf16>, tensor<1x1xi32> -> tensor<1x8x?x64xf16>
  // expected-remark @below {{not fused: keys: its tokens per page must be static}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x?x64xf16>, tensor<1x8x?x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @dynamic_heads(%q: tensor<1x8x64xf16>, %p: tensor<9x?x16x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x?x16x64xf16>, tensor<1x1xi32> -> tensor<1x?x16x64xf16>
  // expected-remark @below {{not fused: keys: its number of heads and channels must be static and positive}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x?x16x64xf16>, tensor<1x?x16x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @odd_page(%q: tensor<1x8x64xf16>, %p: tensor<9x8x48x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x48x64xf16>, tensor<1x1xi32> -> tensor<1x8x48x64xf16>
  // expected-remark @below {{not fused: no format describes it: }}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x48x64xf16>, tensor<1x8x48x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @scales_not_gathered(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xi8>, %s: tensor<2x8x1x64xf16>, %t: tensor<2x1xi32>) -> tensor<1x8x64xf16> {
  %c = kvcache.page_gather %p, %t : tensor<9x8x16x64xi8>, tensor<2x1xi32> -> tensor<2x8x16x64xi8>
  %k = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<2x8x16x64xi8>, tensor<2x8x1x64xf16> -> tensor<2x8x16x64xf16>
  %q2 = tensor.expand_shape %q [[0, 1], [2], [3]] output_shape [1, 1, 8, 64] : tensor<1x8x64xf16> into tensor<1x1x8x64xf16>
  %i = arith.constant dense<[0, 1, 1]> : tensor<3xi32>
  // expected-remark @below {{not fused: keys: its scales are not gathered with the table of its codes}}
  %o, %l = kvcache.attention %q, %k, %k q_indptr(%i : tensor<3xi32>) : tensor<1x8x64xf16>, tensor<2x8x16x64xf16>, tensor<2x8x16x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @scales_other_table(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xi8>, %s: tensor<9x8x1x64xf16>, %t: tensor<1x1xi32>, %u: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %c = kvcache.page_gather %p, %t : tensor<9x8x16x64xi8>, tensor<1x1xi32> -> tensor<1x8x16x64xi8>
  %d = kvcache.page_gather %s, %u : tensor<9x8x1x64xf16>, tensor<1x1xi32> -> tensor<1x8x1x64xf16>
  %k = kvcache.dequantize %c, %d {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<1x8x16x64xi8>, tensor<1x8x1x64xf16> -> tensor<1x8x16x64xf16>
  // expected-remark @below {{not fused: keys: its scales are gathered otherwise than its codes}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x16x64xf16>, tensor<1x8x16x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @dynamic_scales(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xi8>, %s: tensor<9x8x?x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %c = kvcache.page_gather %p, %t : tensor<9x8x16x64xi8>, tensor<1x1xi32> -> tensor<1x8x16x64xi8>
  %d = kvcache.page_gather %s, %t : tensor<9x8x?x64xf16>, tensor<1x1xi32> -> tensor<1x8x?x64xf16>
  %k = kvcache.dequantize %c, %d {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<1x8x16x64xi8>, tensor<1x8x?x64xf16> -> tensor<1x8x16x64xf16>
  // expected-remark @below {{not fused: keys: the sizes of its scales must be static}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x16x64xf16>, tensor<1x8x16x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

func.func @no_lengths(%q: tensor<?x8x64xf16>, %p: tensor<9x8x16x64xf16>, %t: tensor<?x1xi32>) -> tensor<?x8x64xf16> {
  %k = kvcache.page_gather %p, %t : tensor<9x8x16x64xf16>, tensor<?x1xi32> -> tensor<?x8x16x64xf16>
  // expected-remark @below {{not fused: without lengths, sequences and tokens must be static}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<?x8x64xf16>, tensor<?x8x16x64xf16>, tensor<?x8x16x64xf16> -> tensor<?x8x64xf16>, tensor<?x8xf32>
  return %o : tensor<?x8x64xf16>
}

// -----

func.func @scales_do_not_divide(%q: tensor<1x8x64xf16>, %p: tensor<9x8x16x64xi8>, %s: tensor<1x8x4x64xf16>, %t: tensor<1x1xi32>) -> tensor<1x8x64xf16> {
  %c = kvcache.page_gather %p, %t : tensor<9x8x16x64xi8>, tensor<1x1xi32> -> tensor<1x8x16x64xi8>
  %k = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<i8:channel:sym>} : tensor<1x8x16x64xi8>, tensor<1x8x4x64xf16> -> tensor<1x8x16x64xf16>
  // expected-remark @below {{not fused: keys: its scales do not divide its pages}}
  %o, %l = kvcache.attention %q, %k, %k : tensor<1x8x64xf16>, tensor<1x8x16x64xf16>, tensor<1x8x16x64xf16> -> tensor<1x8x64xf16>, tensor<1x8xf32>
  return %o : tensor<1x8x64xf16>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

// The contents are those before the seal: attending to %c would come too late.
// CHECK-LABEL: @replaced_between
// CHECK: kvcache.read
func.func @replaced_between(%q: tensor<3x8x64xf16>, %c: !cache) -> (tensor<3x8x64xf16>, !cache) {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  %new = kvcache.seal %c : !cache
  // expected-remark @below {{not fused: the cache is replaced between its read and the attention}}
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  return %o, %new : tensor<3x8x64xf16>, !cache
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<kivi4>, unassigned>

// CHECK-LABEL: @replaced_after
// CHECK-NOT: kvcache.read
// CHECK: kvcache.attention %{{.*}}, %[[C:.*]] : {{.*}}!kvcache.cache
// CHECK-NEXT: kvcache.seal %[[C]]
func.func @replaced_after(%q: tensor<3x8x64xf16>, %c: !cache) -> (tensor<3x8x64xf16>, !cache) {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) : tensor<3x8x64xf16>, tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32> -> tensor<3x8x64xf16>, tensor<3x8xf32>
  %new = kvcache.seal %c : !cache
  return %o, %new : tensor<3x8x64xf16>, !cache
}
