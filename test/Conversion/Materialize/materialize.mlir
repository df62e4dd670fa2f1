// RUN: kv-opt %s --kvcache-materialize="cpu=avx2" 2>/dev/null | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --kvcache-materialize="cpu=avx2" -o /dev/null 2>&1 | FileCheck %s --check-prefix=WARN
// RUN: not kv-opt %s --kvcache-materialize="cpu=sse9" 2>&1 | FileCheck %s --check-prefix=TIER
// TIER: unknown CPU tier 'sse9', expected v2, avx2 or avx512

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<"key=i4:channel:g8,value=i8:token,page=8">>

// CHECK-LABEL: func.func @attend
// CHECK-NOT: kvcache.
// Both calls get the same arguments; the merge runs last.
// CHECK: %[[ARGS:.*]] = llvm.alloca
// CHECK: call @kvcache_kernel_0_attend(%[[ARGS]],
// CHECK: call @kvcache_kernel_0_merge(%[[ARGS]],
// CHECK: bufferization.to_tensor
// One kernel serves both attentions.
// CHECK: call @kvcache_kernel_0_attend
// CHECK-NOT: kvcache_kernel_1
func.func @attend(%q: tensor<2x4x16xf16>, %sp: tensor<?xi8>, %op: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>)
    -> (tensor<2x4x16xf16>, tensor<2x4x16xf16>) {
  %c = kvcache.view pools(%sp, %op : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  %o, %l = kvcache.attention %q, %c {causal = #kvcache.causal<bottom_right>}
    : tensor<2x4x16xf16>, !cache -> tensor<2x4x16xf16>, tensor<2x4xf32>
  %p, %m = kvcache.attention %o, %c {causal = #kvcache.causal<bottom_right>}
    : tensor<2x4x16xf16>, !cache -> tensor<2x4x16xf16>, tensor<2x4xf32>
  return %o, %p : tensor<2x4x16xf16>, tensor<2x4x16xf16>
}

// What has to do with no cache is left alone.
// CHECK-LABEL: func.func @no_cache
// CHECK: kvcache.merge_states
func.func @no_cache(%o: tensor<4x8xf16>, %l: tensor<4xf32>) -> tensor<4x8xf16> {
  %a, %b = kvcache.merge_states outs(%o, %o) lses(%l, %l) : tensor<4x8xf16>, tensor<4xf32>
  return %a : tensor<4x8xf16>
}

// CHECK-LABEL: func.func @sinks
// CHECK-NOT: kvcache_kernel
// CHECK: math.exp {{.*}} : f64
// WARN: warning: runs as plain loops: 'kvcache.attention' op no kernel is generated for sink logits
func.func @sinks(%q: tensor<2x4x16xf16>, %sp: tensor<?xi8>, %op: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>,
    %s: tensor<4xf32>) -> tensor<2x4x16xf16> {
  %c = kvcache.view pools(%sp, %op : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  %o, %l = kvcache.attention %q, %c sink_logits(%s : tensor<4xf32>) : tensor<2x4x16xf16>, !cache -> tensor<2x4x16xf16>, tensor<2x4xf32>
  return %o : tensor<2x4x16xf16>
}

// An external layout: a kernel that decodes tiles, no tensor as long as the sequence.
!paged = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<"key=f16,page=8">, #kvcache.external<
  key = f16, codes(0, affine_map<(p, t, h, c) -> (p, 0, t, h, c)>),
  value = f16, codes(0, affine_map<(p, t, h, c) -> (p, 1, t, h, c)>), table = raw>>
// CHECK-LABEL: func.func @external
// CHECK-NOT: tensor.empty(%{{.*}}) : tensor<?x{{[0-9]}}
// CHECK: %[[KERNEL:.*]] = constant @kvcache_array_kernel_0_attend
// CHECK: %[[ENTRY:.*]] = builtin.unrealized_conversion_cast %[[KERNEL]]
// CHECK: call @kvcache_parallel_for(%[[ENTRY]],
// CHECK: return
func.func @external(%q: tensor<2x4x16xf16>, %p: tensor<9x2x8x2x16xf16>, %t: tensor<2x5xi32>, %n: tensor<2xi32>) -> tensor<2x4x16xf16> {
  %c = kvcache.view pools(%p : tensor<9x2x8x2x16xf16>) table(%t : tensor<2x5xi32>) lengths(%n : tensor<2xi32>) -> !paged
  %o, %l = kvcache.attention %q, %c {causal = #kvcache.causal<bottom_right>} : tensor<2x4x16xf16>, !paged -> tensor<2x4x16xf16>, tensor<2x4xf32>
  return %o : tensor<2x4x16xf16>
}

// Tensors as they lie, and one kernel for all lengths.
// CHECK-LABEL: func.func @tensors
// CHECK: memref.extract_strided_metadata
// CHECK: constant @kvcache_array_kernel_1_attend
// CHECK: constant @kvcache_array_kernel_1_attend
// CHECK-NOT: kvcache_array_kernel_2
func.func @tensors(%q: tensor<2x4x90x20xf32>, %k: tensor<2x2x70x20xf32>, %v: tensor<2x2x70x24xf32>, %r: tensor<1x4x200x20xf32>,
    %l: tensor<1x2x300x20xf32>, %w: tensor<1x2x300x24xf32>) -> (tensor<2x4x90x24xf32>, tensor<1x4x200x24xf32>) {
  %o, %s = kvcache.attention %q, %k, %v {} : tensor<2x4x90x20xf32>, tensor<2x2x70x20xf32>, tensor<2x2x70x24xf32>
    -> tensor<2x4x90x24xf32>, tensor<2x4x90xf32>
  %p, %t = kvcache.attention %r, %l, %w {} : tensor<1x4x200x20xf32>, tensor<1x2x300x20xf32>, tensor<1x2x300x24xf32>
    -> tensor<1x4x200x24xf32>, tensor<1x4x200xf32>
  return %o, %p : tensor<2x4x90x24xf32>, tensor<1x4x200x24xf32>
}

// The generated kernels are private functions.
// CHECK: func.func private @kvcache_kernel_0_attend(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64) -> i32
