//===- Tiers.cpp - Which CPU tier runs ------------------------------------===//
#include "Decoder.h"
#include <cstdlib>
#include <cstring>

namespace kvcache::sim {

#ifdef KVSIM_HAS_BASE
namespace base {
const Table &table();
}
#endif
#ifdef KVSIM_HAS_V4
namespace v4 {
const Table &table();
}
#endif
#ifdef KVSIM_HAS_V3
namespace v3 {
const Table &table();
}
#endif

/// KVCACHE_CPU=v2|avx2|avx512 limits the tier, as for compiled kernels.
static int wantedTier() {
  const char *e = std::getenv("KVCACHE_CPU");
  if (!e)
    return 4;
  return std::strcmp(e, "v2") == 0 ? 2 : std::strcmp(e, "avx2") == 0 ? 3 : 4;
}

static const Table &pick() {
  int want = wantedTier();
  (void)want;
#ifdef KVSIM_HAS_V4
  if (want >= 4 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
    return v4::table();
#endif
#ifdef KVSIM_HAS_V3
  if (want >= 3 && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma"))
    return v3::table();
#endif
#ifdef KVSIM_HAS_BASE
  return base::table();
#else
  std::abort(); // built for a better CPU only
#endif
}

const Table &activeTable() {
  static const Table &t = pick();
  return t;
}

} // namespace kvcache::sim
