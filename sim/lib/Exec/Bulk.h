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
void copyBytes(Ctx &c, const Instr &I, int lane, const Bytes &to,
               const Bytes &from, uint64_t bytes);
void bulkAccess(Ctx &c, const Instr &I, int lane, const Bytes &b,
                uint64_t bytes, AccessKind kind, const uint8_t *values);
void markBulkRead(Ctx &c, int lane, const Bytes &from, uint64_t bytes);
/// The async check: generic stores not followed by fence.proxy.async.
void checkProxy(Ctx &c, const Instr &I, int lane, const Bytes &b,
                uint64_t bytes);

/// The bytes were written by the async proxy: no fence is needed for them.
void clearGeneric(const Bytes &b, uint64_t bytes);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_BULK_H
