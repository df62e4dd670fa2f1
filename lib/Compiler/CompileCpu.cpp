//===- CompileCpu.cpp - From a spec to an x86-64 object -------------------===//
//
// choose and check the schedule -> kvtile -> vector code, beside it the storage
// kernels -> LLVM -> object, in one context of its own, so that calls from
// several threads do not meet.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Compiler/Compiler.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"
#include "kvcache/Conversion/KVTileToCPU.h"
#include "kvcache/Conversion/StorageKernels.h"
#include "kvcache/Target/X86/Jit.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"

#include <chrono>

using namespace mlir;
using namespace kvcache;

static double msSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now() - start)
      .count();
}

namespace {
/// One compilation: the context, and its diagnostics as text.
class CpuCompilation {
public:
  CpuCompilation(const KernelSpec &spec, const CpuOptions &options)
      : spec(spec), options(options), context(MLIRContext::Threading::DISABLED),
        handler(&context, [this](Diagnostic &diagnostic) {
          if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
            messages += (messages.empty() ? "" : "; ") + diagnostic.str();
          return success();
        }) {
    context.loadDialect<tile::KVTileDialect, arith::ArithDialect,
                        cf::ControlFlowDialect, func::FuncDialect,
                        LLVM::LLVMDialect, math::MathDialect, scf::SCFDialect,
                        vector::VectorDialect>();
    registerBuiltinDialectTranslation(context);
    registerLLVMDialectTranslation(context);
  }

  llvm::Expected<CpuCode> run();

private:
  llvm::Error fail() const {
    return llvm::createStringError(messages.empty() ? "compilation failed"
                                                    : messages);
  }
  FailureOr<tile::ScheduleAttr> schedule(Location loc);
  LogicalResult lower(ModuleOp module);

  const KernelSpec &spec;
  const CpuOptions &options;
  MLIRContext context;
  std::string messages;
  ScopedDiagnosticHandler handler;
  CpuCode code;
};
} // namespace

template <typename T>
static std::string textOf(T &&op) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  if constexpr (std::is_same_v<std::decay_t<T>, llvm::Module>)
    op.print(stream, nullptr);
  else
    op.print(stream);
  return text;
}

FailureOr<tile::ScheduleAttr> CpuCompilation::schedule(Location loc) {
  const TargetInfo &target =
      *std::get<const TargetInfo *>(findTarget("x86-64"));
  auto chosen = chooseSchedule(loc, spec, target, options.tier);
  if (succeeded(chosen))
    chosen = overrideSchedule(loc, *chosen, options.schedule);
  if (failed(chosen) ||
      failed(verifySchedule(loc, spec, *chosen, target, options.tier)))
    return failure();
  code.schedule = textOf(Attribute(*chosen));
  code.qPack = chosen->getQPack();
  code.splitTokens = chosen->getSplitTokens();
  return chosen;
}

LogicalResult CpuCompilation::lower(ModuleOp module) {
  auto chosen = schedule(module.getLoc());
  if (failed(chosen))
    return failure();
  tile::KernelOp kernel = buildAttendKernel(module, spec, *chosen);
  if (options.keepText)
    code.tileText = textOf(module);
  if (failed(lowerKernelToCpu(kernel)))
    return failure();
  StorageTarget storage;
  storage.nativeF16 = storage.nativeFma = options.tier != CpuTier::V2;
  if (!options.attendOnly && failed(buildStorageKernels(module, spec, storage)))
    return failure();
  PassManager passes(&context);
  buildCpuToLLVMPipeline(passes);
  return passes.run(module);
}

llvm::Expected<CpuCode> CpuCompilation::run() {
  auto start = std::chrono::steady_clock::now();
  OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(&context));
  if (failed(lower(*module)))
    return fail();
  llvm::LLVMContext llvmContext;
  std::unique_ptr<llvm::Module> llvmModule =
      translateModuleToLLVMIR(*module, llvmContext);
  if (!llvmModule)
    return fail();
  code.lowerMs = msSince(start);
  if (options.keepText)
    code.llvmText = textOf(*llvmModule);
  start = std::chrono::steady_clock::now();
  auto machine = x86::createTargetMachine(options.tier);
  if (!machine)
    return machine.takeError();
  x86::optimize(*llvmModule, **machine, 2);
  code.optimizeMs = msSince(start);
  if (options.keepText)
    code.optimizedText = textOf(*llvmModule);
  start = std::chrono::steady_clock::now();
  auto object = x86::emitObject(*llvmModule, **machine);
  if (!object)
    return object.takeError();
  code.emitMs = msSince(start);
  if (llvm::Error error = x86::checkSelfContained(*object))
    return std::move(error);
  code.object = std::move(*object);
  return std::move(code);
}

llvm::Expected<CpuCode> kvcache::compileCpu(const KernelSpec &spec,
                                            const CpuOptions &options) {
  return CpuCompilation(spec, options).run();
}
