//===- Passes.td - The reference meaning -------------------*- tablegen -*-===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_PASSES
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_PASSES

include "mlir/Pass/PassBase.td"

def KVCacheLowerToReferencePass
    : Pass<"kvcache-lower-to-reference", "::mlir::ModuleOp"> {
  let summary = "lower every kvcache op to plain loops";
  let description = [{
    The executable meaning of the dialect: each op becomes loops of scf, tensor,
    arith and math ops that follow docs/spec.md step by step, slowly. Softmax is
    computed in f64, codes in f32 as the formulas say. A cache value disappears
    into the tensors it was made of, so it must be made by `kvcache.view` in the
    function that uses it (the pipeline `kvcache-to-reference` inlines first).

    Page tables and lengths are checked where they are used, entries that no
    query may see excepted. A failed check is stored in the global
    `kvcache_check_record`; the sequence then counts as empty.

    ```mlir
    %o, %lse = kvcache.merge_states outs(%o1, %o2) lses(%l1, %l2) : ...
      ==>
    scf.for %row = %c0 to %rows step %c1 iter_args(...) { ... math.exp ... }
    ```
  }];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::affine::AffineDialect",
    "::mlir::func::FuncDialect", "::mlir::math::MathDialect",
    "::mlir::memref::MemRefDialect", "::mlir::scf::SCFDialect",
    "::mlir::tensor::TensorDialect"
  ];
}

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_PASSES
