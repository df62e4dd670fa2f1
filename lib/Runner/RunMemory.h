//===- RunMemory.h - Memory of one call of generated code -------*- C++ -*-===//
//
// Generated code takes memory through these functions. What a call took and no
// result keeps is freed when the call ends, so code that never frees (loops
// that make new tensors, early results) leaks nothing.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_RUNNER_RUNMEMORY_H
#define KVCACHE_LIB_RUNNER_RUNMEMORY_H

#include "kvcache/Target/X86/Jit.h"

#include <cstddef>

namespace kvcache {

/// The blocks that code of this thread takes while this object lives.
class RunMemory {
public:
  RunMemory();
  ~RunMemory();
  RunMemory(const RunMemory &) = delete;
  RunMemory &operator=(const RunMemory &) = delete;

  /// Whether `block` was taken and is still held; then it is the caller's.
  bool release(void *block);

  /// Names that replace malloc, aligned_alloc and free, and their addresses.
  static x86::JitSymbols symbols();
  /// The name for a function of libc, "" when it is left as it is.
  static llvm::StringRef replacementOf(llvm::StringRef name);

  struct Header;
  Header *first = nullptr;

private:
  RunMemory *outer;
};

} // namespace kvcache

#endif // KVCACHE_LIB_RUNNER_RUNMEMORY_H
