//===- CpuCompiler.h - From a spec to code that runs ------------*- C++ -*-===//
//
// The CPU half of the compiler behind a few functions, for the Python module,
// kv-compile and packages: no IR and no LLVM type in its interface. Errors are
// messages that say what was given and what is accepted.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_COMPILER_CPUCOMPILER_H
#define KVCACHE_COMPILER_CPUCOMPILER_H

#include "kvcache/Kernel/KernelSpec.h"
#include "kvcache/Target/TargetInfo.h"
#include "kvcache/runtime.h"

#include <array>
#include <string>
#include <vector>

namespace kvcache {

/// A compiled CPU kernel of one tier: a relocatable object and what the runtime
/// needs to know of it.
struct CpuKernel {
  CpuTier tier = CpuTier::V2;
  KvKernelInfo info{};
  /// Symbols of attend, merge, append, seal, unseal, read.
  std::array<std::string, 6> entries;
  std::string object;
  std::string schedule; ///< the `#kvtile.schedule` that was obeyed
  /// Milliseconds to LLVM IR, in LLVM's middle end, and to the object.
  double lowerMs = 0, optimizeMs = 0, emitMs = 0;
};

/// The numbers of a kernel: from the (verified) spec, its x86-64 page image,
/// and the two fields of the schedule that the runtime must know.
Expected<KvKernelInfo> kernelInfo(const KernelSpec &spec, int64_t qPack,
                                  int64_t splitTokens);

/// The tier to compile for here: KVCACHE_CPU, else the machine's best.
Expected<CpuTier> hostCpuTier();

/// Compiles for one tier. `schedule` overrides fields ("q_pack=4").
Expected<CpuKernel> compileForCpu(const KernelSpec &spec, CpuTier tier,
                                  const std::string &schedule);

/// Links the object into this process and makes a runtime kernel of it (one
/// reference, the caller's).
Expected<KvKernel *> loadCpuKernel(const CpuKernel &kernel);

/// Compiles all three tiers and writes a kernel package (shared objects without
/// undefined symbols, manifest.json) to `folder`, which must be absent or hold
/// a package.
Expected<std::vector<std::string>> writePackage(const KernelSpec &spec,
                                                const std::string &schedule,
                                                const std::string &folder);

/// The kernel's IR at a level: "kvtile" or "llvm".
Expected<std::string> cpuKernelIR(const KernelSpec &spec, CpuTier tier,
                                  const std::string &schedule,
                                  const std::string &level);

} // namespace kvcache

#endif // KVCACHE_COMPILER_CPUCOMPILER_H
