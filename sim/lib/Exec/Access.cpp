//===- Access.cpp - Regions, bounds messages, memory counters -------------===//
#include "Access.h"
#include <algorithm>

namespace kvcache::sim::KVSIM_TIER {

static const char *spaceName(MemSpace s) {
  switch (s) {
  case MemSpace::Shared:
    return "shared memory";
  case MemSpace::Cluster:
    return "distributed shared memory";
  case MemSpace::Local:
    return "local memory";
  case MemSpace::Const:
    return "constant memory";
  case MemSpace::KParam:
    return "kernel parameters";
  case MemSpace::FParam:
    return "function parameters";
  default:
    return "global memory";
  }
}

bool findRegion(Ctx &c, MemSpace space, uint64_t &addr, Window &w) {
  w.owner = nullptr;
  if (space == MemSpace::Generic) {
    switch (addr / kWindow) {
    case 1:
      space = MemSpace::Cluster;
      addr -= kSharedWindow;
      break;
    case 2:
      space = MemSpace::Local;
      addr -= kLocalWindow;
      break;
    case 3:
      space = MemSpace::KParam;
      addr -= kParamWindow;
      break;
    case 4:
      space = MemSpace::FParam;
      addr -= kFParamWindow;
      break;
    default:
      space = MemSpace::Global;
    }
  }
  w.space = space;
  switch (space) {
  case MemSpace::Shared:
  case MemSpace::Cluster: {
    if (addr >> 32)
      return false;
    uint64_t rank = addr >> kRankShift;
    Block *b = c.block;
    if (rank) {
      if (rank > c.block->cluster->blocks.size())
        return false;
      b = c.block->cluster->blocks[rank - 1].get();
      if (space == MemSpace::Shared && b != c.block)
        return false;
    }
    addr &= (1u << kRankShift) - 1;
    w.owner = b;
    w.region = &b->shared;
    w.space = b == c.block ? MemSpace::Shared : MemSpace::Cluster;
    return addr < b->shared.size;
  }
  case MemSpace::Local:
    w.region = &c.warp->localRegion;
    return c.grid->localBytes > 0;
  case MemSpace::FParam:
    w.region = nullptr;
    return c.frame->code->paramBytes > 0;
  case MemSpace::KParam:
    w.region = &c.grid->kparam;
    return true;
  default: {
    const Region *r = c.stats->lastGlobal;
    if (!r || addr - r->base >= r->size)
      c.stats->lastGlobal = r = c.grid->find(addr);
    if (!r)
      return false;
    w.region = r;
    w.space = MemSpace::Global;
    return true;
  }
  }
}

void outOfBounds(Ctx &c, const Instr &I, int lane, uint64_t addr,
                 uint32_t bytes, MemSpace space) {
  std::string text = "access of " + std::to_string(bytes) + " bytes outside " +
                     spaceName(space);
  uint64_t a = addr;
  if (space == MemSpace::Shared || space == MemSpace::Cluster)
    text +=
        " (the block has " + std::to_string(c.grid->sharedTotal) + " bytes)";
  else if (space == MemSpace::Global || space == MemSpace::Generic) {
    // The nearest allocation below helps to see an overrun.
    const Region *near = nullptr, *next = nullptr;
    for (auto &r : c.grid->globals) { // sorted
      if (r->base <= a)
        near = r.get();
      else if (!next)
        next = r.get();
    }
    if (next && next->base - a <= 4096)
      text +=
          ": " + std::to_string(next->base - a) + " bytes before " + next->name;
    else if (near && a - near->base < near->size + (uint64_t(1) << 32))
      text += ": byte " + std::to_string(a - near->base) + " of " + near->name +
              ", which has " + std::to_string(near->size);
    else if (a < 65536)
      text += ": a null pointer";
  }
  c.violation("bounds", I, lane, addr, text);
}

Bytes resolveBytes(Ctx &c, const Instr &I, int lane, MemSpace space,
                   uint64_t addr, uint64_t bytes) {
  Window w;
  uint64_t a = addr;
  if (!findRegion(c, space, a, w))
    outOfBounds(c, I, lane, addr, uint32_t(bytes), space);
  Bytes b;
  b.space = w.space;
  b.owner = w.owner;
  if (w.space == MemSpace::Local || w.space == MemSpace::FParam)
    c.violation("bounds", I, lane, addr,
                "this instruction cannot reach per-thread memory");
  b.region = w.region;
  b.offset = a - w.region->base;
  if (b.offset > w.region->size || bytes > w.region->size - b.offset)
    outOfBounds(c, I, lane, addr, uint32_t(bytes), w.space);
  b.host = w.region->host + b.offset;
  b.undef = w.region->undef ? w.region->undef + b.offset : nullptr;
  return b;
}

/// 32-byte sectors of global memory, or the extra cycles of shared memory: the
/// largest number of different words in one bank, per 32-bank wavefront.
void countAccess(Ctx &c, const Instr &I, const Group &g, uint32_t bytes) {
  InstrStats &s = c.stats->instr[I.id];
  uint64_t all = uint64_t(bytes) * uint64_t(std::popcount(g.mask));
  if (g.space == MemSpace::Global) {
    s.requests += 1;
    s.bytes += all;
    std::vector<uint64_t> sectors;
    KVSIM_EACH(g.mask)
    for (uint64_t x = g.off[l] / 32; x <= (g.off[l] + bytes - 1) / 32; ++x)
      sectors.push_back(x);
    std::sort(sectors.begin(), sectors.end());
    s.sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
  } else if (g.space == MemSpace::Shared || g.space == MemSpace::Cluster) {
    s.sharedRequests += 1;
    s.sharedBytes += all;
    // Lanes go in groups that together cover 128 bytes.
    int per = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    for (int b = 0; b < 32; b += per) {
      uint32_t part = g.mask >> b & (per == 32 ? ~0u : (1u << per) - 1);
      if (!part)
        continue;
      std::vector<uint64_t> banks[32];
      size_t worst = 1;
      KVSIM_EACH(part << b)
      for (uint64_t w = g.off[l] / 4; w <= (g.off[l] + bytes - 1) / 4; ++w) {
        auto &v = banks[w % 32];
        if (std::find(v.begin(), v.end(), w) == v.end())
          v.push_back(w);
        worst = std::max(worst, v.size());
      }
      s.conflicts += worst - 1;
    }
  } else {
    s.otherBytes += all;
  }
}

void checkPending(Ctx &c, const Instr &I, const Group &g, uint32_t bytes,
                  bool isWrite) {
  if (isWrite && g.owner)
    for (auto &w : g.owner->warps)
      for (const PendingCopy &p : w->bulkReads)
        KVSIM_EACH(g.mask)
  if (g.off[l] < p.addr + p.bytes && p.addr < g.off[l] + bytes)
    c.violation("async", I, int(l), g.off[l],
                "store to shared memory that a bulk store still reads: "
                "wait_group.read was not executed");
  if (!g.owner || g.owner->sharedPending.empty())
    return;
  const uint8_t *p = g.owner->sharedPending.data();
  KVSIM_EACH(g.mask)
  for (uint32_t i = 0; i < bytes; ++i)
    if (p[g.off[l] + i])
      c.violation("async", I, int(l), g.off[l] + i,
                  std::string(isWrite ? "store to" : "load of") +
                      " shared memory that an asynchronous copy still writes: "
                      "its completion was not waited for");
}

} // namespace kvcache::sim::KVSIM_TIER
