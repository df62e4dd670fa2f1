// RUN: kv-opt %s --kvcache-to-ptx=target=sm_90a | FileCheck %s
// RUN: kv-opt %s --kvcache-to-ptx=target=sm_80 --dump-pass-pipeline 2>&1 | FileCheck %s --check-prefix=PASSES
// RUN: not kv-opt %s --kvcache-to-ptx=target=sm_75 2>&1 | FileCheck %s --check-prefix=TARGET

// From written-out decoding to one kernel.
// PASSES: kvcache-verify-linear
// PASSES: cse
// PASSES: kvcache-fuse-attention
// PASSES: canonicalize
// PASSES: verify-target-legal{target=sm_80}
// PASSES: kvcache-outline-kernels
// PASSES: kvtile-choose-schedule{{.*}}target=sm_80
// PASSES: kvtile-verify-schedule{{.*}}target=sm_80
// PASSES: kvtile-expand-attend
// PASSES: kvtile-to-nvvm
// TARGET: error: {{.*}}sm_75{{.*}}x86-64{{.*}}sm_80

// CHECK-LABEL: llvm.func @attend(
// CHECK-SAME: nvvm.kernel
// CHECK: nvvm.mma.sync
!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>
func.func @f(%q: tensor<4x32x128xf16>, %c: !cache) -> tensor<4x32x128xf16> {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x128xf32>, tensor<?x8x?x128xf32>, tensor<?xi32>
  %o, %l = kvcache.attention %q, %k, %v lengths(%n : tensor<?xi32>) {causal = #kvcache.causal<bottom_right>}
    : tensor<4x32x128xf16>, tensor<?x8x?x128xf32>, tensor<?x8x?x128xf32> -> tensor<4x32x128xf16>, tensor<4x32xf32>
  return %o : tensor<4x32x128xf16>
}
