//===- KVCacheFolds.cpp - Folders and canonicalisations -------------------===//
//
// dequantize(quantize(x)) is *not* folded: coding is lossy and that is its
// meaning. Nested merges are not flattened: the order of additions is fixed.
//
//===----------------------------------------------------------------------===//
#include "Shape.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;

namespace kvcache {

/// Floats of one type decode to themselves.
OpFoldResult DequantizeOp::fold(FoldAdaptor) {
  if (getParams().empty() && getCodes().getType() == getResult().getType())
    return getCodes();
  return {};
}

/// One part is its own merge.
LogicalResult MergeStatesOp::fold(FoldAdaptor,
                                  SmallVectorImpl<OpFoldResult> &results) {
  if (getOuts().size() != 1)
    return failure();
  results.push_back(getOuts().front());
  results.push_back(getLses().front());
  return success();
}

namespace {
/// page_gather(dequantize(codes, params)) -> dequantize(page_gather(codes),
/// page_gather(params)): codes are smaller than what they stand for, and fusion
/// then has one form to recognise. Params that broadcast over pages stay.
struct GatherBeforeDequantize : OpRewritePattern<PageGatherOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(PageGatherOp gather,
                                PatternRewriter &rewriter) const override {
    auto dequantize = gather.getPool().getDefiningOp<DequantizeOp>();
    if (!dequantize)
      return rewriter.notifyMatchFailure(gather, "pool is not decoded codes");
    if (!dequantize->hasOneUse())
      return rewriter.notifyMatchFailure(gather, "decoded pool has other uses");
    if (dequantize.getLayout() != gather.getLayout())
      return rewriter.notifyMatchFailure(gather, "layouts differ");
    auto codes = tensorType(dequantize.getCodes());
    LayoutDims dims = layoutDims(gather.getLayout(), 4);
    for (Value param : dequantize.getParams()) {
      auto type = tensorType(param);
      bool broadcasts = type.getDimSize(0) == 1 && codes.getDimSize(0) != 1;
      // A broadcast param is shared by all pages; one entry per token group
      // would repeat with each page, which one array cannot say.
      if (broadcasts && type.getDimSize(dims.token) != 1)
        return rewriter.notifyMatchFailure(
            gather, "scales without pages but with token groups");
      if (!broadcasts && type.getDimSize(dims.head) == 1 &&
          tensorType(gather.getTable()).getRank() == 3)
        return rewriter.notifyMatchFailure(
            gather, "scales shared by heads under a table per head");
    }
    auto gatherOne = [&](Value pool) -> Value {
      auto op = PageGatherOp::create(rewriter, gather.getLoc(), pool,
                                     gather.getTable(), gather.getLayoutAttr(),
                                     gather.getTableRuleAttr());
      return op.getResult();
    };
    SmallVector<Value> params;
    for (Value param : dequantize.getParams()) {
      bool broadcasts =
          tensorType(param).getDimSize(0) == 1 && codes.getDimSize(0) != 1;
      params.push_back(broadcasts ? param : gatherOne(param));
    }
    rewriter.replaceOpWithNewOp<DequantizeOp>(
        gather, gather.getType(), gatherOne(dequantize.getCodes()), params,
        dequantize.getEncodingAttr(), dequantize.getLayoutAttr(),
        dequantize.getPackingAttr());
    return success();
  }
};
} // namespace

void PageGatherOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                               MLIRContext *context) {
  patterns.add<GatherBeforeDequantize>(context);
}

} // namespace kvcache
