//===- NpyFuzz.cpp - libFuzzer target of the .npy reader ------------------===//
//
// Whatever parses must survive a round trip unchanged.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Support/Npy.h"

#include <cstdlib>

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  auto first = parseNpy({reinterpret_cast<const std::byte *>(data), size});
  if (auto *a = std::get_if<NpyArray>(&first)) {
    auto again = parseNpy(formatNpy(*a));
    auto *b = std::get_if<NpyArray>(&again);
    if (!b || b->shape != a->shape || b->data != a->data)
      std::abort();
  }
  return 0;
}
