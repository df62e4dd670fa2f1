//===- Utils.cpp - From the dialect to kernel specs -----------------------===//
//
// See Utils.h.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/Utils/Utils.h"

#include <cmath>

using namespace mlir;

namespace kvcache {

/// What an attention may carry that no kernel spec describes, or "".
static StringRef beyondSpec(AttentionOp op) {
  if (!op.hasCache())
    return "keys and values that are tensors (make a cache of them first)";
  if (op.getPositions())
    return "explicit key positions";
  if (op.getMask())
    return "a mask operand";
  if (op.getSinkLogits())
    return "sink logits";
  if (op.getHeadMap())
    return "a head map";
  if (op.getCausal() == Causal::TopLeft)
    return "a causal mask anchored top_left";
  if (ShapedType::isDynamic(op.getQHeads()))
    return "a dynamic number of query heads";
  if (!elementOf(cast<RankedTensorType>(op.getQ().getType()).getElementType()))
    return "queries that are not f16, bf16 or f32";
  return "";
}

static FailureOr<KernelSpec> verified(Operation *op, KernelSpec spec) {
  if (std::optional<FormatError> error = spec.verify())
    return op->emitOpError() << error->message, failure();
  return spec;
}

static KernelSpec specOf(CacheType cache) {
  KernelSpec spec;
  spec.qHeads = spec.kvHeads = cache.getKvHeads();
  spec.headDim = cache.getHeadDim();
  spec.valueDim = cache.getValueDim();
  spec.dtype = cache.getOpenElement();
  spec.format = cache.getResolvedFormat();
  return spec;
}

FailureOr<KernelSpec> getKernelSpec(AttentionOp op) {
  StringRef beyond = beyondSpec(op);
  if (!beyond.empty())
    return op.emitOpError("no kernel is generated for ") << beyond, failure();
  KernelSpec spec = specOf(op.getCache().getType());
  spec.qHeads = op.getQHeads();
  spec.dtype =
      *elementOf(cast<RankedTensorType>(op.getQ().getType()).getElementType());
  spec.causal = op.getCausal().has_value();
  if (std::optional<WindowAttr> window = op.getWindow()) {
    spec.windowLeft = window->getLeft();
    spec.windowRight = window->getRight();
  }
  if (op.getSoftcap())
    spec.softcap = op.getSoftcap()->convertToDouble();
  if (op.getScale())
    spec.scale = op.getScale()->convertToDouble();
  spec.alibi = op.getSlopes() || op.getAlibi();
  return verified(op, spec);
}

FailureOr<KernelSpec> getCacheSpec(Operation *op, CacheType cache) {
  return verified(op, specOf(cache));
}

std::vector<float> usualAlibiSlopes(int64_t heads) {
  int64_t whole = 1;
  while (whole * 2 <= heads)
    whole *= 2;
  std::vector<float> slopes;
  for (int64_t h = 1; h <= whole; ++h)
    slopes.push_back(std::exp2(-8.0 * h / whole));
  for (int64_t h = 1; static_cast<int64_t>(slopes.size()) < heads; h += 2)
    slopes.push_back(std::exp2(-4.0 * h / whole));
  return slopes;
}

} // namespace kvcache
