//===- Passes.td - Expanding narrow floats -----------------*- tablegen -*-===//
#ifndef KVCACHE_CONVERSION_EXPANDFLOATS_PASSES
#define KVCACHE_CONVERSION_EXPANDFLOATS_PASSES

include "mlir/Pass/PassBase.td"

def KVCacheExpandFloatsPass : Pass<"kvcache-expand-floats"> {
  let summary = "expand conversions of bf16 and fp8 into integer arithmetic";
  let description = [{
    LLVM has no fp8 types, and its x86 backend rounds to bf16 by a library call
    that Debian's libgcc lacks. This pass rewrites `arith.extf`, `arith.truncf`,
    `arith.sitofp`, `arith.uitofp`, `arith.fptosi` and `arith.fptoui` that touch
    f8E4M3FN, f8E5M2 or bf16, on scalars and vectors. Rounding is to
    nearest, ties to even, in one step (f64 goes through a round-to-odd f32);
    values beyond the largest f8E4M3FN become NaN and beyond the largest f8E5M2
    infinite, as those types say. Only conversions are touched: run
    `arith-emulate-unsupported-floats` before for arithmetic in these types.

    ```mlir
    %w = arith.extf %b : f8E5M2 to f32
      ==>
    %0 = arith.bitcast %b : f8E5M2 to i8
    %1 = arith.extui %0 : i8 to i16
    %2 = arith.shli %1, %c8 : i16
    %3 = arith.bitcast %2 : i16 to f16
    %w = arith.extf %3 : f16 to f32
    ```
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect"];
}

#endif // KVCACHE_CONVERSION_EXPANDFLOATS_PASSES
