//===- GpuCompiler.h - From a spec to PTX -----------------------*- C++ -*-===//
//
// The GPU half of the compiler behind a few functions, for kv-compile, packages
// and the Python module: no IR and no LLVM type in its interface. Errors are
// messages that say what was given and what is accepted.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_COMPILER_GPUCOMPILER_H
#define KVCACHE_COMPILER_GPUCOMPILER_H

#include "kvcache/Kernel/KernelSpec.h"
#include "kvcache/Target/TargetInfo.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {

/// One parameter of a GPU entry point; every one takes 8 bytes.
struct LaunchArgument {
  std::string name;
  bool isPointer;
};

/// How to launch an entry point. Grids are one-dimensional.
struct Launch {
  std::string entry;
  std::string grid;        ///< blocks, as a formula of the arguments
  int64_t block = 0;       ///< threads
  int64_t sharedBytes = 0; ///< static; no dynamic shared memory is used
  std::vector<LaunchArgument> arguments;
};

/// Milliseconds of one phase.
struct Phase {
  std::string name;
  double ms;
};

/// Everything that compiling a spec for one GPU target gives.
struct GpuKernel {
  KernelSpec spec;
  const TargetInfo *target = nullptr;
  std::string ptx;
  std::string schedule; ///< `#kvtile.schedule<...>`
  std::string reason;   ///< why this schedule
  int64_t qPack = 0, splitTokens = 0, warps = 0, tileTokens = 0;
  int64_t recordBytes = 0;     ///< sealed page of one head
  int64_t openRecordBytes = 0; ///< open page of one head
  std::string imageHash;
  std::vector<Launch> launches;
  std::vector<Phase> phases;
};

/// Compiles all entry points for a GPU target. `schedule` overrides fields
/// ("warps=2,exp_bias=8").
Expected<GpuKernel> compileForGpu(const KernelSpec &spec,
                                  const TargetInfo &target,
                                  const std::string &schedule = "");

/// The kernel's IR at a level: "kvtile", "nvvm" or "llvm".
Expected<std::string> gpuKernelIR(const KernelSpec &spec,
                                  const TargetInfo &target,
                                  const std::string &schedule,
                                  const std::string &level);

/// The launches as JSON: entry, grid, block, shared_bytes, arguments.
std::string launchesJSON(const GpuKernel &kernel);

/// `--report`: registers and spills by ptxas (null and named under "skipped"
/// where ptxas is absent), shared memory, occupancy, bytes and flops per token,
/// roofline time, phases, schedule and why.
std::string reportJSON(const GpuKernel &kernel);

/// Writes a kernel package to `folder`, which must be absent or hold a package:
/// TARGET.ptx and manifest.json.
std::optional<FormatError> writeGpuPackage(const GpuKernel &kernel,
                                           const std::string &folder);

/// The kernel assembled by ptxas for its target.
Expected<std::string> assembleCubin(const GpuKernel &kernel);

} // namespace kvcache

#endif // KVCACHE_COMPILER_GPUCOMPILER_H
