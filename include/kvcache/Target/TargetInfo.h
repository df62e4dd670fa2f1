//===- TargetInfo.h - What the compiler knows of its targets ----*- C++ -*-===//
//
// Facts about processors, as plain data: no IR, no LLVM. Every number that a
// schedule, a legality check or a report needs about a chip stands here and
// nowhere else.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TARGET_TARGETINFO_H
#define KVCACHE_TARGET_TARGETINFO_H

#include "kvcache/Format/Format.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// Tiers of the x86-64 target: what its code may assume of the processor.
enum class CpuTier : uint8_t { V2, AVX2, AVX512 };
std::string_view nameOf(CpuTier tier);
std::optional<CpuTier> parseCpuTier(std::string_view name);

/// A GPU that reports state times for: what it can move and multiply.
struct GpuModel {
  std::string_view name;
  double bytesPerSecond;    ///< device memory
  double f16FlopsPerSecond; ///< dense f16 tensor core, f32 accumulation
  int sms;
};

/// One target name of `--target`.
struct TargetInfo {
  std::string_view name; ///< "sm_80", "x86-64"
  bool isGpu = false;

  // GPUs (compute capability tables of the CUDA programming guide).
  int smVersion = 0;           ///< 80, 86, ...
  bool archSpecific = false;   ///< sm_90a: features of one architecture only
  std::string_view ptxFeature; ///< LLVM's name of the PTX version, "ptx81"
  /// Most shared memory of one block, static plus dynamic, in bytes.
  int64_t sharedBytesPerBlock = 0;
  int64_t sharedBytesPerSM = 0;
  /// Shared memory that the system takes from each resident block.
  int64_t sharedReservedPerBlock = 0;
  int64_t registersPerSM = 0;
  int warpsPerSM = 0;
  int blocksPerSM = 0;
  GpuModel model; ///< the GPU that `--report` names by default

  /// The family whose page images and kernels this target uses. Caches written
  /// on one target of a family can be read on another.
  std::string_view imageFamily;
  /// The target whose schedule is emitted when this one has none of its own
  /// (under its own `.target`); equal to `name` when it has.
  std::string_view scheduleOf;
};

/// All targets, in the order in which messages list them.
const std::vector<TargetInfo> &allTargets();

/// The target of that name, or an error that names it and lists all of them.
Expected<const TargetInfo *> findTarget(std::string_view name);

/// "x86-64, sm_80, ..." for messages.
std::string targetList();

/// Blocks of `threads` threads that fit on one SM at once, limited by
/// registers, shared memory, warps and blocks, as a share of the SM's warps in
/// [0, 1].
double occupancy(const TargetInfo &target, int threads, int registers,
                 int64_t sharedBytes);

} // namespace kvcache

#endif // KVCACHE_TARGET_TARGETINFO_H
