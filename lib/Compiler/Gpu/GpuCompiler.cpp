//===- GpuCompiler.cpp - From a spec to PTX -------------------------------===//
//
// spec -> kvtile (schedule, body) -> nvvm -> LLVM IR -> PTX in one context that
// knows only the dialects on this road: registering everything that MLIR has
// would take longer than compiling a kernel.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Compiler/GpuCompiler.h"

#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"
#include "kvcache/Conversion/KVTileToNVVM.h"
#include "kvcache/Conversion/StorageKernels.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Target/PTX/PTX.h"

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"

#include <chrono>

using namespace mlir;
using namespace kvcache;

/// Threads of a block of the storage kernels.
static constexpr int64_t kStorageThreads = 128;

namespace {
/// One compilation: a context, a module, the diagnostics of its errors.
class Compilation {
  // First: what follows lives in it.
  MLIRContext context;
  std::unique_ptr<ScopedDiagnosticHandler> handler;

public:
  Compilation(const KernelSpec &spec, const TargetInfo &target,
              const std::string &overrides);

  /// The attend kernel, up to and including a stage.
  bool toKVTile();
  bool toNVVM();
  /// Adds append, seal, unseal and read, lowered.
  bool addStorage();
  FormatError error() const {
    return {messages.empty() ? "compilation failed" : messages};
  }
  std::string text();

  KernelSpec spec;
  const TargetInfo &target;
  std::string overrides;
  std::string messages;
  std::vector<Phase> phases;
  tile::ScheduleAttr schedule;
  OwningOpRef<ModuleOp> module;

  template <typename F>
  auto timed(const char *name, F f) {
    auto start = std::chrono::steady_clock::now();
    auto result = f();
    phases.push_back({name, std::chrono::duration<double, std::milli>(
                                std::chrono::steady_clock::now() - start)
                                .count()});
    return result;
  }

private:
  static DialectRegistry registry();
};
} // namespace

DialectRegistry Compilation::registry() {
  DialectRegistry registry;
  registry.insert<tile::KVTileDialect, arith::ArithDialect, math::MathDialect,
                  scf::SCFDialect, cf::ControlFlowDialect, LLVM::LLVMDialect,
                  NVVM::NVVMDialect>();
  ptx::registerDialects(registry);
  return registry;
}

Compilation::Compilation(const KernelSpec &spec, const TargetInfo &target,
                         const std::string &overrides)
    : context(registry(), MLIRContext::Threading::DISABLED), spec(spec),
      target(target), overrides(overrides) {
  context.loadAllAvailableDialects();
  handler = std::make_unique<ScopedDiagnosticHandler>(
      &context, [this](Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() == DiagnosticSeverity::Error) {
          if (!messages.empty())
            messages += "\n";
          messages += diagnostic.str();
        }
        return success();
      });
}

bool Compilation::toKVTile() {
  Location loc = UnknownLoc::get(&context);
  module = ModuleOp::create(loc);
  FailureOr<tile::ScheduleAttr> chosen = chooseSchedule(loc, spec, target);
  if (succeeded(chosen) && !overrides.empty()) {
    chosen = overrideSchedule(loc, *chosen, overrides);
    if (succeeded(chosen) && failed(verifySchedule(loc, spec, *chosen, target)))
      return false;
  }
  if (failed(chosen))
    return false;
  schedule = *chosen;
  buildAttendKernel(*module, spec, schedule);
  return succeeded(verify(*module));
}

bool Compilation::toNVVM() {
  return toKVTile() && succeeded(lowerKVTileToNVVM(*module));
}

bool Compilation::addStorage() {
  // Lowered in a module of their own: the passes need not see attend.
  OwningOpRef<ModuleOp> storage = ModuleOp::create(UnknownLoc::get(&context));
  StorageTarget how;
  how.family = ImageFamily::SM8x;
  how.model = StorageTarget::Model::Blocks;
  how.threads = kStorageThreads;
  if (failed(buildStorageKernels(*storage, spec, how)))
    return false;
  PassManager passes(&context, ModuleOp::getOperationName());
  passes.enableVerifier(false); // the result is verified with the module
  passes.addPass(createSCFToControlFlowPass());
  passes.addPass(createConvertMathToLLVMPass());
  passes.addPass(createArithToLLVMConversionPass());
  passes.addPass(createConvertControlFlowToLLVMPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
  if (failed(passes.run(*storage)))
    return false;
  Block *from = storage->getBody(), *to = module->getBody();
  to->getOperations().splice(to->end(), from->getOperations());
  return true;
}

std::string Compilation::text() {
  std::string text;
  llvm::raw_string_ostream os(text);
  module->print(os);
  os << '\n';
  return text;
}

#define KVCACHE_ARGUMENT(kind, name) {#name, LaunchArgument##kind},
static constexpr bool LaunchArgumentPTR = true, LaunchArgumentI64 = false;

static std::vector<LaunchArgument>
withRange(std::vector<LaunchArgument> fields) {
  fields.push_back({"begin", false});
  fields.push_back({"end", false});
  return fields;
}

static std::vector<Launch> makeLaunches(const KernelSpec &spec,
                                        tile::ScheduleAttr schedule) {
  int64_t chunks =
      (spec.group() + schedule.getQPack() - 1) / schedule.getQPack();
  Launch attend;
  attend.entry = "attend";
  attend.grid = "(row_end - row_begin) * " +
                std::to_string(spec.kvHeads * chunks) + " * max_splits";
  attend.block = schedule.getWarps() * 32;
  attend.sharedBytes = gpuSharedBytes(spec, schedule);
  attend.arguments = withRange({KVCACHE_ATTEND_ARGS(KVCACHE_ARGUMENT)});
  auto storage = [](const char *entry, const char *grid,
                    std::vector<LaunchArgument> fields) {
    return Launch{entry, grid, kStorageThreads, 0,
                  withRange(std::move(fields))};
  };
  static_assert(kStorageThreads == 128, "the grid of append says so");
  return {
      attend,
      storage("append", "(end - begin + 127) / 128",
              {KVCACHE_APPEND_ARGS(KVCACHE_ARGUMENT)}),
      storage("seal", "end - begin", {KVCACHE_SEAL_ARGS(KVCACHE_ARGUMENT)}),
      storage("unseal", "end - begin", {KVCACHE_SEAL_ARGS(KVCACHE_ARGUMENT)}),
      storage("read", "end - begin", {KVCACHE_READ_ARGS(KVCACHE_ARGUMENT)})};
}
#undef KVCACHE_ARGUMENT

static std::string reasonFor(const KernelSpec &spec, const TargetInfo &target,
                             tile::ScheduleAttr schedule,
                             const std::string &overrides) {
  std::string reason =
      std::to_string(schedule.getQPack()) + " of " +
      std::to_string(spec.group()) +
      " heads a chunk (at most 8, the n of m16n8k16); tiles of " +
      std::to_string(schedule.getTileTokens()) + " tokens: " +
      std::to_string(gpuProductsPerTile(spec, schedule.getTileTokens(),
                                        schedule.getQPack())) +
      " products in the loop bodies (cap 96); warps split the tokens";
  if (!overrides.empty())
    reason += "; overridden: " + overrides;
  if (target.scheduleOf != target.name)
    reason += "; " + std::string(target.name) +
              " has no schedule of its own, " + std::string(target.scheduleOf) +
              "'s is emitted under .target " + std::string(target.name);
  return reason;
}

Expected<GpuKernel> kvcache::compileForGpu(const KernelSpec &given,
                                           const TargetInfo &target,
                                           const std::string &overrides) {
  KernelSpec spec = given;
  if (auto bad = spec.verify())
    return *bad;
  auto image = PageImage::create(spec.format, spec.headDim, spec.valueDim,
                                 ImageFamily::SM8x);
  if (auto *bad = std::get_if<FormatError>(&image))
    return *bad;
  auto begin = std::chrono::steady_clock::now();
  Compilation compilation(spec, target, overrides);
  double setup = std::chrono::duration<double, std::milli>(
                     std::chrono::steady_clock::now() - begin)
                     .count();
  compilation.phases.push_back({"setup", setup});
  if (!compilation.timed("lower", [&] { return compilation.toNVVM(); }))
    return compilation.error();
  if (!compilation.timed("storage", [&] { return compilation.addStorage(); }))
    return compilation.error();
  ptx::PhaseTimes times;
  FailureOr<std::string> text =
      ptx::emitPTX(*compilation.module, target, &times);
  if (failed(text))
    return compilation.error();

  GpuKernel kernel;
  kernel.spec = spec;
  kernel.target = &target;
  kernel.ptx = std::move(*text);
  tile::ScheduleAttr schedule = compilation.schedule;
  llvm::raw_string_ostream(kernel.schedule) << schedule;
  kernel.reason = reasonFor(spec, target, schedule, overrides);
  kernel.qPack = schedule.getQPack();
  kernel.splitTokens = schedule.getSplitTokens();
  kernel.warps = schedule.getWarps();
  kernel.tileTokens = schedule.getTileTokens();
  kernel.recordBytes = std::get<PageImage>(image).recordBytes();
  kernel.openRecordBytes = openRecordBytes(spec.dtype, spec.format.page,
                                           spec.headDim, spec.valueDim);
  kernel.imageHash = std::get<PageImage>(image).hashText();
  kernel.launches = makeLaunches(spec, schedule);
  kernel.phases = std::move(compilation.phases);
  kernel.phases.push_back({"translate", times.translate});
  kernel.phases.push_back({"llvm_optimize", times.optimize});
  kernel.phases.push_back({"llvm_codegen", times.codegen});
  return kernel;
}

Expected<std::string> kvcache::gpuKernelIR(const KernelSpec &given,
                                           const TargetInfo &target,
                                           const std::string &overrides,
                                           const std::string &level) {
  KernelSpec spec = given;
  if (auto bad = spec.verify())
    return *bad;
  Compilation compilation(spec, target, overrides);
  if (level == "kvtile") {
    if (!compilation.toKVTile())
      return compilation.error();
    return compilation.text();
  }
  if (level != "nvvm" && level != "llvm")
    return FormatError{"unknown level '" + level +
                       "', expected one of: kvtile, nvvm, llvm"};
  if (!compilation.toNVVM() || !compilation.addStorage())
    return compilation.error();
  if (level == "nvvm")
    return compilation.text();
  FailureOr<std::string> text = ptx::emitLLVMIR(*compilation.module, target);
  if (failed(text))
    return compilation.error();
  return *text;
}
