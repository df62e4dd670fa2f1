// RUN: kv-opt %s --kvcache-to-reference | FileCheck %s --enable-var-scope
// What the loops compute is the business of test/python/test_reference*.py; here
// is what is left.

!cache = !kvcache.cache<kv = 2, d = 16, open = f16, #kvcache.format<"key=i4:channel:g8,value=i8:token,page=8">>

// CHECK-NOT: kvcache.
// CHECK-LABEL: func @attend
// Tables and lengths are checked before the first row.
// CHECK: call @kvcache_check_failed
// CHECK: math.exp
// CHECK: math.log
func.func @attend(%q: tensor<2x4x16xf16>, %sp: tensor<?xi8>, %op: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>)
    -> (tensor<2x4x16xf16>, tensor<2x4xf32>) {
  %c = kvcache.view pools(%sp, %op : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  %o, %l = kvcache.attention %q, %c {causal = #kvcache.causal<bottom_right>}
    : tensor<2x4x16xf16>, !cache -> tensor<2x4x16xf16>, tensor<2x4xf32>
  return %o, %l : tensor<2x4x16xf16>, tensor<2x4xf32>
}

// A cache may go through a private function: it is inlined first.
// CHECK-LABEL: func @through_a_function
// CHECK-NOT: call @appended
func.func private @appended(%c: !cache, %k: tensor<?x2x16xf16>, %r: tensor<?xi32>) -> !cache {
  %a = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<?x2x16xf16>, tensor<?x2x16xf16> rows(tensor<?xi32>)
  %s = kvcache.seal %a : !cache
  return %s : !cache
}
func.func @through_a_function(%sp: tensor<?xi8>, %op: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>,
    %k: tensor<?x2x16xf16>, %r: tensor<?xi32>) -> tensor<2x2x?x16xf32> {
  %c = kvcache.view pools(%sp, %op : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  %s = call @appended(%c, %k, %r) : (!cache, tensor<?x2x16xf16>, tensor<?xi32>) -> !cache
  %rk, %rv, %rn = kvcache.read %s : !cache -> tensor<2x2x?x16xf32>, tensor<2x2x?x16xf32>, tensor<2xi32>
  return %rk : tensor<2x2x?x16xf32>
}

// The record of failed checks is one global of the module.
// CHECK: memref.global @kvcache_check_record : memref<5xi64> = dense<0>
