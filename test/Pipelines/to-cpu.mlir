// RUN: kv-opt %s --kvcache-to-cpu | FileCheck %s --implicit-check-not=kvcache.view --implicit-check-not=scf. \
// RUN:   --implicit-check-not=memref. --implicit-check-not=unrealized_conversion_cast
// RUN: kv-opt %s --kvcache-to-cpu | mlir-translate --mlir-to-llvmir | FileCheck %s --check-prefix=LLVM

!cache = !kvcache.cache<kv = 2, d = 64, open = f16, #kvcache.format<kivi4, page = 32>>

// CHECK-LABEL: llvm.func @decode
// CHECK: llvm.call @kvcache_storage_0_append
// CHECK: llvm.call @kvcache_kernel_0_attend
// CHECK: llvm.call @kvcache_kernel_0_merge
// LLVM: define {{.*}}@decode(
// LLVM: define i32 @kvcache_kernel_0_attend(ptr
func.func @decode(%q: tensor<2x8x64xf16>, %sp: tensor<?xi8>, %op: tensor<?xi8>, %t: tensor<2x5xi32>, %n: tensor<2xi32>,
    %k: tensor<2x2x64xf16>, %r: tensor<2xi32>) -> (tensor<2x8x64xf16>, tensor<2x8xf32>) {
  %c = kvcache.view pools(%sp, %op : tensor<?xi8>, tensor<?xi8>) table(%t, %t : tensor<2x5xi32>, tensor<2x5xi32>)
    sealed_pages(%n : tensor<2xi32>) lengths(%n : tensor<2xi32>) -> !cache
  %a = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<2x2x64xf16>, tensor<2x2x64xf16> rows(tensor<2xi32>)
  %o, %l = kvcache.attention %q, %a {causal = #kvcache.causal<bottom_right>}
    : tensor<2x8x64xf16>, !cache -> tensor<2x8x64xf16>, tensor<2x8xf32>
  return %o, %l : tensor<2x8x64xf16>, tensor<2x8xf32>
}
