//===- CompileGpu.cpp - The GPU half of the compiler for Python -----------===//

#include "Native.h"

#include "kvcache/Compiler/GpuCompiler.h"
#include "kvcache/Compiler/SimDevice.h"
#include "kvcache/Target/PTX/PTX.h"

#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace kvcache;
using namespace kvcache::python;

static GpuKernel compile(const KernelSpec &spec, const std::string &target,
                         const std::string &schedule) {
  const TargetInfo &info = *unwrap(findTarget(target));
  nb::gil_scoped_release release;
  return unwrap(compileForGpu(spec, info, schedule));
}

static nb::bytes assemble(const std::string &ptx, const std::string &target) {
  if (!ptx::findPtxas())
    deviceError(
        "a cubin needs ptxas, which was not found in CUDA_HOME, PATH or "
        "/usr/local/cuda/bin");
  GpuKernel kernel;
  kernel.target = unwrap(findTarget(target));
  kernel.ptx = ptx;
  Expected<std::string> cubin = [&] {
    nb::gil_scoped_release release;
    return assembleCubin(kernel);
  }();
  if (const FormatError *error = errorOf(cubin))
    deviceError(error->message);
  const std::string &bytes = std::get<std::string>(cubin);
  return nb::bytes(bytes.data(), bytes.size());
}

void kvcache::python::bindGpuCompiler(nb::module_ &m) {
  // (PTX text, launches as JSON)
  m.def("compile_gpu", [](const KernelSpec &spec, const std::string &target,
                          const std::string &schedule) {
    GpuKernel kernel = compile(spec, target, schedule);
    return nb::make_tuple(kernel.ptx, launchesJSON(kernel));
  });
  m.def("gpu_report", [](const KernelSpec &spec, const std::string &target,
                         const std::string &schedule) {
    GpuKernel kernel = compile(spec, target, schedule);
    nb::gil_scoped_release release;
    return reportJSON(kernel);
  });
  m.def("gpu_ir", [](const KernelSpec &spec, const std::string &target,
                     const std::string &schedule, const std::string &level) {
    const TargetInfo &info = *unwrap(findTarget(target));
    nb::gil_scoped_release release;
    return unwrap(gpuKernelIR(spec, info, schedule, level));
  });
  m.def("write_gpu_package",
        [](const KernelSpec &spec, const std::string &target,
           const std::string &schedule, const std::string &folder) {
          GpuKernel kernel = compile(spec, target, schedule);
          if (auto error = writeGpuPackage(kernel, folder))
            throw nb::value_error(error->message.c_str());
        });
  m.def("assemble", &assemble);
  m.def("load_sim", [](const KernelSpec &spec, const std::string &target,
                       const std::string &schedule,
                       const std::string &mmaModel) {
    KvKernel *loaded =
        unwrap(loadOnSimulator(compile(spec, target, schedule), mmaModel));
    // The class keeps a reference of its own.
    nb::capsule raw(loaded, [](void *p) noexcept {
      kvcache_kernel_release(static_cast<KvKernel *>(p));
    });
    return nb::module_::import_("kvcache._native").attr("Kernel")(raw);
  });
}
