//===- Tier.cpp - The decoders of one CPU tier ----------------------------===//
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

const Table &table() {
  static const Table t = [] {
    Table x;
    addInt(x);
    addBits(x);
    addFloat(x);
    addHalf(x);
    addSpecialMath(x);
    addCompare(x);
    addConvert(x);
    addMove(x);
    addControl(x);
    addMemory(x);
    addAtomic(x);
    addWarp(x);
    addSync(x);
    addMatrix(x);
    addMma(x);
    addWmma(x);
    addWgmma(x);
    addAsync(x);
    addTensor(x);
    addVideo(x);
    addStack(x);
    return x;
  }();
  return t;
}

} // namespace kvcache::sim::KVSIM_TIER
