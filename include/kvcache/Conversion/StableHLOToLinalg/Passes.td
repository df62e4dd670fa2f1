// Passes of the StableHLO lowering.

#ifndef KVCACHE_CONVERSION_STABLEHLOTOLINALG_PASSES_TD
#define KVCACHE_CONVERSION_STABLEHLOTOLINALG_PASSES_TD

include "mlir/Pass/PassBase.td"

def StableHLOToLinalgPass
    : Pass<"kvcache-stablehlo-to-linalg", "mlir::ModuleOp"> {
  let summary = "lower the stablehlo subset to linalg on tensors";
  let description = [{
    Rewrites every stablehlo, chlo, sdy and tm_tensor op to linalg, tensor,
    arith, math and scf. Unsigned element types become signless ones of the same
    width. Sums of f16 and bf16 are carried in f32 and rounded once; start
    indices of slices are clamped, conversions to integers saturate.

    ```mlir
    %1 = stablehlo.add %0, %0 : tensor<4xf32>
    // becomes
    %1 = linalg.generic {..} ins(%0, %0) outs(%empty) { arith.addf .. }
    ```
  }];
  let dependentDialects = [
    "mlir::arith::ArithDialect", "mlir::func::FuncDialect",
    "mlir::linalg::LinalgDialect", "mlir::math::MathDialect",
    "mlir::scf::SCFDialect", "mlir::tensor::TensorDialect"
  ];
}

#endif
