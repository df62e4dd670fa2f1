//===- Jit.cpp - Native code from LLVM modules ----------------------------===//
//
// A module is optimised and emitted to an object first, whoever uses it: the
// object's symbol table says what it needs, so a missing helper (LLVM calls
// __truncsfbf2, expf and the like where the target has no instruction) is an
// error that names the symbol instead of a failed lookup later.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Target/X86/Jit.h"
#include "kvcache/Target/X86/ParallelFor.h"

#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Object/ObjectFile.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"

#include <algorithm>
#include <cstdlib>

using namespace llvm;
using kvcache::CpuTier;
namespace x86 = kvcache::x86;
using namespace kvcache::x86;

namespace {
struct TierInfo {
  CpuTier tier;
  StringRef cpu, features;
  ArrayRef<StringRef> needs; // as llvm::sys::getHostCPUFeatures spells them
};
} // namespace

static const StringRef kV2Needs[] = {"sse4.2", "popcnt"};
static const StringRef kAvx2Needs[] = {"avx2", "fma", "f16c", "bmi2"};
static const StringRef kAvx512Needs[] = {"avx512f",  "avx512bw", "avx512cd",
                                         "avx512dq", "avx512vl", "avx512vnni",
                                         "fma",      "f16c"};

static ArrayRef<TierInfo> tiers() {
  // The CPU names fix the feature set; nothing of the building machine leaks
  // in.
  static const TierInfo infos[] = {
      {CpuTier::V2, "x86-64-v2", "", kV2Needs},
      {CpuTier::AVX2, "x86-64-v3", "", kAvx2Needs},
      {CpuTier::AVX512, "x86-64-v4", "+avx512vnni,-prefer-256-bit",
       kAvx512Needs},
  };
  return infos;
}

static const TierInfo &infoOf(CpuTier tier) {
  return tiers()[static_cast<unsigned>(tier)];
}

CpuTier x86::detectTier() {
  StringMap<bool> features = sys::getHostCPUFeatures();
  CpuTier best = CpuTier::V2;
  for (const TierInfo &info : tiers())
    if (all_of(info.needs, [&](StringRef f) { return features.lookup(f); }))
      best = info.tier;
  return best;
}

llvm::Expected<CpuTier> x86::hostTier() {
  CpuTier best = detectTier();
  const char *wanted = std::getenv("KVCACHE_CPU");
  if (!wanted || !*wanted)
    return best;
  std::optional<CpuTier> tier = kvcache::parseCpuTier(wanted);
  if (!tier)
    return createStringError("KVCACHE_CPU is '" + Twine(wanted) +
                             "', expected v2, avx2 or avx512");
  if (*tier > best)
    return createStringError("KVCACHE_CPU asks for '" + Twine(wanted) +
                             "', this machine has '" +
                             StringRef(kvcache::nameOf(best)) + "'");
  return *tier;
}

llvm::Expected<std::unique_ptr<TargetMachine>>
x86::createTargetMachine(CpuTier tier) {
  static const bool initialized = [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    return true;
  }();
  (void)initialized;
  Triple triple("x86_64-unknown-linux-gnu");
  std::string error;
  const Target *target = TargetRegistry::lookupTarget(triple, error);
  if (!target)
    return createStringError(error);
  TargetOptions options;
  // Contraction is decided where IR is built: an fma is written as one.
  options.AllowFPOpFusion = FPOpFusion::Strict;
  const TierInfo &info = infoOf(tier);
  std::unique_ptr<TargetMachine> machine(target->createTargetMachine(
      triple, info.cpu, info.features, options, Reloc::PIC_, std::nullopt,
      CodeGenOptLevel::Default));
  if (!machine)
    return createStringError("no x86-64 target machine in this LLVM");
  return machine;
}

void x86::optimize(Module &module, TargetMachine &machine, unsigned level) {
  module.setTargetTriple(machine.getTargetTriple());
  module.setDataLayout(machine.createDataLayout());
  LoopAnalysisManager lam;
  FunctionAnalysisManager fam;
  CGSCCAnalysisManager cgam;
  ModuleAnalysisManager mam;
  PassBuilder builder(&machine);
  // No library function may be conjured from a loop: packages link nothing.
  TargetLibraryInfoImpl tlii(machine.getTargetTriple());
  tlii.disableAllFunctions();
  fam.registerPass([&] { return TargetLibraryAnalysis(tlii); });
  builder.registerModuleAnalyses(mam);
  builder.registerCGSCCAnalyses(cgam);
  builder.registerFunctionAnalyses(fam);
  builder.registerLoopAnalyses(lam);
  builder.crossRegisterProxies(lam, fam, cgam, mam);
  OptimizationLevel opt = level == 0   ? OptimizationLevel::O0
                          : level == 1 ? OptimizationLevel::O1
                          : level == 2 ? OptimizationLevel::O2
                                       : OptimizationLevel::O3;
  ModulePassManager pipeline = level == 0
                                   ? builder.buildO0DefaultPipeline(opt)
                                   : builder.buildPerModuleDefaultPipeline(opt);
  pipeline.run(module, mam);
}

llvm::Expected<SmallVector<char, 0>> x86::emitObject(Module &module,
                                                     TargetMachine &machine) {
  std::string broken;
  raw_string_ostream brokenStream(broken);
  if (verifyModule(module, &brokenStream))
    return createStringError("invalid LLVM module: " + broken);
  SmallVector<char, 0> object;
  raw_svector_ostream stream(object);
  legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr,
                                  CodeGenFileType::ObjectFile))
    return createStringError("the target cannot emit object files");
  passes.run(module);
  return object;
}

static MemoryBufferRef bufferOf(ArrayRef<char> object) {
  return {StringRef(object.data(), object.size()), "kvcache"};
}

llvm::Expected<std::vector<std::string>>
x86::undefinedSymbols(ArrayRef<char> object) {
  auto file = object::ObjectFile::createObjectFile(bufferOf(object));
  if (!file)
    return file.takeError();
  std::vector<std::string> names;
  for (const object::SymbolRef &symbol : (*file)->symbols()) {
    llvm::Expected<uint32_t> flags = symbol.getFlags();
    if (!flags)
      return flags.takeError();
    if (!(*flags & object::SymbolRef::SF_Undefined))
      continue;
    llvm::Expected<StringRef> name = symbol.getName();
    if (!name)
      return name.takeError();
    // A position independent object names the table, the linker makes it.
    if (!name->empty() && *name != "_GLOBAL_OFFSET_TABLE_")
      names.push_back(name->str());
  }
  llvm::sort(names);
  return names;
}

Error x86::checkSelfContained(ArrayRef<char> object) {
  auto names = undefinedSymbols(object);
  if (!names)
    return names.takeError();
  if (names->empty())
    return Error::success();
  return createStringError("the generated code needs '" + join(*names, "', '") +
                           "', which a package cannot provide");
}

Jit::Jit(std::unique_ptr<orc::LLJIT> impl) : impl(std::move(impl)) {}
Jit::~Jit() = default;

llvm::Expected<std::unique_ptr<Jit>>
Jit::create(std::unique_ptr<LLVMContext> context,
            std::unique_ptr<Module> module, CpuTier tier, unsigned level,
            bool selfContained, JitSymbols symbols) {
  auto machine = createTargetMachine(tier);
  if (!machine)
    return machine.takeError();
  optimize(*module, **machine, level);
  auto object = emitObject(*module, **machine);
  if (!object)
    return object.takeError();
  module.reset();
  context.reset();
  if (selfContained)
    if (Error error = checkSelfContained(*object))
      return error;
  return createFromObject(*object, symbols);
}

llvm::Expected<std::unique_ptr<Jit>>
Jit::createFromObject(ArrayRef<char> object, JitSymbols symbols) {
  // The machine only tells LLJIT the triple and layout: objects come compiled.
  auto machine = createTargetMachine(CpuTier::V2);
  if (!machine)
    return machine.takeError();
  auto impl = orc::LLJITBuilder()
                  .setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(
                      (*machine)->getTargetTriple()))
                  .create();
  if (!impl)
    return impl.takeError();
  auto generator = orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
      (*impl)->getDataLayout().getGlobalPrefix());
  if (!generator)
    return generator.takeError();
  orc::SymbolMap known;
  known[(*impl)->mangleAndIntern(kParallelFor)] = {
      orc::ExecutorAddr::fromPtr(&parallelFor), JITSymbolFlags::Exported};
  for (auto [name, address] : symbols)
    known[(*impl)->mangleAndIntern(name)] = {
        orc::ExecutorAddr::fromPtr(address), JITSymbolFlags::Exported};
  if (Error error = (*impl)->getMainJITDylib().define(
          orc::absoluteSymbols(std::move(known))))
    return error;
  (*impl)->getMainJITDylib().addGenerator(std::move(*generator));
  if (Error error = (*impl)->addObjectFile(MemoryBuffer::getMemBufferCopy(
          StringRef(object.data(), object.size()), "kvcache")))
    return error;
  return std::unique_ptr<Jit>(new Jit(std::move(*impl)));
}

llvm::Expected<void *> Jit::lookup(StringRef name) {
  auto address = impl->lookup(name);
  if (!address)
    return address.takeError();
  return address->toPtr<void *>();
}
