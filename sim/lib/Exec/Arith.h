//===- Arith.h - What integer and float arithmetic share --------*- C++ -*-===//
//
// PTX names integer, float and packed operations alike ("add", "min"), so the
// decoders of ExecInt.cpp hand float types to those declared here.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_ARITH_H
#define KVCACHE_SIM_EXEC_ARITH_H

#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

enum FloatOp : uint32_t { FloatAdd, FloatSub, FloatMul, FloatDiv };

inline bool isFloatType(const std::string &t) {
  return t == "f32" || t == "f64" || t == "f16" || t == "f16x2" ||
         t == "bf16" || t == "bf16x2" || t == "f32x2";
}

// ExecFloat.cpp. Flags in Instr::b: 1 saturate, 2 flush subnormals, 4 relu,
// 8 NaN propagates, 16 xorsign abs, 32 out of range is not flushed.
void floatBinary(Decoder &, Instr &, const std::string &type, FloatOp op);
void floatFma(Decoder &, Instr &, bool mad);
void floatMinMax(Decoder &, Instr &, const std::string &type, bool max);
void floatDiv(Decoder &, Instr &, const std::string &type);
void floatSign(Decoder &, Instr &, const std::string &type, bool abs);

// ExecHalf.cpp: f16, bf16 and their pairs.
void halfBinary(Decoder &, Instr &, const std::string &type, FloatOp op);
void halfFma(Decoder &, Instr &, const std::string &type);
void halfMinMax(Decoder &, Instr &, const std::string &type, bool max);
void halfSign(Decoder &, Instr &, const std::string &type, bool abs);

// ExecPacked.cpp: f32x2, and halves with f32. op: FloatOp, 4 fma; mode: Round.
void pairArith(Decoder &, Instr &, uint32_t op, int64_t mode);
void mixedArith(Decoder &, Instr &, const std::string &half, uint32_t op,
                int64_t mode);

// ExecBits.cpp. kind: 0 add 1 addc 2 sub 3 subc.
void carryArith(Decoder &, Instr &, int kind, bool setsCarry);
void madCarry(Decoder &, Instr &, bool hi, bool carryIn, bool setsCarry);

/// The overflow check: 32-bit arithmetic that wraps marks its result, widening
/// keeps the mark, an address that carries it is a violation.
void trackOverflow(Decoder &, Instr &, const std::string &type, int kind);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_ARITH_H
