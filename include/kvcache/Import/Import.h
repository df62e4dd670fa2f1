// Graphs of frameworks (StableHLO, TOSA, linalg) in, attention found.

#ifndef KVCACHE_IMPORT_IMPORT_H
#define KVCACHE_IMPORT_IMPORT_H

#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"

#include "llvm/Support/JSON.h"

namespace kvcache::import {

#define GEN_PASS_DECL
#include "kvcache/Import/Passes.h.inc"

/// What became of one candidate.
struct Candidate {
  mlir::Location location;
  bool fused = false;
  std::string reason;              ///< why not; "attention" when fused
  llvm::json::Object attributes{}; ///< what was recognised
};

/// On an op: which value of the graph it computes, set by callers that need to
/// know. The op that takes the place of an attention's inherits it.
inline constexpr llvm::StringLiteral kSourceAttr = "kv.source";

/// Finds the attentions of `function`, which is in normal form, and replaces
/// those that kvcache.attention computes exactly.
std::vector<Candidate> recognise(mlir::func::FuncOp function);

/// How a caller runs the passes that a function adds (by a pass manager, or
/// from within a pass).
using PipelineBuilder = llvm::function_ref<void(mlir::OpPassManager &)>;
using PipelineRunner = llvm::function_ref<mlir::LogicalResult(PipelineBuilder)>;

/// The steps of the pass for those that do something in between: to the normal
/// form, `recognise`, and what only recognition needed taken apart.
mlir::LogicalResult normalise(mlir::ModuleOp module, PipelineRunner run);
mlir::LogicalResult finish(mlir::ModuleOp module, PipelineRunner run);

/// A candidate as the JSON report has it.
llvm::json::Object reportEntry(mlir::func::FuncOp function,
                               const Candidate &candidate);

/// Files with kvcache ops are written for us; importing leaves them alone.
bool hasCacheOps(mlir::ModuleOp module);

#define GEN_PASS_REGISTRATION
#include "kvcache/Import/Passes.h.inc"

} // namespace kvcache::import

#endif // KVCACHE_IMPORT_IMPORT_H
