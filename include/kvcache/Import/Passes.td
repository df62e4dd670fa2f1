// Passes that import graphs of frameworks.

#ifndef KVCACHE_IMPORT_PASSES_TD
#define KVCACHE_IMPORT_PASSES_TD

include "mlir/Pass/PassBase.td"

def ImportPass : Pass<"kvcache-import", "mlir::ModuleOp"> {
  let summary = "find attention in a graph of a framework";
  let description = [{
    Brings StableHLO, TOSA and linalg to one normal form (linalg on tensors,
    private functions inlined) and replaces each attention in it by one
    `kvcache.attention`. An attention is recognised by what is computed, read as
    scalar expressions at symbolic positions: operand order, layouts, grouped
    heads and dead code in between do not matter. Where the source differs from
    every attention the op can say, the graph is left alone.

    A module that already has kvcache ops is left as it is.

    For each softmax between two contractions there is one remark, fused or why
    not, and with `report` one JSON object.

    ```mlir
    %s = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], ..
    ..
    %o = stablehlo.dot_general %p, %v, ..
    // becomes
    %o, %lse = kvcache.attention %q, %k, %v {scale = 0.25, ..}
    ```
  }];
  let options = [
    Option<"report", "report", "std::string", /*default=*/"\"\"",
           "file to write the candidates to, as a JSON list">,
    Option<"fuse", "fuse", "bool", /*default=*/"true",
           "false: stop at the normal form">
  ];
  let statistics = [
    Statistic<"numFused", "fused", "attentions replaced">,
    Statistic<"numRefused", "refused", "candidates left alone">
  ];
  let dependentDialects = [
    "mlir::arith::ArithDialect", "mlir::cf::ControlFlowDialect",
    "mlir::func::FuncDialect", "mlir::linalg::LinalgDialect",
    "mlir::math::MathDialect", "mlir::scf::SCFDialect",
    "mlir::shape::ShapeDialect", "mlir::tensor::TensorDialect",
    "mlir::tosa::TosaDialect", "::kvcache::KVCacheDialect"
  ];
}

#endif
