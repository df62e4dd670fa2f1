//===- GraphModule.cpp - Reading and importing a graph --------------------===//
#include "GraphModule.h"

#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/InitAll.h"
#include "kvcache/Support/DenseBooleans.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Shape/IR/Shape.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Tosa/IR/TosaOps.h"
#include "mlir/Parser/Parser.h"

using namespace kvcache;
using namespace mlir;

static const DialectRegistry &dialects() {
  static const DialectRegistry *registry = [] {
    auto *made = new DialectRegistry;
    registerAllDialects(*made);
    return made;
  }();
  return *registry;
}

/// "file:line:col: " of the place in the graph, "" where there is none.
static std::string placeOf(Location loc) {
  if (auto file = loc->findInstanceOf<FileLineColLoc>())
    return (file.getFilename().getValue() + ":" + Twine(file.getLine()) + ":" +
            Twine(file.getColumn()) + ": ")
        .str();
  return "";
}

GraphModule::GraphModule()
    : context(dialects(), MLIRContext::Threading::DISABLED),
      handler(&context, [this](Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
          messages += (messages.empty() ? "" : "\n") +
                      placeOf(diagnostic.getLocation()) + diagnostic.str();
        return success();
      }) {
  // Within a pass manager the import pass asks for these.
  context.loadDialect<arith::ArithDialect, bufferization::BufferizationDialect,
                      cf::ControlFlowDialect, func::FuncDialect,
                      linalg::LinalgDialect, math::MathDialect, scf::SCFDialect,
                      shape::ShapeDialect, tensor::TensorDialect,
                      tosa::TosaDialect, KVCacheDialect>();
}

bool GraphModule::parse(const std::string &text, const std::string &source) {
  name = source;
  module = parseSourceString<ModuleOp>(convertBooleans(text, Booleans::Bits),
                                       &context, source);
  if (module)
    return true;
  if (messages.find("torch.") != std::string::npos)
    messages += "\n(the torch dialect is not read: export with "
                "torch_mlir.fx.export_and_import(.., output_type='stablehlo') "
                "or 'linalg-on-tensors')";
  return false;
}

func::FuncOp GraphModule::findEntry(const std::string &entry) {
  std::string names;
  SmallVector<func::FuncOp> candidates;
  for (auto function : module->getOps<func::FuncOp>()) {
    if (function.isExternal())
      continue;
    if (function.getName() == entry)
      return function;
    names += (names.empty() ? "'" : ", '") + function.getName().str() + "'";
    if (function.isPublic())
      candidates.push_back(function);
  }
  if (!entry.empty()) {
    messages = name + ": no function '" + entry + "' with a body" +
               (names.empty() ? "" : ", there is " + names);
    return {};
  }
  if (candidates.size() == 1)
    return candidates.front();
  for (func::FuncOp function : candidates)
    if (function.getName() == "main")
      return function;
  messages = name + (names.empty() ? ": no function with a body"
                                   : ": several functions, entry= must name "
                                     "one of " +
                                         names);
  return {};
}

LogicalResult
GraphModule::run(ModuleOp on, llvm::function_ref<void(OpPassManager &)> build) {
  PassManager passes(&context);
  build(passes);
  return passes.run(on);
}

FormatError GraphModule::error(const std::string &otherwise) {
  return FormatError{messages.empty() ? name + ": " + otherwise : messages};
}

llvm::json::Array kvcache::recogniseAll(ModuleOp module) {
  llvm::json::Array report;
  for (auto function : module.getOps<func::FuncOp>())
    for (const import::Candidate &candidate : import::recognise(function))
      report.push_back(import::reportEntry(function, candidate));
  return report;
}
