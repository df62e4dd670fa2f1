//===- Quantize.h - Coding whole arrays -------------------------*- C++ -*-===//
//
// kv.quantize and kv.dequantize: plain arrays [batch, tokens, channels], where
// a page is all tokens. The same formulas as the kernels (Codec.h).
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_FORMAT_QUANTIZE_H
#define KVCACHE_FORMAT_QUANTIZE_H

#include "kvcache/Format/Format.h"

namespace kvcache {

struct ArrayShape {
  int64_t batch = 1, tokens = 0, channels = 0;
  int64_t count() const { return batch * tokens * channels; }
};

/// Codes one per element, unpacked, in x's order: one byte for integers
/// (unsigned if asymmetric, else two's complement) and for fp8 bits; floats
/// take their own 2 or 4 bytes. Scales and zeros are [batch, scales.rows,
/// scales.cols], f32 that the scale type holds exactly; zero is empty if
/// symmetric, both for floats. `scales` is [1, 1] for head and tensor.
struct Quantized {
  int64_t codeBytes = 1;
  GroupShape scales;
  std::vector<uint8_t> codes;
  std::vector<float> scale, zero;
};

/// Bytes of an unpacked code, and the shape of the scale array; or why arrays
/// of this shape cannot be coded so (2of4, hadamard and center are not codings
/// of single elements and are refused).
Expected<Quantized> quantizedLayout(const Encoding &e, const ArrayShape &shape);

/// Refuses what `append` refuses, naming the first element. `tensorScale` is
/// the static scale of a `tensor` encoding.
Expected<Quantized> quantize(const float *x, const ArrayShape &shape,
                             const Encoding &e, float tensorScale = 1.0f);

/// `scale` and `zero` have the shape that `quantize` gives; `zero` may be null
/// unless the encoding is asymmetric, both for floats.
Expected<std::vector<float>> dequantize(const uint8_t *codes,
                                        const float *scale, const float *zero,
                                        const ArrayShape &shape,
                                        const Encoding &e);

} // namespace kvcache

#endif // KVCACHE_FORMAT_QUANTIZE_H
