//===- Passes.td - Caches as buffers and kernel calls ------*- tablegen -*-===//
#ifndef KVCACHE_CONVERSION_MATERIALIZE_PASSES
#define KVCACHE_CONVERSION_MATERIALIZE_PASSES

include "mlir/Pass/PassBase.td"

def KVCacheMaterializePass : Pass<"kvcache-materialize", "::mlir::ModuleOp"> {
  let summary = "turn caches into buffers, attention on them into kernel calls";
  let description = [{
    The last pass that sees cache types. A cache becomes the tensors that its
    `kvcache.view` was given; `append` and `seal` become calls of generated storage
    kernels (loops where every kv head has its own page list), `read` a loop; an
    attention on our own pages becomes a call of a kernel that is generated
    for it (schedule chosen for the CPU tier) with the arguments of
    kvcache/ABI/KernelABI.h: checked lengths and tables, a workspace, all work
    items, then the merge.

    Attention on tensors becomes a call of a kernel on arrays, with the arguments
    of kvcache/ABI/ArrayKernelABI.h, whose work items `kvcache_parallel_for`
    spreads over threads; so does attention on an external layout, with functions
    that decode tiles of keys and values through the layout's maps.

    An attention that no kernel can compute (sink logits on our own pages, say) is
    lowered to plain loops with a warning that says why. Tables and lengths are checked as
    by `kvcache-lower-to-reference`.

    ```mlir
    %o, %lse = kvcache.attention %q, %cache {causal = ...} : ...
      ==>
    %args = llvm.alloca ...
    %status = func.call @kvcache_kernel_0_attend(%args, %c0, %items) : ...
    func.call @kvcache_kernel_0_merge(%args, %c0, %rows) : ...
    %o = bufferization.to_tensor %out restrict writable
    ```
  }];
  let options = [
    Option<"cpu", "cpu", "std::string", /*default=*/"",
           "tier of the code: v2, avx2 or avx512 (default: KVCACHE_CPU, else "
           "the best of this machine)">,
  ];
  let dependentDialects = [
    "::kvcache::tile::KVTileDialect", "::mlir::affine::AffineDialect",
    "::mlir::arith::ArithDialect",
    "::mlir::bufferization::BufferizationDialect", "::mlir::func::FuncDialect",
    "::mlir::LLVM::LLVMDialect", "::mlir::math::MathDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect",
    "::mlir::tensor::TensorDialect", "::mlir::vector::VectorDialect"
  ];
}

#endif // KVCACHE_CONVERSION_MATERIALIZE_PASSES
