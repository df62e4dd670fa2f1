// The import pass: normal form, recognition, remarks and the JSON report.

#include "kvcache/Import/Import.h"
#include "kvcache/Conversion/StableHLOToLinalg/StableHLOToLinalg.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Linalg/Passes.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Shape/IR/Shape.h"
#include "mlir/Dialect/Shape/Transforms/Passes.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Tensor/Transforms/Transforms.h"
#include "mlir/Dialect/Tosa/IR/TosaOps.h"
#include "mlir/Dialect/Tosa/Transforms/Passes.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"

#include "llvm/Support/FileSystem.h"

namespace kvcache::import {
#define GEN_PASS_DEF_IMPORTPASS
#include "kvcache/Import/Passes.h.inc"
} // namespace kvcache::import

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

/// Whether any op of the dialect is there: its lowering is skipped otherwise.
template <typename DialectT>
static bool contains(ModuleOp module) {
  return module
      ->walk([](Operation *op) {
        return isa_and_nonnull<DialectT>(op->getDialect())
                   ? WalkResult::interrupt()
                   : WalkResult::advance();
      })
      .wasInterrupted();
}

/// The elements of a constant kept at the end of the file; null when they are
/// too many to be a mask or have another size than they should.
static DenseElementsAttr readElements(DenseResourceElementsAttr attr) {
  constexpr int64_t kMost = 1 << 22;
  auto type = dyn_cast<RankedTensorType>(attr.getType());
  AsmResourceBlob *blob = attr.getRawHandle().getBlob();
  if (!type || !blob || !type.getElementType().isIntOrFloat() ||
      type.getNumElements() > kMost)
    return {};
  ArrayRef<char> data = blob->getData();
  if (type.getElementType().isInteger(1)) {
    // One byte each here, unlike in the attribute.
    if (static_cast<int64_t>(data.size()) != type.getNumElements())
      return {};
    SmallVector<bool> bits(data.begin(), data.end());
    return DenseElementsAttr::get(type, bits);
  }
  bool isSplat = false;
  if (!DenseElementsAttr::isValidRawBuffer(type, data, isSplat))
    return {};
  return DenseElementsAttr::getFromRawBuffer(type, data);
}

/// Masks and slopes that exporters keep apart are read as other constants.
static void readResources(ModuleOp module) {
  module.walk([](Operation *op) {
    for (StringRef name : {"value", "values"})
      if (auto attr = op->getAttrOfType<DenseResourceElementsAttr>(name))
        if (DenseElementsAttr elements = readElements(attr))
          op->setAttr(name, elements);
  });
}

/// After StableHLO is gone: one function, linalg on tensors.
static void buildNormalForm(OpPassManager &pm, ModuleOp module) {
  // Attention spread over private functions is seen whole.
  pm.addPass(createInlinerPass());
  pm.addPass(createSymbolDCEPass());
  auto &function = pm.nest<func::FuncOp>();
  if (contains<tosa::TosaDialect>(module)) {
    function.addPass(tosa::createTosaMakeBroadcastablePass());
    function.addPass(tosa::createTosaToLinalgNamed());
    function.addPass(createCanonicalizerPass());
    function.addPass(tosa::createTosaToLinalg());
    TosaToArithPassOptions arith;
    arith.includeApplyRescale = true;
    function.addPass(mlir::createTosaToArithPass(arith));
    function.addPass(createTosaToTensorPass());
    function.addPass(createTosaToSCFPass());
  }
  if (contains<shape::ShapeDialect>(module)) {
    // Shapes that exporters promise to agree are taken to agree.
    function.addPass(createRemoveShapeConstraintsPass());
    function.addPass(createCanonicalizerPass());
    pm.addPass(createConvertShapeToStandardPass());
  }
  auto &rest = pm.nest<func::FuncOp>();
  // One form of contraction, transposition and fill to read.
  rest.addPass(createLinalgGeneralizeNamedOpsPass());
  rest.addPass(createCanonicalizerPass());
  // The same value twice is the same to recognition.
  rest.addPass(createCSEPass());
}

LogicalResult kvcache::import::normalise(ModuleOp module, PipelineRunner run) {
  readResources(module);
  if (failed(stablehlo::lowerToLinalg(module)))
    return failure();
  return run([&](OpPassManager &pm) { buildNormalForm(pm, module); });
}

/// Concatenations are kept until here because recognition reads them.
LogicalResult kvcache::import::finish(ModuleOp module, PipelineRunner run) {
  RewritePatternSet patterns(module.getContext());
  tensor::populateDecomposeTensorConcatPatterns(patterns);
  if (failed(applyPatternsGreedily(module, std::move(patterns))))
    return failure();
  return run([](OpPassManager &pm) {
    pm.addPass(createCanonicalizerPass());
    pm.addPass(createCSEPass());
  });
}

static std::string locationText(Location loc) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto file = loc->findInstanceOf<FileLineColLoc>())
    os << file.getFilename().getValue() << ':' << file.getLine() << ':'
       << file.getColumn();
  else
    os << loc;
  return text;
}

llvm::json::Object kvcache::import::reportEntry(func::FuncOp function,
                                                const Candidate &candidate) {
  llvm::json::Object entry = candidate.attributes;
  entry["function"] = function.getName();
  entry["location"] = locationText(candidate.location);
  entry["fused"] = candidate.fused;
  entry["reason"] = candidate.reason;
  return entry;
}

bool kvcache::import::hasCacheOps(ModuleOp module) {
  return contains<KVCacheDialect>(module);
}

static LogicalResult writeReport(ModuleOp module, StringRef path,
                                 llvm::json::Array report) {
  std::error_code error;
  llvm::raw_fd_ostream out(path, error, llvm::sys::fs::OF_Text);
  if (error)
    return module.emitError("cannot write the report to '")
           << path << "': " << error.message();
  out << llvm::formatv("{0:2}", llvm::json::Value(std::move(report))) << '\n';
  return success();
}

namespace {
struct ImportPass : kvcache::import::impl::ImportPassBase<ImportPass> {
  using ImportPassBase::ImportPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    llvm::json::Array entries;
    auto run = [&](PipelineBuilder build) {
      OpPassManager pm(ModuleOp::getOperationName());
      build(pm);
      return runPipeline(pm, module);
    };
    // A file of kvcache ops was written for us: it stays as it is.
    bool isOurs = hasCacheOps(module);
    if (!isOurs && failed(normalise(module, run)))
      return signalPassFailure();
    if (!isOurs && fuse)
      for (auto function : module.getOps<func::FuncOp>())
        recogniseIn(function, entries);
    if (!report.empty() &&
        failed(writeReport(module, report, std::move(entries))))
      return signalPassFailure();
    if (!isOurs && failed(finish(module, run)))
      signalPassFailure();
  }

  void recogniseIn(func::FuncOp function, llvm::json::Array &entries) {
    for (const Candidate &candidate : recognise(function)) {
      (candidate.fused ? numFused : numRefused) += 1;
      std::string attributes;
      if (!candidate.attributes.empty())
        attributes = llvm::formatv(" {0}", llvm::json::Value(llvm::json::Object(
                                               candidate.attributes)));
      emitRemark(candidate.location)
          << (candidate.fused ? "fused attention" : "attention left alone: ")
          << (candidate.fused ? attributes : candidate.reason);
      entries.push_back(reportEntry(function, candidate));
    }
  }
};
} // namespace
