//===- ArraySource.cpp - Looking through views of a tensor ----------------===//
//
// Each step rewrites the index expressions from the view's dimensions to its
// source's: extract_slice scales and shifts, expand_shape linearises,
// collapse_shape divides, transpose permutes, cast keeps.
//
//===----------------------------------------------------------------------===//
#include "ArraySource.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace kvcache {

using Exprs = SmallVector<AffineExpr>;

static LogicalResult step(tensor::ExtractSliceOp op, Exprs &index) {
  if (llvm::any_of(op.getStaticOffsets(), ShapedType::isDynamic) ||
      llvm::any_of(op.getStaticStrides(), ShapedType::isDynamic))
    return failure();
  llvm::SmallBitVector dropped = op.getDroppedDims();
  Exprs source;
  unsigned next = 0;
  for (auto [d, offset] : llvm::enumerate(op.getStaticOffsets())) {
    AffineExpr expr = getAffineConstantExpr(offset, op.getContext());
    if (!dropped.test(d))
      expr = index[next++] * op.getStaticStrides()[d] + expr;
    source.push_back(expr);
  }
  index = source;
  return success();
}

static LogicalResult step(tensor::ExpandShapeOp op, Exprs &index) {
  Exprs source;
  ArrayRef<int64_t> shape = op.getResultType().getShape();
  for (const ReassociationIndices &group : op.getReassociationIndices()) {
    AffineExpr expr = index[group.front()];
    for (int64_t d : llvm::drop_begin(group)) {
      if (ShapedType::isDynamic(shape[d]))
        return failure();
      expr = expr * shape[d] + index[d];
    }
    source.push_back(expr);
  }
  // A rank-0 source has one element at the empty index, which no map can name.
  if (source.empty())
    return failure();
  index = source;
  return success();
}

static LogicalResult step(tensor::CollapseShapeOp op, Exprs &index) {
  ArrayRef<int64_t> shape = op.getSrcType().getShape();
  Exprs source(shape.size());
  if (op.getReassociationIndices().empty())
    return failure();
  for (auto [g, group] : llvm::enumerate(op.getReassociationIndices())) {
    AffineExpr rest = index[g];
    for (int64_t d : llvm::reverse(llvm::drop_begin(group))) {
      if (ShapedType::isDynamic(shape[d]) || shape[d] == 0)
        return failure();
      source[d] = rest % shape[d];
      rest = rest.floorDiv(shape[d]);
    }
    source[group.front()] = rest;
  }
  index = source;
  return success();
}

static LogicalResult step(linalg::TransposeOp op, Exprs &index) {
  Exprs source(index.size());
  for (auto [d, s] : llvm::enumerate(op.getPermutation()))
    source[s] = index[d];
  index = source;
  return success();
}

ArraySource throughViews(ArraySource source) {
  Exprs index(source.map.getResults());
  while (Operation *op = source.array.getDefiningOp()) {
    Exprs next = index;
    Value operand;
    LogicalResult moved =
        llvm::TypeSwitch<Operation *, LogicalResult>(op)
            .Case<tensor::ExtractSliceOp>([&](auto view) {
              operand = view.getSource();
              return step(view, next);
            })
            .Case<tensor::ExpandShapeOp, tensor::CollapseShapeOp>(
                [&](auto view) {
                  operand = view.getSrc();
                  return step(view, next);
                })
            .Case<linalg::TransposeOp>([&](auto view) {
              operand = view.getInput();
              return success(isa<RankedTensorType>(operand.getType()) &&
                             succeeded(step(view, next)));
            })
            .Case<tensor::CastOp>([&](auto view) {
              operand = view.getSource();
              return success(isa<RankedTensorType>(operand.getType()));
            })
            .Default([](Operation *) { return failure(); });
    if (failed(moved))
      break;
    index = next;
    source.array = operand;
  }
  source.map = AffineMap::get(4, 0, index, source.map.getContext());
  return source;
}

} // namespace kvcache
