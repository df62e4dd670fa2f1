//===- Access.h - From lane addresses to host memory ------------*- C++ -*-===//
//
// All instructions that touch memory resolve their lanes here: state spaces and
// generic windows to regions, with the bounds and alignment checks. A callback
// runs once per group of lanes that share a region (nearly always one).
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_ACCESS_H
#define KVCACHE_SIM_EXEC_ACCESS_H

#include "../Machine/Race.h"
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

/// Lanes of one region: byte offsets into `host`.
struct Group {
  const Region *region;
  uint8_t *host;
  uint8_t *undef; ///< null: all defined
  uint32_t mask;
  const uint64_t *off; ///< per lane
  MemSpace space;      ///< never Generic
  Block *owner;        ///< of shared memory
};

/// Effective addresses: base register plus offset, 64 bits.
inline void laneAddresses(Ctx &c, const Opnd &base, int64_t offset,
                          uint64_t *out) {
  if (base.sz == 8) {
    const uint64_t *a = c.in<uint64_t>(base);
    KVSIM_LANES out[l] = a[l] + uint64_t(offset);
  } else {
    const uint32_t *a = c.in<uint32_t>(base);
    KVSIM_LANES out[l] = uint32_t(a[l] + uint32_t(offset));
  }
}

inline void checkAlign(Ctx &c, const Instr &I, uint32_t mask, const uint64_t *a,
                       uint32_t bytes) {
  uint64_t bad = 0;
  KVSIM_LANES bad |= (mask >> l & 1) ? a[l] & (bytes - 1) : 0;
  if (!bad)
    return;
  KVSIM_EACH(mask)
  if (a[l] & (bytes - 1))
    c.violation("align", I, int(l), a[l],
                "address is not a multiple of " + std::to_string(bytes));
}

[[noreturn]] void outOfBounds(Ctx &c, const Instr &I, int lane, uint64_t addr,
                              uint32_t bytes, MemSpace space);

struct Window {
  MemSpace space;
  const Region *region;
  Block *owner;
};

/// The region of one address in a space; addr becomes relative to the space.
bool findRegion(Ctx &c, MemSpace space, uint64_t &addr, Window &w);

template <class F>
inline void forGroups(Ctx &c, const Instr &I, MemSpace space, uint32_t mask,
                      const uint64_t *addr, uint32_t bytes, F f) {
  alignas(64) uint64_t off[32];
  while (mask) {
    int first = std::countr_zero(mask);
    uint64_t a = addr[first];
    Window w;
    if (!findRegion(c, space, a, w))
      outOfBounds(c, I, first, addr[first], bytes, space);
    if (w.space == MemSpace::Local || w.space == MemSpace::FParam) {
      // Per-thread storage: each lane has its own stretch of the region.
      uint64_t window =
          space == MemSpace::Generic ? addr[first] & ~(kWindow - 1) : 0;
      uint64_t per = w.space == MemSpace::Local
                         ? uint64_t(c.grid->localBytes)
                         : uint64_t(c.frame->code->paramBytes);
      uint32_t group = 0;
      KVSIM_EACH(mask) {
        uint64_t x = addr[l] - window;
        if (x + bytes > per || x > per) {
          if (space == MemSpace::Generic &&
              (addr[l] & ~(kWindow - 1)) != window)
            continue;
          outOfBounds(c, I, int(l), addr[l], bytes, w.space);
        }
        off[l] = x + uint64_t(l) * per;
        group |= 1u << l;
      }
      Region r;
      if (w.space == MemSpace::Local) {
        r = c.warp->localRegion;
      } else {
        r.host = c.frame->params;
        r.undef = c.init ? c.frame->paramUndef : nullptr;
        r.size = per * 32;
      }
      f(Group{&r, r.host, r.undef, group, off, w.space, nullptr});
      mask &= ~group;
      continue;
    }
    uint64_t delta = addr[first] - a; // of the window and rank
    uint64_t base = w.region->base + delta, size = w.region->size;
    uint32_t group = 0;
    if (size >= bytes) {
      uint64_t limit = size - bytes;
      alignas(64) uint8_t in[32];
      KVSIM_LANES {
        off[l] = addr[l] - base;
        in[l] = off[l] <= limit;
      }
      for (int l = 0; l < 32; ++l)
        group |= uint32_t(in[l]) << l;
      group &= mask;
    }
    if (!(group >> first & 1))
      outOfBounds(c, I, first, addr[first], bytes, w.space);
    f(Group{w.region, w.region->host, w.region->undef, group, off, w.space,
            w.owner});
    mask &= ~group;
  }
}

/// An undefined address is a fault.
inline void checkAddressInit(Ctx &c, const Instr &I, const Opnd &base,
                             uint32_t mask) {
  if (!c.init || base.off < 0 || !c.frame->flags[base.off >> 6])
    return;
  if (uint32_t t = taintedLanes(c, base, mask))
    c.violation("init", I, std::countr_zero(t), 0,
                "address depends on an undefined value");
}

void countAccess(Ctx &c, const Instr &I, const Group &g, uint32_t bytes);

/// The async check: bytes of shared memory that a copy has not delivered yet.
void checkPending(Ctx &c, const Instr &I, const Group &g, uint32_t bytes,
                  bool isWrite);

/// One address and a length, for bulk copies and matrix loads of one thread.
struct Bytes {
  uint8_t *host = nullptr, *undef = nullptr;
  const Region *region = nullptr;
  Block *owner = nullptr;
  MemSpace space = MemSpace::Global;
  uint64_t offset = 0;
};
Bytes resolveBytes(Ctx &c, const Instr &I, int lane, MemSpace space,
                   uint64_t addr, uint64_t bytes);

} // namespace kvcache::sim::KVSIM_TIER

#endif // KVCACHE_SIM_EXEC_ACCESS_H
