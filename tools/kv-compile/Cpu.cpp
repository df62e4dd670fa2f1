//===- Cpu.cpp - kv-compile for x86-64 ------------------------------------===//
#include "Drivers.h"
#include "kvcache/Compiler/CpuCompiler.h"

#include "llvm/Support/JSON.h"

#include <cstdio>

using namespace kvcache;
using namespace kvcache::compile;
namespace json = llvm::json;

/// x86-64 has no GPU's figures: they are null, not left out.
static std::string reportOf(const KernelSpec &spec, const CpuKernel &kernel) {
  double bytes = double(kernel.info.sealed_record_bytes) /
                 double(spec.format.page) * double(spec.kvHeads);
  json::Object report;
  report["target"] = "x86-64";
  report["tier"] = std::string(nameOf(kernel.tier));
  report["spec"] = spec.str();
  for (const char *key : {"registers", "spills", "occupancy", "roofline"})
    report[key] = nullptr;
  report["shared_bytes"] = 0;
  report["bytes_per_token"] = bytes;
  report["flops_per_token"] =
      2.0 * double(spec.qHeads) * double(spec.headDim + spec.valueDim);
  report["object_bytes"] = int64_t(kernel.object.size());
  report["compile_ms"] = json::Object{
      {"lower", kernel.lowerMs},
      {"llvm_optimize", kernel.optimizeMs},
      {"llvm_codegen", kernel.emitMs},
      {"total", kernel.lowerMs + kernel.optimizeMs + kernel.emitMs}};
  report["schedule"] = json::Object{
      {"attribute", kernel.schedule},
      {"why", "a tile is a page; heads in even chunks of at most 16; integers "
              "are multiplied as integers where the tier has vpdpbusd"}};
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::formatv("{0:2}", json::Value(std::move(report))) << '\n';
  return text;
}

static std::optional<FormatError> writeOutput(const Options &options,
                                              const KernelSpec &spec,
                                              const CpuKernel &kernel) {
  if (options.emit == Emit::Object)
    return writeFile(options.output, kernel.object);
  auto text = cpuKernelIR(spec, kernel.tier, options.schedule, "llvm");
  if (auto *bad = std::get_if<FormatError>(&text))
    return *bad;
  return writeFile(options.output, std::get<std::string>(text));
}

std::optional<FormatError> compile::runCpu(const Options &options) {
  auto read = specOf(options);
  if (auto *bad = std::get_if<FormatError>(&read))
    return *bad;
  const KernelSpec &spec = std::get<KernelSpec>(read);
  bool package = options.emit == Emit::Package && !options.output.empty();
  if (package) {
    auto written = writePackage(spec, options.schedule, options.output);
    if (auto *bad = std::get_if<FormatError>(&written))
      return *bad;
    if (!options.report)
      return std::nullopt;
  }
  Expected<CpuTier> tier = hostCpuTier();
  if (options.tier)
    tier = *options.tier;
  if (auto *bad = std::get_if<FormatError>(&tier))
    return *bad;
  auto compiled =
      compileForCpu(spec, std::get<CpuTier>(tier), options.schedule);
  if (auto *bad = std::get_if<FormatError>(&compiled))
    return *bad;
  const CpuKernel &kernel = std::get<CpuKernel>(compiled);
  if (!package && !options.output.empty())
    if (auto bad = writeOutput(options, spec, kernel))
      return bad;
  if (options.report)
    std::fputs(reportOf(spec, kernel).c_str(), stdout);
  return std::nullopt;
}
