//===- AbiArguments.h - Tensors as arguments of kernels ---------*- C++ -*-===//
//
// From tensors to the raw pointers and structs of kvcache/ABI/KernelABI.h, and
// back.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_MATERIALIZE_ABIARGUMENTS_H
#define KVCACHE_LIB_CONVERSION_MATERIALIZE_ABIARGUMENTS_H

#include "kvcache/Conversion/KVCacheToReference/Emitter.h"

#include <map>
#include <string>

namespace kvcache {

/// The contiguous buffer of a tensor; the callee only reads it unless said
/// otherwise.
mlir::Value bufferOf(Emitter &e, mlir::Value tensor, bool readOnly = true);
/// Where a tensor lies, whatever its strides.
struct StridedArray {
  mlir::Value pointer;   ///< of element 0
  Values sizes, strides; ///< index, in elements
};
/// The buffer of a tensor that a callee reads, as it lies.
StridedArray stridedArrayOf(Emitter &e, mlir::Value tensor);
/// A buffer of `size` i64 that nothing else uses: bufferization may put other
/// tensors where one lay whose pointer a kernel got.
mlir::Value numbersOf(Emitter &e, mlir::Value size);
/// A buffer that kernels wrote, as a tensor.
mlir::Value tensorOf(Emitter &e, mlir::Value memref);
/// Address of a buffer's first element.
mlir::Value pointerTo(Emitter &e, mlir::Value memref);
mlir::Value toI64(Emitter &e, mlir::Value index);

/// Values of a struct's fields by name; absent ones are null.
using AbiFields = std::map<std::string, mlir::Value>;
/// A struct with the named fields, 8 bytes each, on the stack: its address.
mlir::Value packArguments(Emitter &e, llvm::ArrayRef<llvm::StringRef> names,
                          const AbiFields &fields);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_MATERIALIZE_ABIARGUMENTS_H
