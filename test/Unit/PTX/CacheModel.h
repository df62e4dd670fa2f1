//===- CacheModel.h - A cache in memory and attention over it ---*- C++ -*-===//
//
// What the attend kernels are judged by: pools filled by the plain codec at the
// addresses that the page image gives, and attention in f64 over the decoded
// contents. Nothing here is shared with the code generators but Format.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TEST_PTX_CACHEMODEL_H
#define KVCACHE_TEST_PTX_CACHEMODEL_H

#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Kernel/KernelSpec.h"

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace kvcache::test {

/// Given contents instead of random ones.
struct Contents {
  /// (is a value, sequence, kv head, token, channel)
  std::function<float(bool, int64_t, int64_t, int64_t, int64_t)> element;
  std::vector<uint16_t> query; ///< [rows, q_heads, head_dim]
};

/// Sequences of random tokens, one query row each, stored in pages scattered
/// over the pools; bytes that no token owns are poison.
class CacheModel {
public:
  /// Bytes that no token owns are `poison` (NaN in both 16-bit floats).
  /// `splitTokens` as the schedule has it (0: auto).
  CacheModel(KernelSpec spec, std::vector<int32_t> lengths, uint32_t seed,
             int64_t splitTokens = 0, uint16_t poison = 0xffff,
             const Contents *contents = nullptr);

  KernelSpec spec;
  PageImage image;
  std::vector<int32_t> lengths, sealedPages, rowSequence, queryEnds;
  std::vector<uint8_t> sealedPool, openPool;
  std::vector<int32_t> sealedTable, openTable;
  int64_t tableStride = 1, maxSplits = 1;
  std::vector<uint16_t> query; ///< [rows, q_heads, head_dim]
  std::vector<float> slopes;   ///< [q_heads]

  int64_t rows() const { return int64_t(lengths.size()); }

  /// f64 attention of row `row`, head `head` over the decoded cache.
  struct Answer {
    std::vector<double> out;
    double lse;
  };
  Answer answer(int64_t row, int64_t head) const;

  /// A stored key or value, as decoding gives it.
  float &element(bool isValue, int64_t sequence, int64_t head, int64_t token,
                 int64_t channel);

private:
  void fillRandom(int64_t sequence);
  void fillSequence(int64_t sequence, const Contents *contents);
  void seal(int64_t sequence, int64_t head, int64_t page, uint8_t *record);
  void encodeSide(const TensorImage &side, Section codes, Section scales,
                  Section zeros, int64_t sequence, int64_t head, int64_t page,
                  uint8_t *record, int exponentAt);
  void storeOpen(int64_t sequence, int64_t head, int64_t page, uint8_t *record);
  std::mt19937 random;
  /// Decoded contents, [sequence][head][token][channel].
  std::vector<std::vector<float>> keys, values;
};

uint16_t toBits16(Element dtype, float x);
float fromBits16(Element dtype, uint16_t bits);

} // namespace kvcache::test

#endif // KVCACHE_TEST_PTX_CACHEMODEL_H
