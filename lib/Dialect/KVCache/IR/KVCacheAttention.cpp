//===- KVCacheAttention.cpp - The attention op ----------------------------===//
//
// Accessors, shape inference and the verifier of kvcache.attention. Labels
// (C1, C2, ...) are those of KVCacheOps.td.
//
//===----------------------------------------------------------------------===//
#include "Shape.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"

#include <cmath>

using namespace mlir;

namespace kvcache {

//===----------------------------------------------------------------------===//
// Accessors
//===----------------------------------------------------------------------===//

/// Head dimension of the queries: 1 of [row, head, d], else the layout's.
static int64_t queryHeadDim(Layout layout, int64_t rank) {
  return rank == 3 ? 1 : layoutDims(layout, rank).head;
}

TypedValue<CacheType> AttentionOp::getCache() {
  if (getKv().empty())
    return {};
  return dyn_cast<TypedValue<CacheType>>(getKv().front());
}

Value AttentionOp::getK() { return getKv().size() == 2 ? getKv()[0] : Value(); }

Value AttentionOp::getV() { return getKv().size() == 2 ? getKv()[1] : Value(); }

int64_t AttentionOp::getQHeads() {
  auto q = tensorType(getQ());
  return q.getDimSize(queryHeadDim(getLayout(), q.getRank()));
}

int64_t AttentionOp::getKvHeads() {
  if (auto cache = getCache())
    return cache.getType().getKvHeads();
  return tensorType(getK()).getDimSize(layoutDims(getLayout(), 4).head);
}

int64_t AttentionOp::getHeadDim() {
  if (auto cache = getCache())
    return cache.getType().getHeadDim();
  return knownSize(tensorType(getQ()).getShape().back(),
                   tensorType(getK()).getShape().back());
}

int64_t AttentionOp::getValueDim() {
  if (auto cache = getCache())
    return cache.getType().getValueDim();
  return tensorType(getV()).getShape().back();
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

LogicalResult AttentionOp::inferReturnTypes(MLIRContext *context,
                                            std::optional<Location> location,
                                            Adaptor op,
                                            SmallVectorImpl<Type> &types) {
  // C1
  ValueRange kv = op.getKv();
  bool isCache = kv.size() == 1 && isa<CacheType>(kv[0].getType());
  bool isTensors = kv.size() == 2 && isa<RankedTensorType>(kv[0].getType()) &&
                   isa<RankedTensorType>(kv[1].getType());
  if (!isCache && !isTensors)
    return emitOptionalError(location,
                             "expected one cache, or two tensors k "
                             "and v, got ",
                             kv.size(), " operands");
  // C2
  auto q = dyn_cast<RankedTensorType>(op.getQ().getType());
  if (!q || (q.getRank() != 3 && q.getRank() != 4))
    return emitOptionalError(
        location, "expected 'q' of rank 3 ([row, head, d]) or 4, got ",
        op.getQ().getType());
  int64_t dv = ShapedType::kDynamic;
  if (isCache)
    dv = cast<CacheType>(kv[0].getType()).getValueDim();
  else if (auto v = cast<RankedTensorType>(kv[1].getType()); v.getRank() > 0)
    dv = v.getShape().back();
  SmallVector<int64_t> shape(q.getShape());
  shape.back() = dv;
  types.push_back(RankedTensorType::get(shape, q.getElementType()));
  shape.pop_back();
  types.push_back(RankedTensorType::get(shape, Float32Type::get(context)));
  return success();
}

bool AttentionOp::isCompatibleReturnTypes(TypeRange a, TypeRange b) {
  return typesAgree(a, b);
}

//===----------------------------------------------------------------------===//
// Verifier
//===----------------------------------------------------------------------===//

/// C3..C5: head dims and the map from query to kv heads.
static LogicalResult verifyHeads(AttentionOp op) {
  int64_t d =
      op.getCache() ? op.getHeadDim() : tensorType(op.getK()).getShape().back();
  // C3
  int64_t qd = tensorType(op.getQ()).getShape().back();
  if (!sizesAgree(qd, d))
    return op.emitOpError("expected queries of the keys' head dim ")
           << d << ", got " << qd;
  int64_t qHeads = op.getQHeads(), kvHeads = op.getKvHeads();
  bool known =
      !ShapedType::isDynamic(qHeads) && !ShapedType::isDynamic(kvHeads);
  if (op.getHeadMapAttr()) {
    ArrayRef<int64_t> map = *op.getHeadMap();
    // C5
    if (!sizesAgree(qHeads, map.size()))
      return op.emitOpError("expected a head_map of ")
             << qHeads << " entries, one per query head, got " << map.size();
    for (int64_t head : map)
      if (head < 0 || (!ShapedType::isDynamic(kvHeads) && head >= kvHeads))
        return op.emitOpError("expected head_map entries in [0, ")
               << kvHeads << "), got " << head;
    return success();
  }
  // C4
  if (known && (kvHeads == 0 || qHeads % kvHeads != 0))
    return op.emitOpError()
           << qHeads << " query heads cannot share " << kvHeads
           << " key/value heads: expected a multiple, or a head_map";
  return success();
}

/// C6, C7: k, v and lengths; `seqs` becomes their number of sequences.
static LogicalResult verifyTensors(AttentionOp op, int64_t &seqs) {
  if (op.hasCache()) {
    // C7
    if (op.getLengths())
      return op.emitOpError("expected no lengths beside a cache: it has its "
                            "own");
    return success();
  }
  auto k = tensorType(op.getK()), v = tensorType(op.getV());
  // C6
  if (k.getRank() != 4 || v.getRank() != 4)
    return op.emitOpError("expected k and v of rank 4, got ")
           << k << " and " << v;
  SmallVector<int64_t> shape(k.getShape());
  shape.back() = ShapedType::kDynamic;
  if (failed(verifyShape(op, "v", v, shape)))
    return failure();
  seqs = knownSize(k.getDimSize(0), v.getDimSize(0));
  // C7
  if (op.getLengths())
    return verifyShape(op, "lengths", tensorType(op.getLengths()), seqs);
  return success();
}

/// C8, C16: which rows belong to which sequence.
static LogicalResult verifyRows(AttentionOp op, int64_t seqs) {
  auto q = tensorType(op.getQ());
  if (op.getQIndptr()) {
    // C8
    if (q.getRank() != 3)
      return op.emitOpError("expected q_indptr only with queries of rank 3, "
                            "got ")
             << q;
    int64_t want = ShapedType::isDynamic(seqs) ? seqs : seqs + 1;
    return verifyShape(op, "q_indptr", tensorType(op.getQIndptr()), want);
  }
  // C16
  if (!sizesAgree(q.getDimSize(0), seqs))
    return op.emitOpError("expected queries of ")
           << seqs << " sequences, got " << q.getDimSize(0)
           << " (several rows per sequence need q_indptr)";
  return success();
}

/// C9, C10: positions and mask.
static LogicalResult verifyPositionsAndMask(AttentionOp op, int64_t seqs) {
  int64_t kvHeads = op.getKvHeads();
  int64_t tokens = ShapedType::kDynamic;
  if (op.getK())
    tokens =
        tensorType(op.getK()).getDimSize(layoutDims(op.getLayout(), 4).token);
  // C9
  if (op.getPositions()) {
    auto type = tensorType(op.getPositions());
    bool shared = type.getRank() == 3 && type.getDimSize(1) == 1;
    if (failed(verifyShape(op, "positions", type,
                           {seqs, shared ? 1 : kvHeads, tokens})))
      return failure();
  }
  // C10
  if (!op.getMask())
    return success();
  auto mask = tensorType(op.getMask()), q = tensorType(op.getQ());
  if (mask.getRank() != q.getRank())
    return op.emitOpError("expected a mask of rank ")
           << q.getRank() << ", as the queries have, got " << mask;
  for (int64_t d = 0; d + 1 < mask.getRank(); ++d)
    if (mask.getDimSize(d) != 1 &&
        !sizesAgree(mask.getDimSize(d), q.getDimSize(d)))
      return op.emitOpError("expected size 1 or ")
             << q.getDimSize(d) << " of the mask in dimension " << d << ", got "
             << mask.getDimSize(d);
  if (!sizesAgree(mask.getShape().back(), tokens))
    return op.emitOpError("expected a mask over ")
           << tokens << " tokens, got " << mask.getShape().back();
  return success();
}

/// C11..C13: what is added to the scores, and scalars.
static LogicalResult verifyScores(AttentionOp op) {
  int64_t qHeads = op.getQHeads();
  // C11
  if (op.getSlopes()) {
    if (op.getAlibi())
      return op.emitOpError("expected slopes as an operand or as 'alibi', not "
                            "both");
    if (failed(verifyShape(op, "slopes", tensorType(op.getSlopes()), qHeads)))
      return failure();
  }
  if (op.getAlibi() && !op.getAlibi()->empty() &&
      !sizesAgree(qHeads, op.getAlibi()->size()))
    return op.emitOpError("expected 'alibi' to have no or ")
           << qHeads << " slopes, got " << op.getAlibi()->size();
  // C12
  if (op.getSinkLogits())
    if (failed(verifyShape(op, "sink_logits", tensorType(op.getSinkLogits()),
                           qHeads)))
      return failure();
  // C13
  if (op.getScale() && !std::isfinite(op.getScale()->convertToDouble()))
    return op.emitOpError("expected a finite 'scale', got ")
           << op.getScale()->convertToDouble();
  if (op.getSoftcap()) {
    double cap = op.getSoftcap()->convertToDouble();
    if (!std::isfinite(cap) || cap <= 0)
      return op.emitOpError("expected 'softcap' to be positive and finite, "
                            "got ")
             << cap;
  }
  return success();
}

LogicalResult AttentionOp::verify() {
  // C1, C2, C17
  if (failed(verifyInferredTypes(*this)))
    return failure();
  int64_t seqs = ShapedType::kDynamic;
  if (failed(verifyTensors(*this, seqs)) || failed(verifyHeads(*this)) ||
      failed(verifyRows(*this, seqs)) ||
      failed(verifyPositionsAndMask(*this, seqs)) ||
      failed(verifyScores(*this)))
    return failure();
  if (!hasCache())
    return success();
  // C14
  CacheType cache = getCache().getType();
  if (!cache.getExternal() && getEmptyRows() != EmptyRows::Zero)
    return emitOpError("expected empty_rows zero on a cache of our own layout, "
                       "got ")
           << stringifyEmptyRows(getEmptyRows());
  if (cache.getExternal() && getEmptyRows() == EmptyRows::MeanAll &&
      cache.getExternal().getTable() == TableRule::Raw)
    return emitOpError("expected empty_rows zero or nan with table rule raw "
                       "(its unused entries name no page), got mean_all");
  // C15
  if (!cache.getExternal() &&
      tensorType(getQ()).getElementType() != cache.getOpen())
    return emitOpError("expected queries of the cache's open dtype ")
           << cache.getOpen() << ", got " << getQ().getType();
  return success();
}

} // namespace kvcache
