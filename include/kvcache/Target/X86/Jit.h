//===- Jit.h - Native code from LLVM modules --------------------*- C++ -*-===//
//
// The last step of the CPU targets: an LLVM module becomes machine code, either
// in this process (ORC) or as the bytes of a relocatable object for a package.
// One tier names one instruction set with its arithmetic, so that a result does
// not depend on the machine that compiled it, only on the tier.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TARGET_X86_JIT_H
#define KVCACHE_TARGET_X86_JIT_H

#include "kvcache/Target/TargetInfo.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace llvm {
class LLVMContext;
class Module;
class TargetMachine;
namespace orc {
class LLJIT;
} // namespace orc
} // namespace llvm

namespace kvcache::x86 {

// The tiers (TargetInfo.h) as LLVM sees them:
//   v2      x86-64-v2: SSE4.2; multiply and add, no FMA, no F16C
//   avx2    x86-64-v3: AVX2, FMA, F16C
//   avx512  x86-64-v4: AVX-512 F/BW/CD/DQ/VL, and VNNI

/// The best tier that this machine runs.
CpuTier detectTier();

/// The tier to use here: KVCACHE_CPU when set (refused when unknown, or more
/// than the machine has), else the best.
llvm::Expected<CpuTier> hostTier();

/// A target machine of the tier. The code is position independent.
llvm::Expected<std::unique_ptr<llvm::TargetMachine>>
createTargetMachine(CpuTier tier);

/// Runs LLVM's default pipeline of `level` (0 to 3) for the machine, after
/// setting the module's triple and data layout.
void optimize(llvm::Module &module, llvm::TargetMachine &machine,
              unsigned level);

/// A relocatable object of an optimised module.
llvm::Expected<llvm::SmallVector<char, 0>>
emitObject(llvm::Module &module, llvm::TargetMachine &machine);

/// Names of the symbols that an object leaves undefined, sorted.
llvm::Expected<std::vector<std::string>>
undefinedSymbols(llvm::ArrayRef<char> object);

/// Packages are loaded where there may be no libm and no libgcc: refuses an
/// object that needs anything, naming it.
llvm::Error checkSelfContained(llvm::ArrayRef<char> object);

/// Functions of this process that generated code may call by name.
using JitSymbols = llvm::ArrayRef<std::pair<llvm::StringRef, void *>>;

/// Code in this process. Destroying it frees the code.
class Jit {
public:
  /// Optimises and compiles `module`. With `selfContained` the object may leave
  /// nothing undefined; otherwise libc and libm of this process are linked.
  static llvm::Expected<std::unique_ptr<Jit>>
  create(std::unique_ptr<llvm::LLVMContext> context,
         std::unique_ptr<llvm::Module> module, CpuTier tier, unsigned level = 2,
         bool selfContained = false, JitSymbols symbols = {});

  /// Adds an object made by `emitObject`.
  static llvm::Expected<std::unique_ptr<Jit>>
  createFromObject(llvm::ArrayRef<char> object, JitSymbols symbols = {});

  ~Jit();

  /// The address of a function, or an error that names it.
  llvm::Expected<void *> lookup(llvm::StringRef name);

private:
  explicit Jit(std::unique_ptr<llvm::orc::LLJIT> impl);
  std::unique_ptr<llvm::orc::LLJIT> impl;
};

} // namespace kvcache::x86

#endif // KVCACHE_TARGET_X86_JIT_H
