//===- Async.h - What copies, mbarriers and tensor maps share ---*- C++ -*-===//
#ifndef KVCACHE_SIM_EXEC_ASYNC_H
#define KVCACHE_SIM_EXEC_ASYNC_H

#include "MemOrder.h"

namespace kvcache::sim::KVSIM_TIER {

/// Delivers all cp.async of these lanes.
void deliverAll(Ctx &c, uint32_t m);

// ExecBulk.cpp, ExecTensor.cpp.
void decodeBulk(Decoder &D, Instr &I, bool reduce);
void decodeBulkTensor(Decoder &D, Instr &I, bool reduce);
// ExecMbarrier.cpp.
void decodeCpMbarrier(Decoder &D, Instr &I);
void addBarrierObjects(Table &t);

/// complete_tx on the mbarrier at an address.
void completeTx(Ctx &c, const Instr &I, int lane, MemSpace space, uint64_t addr,
                int64_t bytes, const AsyncOp &op);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_ASYNC_H
