//===- XlaRewrite.cpp - Attention of StableHLO graphs inside XLA ----------===//
//
// Recognition runs on a lowered copy; the original keeps its ops, and those
// that compute a recognised attention's result lose their last use to a custom
// call.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Compiler/XlaCompiler.h"

#include "XlaSlice.h"

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"
#include "kvcache/Support/DenseBooleans.h"

#include "mlir/IR/Dominance.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/Passes.h"

using namespace kvcache;
using namespace mlir;

/// Row-major layouts, as XLA writes them: the fastest dimension first.
static ArrayAttr layoutsOf(TypeRange types, MLIRContext *context) {
  SmallVector<Attribute> layouts;
  for (Type type : types) {
    int64_t rank = cast<RankedTensorType>(type).getRank();
    SmallVector<int64_t> order;
    for (int64_t d = rank; d-- > 0;)
      order.push_back(d);
    auto shape = RankedTensorType::get({rank}, IndexType::get(context));
    layouts.push_back(DenseIntElementsAttr::get(shape, order));
  }
  return ArrayAttr::get(context, layouts);
}

/// Puts the call in the place of the values that the slice computes.
static void replaceByCall(const Slice &slice, StringRef kernel) {
  OpBuilder b(slice.insertBefore);
  SmallVector<Type> results;
  for (ArrayRef<Value> originals : slice.replaced)
    results.push_back(originals.front().getType());
  Location loc = slice.replaced.front().front().getLoc();
  auto call = stablehlo::CustomCallOp::create(
      b, loc, results, slice.leaves, b.getStringAttr(kXlaCallTarget),
      /*has_side_effect=*/BoolAttr(),
      b.getDictionaryAttr(b.getNamedAttr("kernel", b.getStringAttr(kernel))),
      b.getI32IntegerAttr(4), /*called_computations=*/ArrayAttr(),
      layoutsOf(ValueRange(slice.leaves).getTypes(), b.getContext()),
      layoutsOf(results, b.getContext()),
      /*output_operand_aliases=*/ArrayAttr());
  DominanceInfo dominance;
  for (auto [result, originals] : llvm::zip(call.getResults(), slice.replaced))
    for (Value original : originals) {
      // Equal values elsewhere stay as they are.
      Operation *op = original.getDefiningOp();
      if (op && original.getType() == result.getType() &&
          dominance.properlyDominates(call.getOperation(), op))
        original.replaceAllUsesWith(result);
    }
}

/// Ops that nothing needs any more, in regions too.
static void eraseDead(ModuleOp module) {
  SmallVector<Operation *> ops;
  module.walk<WalkOrder::PreOrder>([&](Operation *op) { ops.push_back(op); });
  for (Operation *op : llvm::reverse(ops))
    if (isOpTriviallyDead(op))
      op->erase();
}

namespace {
class Rewriting {
public:
  Rewriting(GraphModule &graph, CpuTier tier) : graph(graph), tier(tier) {}

  LogicalResult run();
  XlaGraph result;

private:
  bool offload(AttentionOp attention, std::string &why);
  void offloadAll(ModuleOp copy, llvm::json::Array &report);

  GraphModule &graph;
  CpuTier tier;
  SourceValues source;
};
} // namespace

bool Rewriting::offload(AttentionOp attention, std::string &why) {
  FailureOr<Slice> slice = cutSlice(attention, source, why);
  if (failed(slice))
    return false;
  FailureOr<std::string> kernel = compileSlice(*slice, graph, tier, why);
  if (failed(kernel))
    return false;
  replaceByCall(*slice, *kernel);
  ++result.calls;
  return true;
}

/// Recognises function by function, so that entries meet their ops.
void Rewriting::offloadAll(ModuleOp copy, llvm::json::Array &report) {
  for (auto function : copy.getOps<func::FuncOp>()) {
    std::vector<import::Candidate> candidates = import::recognise(function);
    SmallVector<AttentionOp> attentions;
    function.walk([&](AttentionOp op) { attentions.push_back(op); });
    auto fused = llvm::count_if(
        candidates, [](const import::Candidate &c) { return c.fused; });
    bool paired = static_cast<size_t>(fused) == attentions.size();
    auto next = attentions.begin();
    for (import::Candidate &candidate : candidates) {
      std::string why = "it does not stand alone in the graph";
      if (candidate.fused && !(paired && offload(*next++, why))) {
        candidate.fused = false;
        candidate.reason = "recognised, but left to XLA: " + why;
      }
      report.push_back(import::reportEntry(function, candidate));
    }
  }
}

LogicalResult Rewriting::run() {
  ModuleOp module = *graph.module;
  if (failed(inlineCalls(module)) ||
      failed(graph.run(module, [](OpPassManager &pm) {
        pm.addPass(createSymbolDCEPass());
      })))
    return failure();
  IRMapping map;
  OwningOpRef<ModuleOp> copy = cast<ModuleOp>(module->clone(map));
  source.mark(module, map);
  auto run = [&](import::PipelineBuilder build) {
    return graph.run(*copy, build);
  };
  if (failed(import::normalise(*copy, run)))
    return failure();
  source.settle(*copy);
  llvm::json::Array report;
  offloadAll(*copy, report);
  eraseDead(module);
  result.report = llvm::formatv("{0}", llvm::json::Value(std::move(report)));
  std::string printed;
  llvm::raw_string_ostream os(printed);
  module.print(os, OpPrintingFlags().enableDebugInfo());
  // As the newer MLIR of frameworks reads them.
  result.text = convertBooleans(printed, Booleans::Bytes);
  return success();
}

Expected<XlaGraph> kvcache::rewriteForXla(const std::string &text,
                                          const std::string &name) {
  auto tier = x86::hostTier();
  if (!tier)
    return FormatError{llvm::toString(tier.takeError())};
  GraphModule graph;
  if (!graph.parse(text, name))
    return graph.error("not read");
  Rewriting rewriting(graph, *tier);
  if (failed(rewriting.run()))
    return graph.error("not imported");
  return std::move(rewriting.result);
}
