//===- Lanes.h - Loops over the 32 lanes of a warp --------------*- C++ -*-===//
//
// Executors are loops over 32 lanes that the compiler vectorises. Slots are
// either the same or disjoint, so reading and writing lane l in order is safe
// whatever the aliasing: the pragma says so (and keeps the loop from being
// unrolled to scalars before it is vectorised). Every family file is compiled
// once per CPU tier (namespace KVSIM_TIER); the active tier is chosen at run
// time.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_LANES_H
#define KVCACHE_SIM_EXEC_LANES_H

#include "Decoder.h"
#include <bit>
#include <cmath>
#include <cstring>

#ifndef KVSIM_TIER
#define KVSIM_TIER base
#endif

#if defined(__clang__)
// clang-format off
#define KVSIM_LANES                                                            \
  _Pragma("clang loop vectorize(assume_safety) unroll(disable)")               \
  _Pragma("clang loop interleave_count(2)")                                    \
  for (int l = 0; l < 32; ++l)
// clang-format on
#else
#define KVSIM_LANES _Pragma("GCC ivdep") for (int l = 0; l < 32; ++l)
#endif

/// Lanes of `mask`, one after another.
#define KVSIM_EACH(mask)                                                       \
  for (uint32_t rest_ = (mask), l = uint32_t(std::countr_zero(rest_)); rest_;  \
       rest_ &= rest_ - 1, l = uint32_t(std::countr_zero(rest_)))

namespace kvcache::sim::KVSIM_TIER {

template <class D, class A, auto F>
Act un(Ctx &c, const Instr &I, uint32_t m) {
  D *d = c.reg<D>(I.o[0]);
  const A *a = c.in<A>(I.o[1]);
  KVSIM_LANES d[l] = (m >> l & 1) ? D(F(a[l])) : d[l];
  return Act::Next;
}

template <class D, class A, class B, auto F>
Act bin(Ctx &c, const Instr &I, uint32_t m) {
  D *d = c.reg<D>(I.o[0]);
  const A *a = c.in<A>(I.o[1]);
  const B *b = c.in<B>(I.o[2]);
  KVSIM_LANES d[l] = (m >> l & 1) ? D(F(a[l], b[l])) : d[l];
  return Act::Next;
}

template <class D, class A, class B, class C, auto F>
Act tern(Ctx &c, const Instr &I, uint32_t m) {
  D *d = c.reg<D>(I.o[0]);
  const A *a = c.in<A>(I.o[1]);
  const B *b = c.in<B>(I.o[2]);
  const C *e = c.in<C>(I.o[3]);
  KVSIM_LANES d[l] = (m >> l & 1) ? D(F(a[l], b[l], e[l])) : d[l];
  return Act::Next;
}

/// Writes the lanes of `m` of a predicate.
inline void writePred(Ctx &c, const Opnd &o, uint32_t m, uint32_t value) {
  uint32_t *p = c.reg<uint32_t>(o);
  *p = (*p & ~m) | (value & m);
}

template <class T>
inline T bitcast(auto v) {
  static_assert(sizeof(T) == sizeof(v));
  T r;
  std::memcpy(&r, &v, sizeof r);
  return r;
}

// One registration function per family file.
void addInt(Table &);
void addBits(Table &);
void addFloat(Table &);
void addHalf(Table &);
void addSpecialMath(Table &);
void addCompare(Table &);
void addConvert(Table &);
void addMove(Table &);
void addControl(Table &);
void addMemory(Table &);
void addAtomic(Table &);
void addWarp(Table &);
void addSync(Table &);
void addMatrix(Table &);
void addMma(Table &);
void addWmma(Table &);
void addWgmma(Table &);
void addAsync(Table &);
void addTensor(Table &);
void addVideo(Table &);
void addStack(Table &);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_LANES_H
