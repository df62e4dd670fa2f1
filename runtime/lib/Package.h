//===- Package.h - Loading a kernel package ---------------------*- C++ -*-===//
#ifndef KVCACHE_RUNTIME_LIB_PACKAGE_H
#define KVCACHE_RUNTIME_LIB_PACKAGE_H

#include "Kernel.h"

namespace kvcache::rt {

/// Reads PATH/manifest.json, picks a tier, checks the code's hash, loads it.
Error loadPackage(const std::string &path, const std::string &tier,
                  uint64_t expectedImageHash, KvKernel *&kernel);

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_PACKAGE_H
