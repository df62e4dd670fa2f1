//===- CpuTier.h - What this processor runs ---------------------*- C++ -*-===//
#ifndef KVCACHE_RUNTIME_LIB_CPUTIER_H
#define KVCACHE_RUNTIME_LIB_CPUTIER_H

#include <string>
#include <string_view>

namespace kvcache::rt {

/// Tiers from best to least.
inline constexpr std::string_view cpuTiers[] = {"avx512", "avx2", "v2"};

/// Whether this processor has a feature, spelled as LLVM does ("avx512vnni").
/// Unknown names are absent features.
bool hostHasFeature(std::string_view feature);

bool hostRunsTier(std::string_view tier);
std::string hostTier();

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_CPUTIER_H
