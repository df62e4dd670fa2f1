//===- SimKernels.h - Attention of kv-run in the simulator ------*- C++ -*-===//
//
// Compiles the attention kernels of a program to PTX and runs them, with all
// checks on, when the program calls kvcache_device_attend.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_RUNNER_SIMKERNELS_H
#define KVCACHE_LIB_RUNNER_SIMKERNELS_H

#include "kvcache/Compiler/GpuCompiler.h"
#include "kvcache/Conversion/Materialize/Materialize.h"
#include "kvcache/Target/X86/Jit.h"
#include "kvcache/sim.h"

namespace kvcache {

class SimKernels {
public:
  /// "sim:sm_80" or "sim:sm_80,mma=a100".
  llvm::Error open(llvm::StringRef device);
  llvm::StringRef target() const { return info->name; }
  Expected<DeviceKernel> get(const KernelSpec &spec);
  bool empty() const { return kernels.empty(); }
  /// Of the first failed run, or empty.
  const std::string &message() const { return failure; }
  static x86::JitSymbols symbols();

  /// One kernel; its address is the handle.
  struct Kernel {
    SimKernels *owner;
    GpuKernel gpu;
    std::shared_ptr<const sim::Module> module;
  };

  sim::MmaModel mmaModel = sim::MmaModel::Exact;
  std::string failure;

private:
  const TargetInfo *info = nullptr;
  std::vector<std::unique_ptr<Kernel>> kernels;
};

} // namespace kvcache

#endif // KVCACHE_LIB_RUNNER_SIMKERNELS_H
