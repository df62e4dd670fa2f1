//===- CallKernel.h - Calling generated kernels -----------------*- C++ -*-===//
//
// From tensors to the raw pointers of kvcache/ABI/KernelABI.h.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_MATERIALIZE_CALLKERNEL_H
#define KVCACHE_LIB_CONVERSION_MATERIALIZE_CALLKERNEL_H

#include "kvcache/Conversion/KVCacheToReference/Source.h"
#include "kvcache/Kernel/KernelSpec.h"

namespace kvcache {

/// A kernel that was added to the module.
struct GeneratedKernel {
  KernelSpec spec;
  std::string attend, merge; ///< symbols
  int64_t qPack = 0, splitTokens = 0;
};

/// The storage kernels of a cache (llvm.func symbols).
struct StorageSymbols {
  KernelSpec spec;
  std::string append, seal;
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
