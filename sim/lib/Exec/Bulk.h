//===- Bulk.h - What 1-D and tensor bulk copies share -----------*- C++ -*-===//
#ifndef KVCACHE_SIM_EXEC_BULK_H
#define KVCACHE_SIM_EXEC_BULK_H

#include "Async.h"

namespace kvcache::sim::KVSIM_TIER {

struct ReduceOp {
  enum Kind { Add, Min, Max, Inc, Dec, And, Or, Xor } op = Add;
  std::string type;
};
ReduceOp takeReduce(Decoder &D);
void reduceElement(const ReduceOp &r, uint8_t *to, const uint8_t *from);
/// The operations that a copy's reads and writes belong to.
struct BulkOps {
  AsyncOp read, write;
};
/// Of a copy that completes on the mbarrier at an address.
BulkOps opsOfMbarrier(Ctx &c, const Instr &I, int lane, MemSpace space,
                      uint64_t addr);
/// Of a copy in the warp's current bulk group.
BulkOps opsOfGroup(Ctx &c);

void copyBytes(Ctx &c, const Instr &I, int lane, const Bytes &to,
               const Bytes &from, uint64_t bytes, const BulkOps &ops);
void bulkAccess(Ctx &c, const Instr &I, int lane, const Bytes &b,
                uint64_t bytes, AccessKind kind, const uint8_t *values,
                const AsyncOp *op = nullptr);
/// Counters of a contiguous piece that a copy reads or writes.
void countBulk(Ctx &c, const Instr &I, const Bytes &b, uint64_t bytes,
               bool isWrite);
void markBulkRead(Ctx &c, int lane, const Bytes &from, uint64_t bytes);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_BULK_H
