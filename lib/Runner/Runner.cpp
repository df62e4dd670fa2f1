//===- Runner.cpp - Running one function of a file on arrays --------------===//
#include "kvcache/Runner/Runner.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Pipelines/CpuPipelines.h"
#include "kvcache/Runner/Arrays.h"
#include "kvcache/Runner/Invoke.h"
#include "kvcache/Target/X86/ParallelFor.h"

#include "SimKernels.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/SourceMgr.h"

using namespace kvcache;
using namespace mlir;

/// The function to run, or an error that lists what there is.
static llvm::Expected<func::FuncOp> findEntry(ModuleOp module,
                                              StringRef entry) {
  std::string names;
  for (auto function : module.getOps<func::FuncOp>()) {
    if (function.getName() == entry) {
      if (function.isExternal())
        return llvm::createStringError("'" + entry + "' has no body");
      return function;
    }
    names += (names.empty() ? "'" : ", '") + function.getName().str() + "'";
  }
  return llvm::createStringError("no function '" + entry + "' in this file" +
                                 (names.empty() ? "" : ", it has " + names));
}

static std::string typeText(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

/// Refuses types that arrays cannot stand for, and wrong numbers of files.
static llvm::Error checkSignature(func::FuncOp function,
                                  const RunOptions &options) {
  FunctionType type = function.getFunctionType();
  for (auto [i, input] : llvm::enumerate(type.getInputs())) {
    std::string name =
        "argument " + std::to_string(i) + " of '" + options.entry + "' is ";
    if (isa<CacheType>(input))
      return llvm::createStringError(
          name + "a cache, which no array can stand for: make it with "
                 "kvcache.view");
    if (!isRunnable(input))
      return llvm::createStringError(name + typeText(input) +
                                     ", expected a ranked tensor or a scalar "
                                     "of floats, integers or index");
  }
  for (auto [i, result] : llvm::enumerate(type.getResults()))
    if (!isRunnable(result))
      return llvm::createStringError(
          "result " + std::to_string(i) + " of '" + options.entry + "' is " +
          typeText(result) +
          ", expected a ranked tensor or a scalar of floats, integers or "
          "index");
  auto count = [&](size_t have, size_t want, const char *what,
                   const char *flag) -> llvm::Error {
    if (have == want)
      return llvm::Error::success();
    return llvm::createStringError("'" + options.entry + "' has " +
                                   std::to_string(want) + " " + what + ", " +
                                   flag + " gives " + std::to_string(have));
  };
  if (llvm::Error error = count(options.args.size(), type.getNumInputs(),
                                "arguments", "--args"))
    return error;
  for (auto [i, path] : llvm::enumerate(options.outs))
    if (llvm::is_contained(llvm::ArrayRef(options.outs).take_front(i), path))
      return llvm::createStringError("'" + path +
                                     "' is given twice in --out, expected one "
                                     "file per result");
  return count(options.outs.size(), type.getNumResults(), "results", "--out");
}

static llvm::Expected<std::vector<NpyArray>>
readArguments(FunctionType type, const RunOptions &options) {
  std::vector<NpyArray> arrays;
  for (auto [i, path] : llvm::enumerate(options.args)) {
    auto array = readNpy(path);
    if (auto *error = std::get_if<NpyError>(&array))
      return llvm::createStringError(error->message);
    arrays.push_back(std::move(std::get<NpyArray>(array)));
    if (llvm::Error error = checkArgument(arrays.back(), type.getInput(i)))
      return llvm::createStringError("argument " + std::to_string(i) + " (" +
                                     path +
                                     "): " + llvm::toString(std::move(error)));
  }
  return arrays;
}

/// "5 calls: 1.234 ms (median), 1.200 ms (least), 2.400 ms of processors".
static void printTimes(llvm::MutableArrayRef<CallTime> times) {
  auto median = [&](auto field) {
    llvm::sort(times, [&](const CallTime &a, const CallTime &b) {
      return a.*field < b.*field;
    });
    return 1000 * (times[times.size() / 2].*field);
  };
  double processors = median(&CallTime::processors);
  double wall = median(&CallTime::wall);
  llvm::errs() << times.size() << " calls: "
               << llvm::format("%.3f ms (median), %.3f ms (least), %.3f ms of "
                               "processors\n",
                               wall, 1000 * times.front().wall, processors);
}

llvm::Error kvcache::run(const RunOptions &options,
                         const DialectRegistry &registry) {
  SimKernels simulator;
  bool simulated = options.device != "cpu";
  if (simulated)
    if (llvm::Error error = simulator.open(options.device))
      return error;
  if (simulated && !options.fuse)
    return llvm::createStringError(
        "--no-fuse runs the reference, which no kernel of device '" +
        options.device + "' is part of");
  auto tier = x86::hostTier();
  if (!tier)
    return tier.takeError();
  if (std::string bad = x86::threadsError(); !bad.empty())
    return llvm::createStringError(bad);
  MLIRContext context(registry);
  llvm::SourceMgr sources;
  SourceMgrDiagnosticHandler diagnostics(sources, &context);
  auto module = parseSourceFile<ModuleOp>(options.file, sources, &context);
  if (!module)
    return llvm::createStringError(options.file + " was not read");
  auto function = findEntry(*module, options.entry);
  if (!function)
    return function.takeError();
  if (llvm::Error error = checkSignature(*function, options))
    return error;
  FunctionType type = function->getFunctionType();
  auto arrays = readArguments(type, options);
  if (!arrays)
    return arrays.takeError();

  // Other functions count only as far as the entry calls them.
  for (auto other : module->getOps<func::FuncOp>())
    if (other != *function)
      other.setPrivate();
  function->setPublic();
  PassManager pm(&context);
  pm.addPass(createSymbolDCEPass());
  if (simulated)
    buildRunOnDevicePipeline(
        pm, simulator.target(),
        [&](const KernelSpec &spec) { return simulator.get(spec); });
  else
    buildRunOnCpuPipeline(pm, options.fuse);
  if (failed(pm.run(*module)))
    return llvm::createStringError(options.file + " was not compiled");
  if (simulated && simulator.empty())
    return llvm::createStringError(
        "'" + options.entry +
        "' has no attention on a cache of ours, so "
        "nothing of it runs on device '" +
        options.device +
        "': make the cache with kvcache.view, or use --device=cpu");
  std::vector<CallTime> times(options.repeat);
  auto results = invoke(*module, options.entry, type, std::move(*arrays), *tier,
                        times, SimKernels::symbols());
  if (!results)
    return results.takeError();
  if (!simulator.message().empty())
    return llvm::createStringError(simulator.message());
  if (!times.empty())
    printTimes(times);
  for (auto [path, array] : llvm::zip(options.outs, *results))
    if (std::string error = writeNpy(path, array); !error.empty())
      return llvm::createStringError(error);
  return llvm::Error::success();
}
