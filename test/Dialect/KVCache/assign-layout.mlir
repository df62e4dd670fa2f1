// RUN: kv-opt %s --kvcache-assign-layout=target=x86-64 | FileCheck %s --check-prefixes=CHECK,X86 --enable-var-scope
// RUN: kv-opt %s --kvcache-assign-layout=target=sm_86 | FileCheck %s --check-prefixes=CHECK,SM --enable-var-scope
// RUN: kv-opt %s --kvcache-assign-layout=target=sm_86 | kv-opt --kvcache-assign-layout=target=sm_80 | FileCheck %s --check-prefixes=CHECK,SM --enable-var-scope
// RUN: not kv-opt %s --kvcache-assign-layout=target=sm_75 2>&1 | FileCheck %s --check-prefix=BAD

// BAD: error: {{.*}}sm_75{{.*}}x86-64{{.*}}sm_80

!cache = !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, unassigned>

// Signatures, block arguments and results change alike; what has a layout keeps it.
// CHECK-LABEL: func.func private @callee
// X86-SAME: !kvcache.cache<{{.*}}, #kvcache.image<"x86-64", hash = "{{[0-9a-f]+}}">>
// SM-SAME: !kvcache.cache<{{.*}}, #kvcache.image<"sm_8x", hash = "{{[0-9a-f]+}}">>
func.func private @callee(!cache)

// CHECK-LABEL: func.func @all
// CHECK-NOT: unassigned
// CHECK: #kvcache.image<"sm_90", hash = "00">
func.func @all(%c: !cache, %b: i1, %q: tensor<2x8x128xf16>, %other: !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<kivi4>, #kvcache.image<"sm_90", hash = "00">>) -> !cache {
  cf.br ^next(%c : !cache)
^next(%arg: !cache):
  %0 = kvcache.seal %arg : !cache
  %r = scf.if %b -> !cache {
    scf.yield %0 : !cache
  } else {
    scf.yield %0 : !cache
  }
  call @callee(%r) : (!cache) -> ()
  %o, %l = kvcache.attention %q, %r : tensor<2x8x128xf16>, !cache -> tensor<2x8x128xf16>, tensor<2x8xf32>
  return %r : !cache
}
