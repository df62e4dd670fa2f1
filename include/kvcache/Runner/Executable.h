//===- Executable.h - A compiled function that is called often --*- C++ -*-===//
//
// From a function of the LLVM dialect whose tensors have become memref
// descriptors to code that is called on arrays where they lie: arguments are
// read in place, and results keep the memory that the code allocated for them.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNNER_EXECUTABLE_H
#define KVCACHE_RUNNER_EXECUTABLE_H

#include "kvcache/Target/X86/Jit.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"

#include <mutex>

namespace kvcache {

/// An array in row-major order, as an argument.
struct ArrayView {
  const void *data;
  llvm::ArrayRef<int64_t> shape;
};

/// A result: strides are in elements; `owner` is freed by freeRunBlock, null
/// when the memory is an argument's or the code's own.
struct RunResult {
  std::byte *data = nullptr;
  llvm::SmallVector<int64_t> sizes, strides;
  std::byte *owner = nullptr;
};

/// Frees what a result owns.
void freeRunBlock(std::byte *owner);

class Executable {
public:
  /// Translates `module` (LLVM dialect) and compiles it for `tier`; `entry` had
  /// the type `type` before lowering.
  static llvm::Expected<std::unique_ptr<Executable>>
  create(mlir::ModuleOp module, llvm::StringRef entry, mlir::FunctionType type,
         CpuTier tier, x86::JitSymbols symbols = {});

  /// Calls it. Arguments fit the type (checked by the caller) and lie in
  /// memory of theirs while the call runs; they are not changed. Calls from
  /// several threads at once are fine. Memory that the code takes and no result
  /// keeps is freed before this returns.
  llvm::Expected<std::vector<RunResult>> call(llvm::ArrayRef<ArrayView> args);

private:
  std::unique_ptr<x86::Jit> jit;
  void (*run)(const uint64_t *, std::byte *) = nullptr;
  /// Rank of each argument and result, -1 for a scalar; bytes of an element.
  struct Slot {
    int64_t rank;
    unsigned bytes;
  };
  std::vector<Slot> inputs, outputs;
  std::vector<size_t> offsets; ///< of results in what the code stores
  size_t resultBytes = 0;
  int64_t *checkRecord = nullptr; ///< five numbers, see Check.h
  std::mutex checked;             ///< held while code with a record runs
};

} // namespace kvcache

#endif // KVCACHE_RUNNER_EXECUTABLE_H
