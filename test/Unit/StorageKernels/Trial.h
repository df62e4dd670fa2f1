//===- Trial.h - One spec, all storage kernels, every byte ------*- C++ -*-===//
//
// What the kernels are judged by: random pages, the plain codec and the plain
// geometry. Who executes the kernels (this processor, the simulator) is a
// `Runner`.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TEST_STORAGEKERNELS_TRIAL_H
#define KVCACHE_TEST_STORAGEKERNELS_TRIAL_H

#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Format/Quantize.h"
#include "kvcache/Kernel/KernelSpec.h"

#include <memory>
#include <random>

namespace kvcache::test {

/// A field of an argument list of KernelABI.h, in order: memory, or a number.
struct Argument {
  void *data = nullptr;
  size_t bytes = 0;
  int64_t number = 0;
};
template <typename T>
Argument memory(std::vector<T> &v) {
  return {v.data(), v.size() * sizeof(T), 0};
}

/// Executes a kernel over the items [begin, end).
class Runner {
public:
  virtual ~Runner() = default;
  virtual int32_t run(const char *kernel, std::vector<Argument> arguments,
                      int64_t begin, int64_t end) = 0;
};

/// Two kv heads of a format, verified.
KernelSpec makeSpec(const std::string &format, Element dtype, int64_t d,
                    int64_t dv);

void storeBits(uint8_t *to, uint32_t bits, unsigned bytes);
uint32_t loadBits(const uint8_t *from, unsigned bytes);

/// Two pages of random rows, run through every kernel.
class Trial {
public:
  Trial(const KernelSpec &spec, ImageFamily family,
        std::unique_ptr<Runner> runner);

  /// Appends, seals, reads and unseals; fails the test at the first wrong byte.
  void all();

  int64_t openBytes() const {
    return openRecordBytes(spec.dtype, page, spec.headDim, spec.valueDim);
  }
  /// Rows as bytes of the dtype, channel means apart.
  std::vector<uint8_t> rows(int64_t n, int64_t dim);
  int32_t append(std::vector<uint8_t> &k, std::vector<uint8_t> &v,
                 std::vector<int64_t> &slots, int64_t &status);
  /// `seal` or `unseal`.
  int32_t seal(const char *kernel, std::vector<int32_t> src,
               std::vector<int32_t> dst);

  KernelSpec spec;
  int64_t bytes, page;
  std::unique_ptr<Runner> runner;
  PageImage image;
  std::vector<uint8_t> open, sealed, keys, values;
  std::vector<float> kScale, vScale;
  std::mt19937 rng{11};

private:
  void appendAndCheck();
  void sealAndCheck();
  void readAndCheck();
  void unsealAndCheck();

  struct SideData {
    const TensorImage &image;
    Section codes, scales, zeros;
    std::vector<uint8_t> &rows;
    int64_t openOffset;
    float tensorScale;
    unsigned word;
  };
  std::vector<SideData> sides(int64_t head);
  /// The rows of page `p` of a head, as f32 [page, dim]; coded; and decoded.
  std::vector<float> floats(const SideData &s, int64_t p, int64_t head);
  Quantized quantized(const SideData &s, int64_t p, int64_t head);
  std::vector<float> decoded(const SideData &s, int64_t p, int64_t head);
  std::vector<uint8_t> expectedRecord(int64_t p, int64_t head);
  void placeSide(std::vector<uint8_t> &record, const SideData &s, int64_t p,
                 int64_t head);
};

} // namespace kvcache::test

#endif // KVCACHE_TEST_STORAGEKERNELS_TRIAL_H
