//===- Compiler.h - From a spec to code -------------------------*- C++ -*-===//
//
// What tools, the Python module and tests call: one function per kind of
// target. Errors are values with one clear message.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_COMPILER_COMPILER_H
#define KVCACHE_COMPILER_COMPILER_H

#include "kvcache/Kernel/KernelSpec.h"
#include "kvcache/Target/TargetInfo.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Error.h"

#include <string>

namespace kvcache {

struct CpuOptions {
  CpuTier tier = CpuTier::AVX512;
  /// Changes to the default schedule, "KEY=V,KEY=V".
  std::string schedule;
  /// Leave out append, seal, unseal and read.
  bool attendOnly = false;
  /// Also keep the texts of the levels (see CpuCode).
  bool keepText = false;
};

struct CpuCode {
  /// A relocatable object without undefined symbols, with the entry points of
  /// kvcache/ABI/KernelABI.h.
  llvm::SmallVector<char, 0> object;
  std::string schedule;    ///< the `#kvtile.schedule` that was obeyed
  int64_t qPack = 0;       ///< query heads of a work item
  int64_t splitTokens = 0; ///< 0: kvcache_split_tokens
  std::string tileText, llvmText, optimizedText;
  double lowerMs = 0, optimizeMs = 0, emitMs = 0;
};

/// Compiles the entry points of `spec` (which verifies) for a tier of x86-64.
llvm::Expected<CpuCode> compileCpu(const KernelSpec &spec,
                                   const CpuOptions &options);

} // namespace kvcache

#endif // KVCACHE_COMPILER_COMPILER_H
