//===- Mma.h - Fragments of matrix products ----------------------*- C++
//-*-===//
//
// What mma.sync, wmma and wgmma share: element formats and where each element
// of a fragment lies.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_MMA_H
#define KVCACHE_SIM_EXEC_MMA_H

#include "MmaModel.h"

namespace kvcache::sim::KVSIM_TIER {

Elem elemOf(const std::string &type);
int elemBits(Elem e);
inline bool isIntElem(Elem e) {
  return e == Elem::S8 || e == Elem::U8 || e == Elem::S4 || e == Elem::U4 ||
         e == Elem::B1;
}

/// Where an element of a fragment lies.
struct Slot {
  uint8_t reg, lane, shift;
};

/// A product on fragments: mma.sync, and wmma.mma on its tiles.
struct MmaExt {
  int m, n, k;
  Elem a, b, c, d;
  int nA, nB, nC, nD; ///< registers
  std::vector<Slot> sa, sb, sc, sd;
  bool satfinite = false, andPopc = false, sparse = false;
  int selector = 0;
  bool ordered = true; ///< metadata indices ascend
  int kA;              ///< stored columns of A: k, or k/2 when sparse
  int batch = 1;       ///< products at once: 4 of m8n8k4 on f16
};
/// Completes the instruction; operands are D, then A, B, C (and metadata).
void finishMma(Decoder &D, Instr &I, MmaExt x, const std::vector<Opnd> &ds,
               const std::vector<Opnd> &ss);

float decodeElem(Elem e, uint32_t raw, bool flushSub);
int32_t decodeInt(Elem e, uint32_t raw);

/// Fragments of m16n8 (and m8n8) shapes: rows or columns, k and registers.
std::vector<Slot> fragmentA(int m, int k, int bits);
std::vector<Slot> fragmentB(int k, int n, int bits);
std::vector<Slot> fragmentC(int m, int n, int bits);

/// The four products of m8n8k4 on f16, one after the other: A (or B) and the
/// accumulators.
std::vector<Slot> fragment884(bool rowMajor, bool isA);
std::vector<Slot> accumulator884(int bits);

/// How many sparsity selectors there are: 1, 2 or 4 (4, 2 or 1 threads of a
/// quad hold the metadata).
int sparseSelectors(int kA, int bits);

/// Dense columns of the kA stored elements of each row of a sparse A, from the
/// metadata registers of the warp.
void denseColumns(Ctx &c, const Instr &I, int m, int kA, int bits, int selector,
                  bool ordered, const uint32_t *meta,
                  std::vector<uint16_t> &col);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_MMA_H
