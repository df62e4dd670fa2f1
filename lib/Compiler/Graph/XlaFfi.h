//===- XlaFfi.h - The C interface of XLA's custom calls ---------*- C++ -*-===//
//
// What we use of XLA's FFI (api_version 4 of custom calls), declared from its
// published C interface, so that nothing of XLA is needed to build. Every
// struct of it begins with its own size: what is read is checked against that.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_COMPILER_GRAPH_XLAFFI_H
#define KVCACHE_LIB_COMPILER_GRAPH_XLAFFI_H

#include <cstddef>
#include <cstdint>

namespace kvcache::xla {

/// Before all else in a struct.
struct Extension {
  size_t size;
  int32_t type; ///< 1: metadata
  Extension *next;
};
struct Prefix {
  size_t size;
  Extension *extensions;
};

struct Version {
  Prefix prefix;
  int major, minor;
};
struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata *metadata;
};
inline constexpr int32_t kMetadata = 1;

struct Error;
struct ErrorCreateArgs {
  Prefix prefix;
  const char *message;
  int32_t code; ///< of absl::Status
};
inline constexpr int32_t kInvalidArgument = 3, kNotFound = 5, kInternal = 13;

/// As far as we call it.
struct Api {
  Prefix prefix;
  Version version;
  const void *internal;
  Error *(*createError)(ErrorCreateArgs *);
};

struct Buffer {
  Prefix prefix;
  int32_t dtype;
  void *data;
  int64_t rank;
  int64_t *dims;
};
/// Arguments and results: type 1 is a buffer.
struct Values {
  Prefix prefix;
  int64_t count;
  int32_t *types;
  void **values;
};
inline constexpr int32_t kBuffer = 1;

struct Text {
  const char *data;
  size_t size;
};
/// Named by `names`; type 4 is a Text.
struct Attributes {
  Prefix prefix;
  int64_t count;
  int32_t *types;
  Text **names;
  void **values;
};
inline constexpr int32_t kText = 4;

struct CallFrame {
  Prefix prefix;
  const Api *api;
  void *context;
  int32_t stage; ///< 3: execute
  Values arguments, results;
  Attributes attributes;
};
inline constexpr int32_t kExecute = 3;

/// XLA's numbers of element types.
enum DType : int32_t {
  PRED = 1,
  S8 = 2,
  S16 = 3,
  S32 = 4,
  S64 = 5,
  U8 = 6,
  U16 = 7,
  U32 = 8,
  U64 = 9,
  F16 = 10,
  F32 = 11,
  F64 = 12,
  BF16 = 16,
  F8E5M2 = 19,
  F8E4M3FN = 20
};

} // namespace kvcache::xla

#endif // KVCACHE_LIB_COMPILER_GRAPH_XLAFFI_H
