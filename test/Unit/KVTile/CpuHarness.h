//===- CpuHarness.h - Random caches and a float64 attention -----*- C++ -*-===//
//
// Builds pools of random sealed and open pages directly in page-image order
// (random codes and scales), runs compiled `attend` and `merge` on them, and
// computes the same attention in double from the decoded values.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TEST_UNIT_KVTILE_CPUHARNESS_H
#define KVCACHE_TEST_UNIT_KVTILE_CPUHARNESS_H

#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Compiler/Compiler.h"
#include "kvcache/Format/Codec.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Target/X86/Jit.h"

#include <memory>
#include <random>

namespace kvcache::test {

/// Memory that starts 128-byte aligned.
class Bytes {
public:
  explicit Bytes(int64_t size = 0)
      : data(std::size_t(size) + 128), base(align()) {}
  uint8_t *get() { return data.data() + base; }
  const uint8_t *get() const { return data.data() + base; }

private:
  int64_t align() const {
    return (128 - reinterpret_cast<uintptr_t>(data.data()) % 128) % 128;
  }
  std::vector<uint8_t> data;
  int64_t base;
};

struct CompiledKernel {
  KernelSpec spec;
  CpuCode code;
  std::unique_ptr<x86::Jit> jit;
  KvAttendFn attend = nullptr, merge = nullptr;
  std::string error;
};
CompiledKernel compileKernel(const KernelSpec &spec, CpuTier tier,
                             const std::string &schedule = "");

struct Result {
  std::vector<float> out, lse;
};

/// A cache of sequences with the given lengths, one query row group each.
class RandomCache {
public:
  RandomCache(const KernelSpec &spec, std::vector<int64_t> lengths,
              std::vector<int64_t> qLens, uint32_t seed);

  Result run(const CompiledKernel &kernel) const;
  Result runSequence(const CompiledKernel &kernel, int64_t seq) const;
  Result reference() const;
  int64_t rows() const { return indptr.back(); }
  /// Overwrites everything that no query may see or that is not stored.
  void poison();

private:
  float storeElement(Element e, float x, uint8_t *at) const;
  void fillSealed(int64_t page);
  void fillOpen(int64_t page);
  float decoded(const TensorImage &t, const uint8_t *record, int64_t tok,
                int64_t ch, int64_t head) const;
  float element(int64_t seq, int64_t head, int64_t tok, int64_t ch,
                bool value) const;
  bool isSealed(int64_t seq, int64_t page) const;
  double slope(int64_t head) const { return slopes[std::size_t(head)]; }

  KernelSpec spec;
  PageImage image;
  std::vector<int64_t> lengths;
  std::vector<int32_t> lengths32, sealed, rowSeq, indptr;
  std::vector<int32_t> sealedTable, openTable;
  int64_t tableStride = 1;
  Bytes sealedPool, openPool, query;
  std::vector<float> queryValues, slopes, kScale, vScale;
  mutable std::mt19937 rng;
};

/// ||a - b|| / ||b|| over n numbers; 0 when both vanish.
double relativeError(const float *a, const float *b, int64_t n);

} // namespace kvcache::test

#endif // KVCACHE_TEST_UNIT_KVTILE_CPUHARNESS_H
