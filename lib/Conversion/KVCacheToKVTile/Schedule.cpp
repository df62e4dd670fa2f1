//===- Schedule.cpp - Choosing and checking schedules ---------------------===//
//
// CPU: a tile is a page, heads are packed up to 16 in chunks of equal size;
// int8 and int4 codes are multiplied as integers where the tier has vpdpbusd.
// GPU: GpuSchedule.cpp.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

static int64_t sideBytes(const Encoding &e, int64_t page, int64_t channels,
                         int64_t tokens) {
  return static_cast<int64_t>(
      std::ceil(bytesPerToken(e, page, channels) * tokens));
}

int64_t kvcache::sealedTileBytes(const KernelSpec &spec, int64_t tileTokens) {
  const Format &f = spec.format;
  return sideBytes(f.key, f.page, spec.headDim, tileTokens) +
         sideBytes(f.value, f.page, spec.valueDim, tileTokens);
}

/// Heads per chunk so that all chunks of a group have about the same size.
int64_t kvcache::evenChunk(int64_t group, int64_t most) {
  return llvm::divideCeil(group, llvm::divideCeil(group, most));
}

static bool hasIntegers(const Format &f) {
  auto integer = [](Element e) { return e == Element::I8 || e == Element::I4; };
  return integer(f.key.element) || integer(f.value.element);
}

int64_t kvcache::vectorBitsOf(CpuTier tier) {
  return tier == CpuTier::V2 ? 128 : tier == CpuTier::AVX2 ? 256 : 512;
}

static ScheduleAttr chooseCpu(MLIRContext *context, const KernelSpec &spec,
                              CpuTier tier) {
  bool integers = tier == CpuTier::AVX512 && hasIntegers(spec.format);
  return ScheduleAttr::get(
      context, /*tile_tokens=*/spec.format.page,
      /*q_pack=*/evenChunk(spec.group(), 16), /*warps=*/1, /*stages=*/1,
      /*split_tokens=*/0, integers ? DotKind::U8S8x2 : DotKind::F32,
      Orientation::KeysA, /*prefetch_bytes=*/32768, /*exp_bias=*/0,
      vectorBitsOf(tier), /*subnormal_codes=*/false, /*q_rows=*/1);
}

FailureOr<ScheduleAttr> kvcache::chooseSchedule(Location loc,
                                                const KernelSpec &spec,
                                                const TargetInfo &target,
                                                CpuTier tier) {
  if (target.isGpu)
    return chooseGpuSchedule(loc, spec, target);
  return chooseCpu(loc.getContext(), spec, tier);
}

//===----------------------------------------------------------------------===//
// Checking
//===----------------------------------------------------------------------===//

static LogicalResult verifyCpu(Location loc, const KernelSpec &spec,
                               ScheduleAttr s, CpuTier tier) {
  std::string name = "x86-64 " + std::string(nameOf(tier));
  if (s.getTileTokens() != spec.format.page)
    return emitError(loc) << "expected tile_tokens to be the page ("
                          << spec.format.page << ") on " << name << ", got "
                          << s.getTileTokens();
  if (s.getVectorBits() == 0 || s.getVectorBits() > vectorBitsOf(tier))
    return emitError(loc) << "expected vector_bits from 128 to "
                          << vectorBitsOf(tier) << " on " << name << ", got "
                          << s.getVectorBits();
  DotKind kind = s.getDotKind();
  if (kind != DotKind::F32 && kind != DotKind::U8S8x2)
    return emitError(loc) << "expected dot_kind f32 or u8s8x2 on " << name
                          << ", got " << stringifyDotKind(kind);
  if (kind == DotKind::U8S8x2 &&
      (tier != CpuTier::AVX512 || s.getVectorBits() != 512))
    return emitError(loc)
           << "dot_kind u8s8x2 needs vpdpbusd on 512 bits, which " << name
           << " with vector_bits = " << s.getVectorBits()
           << " does not have; use f32";
  if (s.getWarps() != 1 || s.getStages() != 1)
    return emitError(loc) << "expected warps and stages to be 1 on " << name
                          << ", got " << s.getWarps() << " and "
                          << s.getStages();
  return success();
}

LogicalResult kvcache::verifySchedule(Location loc, const KernelSpec &spec,
                                      ScheduleAttr schedule,
                                      const TargetInfo &target, CpuTier tier) {
  if (schedule.getQRows() != 1)
    return emitError(loc)
           << "expected q_rows to be 1 for attention on a cache, "
              "got "
           << schedule.getQRows();
  if (target.isGpu)
    return verifyGpuSchedule(loc, spec, schedule, target);
  return verifyCpu(loc, spec, schedule, tier);
}

//===----------------------------------------------------------------------===//
// Overrides
//===----------------------------------------------------------------------===//

static constexpr StringLiteral kFields[] = {
    "tile_tokens",  "q_pack",      "warps",           "stages",
    "split_tokens", "dot_kind",    "orientation",     "prefetch_bytes",
    "exp_bias",     "vector_bits", "subnormal_codes", "q_rows"};

FailureOr<ScheduleAttr> kvcache::overrideSchedule(Location loc, ScheduleAttr s,
                                                  StringRef overrides) {
  int64_t values[] = {s.getTileTokens(),
                      s.getQPack(),
                      s.getWarps(),
                      s.getStages(),
                      s.getSplitTokens(),
                      int64_t(s.getDotKind()),
                      int64_t(s.getOrientation()),
                      s.getPrefetchBytes(),
                      s.getExpBias(),
                      s.getVectorBits(),
                      s.getSubnormalCodes(),
                      s.getQRows()};
  SmallVector<StringRef> parts;
  SmallVector<StringRef> groups;
  overrides.split(groups, ';', -1, /*KeepEmpty=*/false);
  for (StringRef group : groups)
    group.split(parts, ',', -1, /*KeepEmpty=*/false);
  for (StringRef part : parts) {
    auto [key, value] = part.split('=');
    const auto *field = llvm::find(kFields, key.trim());
    if (field == std::end(kFields))
      return emitError(loc)
             << "unknown schedule field '" << key << "'; expected one of "
             << llvm::join(ArrayRef<StringLiteral>(kFields), " ");
    value = value.trim();
    int64_t number = 0;
    std::optional<int64_t> parsed;
    if (key == "dot_kind") {
      if (auto kind = symbolizeDotKind(value))
        parsed = int64_t(*kind);
    } else if (key == "orientation") {
      if (auto orientation = symbolizeOrientation(value))
        parsed = int64_t(*orientation);
    } else if (key == "split_tokens" && value == "auto") {
      parsed = 0;
    } else if (key == "subnormal_codes" &&
               (value == "true" || value == "false")) {
      parsed = value == "true";
    } else if (!value.getAsInteger(10, number)) {
      parsed = number;
    }
    if (!parsed)
      return emitError(loc)
             << "bad value '" << value << "' of schedule field '" << key << "'";
    values[field - std::begin(kFields)] = *parsed;
  }
  ScheduleAttr result = ScheduleAttr::getChecked(
      [&] { return emitError(loc); }, loc.getContext(), values[0], values[1],
      values[2], values[3], values[4], DotKind(values[5]),
      Orientation(values[6]), values[7], values[8], values[9], values[10] != 0,
      values[11]);
  if (!result)
    return failure();
  return result;
}
