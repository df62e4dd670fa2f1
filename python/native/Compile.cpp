//===- Compile.cpp - The compiler for Python ------------------------------===//

#include "Native.h"

#include "kvcache/Compiler/CpuCompiler.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

namespace nb = nanobind;
using namespace kvcache;
using namespace kvcache::python;

static CpuTier tierOf(const std::string &name) {
  if (name.empty())
    return unwrap(hostCpuTier());
  auto tier = parseCpuTier(name);
  if (!tier)
    throw nb::value_error(
        ("CPU tier '" + name + "', expected v2, avx2 or avx512").c_str());
  return *tier;
}

// A compiled kernel as one string, for the cache on disk: lengths and bytes.
static std::string pack(const CpuKernel &k) {
  std::string out;
  auto add = [&](const std::string &s) {
    uint64_t n = s.size();
    out.append(reinterpret_cast<const char *>(&n), 8);
    out += s;
  };
  add(std::string(reinterpret_cast<const char *>(&k.info), sizeof k.info));
  add(std::string(nameOf(k.tier)));
  add(k.schedule);
  double ms[3] = {k.lowerMs, k.optimizeMs, k.emitMs};
  add(std::string(reinterpret_cast<const char *>(ms), sizeof ms));
  for (const std::string &e : k.entries)
    add(e);
  add(k.object);
  return out;
}

static bool unpack(const std::string &bytes, CpuKernel &k) {
  size_t at = 0;
  auto take = [&](std::string &s) {
    uint64_t n;
    if (bytes.size() - at < 8)
      return false;
    std::memcpy(&n, bytes.data() + at, 8);
    at += 8;
    if (bytes.size() - at < n)
      return false;
    s = bytes.substr(at, n);
    at += n;
    return true;
  };
  std::string info, tier, times;
  if (!take(info) || info.size() != sizeof k.info || !take(tier) ||
      !take(k.schedule) || !take(times) || times.size() != 3 * sizeof(double))
    return false;
  double ms[3];
  std::memcpy(ms, times.data(), sizeof ms);
  k.lowerMs = ms[0];
  k.optimizeMs = ms[1];
  k.emitMs = ms[2];
  for (std::string &e : k.entries)
    if (!take(e))
      return false;
  auto parsed = parseCpuTier(tier);
  if (!parsed || !take(k.object) || at != bytes.size())
    return false;
  k.tier = *parsed;
  std::memcpy(&k.info, info.data(), sizeof k.info);
  return true;
}

static nb::bytes toBytes(const std::string &s) {
  return nb::bytes(s.data(), s.size());
}

static nb::bytes compileCpu(const KernelSpec &spec, const std::string &tier,
                            const std::string &schedule) {
  CpuTier t = tierOf(tier);
  std::string packed = [&] {
    nb::gil_scoped_release release;
    return pack(unwrap(compileForCpu(spec, t, schedule)));
  }();
  return toBytes(packed);
}

static nb::object loadCpu(nb::bytes packed) {
  CpuKernel kernel;
  if (!unpack(std::string(packed.c_str(), packed.size()), kernel))
    throw nb::value_error("damaged kernel");
  KvKernel *loaded = unwrap(loadCpuKernel(kernel));
  // bindCache's Kernel takes a reference of its own.
  nb::capsule raw(loaded, [](void *p) noexcept {
    kvcache_kernel_release(static_cast<KvKernel *>(p));
  });
  return nb::module_::import_("kvcache._native").attr("Kernel")(raw);
}

static const TargetInfo &targetOf(const std::string &name) {
  return *unwrap(findTarget(name));
}

void kvcache::python::bindCompiler(nb::module_ &m) {
  m.def("compile_cpu", &compileCpu, nb::arg("spec"), nb::arg("tier"),
        nb::arg("schedule"));
  m.def("load_cpu", &loadCpu);
  m.def("unpack_cpu", [](nb::bytes packed) {
    CpuKernel k;
    if (!unpack(std::string(packed.c_str(), packed.size()), k))
      throw nb::value_error("damaged kernel");
    nb::dict d;
    d["tier"] = std::string(nameOf(k.tier));
    d["schedule"] = k.schedule;
    nb::dict ms;
    ms["lower"] = k.lowerMs;
    ms["optimize"] = k.optimizeMs;
    ms["emit"] = k.emitMs;
    d["compile_ms"] = ms;
    d["object_bytes"] = k.object.size();
    d["sealed_record_bytes"] = k.info.sealed_record_bytes;
    d["open_record_bytes"] = k.info.open_record_bytes;
    return d;
  });
  m.def("host_cpu_tier",
        [] { return std::string(nameOf(unwrap(hostCpuTier()))); });
  m.def("is_gpu",
        [](const std::string &target) { return targetOf(target).isGpu; });
  m.def("write_package", [](const KernelSpec &spec, const std::string &schedule,
                            const std::string &folder) {
    nb::gil_scoped_release release;
    return unwrap(writePackage(spec, schedule, folder));
  });
  m.def("cpu_ir", [](const KernelSpec &spec, const std::string &tier,
                     const std::string &schedule, const std::string &level) {
    CpuTier t = tierOf(tier);
    nb::gil_scoped_release release;
    return unwrap(cpuKernelIR(spec, t, schedule, level));
  });
}
