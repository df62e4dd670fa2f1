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

/// Finds the attentions of `function`, which is in normal form, and replaces
/// those that kvcache.attention computes exactly.
std::vector<Candidate> recognise(mlir::func::FuncOp function);

#define GEN_PASS_REGISTRATION
#include "kvcache/Import/Passes.h.inc"

} // namespace kvcache::import

#endif // KVCACHE_IMPORT_IMPORT_H
