//===- GraphModule.h - Reading and importing a graph ------------*- C++ -*-===//
//
// What running a graph and rewriting one for XLA share: a context whose errors
// become one message, and the steps from text to recognised attentions.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_COMPILER_GRAPH_GRAPHMODULE_H
#define KVCACHE_LIB_COMPILER_GRAPH_GRAPHMODULE_H

#include "kvcache/Compiler/GraphCompiler.h"
#include "kvcache/Import/Import.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Pass/PassManager.h"

namespace kvcache {

/// One graph in one context.
class GraphModule {
public:
  GraphModule();

  /// False, with `error()` set, when the text does not parse.
  bool parse(const std::string &text, const std::string &name);

  /// The function to run: `entry`, or the only one it can be. Null, with
  /// `error()` set, when there is none.
  mlir::func::FuncOp findEntry(const std::string &entry);

  /// Runs passes on `on`.
  mlir::LogicalResult
  run(mlir::ModuleOp on, llvm::function_ref<void(mlir::OpPassManager &)> build);

  /// What went wrong; `otherwise` when no diagnostic said so.
  FormatError error(const std::string &otherwise);
  void refuse(std::string message) { messages = std::move(message); }

  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> module;

private:
  std::string name, messages;
  mlir::ScopedDiagnosticHandler handler;
};

/// Recognises attention in every function; the report's entries.
llvm::json::Array recogniseAll(mlir::ModuleOp module);

} // namespace kvcache

#endif // KVCACHE_LIB_COMPILER_GRAPH_GRAPHMODULE_H
