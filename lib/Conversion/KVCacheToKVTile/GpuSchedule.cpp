//===- GpuSchedule.cpp - Choosing and checking schedules of GPUs ----------===//
//
// Heads in even chunks of at most 8 (the N of an MMA), 4 warps split over the
// tokens, tiles of at most 64 tokens, as many as keep the unrolled bodies of
// both page loops within a cap of tensor-core products: compile time grows with
// them, and beyond a certain number of independent products speed does not.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

/// Products in the loop bodies (64 cost LLVM about 0.09 s, 256 about 0.3 s).
static constexpr int64_t kMostProducts = 96;
/// What a kernel may declare statically, on every target (CUDA programming
/// guide, "Shared memory").
static constexpr int64_t kMostStaticShared = 49152;
/// N of an MMA.
static constexpr int64_t kColumns = 8;

static bool isCode(Element e) { return e == Element::I8 || e == Element::I4; }

int64_t kvcache::gpuProductsPerTile(const KernelSpec &spec, int64_t tokens,
                                    int64_t qPack) {
  int64_t k = spec.headDim / 16, v = spec.valueDim / 16, tiles = tokens / 16;
  const Encoding &key = spec.format.key, &value = spec.format.value;
  // Sealed: two-part queries double unless the low part shares the columns;
  // zeros of two groups share a product.
  int64_t sealed = tiles * (k + v);
  if (isCode(key.element)) {
    int64_t group = key.group ? key.group : spec.format.page;
    bool inPlace = group < 16;
    if (inPlace || qPack > kColumns / 2)
      sealed += tiles * k;
    if (!inPlace && key.asymmetric)
      sealed += k * llvm::divideCeil(llvm::divideCeil(tokens, group), 2);
  }
  if (isCode(value.element)) {
    bool inPlace = value.group % 16 != 0;
    sealed += inPlace ? tiles * v : value.asymmetric ? tiles : 0;
  }
  return sealed + tiles * (k + v);
}

int64_t kvcache::gpuSharedBytes(const KernelSpec &spec, ScheduleAttr s) {
  // O, m and l of each warp and head, rows padded by 4; a flag.
  return s.getWarps() * s.getQPack() * (spec.valueDim + 6) * 4 + 16;
}

FailureOr<ScheduleAttr> kvcache::chooseGpuSchedule(Location loc,
                                                   const KernelSpec &spec,
                                                   const TargetInfo &target) {
  int64_t pack = evenChunk(spec.group(), kColumns);
  int64_t tile = std::min<int64_t>(spec.format.page, 64);
  while (tile > 16 && gpuProductsPerTile(spec, tile, pack) > kMostProducts)
    tile /= 2;
  bool bf16 = spec.format.key.element == Element::BF16;
  auto schedule = ScheduleAttr::get(
      loc.getContext(), tile, pack, /*warps=*/4, /*stages=*/1,
      /*split_tokens=*/0, bf16 ? DotKind::BF16 : DotKind::F16,
      Orientation::KeysA, /*prefetch_bytes=*/0, /*exp_bias=*/10,
      /*vector_bits=*/0, /*subnormal_codes=*/true, /*q_rows=*/1);
  if (failed(verifyGpuSchedule(loc, spec, schedule, target)))
    return failure();
  return schedule;
}

static LogicalResult verifyTile(Location loc, const KernelSpec &spec,
                                ScheduleAttr s, const TargetInfo &target) {
  int64_t page = spec.format.page, tile = s.getTileTokens();
  if (page < 16)
    return emitError(loc) << "pages of " << page << " tokens have no kernel on "
                          << target.name << ", accepted: 16 32 64 128";
  if (tile < 16 || tile > 128 || page % tile)
    return emitError(loc) << "expected tile_tokens 16, 32, 64 or 128 dividing "
                             "the page of "
                          << page << " tokens on " << target.name << ", got "
                          << tile;
  return success();
}

LogicalResult kvcache::verifyGpuSchedule(Location loc, const KernelSpec &spec,
                                         ScheduleAttr s,
                                         const TargetInfo &target) {
  auto expected = [&](StringRef what) {
    return emitError(loc) << "expected " << what << " on " << target.name
                          << ", got ";
  };
  if (s.getQPack() > kColumns)
    return expected("q_pack of at most 8") << s.getQPack();
  if (s.getVectorBits() != 0)
    return expected("vector_bits to be 0") << s.getVectorBits();
  if (failed(verifyTile(loc, spec, s, target)))
    return failure();
  int64_t warps = s.getWarps();
  if (warps > 8 || !llvm::isPowerOf2_64(warps))
    return expected("1, 2, 4 or 8 warps") << warps;
  if (s.getStages() != 1)
    return expected("stages to be 1 (codes are loaded straight to registers)")
           << s.getStages();
  if (s.getExpBias() < 0 || s.getExpBias() > 14)
    return expected("exp_bias from 0 to 14") << s.getExpBias();
  DotKind kind = s.getDotKind();
  if (kind != DotKind::F16 && kind != DotKind::BF16)
    return expected("dot_kind f16 or bf16") << stringifyDotKind(kind);
  if (s.getOrientation() != Orientation::KeysA)
    return expected("orientation keys_a")
           << stringifyOrientation(s.getOrientation());
  int64_t limit = std::min(target.sharedBytesPerBlock, kMostStaticShared);
  if (gpuSharedBytes(spec, s) > limit)
    return emitError(loc) << "schedule needs " << gpuSharedBytes(spec, s)
                          << " bytes of shared memory, the limit of "
                          << target.name << " is " << limit
                          << "; use fewer warps or a smaller q_pack";
  return success();
}
