//===- ManifestFuzz.cpp - libFuzzer target for manifest.json ------------===//
#include "Manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kvcache::rt::Manifest manifest;
  kvcache::rt::Error error = kvcache::rt::parseManifest(
      {reinterpret_cast<const char *>(data), size}, manifest);
  // Refused with a message, or accepted with numbers that are in range.
  if (error ? error.message.empty() : manifest.code.empty())
    __builtin_trap();
  return 0;
}
