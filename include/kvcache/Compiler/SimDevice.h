//===- SimDevice.h - GPU kernels run by the simulator -----------*- C++ -*-===//
//
// Makes a runtime kernel of emitted PTX: each launch of the runtime executes
// the text in the simulator with all checks on. No GPU is needed, and what a
// GPU would hide (a race, an uninitialised value, a copy not waited for) is an
// error.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_COMPILER_SIMDEVICE_H
#define KVCACHE_COMPILER_SIMDEVICE_H

#include "kvcache/Compiler/GpuCompiler.h"
#include "kvcache/runtime.h"

#include <string_view>

namespace kvcache {

/// The numbers of a GPU kernel as the runtime knows them.
KvKernelInfo kernelInfo(const GpuKernel &kernel);

/// A runtime kernel (one reference, the caller's) that the simulator runs, with
/// the accumulation of mma as `mmaModel` has it: exact, a100, ada or h100.
Expected<KvKernel *> loadOnSimulator(const GpuKernel &kernel,
                                     std::string_view mmaModel = "exact");

} // namespace kvcache

#endif // KVCACHE_COMPILER_SIMDEVICE_H
