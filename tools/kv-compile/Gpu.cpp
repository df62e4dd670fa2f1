//===- Gpu.cpp - kv-compile for GPU targets -------------------------------===//
#include "Drivers.h"
#include "kvcache/Compiler/GpuCompiler.h"

#include <cstdio>

using namespace kvcache;
using namespace kvcache::compile;

static Expected<std::string> outputBytes(const Options &options,
                                         const GpuKernel &kernel) {
  switch (options.emit) {
  case Emit::Cubin:
    return assembleCubin(kernel);
  case Emit::LLVM:
    return gpuKernelIR(kernel.spec, *kernel.target, options.schedule, "llvm");
  default:
    return kernel.ptx;
  }
}

std::optional<FormatError> compile::runGpu(const Options &options) {
  auto spec = specOf(options);
  if (auto *bad = std::get_if<FormatError>(&spec))
    return *bad;
  auto compiled = compileForGpu(std::get<KernelSpec>(spec), *options.target,
                                options.schedule);
  if (auto *bad = std::get_if<FormatError>(&compiled))
    return *bad;
  const GpuKernel &kernel = std::get<GpuKernel>(compiled);
  if (!options.output.empty() && options.emit == Emit::Package) {
    if (auto bad = writeGpuPackage(kernel, options.output))
      return bad;
  } else if (!options.output.empty()) {
    auto bytes = outputBytes(options, kernel);
    if (auto *bad = std::get_if<FormatError>(&bytes))
      return *bad;
    if (auto bad = writeFile(options.output, std::get<std::string>(bytes)))
      return bad;
  }
  if (options.report)
    std::fputs(reportJSON(kernel).c_str(), stdout);
  return std::nullopt;
}
