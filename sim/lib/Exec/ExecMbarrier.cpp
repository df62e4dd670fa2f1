//===- ExecMbarrier.cpp - mbarrier objects --------------------------------===//
#include "Async.h"
namespace kvcache::sim::KVSIM_TIER {
void decodeBulk(Decoder &D, Instr &, bool) {
  D.error("bulk copies are not supported");
}
void decodeCpMbarrier(Decoder &D, Instr &) {
  D.error("'cp.async.mbarrier' is not supported");
}
void addBarrierObjects(Table &) {}
void addWmma(Table &) {}
void addWgmma(Table &) {}
void addTensor(Table &) {}
void addVideo(Table &) {}
void decodeStAsync(Decoder &D, Instr &) {
  D.error("'st.async' is not supported");
}
void decodeRedAsync(Decoder &D, Instr &) {
  D.error("'red.async' is not supported");
}
} // namespace kvcache::sim::KVSIM_TIER
