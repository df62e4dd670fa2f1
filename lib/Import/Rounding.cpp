// Where a graph rounds scores or probabilities to a narrower type than its
// result has. The fused op computes in f32, so its result would be the more
// exact one and differ from the graph by more than the result's type allows.

#include "Match.h"

#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;
using namespace kvcache::import;

unsigned kvcache::import::floatWidth(Type type) {
  auto element = dyn_cast<FloatType>(getElementTypeOrSelf(type));
  return element ? element.getWidth() : 64;
}

bool kvcache::import::isRoundedByUsers(Value value, unsigned width,
                                       unsigned depth) {
  if (depth == 0 || value.use_empty())
    return false;
  return llvm::all_of(value.getUsers(), [&](Operation *user) {
    if (isa<tensor::DimOp>(user))
      return true;
    if (user->getNumResults() != 1)
      return false;
    if (isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp, tensor::CastOp,
            tensor::ExtractSliceOp, tensor::ReshapeOp, linalg::TransposeOp>(
            user))
      return isRoundedByUsers(user->getResult(0), width, depth - 1);
    auto generic = dyn_cast<linalg::GenericOp>(user);
    if (!generic || generic.getNumParallelLoops() != generic.getNumLoops())
      return false;
    Operation *yield = generic.getBody()->getTerminator();
    Operation *computed = yield->getOperand(0).getDefiningOp();
    if (computed)
      return isa<arith::TruncFOp>(computed) &&
             isa<BlockArgument>(computed->getOperand(0)) &&
             floatWidth(computed->getResult(0).getType()) <= width;
    return isRoundedByUsers(generic.getResult(0), width, depth - 1);
  });
}

unsigned Matcher::narrowestScore(Cursor cursor, unsigned &budget) {
  unsigned width = 64;
  if (budget == 0)
    return width;
  --budget;
  Node node = read.resolve(cursor);
  if (node.kind == Kind::Reduce)
    return floatWidth(node.op->getResult(0).getType());
  if (node.kind != Kind::Op)
    return width;
  width = floatWidth(node.op->getResult(0).getType());
  for (const Cursor &operand : node.operands) {
    Contents contents;
    inspect(operand, contents);
    if (contents.product || contents.reduction)
      width = std::min(width, narrowestScore(operand, budget));
  }
  return width;
}

bool Matcher::checkRounding() {
  unsigned budget = 400;
  unsigned width = narrowestScore(match.probabilities, budget);
  if (width >= floatWidth(match.root.getType()) ||
      isRoundedByUsers(match.root, width))
    return true;
  return refuse("scores or probabilities are rounded to " + llvm::Twine(width) +
                " bits, the result is not");
}
