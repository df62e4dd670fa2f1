//===- Input.cpp - The spec of an input file ------------------------------===//
//
// The file is fused (attention on decoded tensors becomes attention on a
// cache), checked against the target, and must then hold one attention, whose
// spec is compiled. Diagnostics carry the file's locations.
//
//===----------------------------------------------------------------------===//
#include "Drivers.h"

#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"
#include "kvcache/Pipelines/Pipelines.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::compile;

/// "FILE:LINE:COLUMN: MESSAGE".
static std::string located(Diagnostic &diagnostic) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto at = dyn_cast<FileLineColLoc>(diagnostic.getLocation()))
    os << at.getFilename().getValue() << ":" << at.getLine() << ":"
       << at.getColumn() << ": ";
  os << diagnostic.str();
  return text;
}

static FailureOr<KernelSpec> readModule(ModuleOp module,
                                        const TargetInfo &target) {
  PassManager passes(module.getContext());
  buildFusePipeline(passes);
  if (failed(passes.run(module)) || failed(verifyTargetLegal(module, target)))
    return failure();
  llvm::SmallVector<AttentionOp> found;
  module.walk([&](AttentionOp op) { found.push_back(op); });
  if (found.size() != 1)
    return module.emitError()
           << "expected one kvcache.attention to compile, got " << found.size();
  return getKernelSpec(found.front());
}

Expected<KernelSpec> compile::specOf(const Options &options) {
  if (options.input.empty())
    return options.spec;
  DialectRegistry registry;
  registry.insert<KVCacheDialect, func::FuncDialect, tensor::TensorDialect,
                  arith::ArithDialect, math::MathDialect, scf::SCFDialect,
                  linalg::LinalgDialect>();
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  std::string errors;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
      errors += (errors.empty() ? "" : "\n") + located(diagnostic);
    return success();
  });
  OwningOpRef<ModuleOp> module =
      parseSourceFile<ModuleOp>(options.input, ParserConfig(&context));
  FailureOr<KernelSpec> spec = failure();
  if (module)
    spec = readModule(*module, *options.target);
  if (failed(spec))
    return FormatError{errors.empty() ? "cannot read '" + options.input + "'"
                                      : errors};
  return *spec;
}
