//===- FlattenQueries.cpp - One row per query -----------------------------===//
//
// Kernels take queries [row, head, d]. Queries of rank 4 on a cache are brought
// to that form: [seq, q_len, head, d] collapses, [seq, head, q_len, d] is
// transposed first (a mere reshape when q_len is 1); rows of a sequence are
// named by a constant q_indptr; out and lse go the way back.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

using namespace mlir;

namespace kvcache {

#define GEN_PASS_DEF_FLATTENQUERIESPASS
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

/// `value` with dimensions 1 and 2 exchanged.
static Value exchange(ImplicitLocOpBuilder &b, Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  SmallVector<int64_t> order = llvm::to_vector(llvm::seq(type.getRank()));
  SmallVector<int64_t> shape(type.getShape());
  std::swap(order[1], order[2]);
  std::swap(shape[1], shape[2]);
  Value empty = tensor::EmptyOp::create(b, shape, type.getElementType());
  return linalg::TransposeOp::create(b, value, empty, order).getResult()[0];
}

/// [seq, q_len, rest...] as [row, rest...].
static ReassociationIndices rowsOf() { return {0, 1}; }

static SmallVector<ReassociationIndices> reassociation(int64_t rank) {
  SmallVector<ReassociationIndices> groups = {rowsOf()};
  for (int64_t d = 2; d < rank; ++d)
    groups.push_back({d});
  return groups;
}

/// The result of the flat attention in the shape of `original`.
static Value unflatten(ImplicitLocOpBuilder &b, Value flat,
                       RankedTensorType original, bool transposed) {
  SmallVector<int64_t> shape(original.getShape());
  if (transposed)
    std::swap(shape[1], shape[2]);
  auto type = RankedTensorType::get(shape, original.getElementType());
  Value result = tensor::ExpandShapeOp::create(b, type, flat,
                                               reassociation(type.getRank()));
  return transposed ? exchange(b, result) : result;
}

bool flattenQueries(AttentionOp op, std::string &reason) {
  auto q = cast<RankedTensorType>(op.getQ().getType());
  if (!op.hasCache() || q.getRank() != 4)
    return false;
  if (!q.hasStaticShape() ||
      !cast<RankedTensorType>(op.getOut().getType()).hasStaticShape() ||
      !cast<RankedTensorType>(op.getLse().getType()).hasStaticShape()) {
    reason = "queries of rank 4 must have a static shape";
    return false;
  }
  if (op.getMask()) {
    reason = "it has a mask of rank 4";
    return false;
  }
  bool transposed = op.getLayout() == Layout::HND;
  ImplicitLocOpBuilder b(op.getLoc(), op);
  Value rows = transposed ? exchange(b, op.getQ()) : op.getQ();
  rows = tensor::CollapseShapeOp::create(b, rows, reassociation(4));
  auto rowsType = cast<RankedTensorType>(rows.getType());
  int64_t seqs = q.getDimSize(0),
          length = rowsType.getDimSize(0) / std::max<int64_t>(seqs, 1);
  SmallVector<int64_t> outShape(rowsType.getShape());
  outShape.back() =
      cast<RankedTensorType>(op.getOut().getType()).getShape().back();
  auto outType = RankedTensorType::get(outShape, q.getElementType());
  auto lseType =
      RankedTensorType::get(ArrayRef(outShape).drop_back(), b.getF32Type());
  IRMapping map;
  map.map(op.getQ(), rows);
  auto flat = cast<AttentionOp>(b.clone(*op, map));
  flat.setLayout(Layout::HND);
  flat.getOut().setType(outType);
  flat.getLse().setType(lseType);
  if (length != 1) {
    SmallVector<int32_t> indptr;
    for (int64_t s = 0; s <= seqs; ++s)
      indptr.push_back(static_cast<int32_t>(s * length));
    b.setInsertionPoint(flat);
    auto type = RankedTensorType::get(seqs + 1, b.getI32Type());
    flat.getQIndptrMutable().assign(arith::ConstantOp::create(
        b, DenseElementsAttr::get(type, ArrayRef<int32_t>(indptr))));
    b.setInsertionPointAfter(flat);
  }
  Value out =
      unflatten(b, flat.getOut(), cast<RankedTensorType>(op.getOut().getType()),
                transposed);
  Value lse =
      unflatten(b, flat.getLse(), cast<RankedTensorType>(op.getLse().getType()),
                transposed);
  op->replaceAllUsesWith(ValueRange{out, lse});
  op->erase();
  return true;
}

namespace {
struct FlattenQueriesPass : impl::FlattenQueriesPassBase<FlattenQueriesPass> {
  void runOnOperation() override {
    SmallVector<AttentionOp> attentions;
    getOperation()->walk([&](AttentionOp op) { attentions.push_back(op); });
    for (AttentionOp op : attentions) {
      std::string reason;
      if (!flattenQueries(op, reason) && !reason.empty())
        op.emitRemark("queries not flattened: ") << reason;
    }
  }
};
} // namespace

} // namespace kvcache
