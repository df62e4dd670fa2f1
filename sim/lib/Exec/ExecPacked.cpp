//===- ExecPacked.cpp - f32x2 pairs and mixed precision -------------------===//
//
// add, sub, mul and fma of two f32 in a 64-bit register, and of f16 or bf16
// with f32: each result is rounded once.
//
//===----------------------------------------------------------------------===//
#include "Arith.h"
#include "Num.h"

namespace kvcache::sim::KVSIM_TIER {

/// a op b (+ c), rounded once in any mode; op: FloatOp, 4 fma.
static float once(uint32_t op, Round mode, float a, float b, float c) {
  if (op == 4)
    return mode == Round::Nearest ? __builtin_fmaf(a, b, c)
                                  : toF32(addOdd(double(a) * b, c), mode);
  if (op == FloatMul)
    return toF32(double(a) * b, mode);
  return toF32(addOdd(a, op == FloatSub ? -double(b) : double(b)), mode);
}

/// a: op, imm: Round, b: 2 flushes.
static Act execPair(Ctx &c, const Instr &I, uint32_t m) {
  uint64_t *d = c.reg<uint64_t>(I.o[0]);
  const uint64_t *x = c.in<uint64_t>(I.o[1]), *y = c.in<uint64_t>(I.o[2]),
                 *z = I.ns > 2 ? c.in<uint64_t>(I.o[3]) : x;
  bool ftz = I.b & 2;
  auto part = [&](uint64_t v, int h) {
    float f = bitcast<float>(uint32_t(v >> (32 * h)));
    return ftz ? flush(f) : f;
  };
  KVSIM_EACH(m) {
    uint64_t r = 0;
    for (int h = 0; h < 2; ++h) {
      float f = canonical(
          once(I.a, Round(I.imm), part(x[l], h), part(y[l], h), part(z[l], h)));
      if (ftz)
        f = flush(f);
      r |= uint64_t(bitcast<uint32_t>(f)) << (32 * h);
    }
    d[l] = r;
  }
  return Act::Next;
}

void pairArith(Decoder &D, Instr &I, uint32_t op, int64_t mode) {
  D.needOps(op == 4 ? 4 : 3, op == 4 ? 4 : 3);
  D.needSm(I, 100);
  I.a = op;
  I.imm = mode;
  I.fn = execPair;
  I.cls = OpClass::Float;
  std::vector<Opnd> src;
  for (size_t i = 1; i < D.count(); ++i)
    src.push_back(D.src(D.op(i), "b64"));
  D.finish(I, {D.dst(D.op(0), 8)}, src);
}

/// o: d, a, (b,) c; a and b are halves. b: 1 saturates, 8 bf16.
static Act execMixed(Ctx &c, const Instr &I, uint32_t m) {
  float *d = c.reg<float>(I.o[0]);
  const uint16_t *x = c.in<uint16_t>(I.o[1]);
  const uint16_t *y = I.a == 4 ? c.in<uint16_t>(I.o[2]) : x;
  const float *z = c.in<float>(I.o[I.a == 4 ? 3 : 2]);
  auto wide = I.b & 8 ? bf16ToF32 : f16ToF32;
  KVSIM_EACH(m) {
    float a = wide(x[l]), b = I.a == 4 ? wide(y[l]) : z[l];
    float r = once(I.a, Round(I.imm), a, b, z[l]);
    d[l] = I.b & 1 ? saturate(r) : canonical(r);
  }
  return Act::Next;
}

void mixedArith(Decoder &D, Instr &I, const std::string &half, uint32_t op,
                int64_t mode) {
  bool fma = op == 4;
  D.needOps(fma ? 4 : 3, fma ? 4 : 3);
  D.needSm(I, 100);
  I.a = op;
  I.imm = mode;
  I.b = (I.b & 1) | (half == "bf16" ? 8 : 0);
  I.fn = execMixed;
  I.cls = OpClass::Float;
  std::vector<Opnd> src{D.src(D.op(1), half)};
  if (fma)
    src.push_back(D.src(D.op(2), half));
  src.push_back(D.src(D.op(fma ? 3 : 2), "f32"));
  D.finish(I, {D.dst(D.op(0), 4)}, src);
}

} // namespace kvcache::sim::KVSIM_TIER
