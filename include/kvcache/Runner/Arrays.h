//===- Arrays.h - .npy arrays as arguments and results ----------*- C++ -*-===//
//
// Which array stands for a value of which type, and the checks that an array
// fits its argument.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNNER_ARRAYS_H
#define KVCACHE_RUNNER_ARRAYS_H

#include "kvcache/Support/Npy.h"

#include "mlir/IR/Types.h"
#include "llvm/Support/Error.h"

#include <memory>

namespace kvcache {

/// A ranked tensor or a scalar of an element that arrays can hold.
bool isRunnable(mlir::Type type);

/// Bytes of one element in memory, in arrays and in generated code alike.
unsigned elementBytes(mlir::Type element);

/// The dtype that results of this element are written as: bf16 and fp8 as
/// unsigned bits, narrow integers one per byte, i1 as bool, index as int64.
NpyType resultType(mlir::Type element);

/// "float16 [?, 8, 64]": what an argument of this type expects.
std::string describeArgument(mlir::Type type);

/// Checks dtype, rank, extents and values (narrow integers must fit; they are
/// masked to their bits in place, as loads of generated code assume).
llvm::Error checkArgument(NpyArray &array, mlir::Type type);

/// Storage aligned for kernels (128 bytes).
class AlignedBytes {
public:
  explicit AlignedBytes(size_t size);
  std::byte *data() const { return bytes.get(); }

private:
  struct Free {
    void operator()(std::byte *p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> bytes;
};

/// An array of `element`s from strided memory, rank and strides in elements.
NpyArray gatherResult(mlir::Type element, const std::byte *base,
                      llvm::ArrayRef<int64_t> sizes,
                      llvm::ArrayRef<int64_t> strides);

} // namespace kvcache

#endif // KVCACHE_RUNNER_ARRAYS_H
