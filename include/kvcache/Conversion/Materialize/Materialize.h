//===- Materialize.h - Caches as buffers and kernel calls -------*- C++ -*-===//
//
// See Passes.td.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_MATERIALIZE_H
#define KVCACHE_CONVERSION_MATERIALIZE_H

#include "kvcache/Kernel/KernelSpec.h"

#include "mlir/Pass/Pass.h"

#include <functional>

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/Materialize/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/Materialize/Passes.h.inc"

/// An attention kernel that a device runs: what the caller must know, and a
/// number that names it to `kvcache_device_attend`.
struct DeviceKernel {
  int64_t qPack = 0, splitTokens = 0, handle = 0;
};
using DeviceKernels = std::function<Expected<DeviceKernel>(const KernelSpec &)>;

/// The function that the code then calls, defined by whoever runs it:
///   int32_t kvcache_device_attend(const KvAttendArgs *, int64_t items,
///       int64_t sealed_pool_bytes, int64_t open_pool_bytes, int64_t handle)
/// The workspace is its own.
inline constexpr const char *kDeviceAttend = "kvcache_device_attend";

/// The pass for attention on a device; what `kernels` does not take, or no
/// kernel computes, is an error.
std::unique_ptr<mlir::Pass>
createMaterializeOnDevicePass(DeviceKernels kernels);

} // namespace kvcache

#endif // KVCACHE_CONVERSION_MATERIALIZE_H
