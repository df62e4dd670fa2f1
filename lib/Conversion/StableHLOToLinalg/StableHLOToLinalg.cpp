// The driver: remember which ops are unsigned, make types signless, then
// replace each op in program order, regions first.

#include "kvcache/Conversion/StableHLOToLinalg/StableHLOToLinalg.h"

#include "Lowering.h"

#include "mlir/Dialect/Tosa/IR/TosaOps.h"

namespace kvcache::stablehlo {
#define GEN_PASS_DEF_STABLEHLOTOLINALGPASS
#include "kvcache/Conversion/StableHLOToLinalg/Passes.h.inc"
} // namespace kvcache::stablehlo

using namespace mlir;
using namespace kvcache;
using namespace kvcache::stablehlo;

static Type signless(Type type) {
  if (auto integer = dyn_cast<IntegerType>(type))
    return integer.isSignless()
               ? type
               : IntegerType::get(type.getContext(), integer.getWidth());
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    return tensor.clone(signless(tensor.getElementType()));
  return type;
}

static bool isUnsigned(Type type) {
  return getElementTypeOrSelf(type).isUnsignedInteger();
}

/// Whether the op's integers are unsigned; where elements only move, those
/// that say where from.
static bool readsUnsigned(Operation *op) {
  if (auto gather = dyn_cast<GatherOp>(op))
    return isUnsigned(gather.getStartIndices().getType());
  if (auto scatter = dyn_cast<ScatterOp>(op))
    return isUnsigned(scatter.getScatterIndices().getType());
  if (auto slice = dyn_cast<DynamicSliceOp>(op))
    return llvm::any_of(slice.getStartIndices().getTypes(), isUnsigned);
  if (auto update = dyn_cast<DynamicUpdateSliceOp>(op))
    return llvm::any_of(update.getStartIndices().getTypes(), isUnsigned);
  return llvm::any_of(op->getOperandTypes(), isUnsigned);
}

static void makeSignless(Operation *module) {
  module->walk([](Operation *op) {
    auto *dialect = op->getDialect();
    if (isa_and_nonnull<StableHLODialect, chlo::CHLODialect>(dialect)) {
      if (readsUnsigned(op))
        op->setAttr(kUnsignedIn, UnitAttr::get(op->getContext()));
      if (llvm::any_of(op->getResultTypes(), isUnsigned))
        op->setAttr(kUnsignedOut, UnitAttr::get(op->getContext()));
    }
  });
  module->walk([](Operation *op) {
    for (Value result : op->getResults())
      result.setType(signless(result.getType()));
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (BlockArgument arg : block.getArguments())
          arg.setType(signless(arg.getType()));
    if (auto constant = dyn_cast<arith::ConstantOp>(op))
      if (auto dense = dyn_cast<DenseElementsAttr>(constant.getValue()))
        if (dense.getType() != constant.getType())
          constant.setValueAttr(cast<TypedAttr>(
              dense.bitcast(getElementTypeOrSelf(constant.getType()))));
    if (auto function = dyn_cast<func::FuncOp>(op)) {
      FunctionType type = function.getFunctionType();
      SmallVector<Type> inputs(llvm::map_range(type.getInputs(), signless)),
          results(llvm::map_range(type.getResults(), signless));
      function.setType(FunctionType::get(op->getContext(), inputs, results));
    }
  });
}

/// Ops whose regions are scalar computations that their lowering reads.
static bool ownsScalarRegion(Operation *op) {
  return isa<ReduceOp, ReduceWindowOp, ScatterOp, SortOp, MapOp,
             tm_tensor::ScanOp, tm_tensor::ScatterOp>(op);
}

static bool isOurs(Operation *op) {
  return isa<tosa::ScatterOp>(op) ||
         isa_and_nonnull<StableHLODialect, chlo::CHLODialect, sdy::SdyDialect,
                         tm_tensor::TMTensorDialect>(op->getDialect());
}

static void collect(Region &region, SmallVectorImpl<Operation *> &ops) {
  for (Block &block : region)
    for (Operation &op : block) {
      if (!ownsScalarRegion(&op))
        for (Region &nested : op.getRegions())
          collect(nested, ops);
      if (isOurs(&op))
        ops.push_back(&op);
    }
}

static LogicalResult lowerOp(Operation *op) {
  if (isa<sdy::MeshOp>(op)) {
    op->erase();
    return success();
  }
  if (isa<ReturnOp>(op)) // replaced with the op it ends
    return success();
  ImplicitLocOpBuilder b(op->getLoc(), op);
  bool reported = false;
  FailureOr<Values> results = failure();
  {
    // A family that fails for a reason says so; then do not add to it.
    ScopedDiagnosticHandler handler(op->getContext(), [&](Diagnostic &diag) {
      reported |= diag.getSeverity() == DiagnosticSeverity::Error;
      return failure();
    });
    for (auto lower : {lowerShape, lowerIndexing, lowerReduction, lowerControl,
                       lowerOrdering}) {
      results = lower(b, op);
      if (succeeded(results) || reported)
        break;
    }
  }
  if (failed(results)) {
    if (!reported)
      op->emitError("'") << op->getName()
                         << "' cannot be lowered with these types: "
                         << op->getOperandTypes();
    return failure();
  }
  op->replaceAllUsesWith(*results);
  op->erase();
  return success();
}

LogicalResult kvcache::stablehlo::lowerToLinalg(Operation *module) {
  makeSignless(module);
  SmallVector<Operation *> ops;
  for (Region &region : module->getRegions())
    collect(region, ops);
  for (Operation *op : ops)
    if (failed(lowerOp(op)))
      return failure();
  return success();
}

namespace {
struct StableHLOToLinalgPass
    : kvcache::stablehlo::impl::StableHLOToLinalgPassBase<
          StableHLOToLinalgPass> {
  using StableHLOToLinalgPassBase::StableHLOToLinalgPassBase;
  void runOnOperation() override {
    if (failed(lowerToLinalg(getOperation())))
      signalPassFailure();
  }
};
} // namespace
