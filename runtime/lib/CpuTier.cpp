//===- CpuTier.cpp - What this processor runs -----------------------------===//

#include "CpuTier.h"

using namespace kvcache::rt;

bool kvcache::rt::hostHasFeature(std::string_view feature) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The compiler wants each name as a literal.
#define FEATURE(llvmName, name)                                                \
  if (feature == llvmName)                                                     \
    return __builtin_cpu_supports(name);
  FEATURE("sse3", "sse3")
  FEATURE("ssse3", "ssse3")
  FEATURE("sse4.1", "sse4.1")
  FEATURE("sse4.2", "sse4.2")
  FEATURE("popcnt", "popcnt")
  FEATURE("avx", "avx")
  FEATURE("avx2", "avx2")
  FEATURE("fma", "fma")
  FEATURE("bmi", "bmi")
  FEATURE("bmi2", "bmi2")
  FEATURE("f16c", "f16c")
  FEATURE("avx512f", "avx512f")
  FEATURE("avx512bw", "avx512bw")
  FEATURE("avx512dq", "avx512dq")
  FEATURE("avx512vl", "avx512vl")
  FEATURE("avx512cd", "avx512cd")
  FEATURE("avx512vbmi", "avx512vbmi")
  FEATURE("avx512vnni", "avx512vnni")
  FEATURE("avx512bf16", "avx512bf16")
#undef FEATURE
#endif
  return false;
}

bool kvcache::rt::hostRunsTier(std::string_view tier) {
  auto all = [](std::initializer_list<std::string_view> names) {
    for (std::string_view name : names)
      if (!hostHasFeature(name))
        return false;
    return true;
  };
  if (tier == "avx512")
    return all({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni",
                "f16c", "fma", "avx2"});
  if (tier == "avx2")
    return all({"avx2", "f16c", "fma"});
  if (tier == "v2")
    return all({"sse4.2", "popcnt", "ssse3"});
  return false;
}

std::string kvcache::rt::hostTier() {
  for (std::string_view tier : cpuTiers)
    if (hostRunsTier(tier))
      return std::string(tier);
  return "";
}
