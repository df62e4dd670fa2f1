//===- Mma.h - Fragments and accumulation of matrix products ----*- C++ -*-===//
//
// What mma.sync, wmma and wgmma share: element formats, where each element of a
// fragment lies, and the models of accumulation.
//
// `exact`: every product exact, added to the f32 accumulator by fma in
// ascending k. The chips' models (published bit-accurate studies) cut k into
// chunks; the products of a chunk and the accumulator are aligned to the
// largest exponent, truncated to `frac` bits, added exactly and truncated to
// the accumulator's format.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_MMA_H
#define KVCACHE_SIM_EXEC_MMA_H

#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

enum class Elem : uint8_t {
  F16,
  BF16,
  TF32,
  E4M3,
  E5M2,
  F64,
  S8,
  U8,
  S4,
  U4,
  B1,
  F32,
  S32,
  None
};
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

struct AccModel {
  bool exact = true;
  int chunk = 0, frac = 0;
  bool keep13 = false; ///< the accumulator keeps 13 fraction bits (FP8)
};
AccModel accModel(MmaModel m, Elem a, bool isWgmma);

float decodeElem(Elem e, uint32_t raw, bool flushSub);
int32_t decodeInt(Elem e, uint32_t raw);

/// acc + sum of a[i * sa] * b[i * sb] over k.
float dotModel(const AccModel &m, float acc, const float *a, int sa,
               const float *b, int sb, int k);

/// The product of decoded matrices a[m][k], b[k][n] into c[m][n].
void productF32(const AccModel &model, const float *a, const float *b, float *c,
                int m, int n, int k);

/// Fragments of m16n8 (and m8n8) shapes: rows or columns, k and registers.
std::vector<Slot> fragmentA(int m, int k, int bits);
std::vector<Slot> fragmentB(int k, int n, int bits);
std::vector<Slot> fragmentC(int m, int n, int bits);

/// Dense columns of the kA stored elements of each row of a sparse A, from the
/// metadata registers of the warp.
void denseColumns(Ctx &c, const Instr &I, int m, int kA, int bits, int selector,
                  const uint32_t *meta, std::vector<uint16_t> &col);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_MMA_H
