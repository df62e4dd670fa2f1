//===- Emit.cpp - NVVM to LLVM IR to PTX, in process ----------------------===//
//
// The kernels arrive nearly in the shape of the machine (fragments in
// registers, loops written out), so the middle end is a short fixed list of
// scalar passes instead of the -O2 pipeline, which would take most of the
// compile time.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Target/PTX/PTX.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"

#include "llvm/Analysis/CGSCCPassManager.h"
#include "llvm/Analysis/LoopAnalysisManager.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"

#include <chrono>
#include <mutex>

using namespace mlir;
using namespace kvcache;

namespace {
/// Adds the time until it goes out of scope to `*ms`.
class Stopwatch {
public:
  explicit Stopwatch(double *ms) : ms(ms) {}
  ~Stopwatch() {
    if (ms)
      *ms += std::chrono::duration<double, std::milli>(
                 std::chrono::steady_clock::now() - start)
                 .count();
  }

private:
  double *ms;
  std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};
} // namespace

void ptx::registerDialects(DialectRegistry &registry) {
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
}

static std::unique_ptr<llvm::TargetMachine>
createTargetMachine(const TargetInfo &target, std::string &error) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  llvm::Triple triple("nvptx64-nvidia-cuda");
  const llvm::Target *backend =
      llvm::TargetRegistry::lookupTarget(triple, error);
  if (!backend)
    return nullptr;
  llvm::TargetOptions options;
  // FMAs are written where they are wanted; results must not depend on what
  // the backend finds to fuse.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(backend->createTargetMachine(
      triple, target.name, ("+" + std::string(target.ptxFeature)), options,
      llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
}

static void optimize(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager sccs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(sccs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, sccs, modules);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::SimplifyCFGPass());
  for (llvm::Function &function : module)
    if (!function.isDeclaration())
      passes.run(function, functions);
}

/// Translates and optimises; null after emitting an error.
static std::unique_ptr<llvm::Module>
translate(ModuleOp module, const TargetInfo &target, llvm::LLVMContext &context,
          std::unique_ptr<llvm::TargetMachine> &machine,
          ptx::PhaseTimes *times) {
  if (failed(ptx::verifyLegal(module, target)))
    return nullptr;
  std::string error;
  machine = createTargetMachine(target, error);
  if (!machine) {
    module.emitError() << "this LLVM has no NVPTX backend: " << error;
    return nullptr;
  }
  std::unique_ptr<llvm::Module> llvmModule;
  {
    Stopwatch watch(times ? &times->translate : nullptr);
    llvmModule = translateModuleToLLVMIR(module, context, "kvcache");
  }
  if (!llvmModule) {
    module.emitError() << "translation to LLVM IR failed";
    return nullptr;
  }
  llvmModule->setTargetTriple(machine->getTargetTriple());
  llvmModule->setDataLayout(machine->createDataLayout());
  Stopwatch watch(times ? &times->optimize : nullptr);
  optimize(*llvmModule, *machine);
  return llvmModule;
}

FailureOr<std::string> ptx::emitLLVMIR(ModuleOp module,
                                       const TargetInfo &target) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::TargetMachine> machine;
  auto llvmModule = translate(module, target, context, machine, nullptr);
  if (!llvmModule)
    return failure();
  std::string text;
  llvm::raw_string_ostream(text) << *llvmModule;
  return text;
}

FailureOr<std::string> ptx::emitPTX(ModuleOp module, const TargetInfo &target,
                                    PhaseTimes *times) {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::TargetMachine> machine;
  auto llvmModule = translate(module, target, context, machine, times);
  if (!llvmModule)
    return failure();
  Stopwatch watch(times ? &times->codegen : nullptr);
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream os(text);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, os, nullptr,
                                   llvm::CodeGenFileType::AssemblyFile)) {
    module.emitError() << "the NVPTX backend cannot emit text";
    return failure();
  }
  passes.run(*llvmModule);
  return text.str().str();
}
