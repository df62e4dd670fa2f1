// What a PTX target cannot compile is refused with the file's location.
// REQUIRES: kv-compile
// RUN: not kv-compile %s --target=sm_80 -o %t.ptx 2>&1 | FileCheck %s
// RUN: not ls %t.ptx

// CHECK: error: {{.*}}input-invalid.mlir:[[# @LINE + 7]]:{{[0-9]+}}: {{.*}}q_indptr (q_len above 1)

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>

func.func @prefill(%q: tensor<?x32x128xf16>, %i: tensor<5xi32>, %c: !cache)
    -> (tensor<?x32x128xf16>, tensor<?x32xf32>) {
  // Ragged queries.
  %o, %lse = kvcache.attention %q, %c q_indptr(%i : tensor<5xi32>) {causal = #kvcache.causal<bottom_right>}
    : tensor<?x32x128xf16>, !cache -> tensor<?x32x128xf16>, tensor<?x32xf32>
  return %o, %lse : tensor<?x32x128xf16>, tensor<?x32xf32>
}
