//===- KVTilePasses.td - Passes of the schedule level -------*- tablegen -*-===//
#ifndef KVCACHE_CONVERSION_KVTILEPASSES_TD
#define KVCACHE_CONVERSION_KVTILEPASSES_TD

include "mlir/Pass/PassBase.td"

def KVTileChooseSchedulePass : Pass<"kvtile-choose-schedule", "::mlir::ModuleOp"> {
  let summary = "Write the schedule of each kernel from a target description";
  let description = [{
    Adds a `#kvtile.schedule` to every `kvtile.kernel` that has none; pinned
    schedules stay. Fails, naming the limit, when no schedule fits the target.

    ```mlir
    kvtile.kernel @attend spec(#kvtile.spec<...>)
    // becomes
    kvtile.kernel @attend spec(#kvtile.spec<...>)
                  schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 4, ...>)
    ```
  }];
  let dependentDialects = ["::kvcache::tile::KVTileDialect"];
  let options = [
    Option<"target", "target", "std::string", "\"x86-64\"",
           "Target to schedule for">,
    Option<"cpu", "cpu", "std::string", "\"avx512\"",
           "Tier of x86-64: v2, avx2 or avx512">,
    Option<"overrides", "set", "std::string", "\"\"",
           "Fields to change afterwards, KEY=V;KEY=V">];
}

def KVTileVerifySchedulePass : Pass<"kvtile-verify-schedule", "::mlir::ModuleOp"> {
  let summary = "Check each kernel's schedule against a target description";
  let description = [{
    Fails, naming the limit and both values, if a kernel has no schedule or its
    schedule does not suit the target.
  }];
  let options = [
    Option<"target", "target", "std::string", "\"x86-64\"",
           "Target to check for">,
    Option<"cpu", "cpu", "std::string", "\"avx512\"",
           "Tier of x86-64: v2, avx2 or avx512">];
}

def KVTileExpandAttendPass : Pass<"kvtile-expand-attend", "::mlir::ModuleOp"> {
  let summary = "Write the body of scheduled attention kernels";
  let description = [{
    Fills every `kvtile.kernel` that has a schedule and no body with the decode
    algorithm: load the queries, visit sealed then open tiles, score, mask,
    online softmax in base 2, accumulate, store the partial.
  }];
  let dependentDialects = ["::kvcache::tile::KVTileDialect",
                           "::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect"];
}

def ConvertKVTileToCPUPass
    : Pass<"convert-kvtile-to-cpu", "::mlir::ModuleOp"> {
  let summary = "Lower kernels to serial vector code";
  let description = [{
    Replaces each `kvtile.kernel` scheduled for a CPU by the entry points
    `attend` and `merge` of kvcache/ABI/KernelABI.h, as functions over raw
    pointers that loop over a range of work items.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect",
                           "::mlir::func::FuncDialect",
                           "::mlir::LLVM::LLVMDialect",
                           "::mlir::math::MathDialect",
                           "::mlir::scf::SCFDialect",
                           "::mlir::vector::VectorDialect"];
}

#endif // KVCACHE_CONVERSION_KVTILEPASSES_TD
