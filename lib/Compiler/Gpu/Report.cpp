//===- Report.cpp - What kv-compile --report says of a GPU kernel ---------===//
#include "kvcache/Compiler/GpuCompiler.h"
#include "kvcache/Target/PTX/PTX.h"

#include "llvm/Support/JSON.h"

#include <algorithm>

using namespace kvcache;
namespace json = llvm::json;

static json::Array launchArray(const GpuKernel &kernel) {
  json::Array launches;
  for (const Launch &launch : kernel.launches) {
    json::Array arguments;
    for (const LaunchArgument &argument : launch.arguments)
      arguments.push_back(
          json::Object{{"name", argument.name},
                       {"kind", argument.isPointer ? "ptr" : "i64"},
                       {"bytes", 8}});
    launches.push_back(json::Object{{"entry", launch.entry},
                                    {"grid", launch.grid},
                                    {"block", launch.block},
                                    {"shared_bytes", launch.sharedBytes},
                                    {"arguments", std::move(arguments)}});
  }
  return launches;
}

static std::string print(json::Value value) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::formatv("{0:2}", value) << '\n';
  return text;
}

std::string kvcache::launchesJSON(const GpuKernel &kernel) {
  return print(launchArray(kernel));
}

Expected<std::string> kvcache::assembleCubin(const GpuKernel &kernel) {
  auto assembly = ptx::assemble(kernel.ptx, *kernel.target);
  if (auto *bad = std::get_if<FormatError>(&assembly))
    return *bad;
  return std::get<ptx::Assembly>(assembly).cubin;
}

/// Registers, spills and occupancy, or why they are missing.
static void addAssembly(json::Object &report, const GpuKernel &kernel) {
  json::Array skipped;
  report["registers"] = report["spills"] = report["occupancy"] = nullptr;
  if (!ptx::findPtxas()) {
    skipped.push_back("registers, spills, occupancy: ptxas not found in "
                      "CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda");
  } else {
    auto assembly = ptx::assemble(kernel.ptx, *kernel.target);
    if (auto *bad = std::get_if<FormatError>(&assembly)) {
      skipped.push_back("registers, spills, occupancy: " + bad->message);
    } else {
      json::Object entries;
      for (const ptx::KernelUsage &usage :
           std::get<ptx::Assembly>(assembly).kernels) {
        int64_t spills = usage.spillStoreBytes + usage.spillLoadBytes;
        entries[usage.entry] =
            json::Object{{"registers", usage.registers},
                         {"spills", spills},
                         {"stack_bytes", usage.stackBytes},
                         {"shared_bytes", usage.sharedBytes}};
        if (usage.entry != "attend")
          continue;
        report["registers"] = usage.registers;
        report["spills"] = spills;
        report["occupancy"] = occupancy(*kernel.target, int(kernel.warps * 32),
                                        usage.registers, usage.sharedBytes);
      }
      report["entries"] = std::move(entries);
    }
  }
  report["skipped"] = std::move(skipped);
}

std::string kvcache::reportJSON(const GpuKernel &kernel) {
  const KernelSpec &spec = kernel.spec;
  const GpuModel &gpu = kernel.target->model;
  // Of a sealed token: all kv heads; two products per query head.
  double bytes = double(kernel.recordBytes) / double(spec.format.page) *
                 double(spec.kvHeads);
  double flops =
      2.0 * double(spec.qHeads) * double(spec.headDim + spec.valueDim);
  double seconds =
      std::max(bytes / gpu.bytesPerSecond, flops / gpu.f16FlopsPerSecond);
  json::Object report;
  report["target"] = std::string(kernel.target->name);
  report["spec"] = spec.str();
  addAssembly(report, kernel);
  report["shared_bytes"] = kernel.launches.front().sharedBytes;
  report["bytes_per_token"] = bytes;
  report["open_bytes_per_token"] = double(kernel.openRecordBytes) /
                                   double(spec.format.page) *
                                   double(spec.kvHeads);
  report["flops_per_token"] = flops;
  // What the resident warps ask for before any of it has come: one tile each.
  if (auto share = report.getNumber("occupancy"))
    report["bytes_in_flight_per_sm"] =
        *share * kernel.target->warpsPerSM * double(kernel.tileTokens) *
        double(kernel.recordBytes) / double(spec.format.page);
  report["roofline"] = json::Object{
      {"gpu", std::string(gpu.name)},
      {"bound", bytes / gpu.bytesPerSecond >= flops / gpu.f16FlopsPerSecond
                    ? "memory"
                    : "tensor"},
      {"ns_per_token", seconds * 1e9},
      {"us_per_8192_tokens", seconds * 8192 * 1e6}};
  json::Object phases;
  double total = 0;
  for (const Phase &phase : kernel.phases) {
    phases[phase.name] = phase.ms;
    total += phase.ms;
  }
  phases["total"] = total;
  report["compile_ms"] = std::move(phases);
  report["schedule"] =
      json::Object{{"attribute", kernel.schedule}, {"why", kernel.reason}};
  report["image"] = json::Object{{"family", "sm_8x"},
                                 {"hash", kernel.imageHash},
                                 {"sealed_record_bytes", kernel.recordBytes},
                                 {"open_record_bytes", kernel.openRecordBytes}};
  report["launches"] = launchArray(kernel);
  return print(std::move(report));
}
