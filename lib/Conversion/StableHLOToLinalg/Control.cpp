// while, if, case, calls and annotations. Their regions' ops have been lowered
// already; blocks are moved into the scf ops.

#include "Lowering.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::stablehlo;

/// Moves `from`'s block into `to`, replacing the block `to` has.
static Block *moveBlock(Region &from, Region &to) {
  to.getBlocks().clear();
  to.takeBody(from);
  return &to.front();
}

/// Replaces a region's `stablehlo.return` by scf.yield.
static void yieldInstead(Block *block) {
  Operation *end = block->getTerminator();
  ImplicitLocOpBuilder b(end->getLoc(), end);
  scf::YieldOp::create(b, end->getOperands());
  end->erase();
}

static Values lowerWhile(ImplicitLocOpBuilder &b, WhileOp op) {
  auto loop = scf::WhileOp::create(b, op.getResultTypes(), op.getOperand());
  Block *before = moveBlock(op.getCond(), loop.getBefore());
  Operation *end = before->getTerminator();
  ImplicitLocOpBuilder in(end->getLoc(), end);
  Value condition = scalarOf(in, end->getOperand(0));
  scf::ConditionOp::create(in, condition, before->getArguments());
  end->erase();
  yieldInstead(moveBlock(op.getBody(), loop.getAfter()));
  return Values(loop.getResults());
}

static Values lowerIf(ImplicitLocOpBuilder &b, IfOp op) {
  auto choice = scf::IfOp::create(b, op.getResultTypes(),
                                  scalarOf(b, op.getPred()), true);
  yieldInstead(moveBlock(op.getTrueBranch(), choice.getThenRegion()));
  yieldInstead(moveBlock(op.getFalseBranch(), choice.getElseRegion()));
  return Values(choice.getResults());
}

static Values lowerCase(ImplicitLocOpBuilder &b, CaseOp op) {
  Value i = scalarOf(b, op.getIndex());
  i = arith::IndexCastOp::create(b, b.getIndexType(), i);
  unsigned last = op.getBranches().size() - 1;
  SmallVector<int64_t> cases;
  for (unsigned c = 0; c < last; ++c)
    cases.push_back(c);
  auto choice = scf::IndexSwitchOp::create(b, op.getResultTypes(), i, cases,
                                           cases.size());
  for (unsigned c = 0; c < last; ++c)
    yieldInstead(moveBlock(op.getBranches()[c], choice.getCaseRegions()[c]));
  yieldInstead(moveBlock(op.getBranches()[last], choice.getDefaultRegion()));
  return Values(choice.getResults());
}

FailureOr<Values> kvcache::stablehlo::lowerControl(ImplicitLocOpBuilder &b,
                                                   Operation *op) {
  if (auto loop = dyn_cast<WhileOp>(op))
    return lowerWhile(b, loop);
  if (auto choice = dyn_cast<IfOp>(op))
    return lowerIf(b, choice);
  if (auto choice = dyn_cast<CaseOp>(op); choice && !op->getRegions().empty())
    return lowerCase(b, choice);
  if (isa<OptimizationBarrierOp, sdy::ShardingConstraintOp>(op))
    return Values(op->getOperands());
  if (auto composite = dyn_cast<CompositeOp>(op)) {
    auto call = func::CallOp::create(b, composite.getDecomposition(),
                                     op->getResultTypes(), op->getOperands());
    return Values(call.getResults());
  }
  if (auto call = dyn_cast<CustomCallOp>(op)) {
    StringRef target = call.getCallTargetName();
    if (target == "shape_assertion")
      return Values();
    bool isMark = target == "Sharding" || target == "SPMDFullToShardShape" ||
                  target == "SPMDShardToFullShape" ||
                  target == "annotate_device_placement";
    if (isMark && op->getOperandTypes() == op->getResultTypes())
      return Values(op->getOperands());
    op->emitError("custom_call @")
        << target << " has no meaning here; supported are shape_assertion, "
        << "Sharding and annotate_device_placement";
  }
  return failure();
}
