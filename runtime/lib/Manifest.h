//===- Manifest.h - manifest.json of a kernel package -----------*- C++ -*-===//
//
// {
//   "kvcache_package": 1,             version of this layout
//   "abi": 1,                         KVCACHE_ABI_VERSION
//   "target": "x86-64",
//   "spec": "...", "format": "...",   for people and caches of packages
//   "image_hash": "0123456789abcdef", 16 hexadecimal digits
//   "dtype": "f16",
//   "q_heads": 9, ...                 every other field of KvKernelInfo
//   "entries": {"attend": NAME, "merge": NAME, "append": NAME, "seal": NAME,
//               "unseal": NAME, "read": NAME},
//   "code": [{"tier": "avx512", "file": "kernel-avx512.so",
//             "bytes": 12345, "hash": "0123456789abcdef"}, ...]
// }
//
// Manifests come from files: every field is checked, and nothing in one is a
// path outside its folder.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNTIME_LIB_MANIFEST_H
#define KVCACHE_RUNTIME_LIB_MANIFEST_H

#include "Status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::rt {

struct CodeObject {
  std::string tier, file;
  int64_t bytes = 0;
  uint64_t hash = 0;
};

struct Manifest {
  KvKernelInfo info{};
  std::string target, spec, format;
  /// attend, merge, append, seal, unseal, read.
  std::string entries[6];
  std::vector<CodeObject> code;
};

/// Names of `entries`, in order.
inline constexpr const char *entryNames[6] = {"attend", "merge",  "append",
                                              "seal",   "unseal", "read"};

/// Parses and checks; the message says which field, what it holds and what is
/// accepted.
Error parseManifest(std::string_view text, Manifest &manifest);

/// 64-bit FNV-1a, the hash of code objects.
uint64_t hashBytes(std::string_view bytes);

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_MANIFEST_H
