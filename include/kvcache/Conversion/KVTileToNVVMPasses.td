//===- KVTileToNVVMPasses.td - Lowering to GPU threads ------*- tablegen -*-===//
#ifndef KVCACHE_CONVERSION_KVTILETONVVMPASSES_TD
#define KVCACHE_CONVERSION_KVTILETONVVMPASSES_TD

include "mlir/Pass/PassBase.td"

def KVTileToNVVMPass : Pass<"kvtile-to-nvvm", "::mlir::ModuleOp"> {
  let summary = "Lower scheduled kernels to code of a GPU thread";
  let description = [{
    Turns each `kvtile.kernel` into an `llvm.func` marked `nvvm.kernel` with the
    arguments of kvcache/ABI/KernelABI.h: one block per work item, warps split
    over the tokens, keys and values as operand A of `nvvm.mma.sync`, partials
    merged by the last block to arrive. The schedule is obeyed; what has no
    kernel on PTX targets is refused by name.

    ```mlir
    kvtile.kernel @attend spec(...) schedule(...) { ... }
    // becomes
    llvm.func @attend(%q: !llvm.ptr<1>, ...) attributes {nvvm.kernel, ...} { ... }
    ```
  }];
  let dependentDialects = ["::mlir::LLVM::LLVMDialect",
                           "::mlir::NVVM::NVVMDialect"];
}

#endif // KVCACHE_CONVERSION_KVTILETONVVMPASSES_TD
