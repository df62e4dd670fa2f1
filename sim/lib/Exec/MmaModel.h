//===- MmaModel.h - How the chips accumulate matrix products ----*- C++ -*-===//
//
// `exact`: every product exact, added to the f32 accumulator by fma in
// ascending k.
//
// The chips' models follow MMA-Sim (Xie et al. 2025, validated bit for bit on
// hardware) and agree with Fasi et al. 2021 and Khattak and Mikaitis 2025: a
// step adds `chunk` products and the accumulator at once. Each term is a
// significand and an exponent (that of a product: the sum of its factors',
// not normalised); all are aligned to the largest exponent, truncated to `frac`
// fraction bits and added exactly. f32 results are truncated to `outBits`, f16
// results rounded to nearest even. Subnormals keep the exponent of the
// smallest normal number, zeros take part with the exponent -126.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_MMAMODEL_H
#define KVCACHE_SIM_EXEC_MMAMODEL_H

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

struct AccModel {
  bool exact = true;
  int chunk = 0;    ///< products of a step
  int frac = 0;     ///< fraction bits kept by the alignment
  int outBits = 23; ///< fraction bits of an f32 result
  bool f16 = false; ///< the accumulator is f16
  Elem a = Elem::F16, b = Elem::F16;
  /// FP8 on sm_90's mma.sync, as its compiler emits it: converted to f16, the
  /// lower two of each four stored elements first, from zero; the accumulator
  /// is added last by an ordinary addition.
  bool viaF16 = false;
  /// m8n8k4 since sm_80, as compilers emit it: f32 fma from zero, then added.
  bool scalar = false;
};

/// `f16Acc`: accumulator and result are f16.
AccModel accModel(MmaModel m, Elem a, Elem b, bool f16Acc, bool isWgmma);

/// A[m][kA] times B[k][n] added to c[m][n]. Element i of row r of A stands in
/// column cols[r * kA + i] (null: i).
void productF32(const AccModel &model, const float *a, const float *b, float *c,
                int m, int n, int kA, const uint16_t *cols = nullptr);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_MMAMODEL_H
