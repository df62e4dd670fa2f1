//===- StorageKernels.h - append, seal, unseal, read ------------*- C++ -*-===//
//
// Builds the kernels that move tokens into a cache and out of it, from the
// format alone: nothing here knows a processor. They are written once for both
// execution models and leave `llvm`, `scf`, `arith` and `math` ops (and `nvvm`
// for thread ids and barriers), which each target lowers with its other
// kernels.
//
// Entry points and arguments: ABI/KernelABI.h. Bytes: Format/Image.h. Formulas:
// Format/Codec.h; what the kernels store is bitwise what those compute.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_STORAGEKERNELS_H
#define KVCACHE_CONVERSION_STORAGEKERNELS_H

#include "kvcache/Format/Image.h"
#include "kvcache/Kernel/KernelSpec.h"

#include "mlir/IR/BuiltinOps.h"

namespace kvcache {

/// Who runs the kernels, and what it can do.
struct StorageTarget {
  /// Serial: i32 NAME(ptr args, i64 begin, i64 end), a loop over the items.
  /// Blocks: a GPU kernel, one block per item (append: one thread per row).
  enum class Model { Serial, Blocks };

  ImageFamily family = ImageFamily::X86_64;
  Model model = Model::Serial;
  /// Threads of a block.
  int64_t threads = 128;
  /// f16 <-> f32 conversions and f32 fma exist; x86-64-v2 has neither.
  bool nativeF16 = true, nativeFma = true;
  /// Put in front of the entry names.
  std::string prefix;
};

/// Adds `append`, `seal`, `unseal` and `read` to `module`. Emits an error at
/// the module when the spec has no page image for the family.
mlir::LogicalResult buildStorageKernels(mlir::ModuleOp module,
                                        const KernelSpec &spec,
                                        const StorageTarget &target);

} // namespace kvcache

#endif // KVCACHE_CONVERSION_STORAGEKERNELS_H
