//===- XlaKernels.h - Kernels that XLA calls --------------------*- C++ -*-===//
#ifndef KVCACHE_LIB_COMPILER_GRAPH_XLAKERNELS_H
#define KVCACHE_LIB_COMPILER_GRAPH_XLAKERNELS_H

#include "kvcache/Runner/Executable.h"

#include <memory>
#include <string>

namespace kvcache {

/// A buffer's dtype (XLA's number) and shape.
struct XlaBufferType {
  int32_t dtype;
  llvm::SmallVector<int64_t> shape;
};

/// One kernel: its arguments, then its results, are buffers of these types, and
/// are given to the code with these shapes (the same elements in row-major
/// order).
struct XlaKernel {
  std::unique_ptr<Executable> code;
  std::vector<XlaBufferType> inputs, outputs;
  std::vector<llvm::SmallVector<int64_t>> outputShapes;
};

/// Whether the kernel of this name is known.
bool hasXlaKernel(llvm::StringRef name);
/// Keeps a kernel for as long as the process lives: XLA's executables outlive
/// whatever made them.
void addXlaKernel(llvm::StringRef name, std::shared_ptr<XlaKernel> kernel);

} // namespace kvcache

#endif // KVCACHE_LIB_COMPILER_GRAPH_XLAKERNELS_H
