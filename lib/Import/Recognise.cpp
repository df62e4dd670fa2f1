// Finding the attentions of a function: every contraction, and every quotient
// after one, is tried, last first, so that a quotient goes before its product.

#include "kvcache/Import/Import.h"

#include "Rewrite.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace kvcache::import;

/// Erases `op` and what only it needed.
static void eraseDead(Operation *op, llvm::SmallPtrSetImpl<Operation *> &dead) {
  SmallVector<Operation *> work{op};
  while (!work.empty()) {
    Operation *next = work.pop_back_val();
    if (dead.contains(next) || !isOpTriviallyDead(next))
      continue;
    SmallVector<Operation *> producers;
    for (Value operand : next->getOperands())
      if (Operation *producer = operand.getDefiningOp())
        producers.push_back(producer);
    dead.insert(next);
    next->erase();
    llvm::append_range(work, producers);
  }
}

std::vector<Candidate> kvcache::import::recognise(func::FuncOp function) {
  SmallVector<linalg::GenericOp> roots;
  function.walk([&](linalg::GenericOp op) {
    if (op.hasPureTensorSemantics() && op->getNumResults() == 1 &&
        isa<FloatType>(getElementTypeOrSelf(op.getResult(0).getType())))
      roots.push_back(op);
  });
  std::vector<Candidate> candidates;
  llvm::SmallPtrSet<Operation *, 32> dead;
  for (linalg::GenericOp root : llvm::reverse(roots)) {
    if (dead.contains(root) || root.getResult(0).use_empty())
      continue;
    Space space;
    Matcher matcher(space);
    bool isCandidate = false;
    bool matched = matcher.run(root.getResult(0), isCandidate);
    if (!isCandidate)
      continue;
    Candidate candidate{root.getLoc(), false, matcher.reason, {}};
    if (matched) {
      Rewriter rewriter(matcher);
      candidate.fused = rewriter.plan();
      candidate.reason = candidate.fused ? "attention" : rewriter.reason;
      candidate.attributes =
          candidate.fused ? rewriter.attributes() : llvm::json::Object();
      if (candidate.fused) {
        // Who follows values through the graph knows them by this attribute.
        Attribute source = root->getAttr(kSourceAttr);
        Value result = rewriter.build();
        if (source)
          result.getDefiningOp()->setAttr(kSourceAttr, source);
        eraseDead(root, dead);
      }
    }
    candidates.push_back(std::move(candidate));
  }
  std::reverse(candidates.begin(), candidates.end());
  return candidates;
}
