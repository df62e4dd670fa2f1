//===- Passes.td - From attention ops to kernels -----------*- tablegen -*-===//
//
// The step from the dialect of meaning to that of schedules.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_OUTLINEKERNELS_PASSES
#define KVCACHE_CONVERSION_OUTLINEKERNELS_PASSES

include "mlir/Pass/PassBase.td"

def OutlineKernelsPass : Pass<"kvcache-outline-kernels", "::mlir::ModuleOp"> {
  let summary = "name a kernel for each kind of attention, drop host functions";
  let description = [{
    For a GPU a module becomes its kernels: each distinct spec among its
    attentions on caches gives one `kvtile.kernel` without schedule and body, and
    the functions that held them go, since launching is the runtime's. A module
    without kvcache ops is left as it is.

    ```
    func.func @f(...) {
      %o, %lse = kvcache.attention %q, %c : tensor<4x32x128xf16>, !kvcache.cache<...> -> ...
    }
    // becomes
    kvtile.kernel @attend spec(#kvtile.spec<q_heads = 32, kv_heads = 8, ...>)
    ```
  }];
  let dependentDialects = ["::kvcache::tile::KVTileDialect"];
}

#endif // KVCACHE_CONVERSION_OUTLINEKERNELS_PASSES
