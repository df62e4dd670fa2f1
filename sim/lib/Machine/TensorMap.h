//===- TensorMap.h - The 128 bytes of a tensor map --------------*- C++ -*-===//
//
// The layout of the opaque object is our own: field values are those that
// tensormap.replace takes, and zero bytes are a valid start for it.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_MACHINE_TENSORMAP_H
#define KVCACHE_SIM_MACHINE_TENSORMAP_H

#include <cstdint>
#include <cstring>

namespace kvcache::sim {

struct TensorMap {
  uint64_t address;
  uint64_t strides[4]; ///< bytes, of dimensions 1..4
  uint32_t dims[5];
  uint32_t box[5];
  uint32_t elementStrides[5];
  uint8_t rank1;      ///< rank - 1
  uint8_t elemType;   ///< as tensormap.replace numbers them
  uint8_t interleave; ///< 0 none
  uint8_t swizzle;    ///< 0 none 1 32B 2 64B 3 128B
  uint8_t fill;       ///< 0 zero 1 NaN
  uint8_t pad[23];
};
static_assert(sizeof(TensorMap) == 128);

/// Bytes of an element type number; 0 if unknown.
inline int tensorElemBytes(int t) {
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
  return t >= 0 && t < 13 ? sizes[t] : 0;
}

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_TENSORMAP_H
