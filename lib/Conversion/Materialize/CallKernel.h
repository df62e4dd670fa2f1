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
};
/// What determines the kernel of an attention on tensors; null where there is
/// none (explicit key positions).
tile::ArraysAttr arraysSpecOf(AttentionOp op);
/// Query rows of a sequence times the group, 0 if not known.
int64_t columnsOf(AttentionOp op, tile::ArraysAttr spec);
/// Calls the kernel for `op` on tensors, spread over threads: out and lse.
Values callArrayAttend(Emitter &e, AttentionOp op, Source &source,
                       const GeneratedArrayKernel &kernel);

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

/// A loop over the tokens of a cache with an external layout: out and lse.
Values attendExternal(Emitter &e, AttentionOp op, Source &source,
                      const KernelSpec &spec);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_MATERIALIZE_CALLKERNEL_H
