//===- Special.cpp - Special registers ------------------------------------===//
#include "Machine.h"
#include <cstring>

namespace kvcache::sim {

/// As Run.cpp places it.
static constexpr uint64_t kGridWorkspace = kGlobalBase - 65536;

namespace {
enum Kind {
  Tid,
  Ntid,
  Ctaid,
  Nctaid,
  Laneid,
  Warpid,
  Nwarpid,
  Smid,
  Nsmid,
  Gridid,
  MaskEq,
  MaskLe,
  MaskLt,
  MaskGe,
  MaskGt,
  Clusterid,
  Nclusterid,
  ClusterCtaid,
  ClusterNctaid,
  ClusterRank,
  ClusterNrank,
  IsCluster,
  DynSmem,
  TotalSmem,
  GridSpaceHigh,
  GridSpaceLow,
  Zero,
};
} // namespace

int specialKind(const std::string &name, int &axis) {
  static const struct {
    const char *name;
    int kind;
    bool vector;
  } table[] = {{"%tid", Tid, true},
               {"%ntid", Ntid, true},
               {"%ctaid", Ctaid, true},
               {"%nctaid", Nctaid, true},
               {"%laneid", Laneid, false},
               {"%warpid", Warpid, false},
               {"%nwarpid", Nwarpid, false},
               {"%smid", Smid, false},
               {"%nsmid", Nsmid, false},
               {"%gridid", Gridid, false},
               {"%lanemask_eq", MaskEq, false},
               {"%lanemask_le", MaskLe, false},
               {"%lanemask_lt", MaskLt, false},
               {"%lanemask_ge", MaskGe, false},
               {"%lanemask_gt", MaskGt, false},
               {"%clusterid", Clusterid, true},
               {"%nclusterid", Nclusterid, true},
               {"%cluster_ctaid", ClusterCtaid, true},
               {"%cluster_nctaid", ClusterNctaid, true},
               {"%cluster_ctarank", ClusterRank, false},
               {"%cluster_nctarank", ClusterNrank, false},
               {"%is_explicit_cluster", IsCluster, false},
               {"%dynamic_smem_size", DynSmem, false},
               {"%total_smem_size", TotalSmem, false},
               {"%aggr_smem_size", TotalSmem, false},
               {"%reserved_smem_offset_begin", Zero, false},
               {"%reserved_smem_offset_end", Zero, false},
               {"%reserved_smem_offset_cap", Zero, false},
               // Where grid-wide synchronisation finds its workspace.
               {"%envreg1", GridSpaceHigh, false},
               {"%envreg2", GridSpaceLow, false},
               {"%current_graph_exec", Zero, false}};
  // Performance monitors and what a driver may leave for a kernel read as zero.
  auto numbered = [&](const std::string &prefix, int count,
                      const std::string &suffix) {
    for (int i = 0; i < count; ++i)
      if (name == prefix + std::to_string(i) + suffix)
        return true;
    return false;
  };
  if (numbered("%pm", 8, "") || numbered("%pm", 8, "_64") ||
      numbered("%reserved_smem_offset_", 2, "") ||
      (numbered("%envreg", 32, "") && name != "%envreg1" &&
       name != "%envreg2")) {
    axis = 0;
    return Zero;
  }
  size_t dot = name.find('.');
  std::string base = name.substr(0, dot);
  for (const auto &t : table) {
    if (base != t.name)
      continue;
    axis = 0;
    if (!t.vector)
      return dot == std::string::npos ? t.kind : -1;
    if (dot == std::string::npos || name.size() != dot + 2)
      return -1;
    axis = name[dot + 1] - 'x';
    if (name[dot + 1] == 'w')
      return Zero;
    return axis >= 0 && axis < 3 ? t.kind : -1;
  }
  return -1;
}

uint64_t specialValue(const Ctx &c, int kind, int axis, int lane) {
  const Grid &g = *c.grid;
  const Block &b = *c.block;
  switch (kind) {
  case Tid:
    return c.warp->tid[axis][lane];
  case Ntid:
    return g.launch.block[axis];
  case Ctaid:
    return b.id[axis];
  case Nctaid:
    return g.launch.grid[axis];
  case Laneid:
    return lane;
  case Warpid:
    return c.warp->index;
  case Nwarpid:
    return g.warpsPerBlock;
  case Smid:
    return b.linear % 108;
  case Nsmid:
    return 108;
  case Gridid:
    return 1;
  case MaskEq:
    return 1u << lane;
  case MaskLe:
    return uint32_t((uint64_t(2) << lane) - 1);
  case MaskLt:
    return (1u << lane) - 1;
  case MaskGe:
    return uint32_t(~0u << lane);
  case MaskGt:
    return uint32_t(~uint32_t((uint64_t(2) << lane) - 1));
  case Clusterid:
    return b.id[axis] / g.clusterDim[axis];
  case Nclusterid:
    return g.launch.grid[axis] / g.clusterDim[axis];
  case ClusterCtaid:
    return b.id[axis] % g.clusterDim[axis];
  case ClusterNctaid:
    return g.clusterDim[axis];
  case ClusterRank:
    return b.rank;
  case ClusterNrank:
    return g.clusterSize;
  case IsCluster:
    return g.clusterSize > 1;
  case DynSmem:
    return g.launch.sharedBytes;
  case TotalSmem:
    return g.sharedTotal;
  case GridSpaceHigh:
    return kGridWorkspace >> 32;
  case GridSpaceLow:
    return kGridWorkspace & 0xffffffff;
  default:
    return 0;
  }
}

} // namespace kvcache::sim
