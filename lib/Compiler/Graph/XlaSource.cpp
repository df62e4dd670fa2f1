//===- XlaSource.cpp - Which lowered value is which StableHLO value -------===//
#include "XlaSource.h"

#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/Passes.h"

using namespace kvcache;
using namespace mlir;

static constexpr llvm::StringLiteral kMark = "kv.mark", kNumber = "number",
                                     kOpaque = "kv.opaque";

/// Copies the callee's body before `call`; calls in it join `work`.
static bool inlineCall(Operation *call, func::FuncOp callee,
                       SmallVectorImpl<Operation *> &work) {
  if (!callee || !callee.getBody().hasOneBlock())
    return false;
  OpBuilder b(call);
  IRMapping map;
  map.map(callee.getArguments(), call->getOperands());
  for (Operation &op : callee.getBody().front().without_terminator())
    b.clone(op, map)->walk([&](Operation *nested) {
      if (isa<func::CallOp, stablehlo::CompositeOp>(nested))
        work.push_back(nested);
    });
  Operation *end = callee.getBody().front().getTerminator();
  for (auto [result, value] : llvm::zip(call->getResults(), end->getOperands()))
    result.replaceAllUsesWith(map.lookupOrDefault(value));
  call->erase();
  return true;
}

LogicalResult kvcache::inlineCalls(ModuleOp module) {
  SmallVector<Operation *> work;
  for (auto function : module.getOps<func::FuncOp>())
    if (function.isPublic())
      function.walk([&](Operation *op) {
        if (isa<func::CallOp, stablehlo::CompositeOp>(op))
          work.push_back(op);
      });
  // More calls than any graph has: functions that call themselves.
  for (unsigned steps = 0; !work.empty() && steps < 1000000; ++steps) {
    Operation *op = work.pop_back_val();
    StringRef name;
    if (auto call = dyn_cast<func::CallOp>(op))
      name = call.getCallee();
    else
      name = cast<stablehlo::CompositeOp>(op).getDecomposition();
    if (!inlineCall(op, module.lookupSymbol<func::FuncOp>(name), work))
      return op->emitError("'") << name << "' cannot be put in place of a call";
  }
  if (!work.empty())
    return module.emitError("functions call themselves");
  return success();
}

/// Ops whose regions compute on scalars only.
static bool isRegionOfScalars(Region *region) {
  return !isa<func::FuncOp, stablehlo::WhileOp, stablehlo::IfOp,
              stablehlo::CaseOp>(region->getParentOp());
}

/// A call that only XLA can make: its results are data like arguments.
static void makeOpaque(stablehlo::CustomCallOp call) {
  static const StringRef known[] = {
      "shape_assertion", "Sharding", "SPMDFullToShardShape",
      "SPMDShardToFullShape", "annotate_device_placement"};
  if (llvm::is_contained(known, call.getCallTargetName()))
    return;
  OpBuilder b(call);
  OperationState state(call.getLoc(), kOpaque, call->getOperands(),
                       call->getResultTypes());
  Operation *opaque = b.create(state);
  call->replaceAllUsesWith(opaque);
  call.erase();
}

void SourceValues::mark(ModuleOp original, const IRMapping &copy) {
  // Marks are no op of any dialect, which no pass knows or removes.
  original.getContext()->allowUnregisteredDialects();
  Builder attributes(original.getContext());
  auto add = [&](Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (!type || !type.hasStaticShape())
      return;
    Value copied = copy.lookup(value);
    OpBuilder b(original.getContext());
    b.setInsertionPointAfterValue(copied);
    OperationState state(copied.getLoc(), kMark, copied, TypeRange());
    state.addAttribute(kNumber, attributes.getI64IntegerAttr(
                                    static_cast<int64_t>(originals.size())));
    b.create(state);
    originals.push_back(value);
  };
  original.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (isa<ModuleOp>(op))
      return WalkResult::advance();
    for (Value result : op->getResults())
      add(result);
    for (Region &region : op->getRegions()) {
      if (isRegionOfScalars(&region))
        return WalkResult::skip();
      for (Block &block : region)
        for (Value argument : block.getArguments())
          add(argument);
    }
    return WalkResult::advance();
  });
  SmallVector<stablehlo::CustomCallOp> calls;
  if (!originals.empty())
    copy.lookup(originals.front())
        .getParentRegion()
        ->getParentOfType<ModuleOp>()
        .walk([&](stablehlo::CustomCallOp call) { calls.push_back(call); });
  for (stablehlo::CustomCallOp call : calls)
    makeOpaque(call);
}

void SourceValues::settle(ModuleOp copy) {
  llvm::DenseMap<Value, SmallVector<int64_t>> numbers;
  SmallVector<Operation *> marks;
  copy.walk([&](Operation *op) {
    if (op->getName().getStringRef() == kMark)
      marks.push_back(op);
  });
  for (Operation *mark : marks) {
    numbers[mark->getOperand(0)].push_back(
        mark->getAttrOfType<IntegerAttr>(kNumber).getInt());
    mark->erase();
  }
  // Later ops first: what only dead ops used is dead too.
  SmallVector<Operation *> ops;
  copy.walk<WalkOrder::PreOrder>([&](Operation *op) { ops.push_back(op); });
  for (Operation *op : llvm::reverse(ops))
    if (isOpTriviallyDead(op))
      op->erase();
  Builder b(copy.getContext());
  copy.walk([&](Operation *op) {
    SmallVector<Attribute> perResult;
    bool any = false;
    for (Value result : op->getResults()) {
      SmallVector<int64_t> all = numbers.lookup(result);
      llvm::sort(all);
      any |= !all.empty();
      perResult.push_back(b.getDenseI64ArrayAttr(all));
    }
    if (any)
      op->setAttr(import::kSourceAttr, b.getArrayAttr(perResult));
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (Value argument : block.getArguments())
          if (auto all = numbers.lookup(argument); !all.empty()) {
            llvm::sort(all);
            arguments[argument] = all;
          }
  });
}

SmallVector<Value> SourceValues::of(Value value) const {
  SmallVector<int64_t> numbers;
  if (auto result = dyn_cast<OpResult>(value)) {
    if (auto all =
            result.getOwner()->getAttrOfType<ArrayAttr>(import::kSourceAttr);
        all && result.getResultNumber() < all.size())
      llvm::append_range(
          numbers,
          cast<DenseI64ArrayAttr>(all[result.getResultNumber()]).asArrayRef());
  } else {
    numbers = arguments.lookup(value);
  }
  SmallVector<Value> found;
  for (int64_t number : numbers)
    found.push_back(originals[number]);
  return found;
}
