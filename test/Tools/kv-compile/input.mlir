// A file: fused, checked against the target, compiled.
// REQUIRES: kv-compile
// RUN: kv-compile %s --target=sm_86 -o %t.ptx
// RUN: FileCheck %s --input-file=%t.ptx
// RUN: not kv-compile %s --target=sm_86 --head-dim=64 -o %t.none 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not kv-compile %t.missing --target=sm_86 -o %t.none 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not ls %t.none

// CHECK: .target sm_86
// CHECK: .entry attend(
// FLAG: error: '--head-dim' cannot be given with an input file
// MISSING: error: {{.*}}

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @decode(%q: tensor<4x32x128xf16>, %c: !cache)
    -> (tensor<4x32x128xf16>, tensor<4x32xf32>) {
  %o, %lse = kvcache.attention %q, %c {causal = #kvcache.causal<bottom_right>}
    : tensor<4x32x128xf16>, !cache -> tensor<4x32x128xf16>, tensor<4x32xf32>
  return %o, %lse : tensor<4x32x128xf16>, tensor<4x32xf32>
}
