//===- Plan.h - What the GPU lowering of a kernel is made of ----*- C++ -*-===//
//
// The constants that follow from a kernel's spec and schedule, and the
// refusals: everything that this lowering cannot do is named here, before any
// code is written.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETONVVM_PLAN_H
#define KVCACHE_LIB_CONVERSION_KVTILETONVVM_PLAN_H

#include "Emitter.h"
#include "kvcache/Dialect/KVTile/IR/KVTile.h"
#include "kvcache/Format/Image.h"

namespace kvcache::gpu {

/// The columns of an m16n8 tile.
constexpr int64_t kColumns = 8;
/// The edge of an m16n8k16 tile of stored elements.
constexpr int64_t kTile = 16;

/// How the stored elements of a side enter the product.
enum class Product : uint8_t {
  Plain,   ///< floats, as they are
  Folded,  ///< codes; the scales are folded into the other operand
  InPlace, ///< groups narrower than a tile: decoded to a hi + lo pair
};

struct Plan {
  KernelSpec spec;
  tile::ScheduleAttr schedule;
  PageImage image;

  int64_t tokens = 0;     ///< per tile of a page loop (T)
  int64_t heads = 0;      ///< per chunk (q_pack)
  int64_t warps = 0;      ///< of a block
  Half model = Half::F16; ///< open pages, queries, outputs
  Product key = Product::Plain, value = Product::Plain;

  int64_t tokenTiles() const { return tokens / kTile; }
  int64_t keyTiles() const { return spec.headDim / kTile; }
  int64_t valueTiles() const { return spec.valueDim / kTile; }
  int64_t chunks() const { return (spec.group() + heads - 1) / heads; }
  int64_t tilesPerPage() const { return spec.format.page / tokens; }
  /// Query heads fill at most half of the columns: columns 4..7 repeat them, or
  /// hold the low part of a query in two parts.
  bool packed() const { return heads <= kColumns / 2; }
  /// Codes are used as f16 subnormals (n * 2^-24).
  bool subnormal() const { return schedule.getSubnormalCodes(); }
  /// The 16-bit float that a side's sealed elements are multiplied in.
  Half sealedHalf(const TensorImage &side) const {
    return side.encoding.element == Element::BF16 ? Half::BF16 : Half::F16;
  }
  /// The value side keeps sum(p * zero) per channel group apart.
  bool hasZeroRows() const {
    return value == Product::Folded && image.value.encoding.asymmetric;
  }
};

/// The plan of a kernel, or an error that names what is refused.
mlir::FailureOr<Plan> makePlan(tile::KernelOp kernel);

} // namespace kvcache::gpu

#endif // KVCACHE_LIB_CONVERSION_KVTILETONVVM_PLAN_H
