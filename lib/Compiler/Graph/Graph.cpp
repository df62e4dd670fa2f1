//===- Graph.cpp - Graphs of frameworks, run in this process --------------===//
#include "GraphModule.h"

#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Pipelines/CpuPipelines.h"
#include "kvcache/Runner/Arrays.h"
#include "kvcache/Runner/Executable.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Transforms/Passes.h"

using namespace kvcache;
using namespace mlir;

static std::string textOf(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

static GraphValueType graphType(Type type) {
  GraphValueType result;
  result.element = textOf(getElementTypeOrSelf(type));
  if (auto tensor = dyn_cast<RankedTensorType>(type)) {
    result.isTensor = true;
    for (int64_t d : tensor.getShape())
      result.shape.push_back(ShapedType::isDynamic(d) ? -1 : d);
  }
  return result;
}

namespace {
class CompiledGraph : public Graph {
public:
  std::unique_ptr<Executable> executable;

  Expected<std::vector<GraphResult>>
  call(const std::vector<GraphArgument> &arguments) override {
    std::vector<ArrayView> views;
    for (const GraphArgument &argument : arguments)
      views.push_back({argument.data, argument.shape});
    auto results = executable->call(views);
    if (!results)
      return FormatError{llvm::toString(results.takeError())};
    std::vector<GraphResult> out;
    for (const RunResult &result : *results) {
      GraphResult &made = out.emplace_back();
      made.data = result.data;
      made.shape.assign(result.sizes.begin(), result.sizes.end());
      made.strides.assign(result.strides.begin(), result.strides.end());
      if (result.owner)
        made.owner = std::shared_ptr<void>(result.owner, [](void *owner) {
          freeRunBlock(static_cast<std::byte *>(owner));
        });
    }
    return out;
  }
};
} // namespace

/// Refuses types that arrays cannot stand for.
static bool checkSignature(func::FuncOp function, GraphModule &graph) {
  auto check = [&](TypeRange types, const char *what) {
    for (auto [i, type] : llvm::enumerate(types)) {
      if (isRunnable(type))
        continue;
      std::string cache =
          isa<CacheType>(type) ? " (make caches with kvcache.view)" : "";
      graph.refuse(what + (" " + std::to_string(i) + " of '") +
                   function.getName().str() + "' is " + textOf(type) +
                   ", expected a ranked tensor or a scalar of floats, integers "
                   "or index" +
                   cache);
      return false;
    }
    return true;
  };
  return check(function.getArgumentTypes(), "argument") &&
         check(function.getResultTypes(), "result");
}

/// Imports and lowers to the LLVM dialect; the report is filled on the way.
static LogicalResult lower(GraphModule &graph, bool fuse, std::string &report) {
  ModuleOp module = *graph.module;
  auto run = [&](import::PipelineBuilder build) {
    return graph.run(module, build);
  };
  bool isOurs = import::hasCacheOps(module);
  if (failed(graph.run(module, [](OpPassManager &pm) {
        pm.addPass(createSymbolDCEPass());
      })))
    return failure();
  llvm::json::Array entries;
  if (!isOurs) {
    if (failed(import::normalise(module, run)))
      return failure();
    if (fuse)
      entries = recogniseAll(module);
    if (failed(import::finish(module, run)))
      return failure();
  }
  report = llvm::formatv("{0}", llvm::json::Value(std::move(entries)));
  return graph.run(module, [&](OpPassManager &pm) {
    if (fuse)
      return buildToCpuPipeline(pm);
    buildToReferencePipeline(pm);
    buildLowerToLLVMPipeline(pm);
  });
}

Expected<std::unique_ptr<Graph>> Graph::compile(const GraphSource &source) {
  GraphModule graph;
  auto tier = x86::hostTier();
  if (!tier)
    return FormatError{llvm::toString(tier.takeError())};
  if (!graph.parse(source.text, source.name))
    return graph.error("not read");
  func::FuncOp function = graph.findEntry(source.entry);
  if (!function || !checkSignature(function, graph))
    return graph.error("no function to run");
  FunctionType type = function.getFunctionType();
  auto made = std::make_unique<CompiledGraph>();
  made->entry = function.getName().str();
  for (Type t : type.getInputs())
    made->inputs.push_back(graphType(t));
  for (Type t : type.getResults())
    made->outputs.push_back(graphType(t));
  // Other functions count only as far as the entry calls them.
  for (auto other : graph.module->getOps<func::FuncOp>())
    if (other != function)
      other.setPrivate();
  function.setPublic();
  // Arguments are the caller's arrays: nothing may be computed in them.
  Builder b(&graph.context);
  for (unsigned i = 0; i < type.getNumInputs(); ++i)
    function.setArgAttr(i,
                        bufferization::BufferizationDialect::kWritableAttrName,
                        b.getBoolAttr(false));
  if (failed(lower(graph, source.fuse, made->report)))
    return graph.error("not compiled");
  auto executable = Executable::create(*graph.module, made->entry, type, *tier);
  if (!executable)
    return FormatError{llvm::toString(executable.takeError())};
  made->executable = std::move(*executable);
  return std::unique_ptr<Graph>(std::move(made));
}
