//===- ArraySchedule.cpp - Schedules of kernels on arrays -----------------===//
//
// Columns (query rows of the heads that share a kv head) are the lanes of
// vectors: keys and values are then used as they lie in memory, one element
// for all columns, and neither needs packing. Only where there are too few of
// them do lanes run along the channels instead.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

/// Columns up to which they are handled one by one.
static constexpr int64_t kFewColumns = 8;
/// Columns of a work item: four registers of 512 bits.
static constexpr int64_t kColumns = 64;
static constexpr int64_t kTileTokens = 64;

ScheduleAttr kvcache::chooseArraySchedule(ArraysAttr spec, int64_t columns,
                                          CpuTier tier) {
  MLIRContext *context = spec.getContext();
  int64_t pack = evenChunk(spec.getGroup(), 16);
  bool few = columns > 0 && columns <= kFewColumns;
  int64_t rows = columns > 0 ? llvm::divideCeil(columns, spec.getGroup()) : 0;
  int64_t most = std::max<int64_t>(kColumns / pack, 1);
  if (!few && rows != 0 && rows < most) {
    // Whole registers, but not more of them than there are columns for.
    int64_t lanes = vectorBitsOf(tier) / 32;
    int64_t padded = llvm::alignTo(pack * rows, lanes);
    most = std::max<int64_t>(padded / pack, rows);
  }
  return ScheduleAttr::get(
      context, few ? 4 * kTileTokens : kTileTokens, pack, /*warps=*/1,
      /*stages=*/1, /*split_tokens=*/0, DotKind::F32,
      few ? Orientation::KeysA : Orientation::QueriesA,
      /*prefetch_bytes=*/few ? 32768 : 0,
      /*exp_bias=*/0, vectorBitsOf(tier), /*subnormal_codes=*/false,
      /*q_rows=*/few ? rows : std::min<int64_t>(most, 64));
}

LogicalResult kvcache::verifyArraySchedule(Location loc, ArraysAttr spec,
                                           ScheduleAttr s, CpuTier tier) {
  std::string name = "x86-64 " + std::string(nameOf(tier));
  if (s.getVectorBits() == 0 || s.getVectorBits() > vectorBitsOf(tier))
    return emitError(loc) << "expected vector_bits from 128 to "
                          << vectorBitsOf(tier) << " on " << name << ", got "
                          << s.getVectorBits();
  if (s.getQPack() > spec.getGroup())
    return emitError(loc) << "expected q_pack of at most the group ("
                          << spec.getGroup() << "), got " << s.getQPack();
  if (s.getDotKind() != DotKind::F32)
    return emitError(loc) << "expected dot_kind f32 for kernels on arrays, got "
                          << stringifyDotKind(s.getDotKind());
  if (s.getWarps() != 1 || s.getStages() != 1 || s.getSplitTokens() != 0 ||
      s.getExpBias() != 0)
    return emitError(loc) << "expected warps and stages to be 1, split_tokens "
                             "and exp_bias 0 for kernels on arrays";
  return success();
}
