//===- ExecOverflow.cpp - 32-bit arithmetic that wrapped in an address ----===//
#include "Arith.h"
#include "MemOrder.h"

namespace kvcache::sim::KVSIM_TIER {

void trackOverflow(Decoder &, Instr &, const std::string &, int) {}
void wrappedAddress(Ctx &, const Instr &, const Opnd &, uint32_t) {}

} // namespace kvcache::sim::KVSIM_TIER
