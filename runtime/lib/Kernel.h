//===- Kernel.h - A kernel's numbers and entry points -----------*- C++ -*-===//
#ifndef KVCACHE_RUNTIME_LIB_KERNEL_H
#define KVCACHE_RUNTIME_LIB_KERNEL_H

#include "Status.h"

#include <atomic>
#include <string>

/// Opaque to C; reference counted.
struct KvKernel {
  KvKernelInfo info{};
  KvKernelEntries entries{};
  std::string tier;
  KvLaunchFn launch = nullptr; ///< a device's; null: `entries`
  KvKernelRelease release = nullptr;
  void *context = nullptr;
  std::atomic<int64_t> references{1};

  int64_t group() const { return info.q_heads / info.kv_heads; }
  int64_t chunks() const { return (group() + info.q_pack - 1) / info.q_pack; }
  int64_t dtypeBytes() const { return info.dtype == KV_F32 ? 4 : 2; }
  int64_t splitTokens(int64_t length) const {
    return info.split_tokens ? info.split_tokens : kvcache_split_tokens(length);
  }
};

namespace kvcache::rt {

/// Refuses numbers that no kernel can have; they come from files.
Error checkKernelInfo(const KvKernelInfo &info);

/// Bytes of the pools that a call's page numbers reach into; devices copy them.
struct PoolBytes {
  int64_t sealed = 0, open = 0;
};

/// checkKernelInfo, entry points present, then a new kernel with one reference.
Error makeKernel(const KvKernelInfo &info, const KvKernelEntries &entries,
                 KvKernelRelease release, void *context, KvKernel *&kernel);

/// How attend's work is cut: rows are done in blocks whose partials fit the
/// workspace bound.
struct AttendPlan {
  int64_t rows = 0;
  int64_t maxSplits = 1;
  int64_t rowsPerBlock = 1;
  int64_t workspaceBytes = 0;
};
AttendPlan planAttend(const KvKernel &kernel, int64_t rows, int64_t maxSplits);

/// Runs the rows of a plan: `attend`, then `merge`, block by block. `tokens` is
/// the work in all, for deciding whether threads are worth waking.
Error runAttend(const KvKernel &kernel, KvAttendArgs args,
                const AttendPlan &plan, void *workspace, int64_t tokens,
                int64_t batch, const PoolBytes &pools);

/// The append entry over rows of `args`; sets `refused` to the first row that
/// cannot be stored, or -1.
Error runAppend(const KvKernel &kernel, const KvAppendArgs &args, int64_t rows,
                const PoolBytes &pools, int64_t &refused);

/// seal, unseal (`entry` says which) or read over pages * kv_heads items.
Error runPages(const KvKernel &kernel, KvEntry entry, const KvSealArgs &args,
               int64_t pages, const PoolBytes &pools);
Error runRead(const KvKernel &kernel, const KvReadArgs &args, int64_t pages,
              const PoolBytes &pools);

// The same through a device's launch function (Device.cpp).
Error launchAttend(const KvKernel &kernel, const KvAttendArgs &args,
                   int64_t rows, int64_t totalRows, int64_t batch,
                   const PoolBytes &pools);
Error launchAppend(const KvKernel &kernel, KvAppendArgs args, int64_t rows,
                   const PoolBytes &pools, int64_t &refused);
Error launchPages(const KvKernel &kernel, KvEntry entry, const KvSealArgs &args,
                  int64_t pages, const PoolBytes &pools);
Error launchRead(const KvKernel &kernel, const KvReadArgs &args, int64_t pages,
                 const PoolBytes &pools);

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_KERNEL_H
