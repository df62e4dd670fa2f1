//===- CallKernel.h - Calling generated kernels -----------------*- C++ -*-===//
//
// From tensors to the raw pointers of kvcache/ABI/KernelABI.h.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_MATERIALIZE_CALLKERNEL_H
#define KVCACHE_LIB_CONVERSION_MATERIALIZE_CALLKERNEL_H

#include "kvcache/Conversion/KVCacheToReference/Source.h"
#include "kvcache/Dialect/KVTile/IR/KVTile.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Kernel/KernelSpec.h"

namespace kvcache {

/// A kernel that was added to the module.
struct GeneratedKernel {
  KernelSpec spec;
  std::string attend, merge; ///< symbols
  int64_t qPack = 0, splitTokens = 0;
  int64_t device = 0; ///< handle of a device's kernel; 0: code of this module
};

/// A kernel on arrays that was added to the module.
struct GeneratedArrayKernel {
  tile::ArraysAttr spec;
  tile::ScheduleAttr schedule;
  std::string attend; ///< symbol
  /// What gives its keys and values: an external cache type with the types of
  /// its arrays; none where they are plain arrays.
  llvm::SmallVector<mlir::Type> rowsOf;
};
/// What determines the kernel of an attention on tensors; null where there is
/// none (explicit key positions).
tile::ArraysAttr arraysSpecOf(AttentionOp op);
/// Query rows of a sequence times the group, 0 if not known.
int64_t columnsOf(AttentionOp op, tile::ArraysAttr spec);
/// Calls the kernel for `op` on tensors or on an external cache, spread over
/// threads: out and lse.
Values callArrayAttend(Emitter &e, AttentionOp op, Source &source,
                       const GeneratedArrayKernel &kernel);

/// Adds the function `name` that decodes rows of keys or values of an external
/// cache for kernels on arrays.
void buildRowsFunction(mlir::ModuleOp module, llvm::StringRef name,
                       const ExternalSource &source, bool isValue);
/// What such functions get: the addresses and strides of the arrays, and the
/// page numbers of `seqs` sequences. A pointer.
mlir::Value packSource(Emitter &e, ExternalSource &source, mlir::Value seqs);
/// Types on which rows functions depend.
llvm::SmallVector<mlir::Type> rowTypesOf(const ExternalSource &source);

/// The storage kernels of a cache (llvm.func symbols).
struct StorageSymbols {
  KernelSpec spec;
  std::string append, seal;
  ImageFamily family = ImageFamily::X86_64;
};
/// Whether the storage kernels can serve: they know one page list for all
/// heads.
bool hasOneList(const PagedSource &source);
CacheParts callAppend(Emitter &e, AppendOp op, PagedSource &source,
                      const StorageSymbols &kernels);
CacheParts callSeal(Emitter &e, SealOp op, PagedSource &source,
                    const StorageSymbols &kernels);

/// Calls the kernel for `op`: out and lse.
Values callAttend(Emitter &e, AttentionOp op, PagedSource &source,
                  const GeneratedKernel &kernel);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_MATERIALIZE_CALLKERNEL_H
