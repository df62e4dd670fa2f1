//===- TargetInfo.cpp - The table of targets ------------------------------===//
//
// Shared memory, registers and residency: CUDA programming guide, "Technical
// specifications per compute capability". Bandwidth and tensor rates: the
// vendor's data sheets (dense f16 with f32 accumulation). PTX 7.8 is the least
// version with movmatrix.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Target/TargetInfo.h"

#include <algorithm>

using namespace kvcache;

std::string_view kvcache::nameOf(CpuTier tier) {
  switch (tier) {
  case CpuTier::V2:
    return "v2";
  case CpuTier::AVX2:
    return "avx2";
  case CpuTier::AVX512:
    return "avx512";
  }
  return "";
}

std::optional<CpuTier> kvcache::parseCpuTier(std::string_view name) {
  for (CpuTier tier : {CpuTier::V2, CpuTier::AVX2, CpuTier::AVX512})
    if (nameOf(tier) == name)
      return tier;
  return std::nullopt;
}

static constexpr GpuModel a100 = {"A100-SXM-80GB", 2039e9, 312e12, 108};
static constexpr GpuModel a10 = {"A10", 600e9, 125e12, 72};
static constexpr GpuModel orin = {"Jetson-AGX-Orin", 204.8e9, 42.5e12, 16};
static constexpr GpuModel l40s = {"L40S", 864e9, 362e12, 142};
static constexpr GpuModel h100 = {"H100-SXM", 3350e9, 989e12, 132};

static TargetInfo gpu(std::string_view name, int sm, std::string_view ptx,
                      int64_t sharedBlock, int64_t sharedSM, int warps,
                      int blocks, const GpuModel &model) {
  TargetInfo info;
  info.name = name;
  info.isGpu = true;
  info.smVersion = sm;
  info.archSpecific = name.back() == 'a';
  info.ptxFeature = ptx;
  info.sharedBytesPerBlock = sharedBlock;
  info.sharedBytesPerSM = sharedSM;
  info.sharedReservedPerBlock = 1024;
  info.registersPerSM = 65536;
  info.warpsPerSM = warps;
  info.blocksPerSM = blocks;
  info.model = model;
  info.imageFamily = "sm_8x";
  info.scheduleOf = "sm_80";
  return info;
}

const std::vector<TargetInfo> &kvcache::allTargets() {
  static const std::vector<TargetInfo> targets = [] {
    TargetInfo cpu;
    cpu.name = cpu.imageFamily = cpu.scheduleOf = "x86-64";
    return std::vector<TargetInfo>{
        cpu,
        gpu("sm_80", 80, "ptx78", 166912, 167936, 64, 32, a100),
        gpu("sm_86", 86, "ptx78", 101376, 102400, 48, 16, a10),
        gpu("sm_87", 87, "ptx78", 166912, 167936, 48, 16, orin),
        gpu("sm_89", 89, "ptx78", 101376, 102400, 48, 24, l40s),
        gpu("sm_90", 90, "ptx78", 232448, 233472, 64, 32, h100),
        gpu("sm_90a", 90, "ptx80", 232448, 233472, 64, 32, h100)};
  }();
  return targets;
}

std::string kvcache::targetList() {
  std::string list;
  for (const TargetInfo &target : allTargets()) {
    if (!list.empty())
      list += ", ";
    list += target.name;
  }
  return list;
}

Expected<const TargetInfo *> kvcache::findTarget(std::string_view name) {
  for (const TargetInfo &target : allTargets())
    if (target.name == name)
      return &target;
  return FormatError{"unknown target '" + std::string(name) +
                     "', expected one of: " + targetList()};
}

double kvcache::occupancy(const TargetInfo &target, int threads, int registers,
                          int64_t sharedBytes) {
  int64_t warps = (threads + 31) / 32;
  // Registers are given out per warp in units of 256.
  int64_t perWarp = (int64_t(std::max(registers, 1)) * 32 + 255) / 256 * 256;
  int64_t blocks =
      std::min<int64_t>(target.blocksPerSM, target.warpsPerSM / warps);
  blocks = std::min(blocks, target.registersPerSM / perWarp / warps);
  blocks = std::min(blocks, target.sharedBytesPerSM /
                                (sharedBytes + target.sharedReservedPerBlock));
  return double(blocks * warps) / target.warpsPerSM;
}
