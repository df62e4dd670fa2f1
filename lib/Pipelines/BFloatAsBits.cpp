// bf16 values that are only moved become 16-bit integers: code generation for
// CPUs without bf16 otherwise converts them through calls to libgcc functions
// that are not there.

#include "kvcache/Pipelines/CpuPipelines.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Pass/Pass.h"

using namespace mlir;

static bool isBFloat(Value value) { return value.getType().isBF16(); }

/// Whether `op` moves bf16 without computing with it.
static bool onlyMoves(Operation *op) {
  return isa<LLVM::LoadOp, LLVM::StoreOp, LLVM::BitcastOp, LLVM::SelectOp,
             LLVM::ConstantOp, LLVM::BrOp, LLVM::CondBrOp, LLVM::UndefOp,
             LLVM::PoisonOp>(op);
}

static void asBits(LLVM::LLVMFuncOp function) {
  WalkResult computes = function.walk([](Operation *op) {
    bool has = llvm::any_of(op->getOperands(), isBFloat) ||
               llvm::any_of(op->getResults(), isBFloat);
    return has && !onlyMoves(op) ? WalkResult::interrupt()
                                 : WalkResult::advance();
  });
  if (computes.wasInterrupted() ||
      llvm::any_of(function.getArguments(), isBFloat))
    return;
  Type bits = IntegerType::get(function.getContext(), 16);
  for (Block &block : function.getBody())
    for (BlockArgument arg : block.getArguments())
      if (isBFloat(arg))
        arg.setType(bits);
  function.walk([&](Operation *op) {
    for (Value result : op->getResults())
      if (isBFloat(result))
        result.setType(bits);
    auto constant = dyn_cast<LLVM::ConstantOp>(op);
    if (!constant || constant.getType() != bits)
      return;
    if (auto number = dyn_cast<FloatAttr>(constant.getValue()))
      constant.setValueAttr(
          IntegerAttr::get(bits, number.getValue().bitcastToAPInt()));
  });
}

namespace {
struct BFloatAsBits : PassWrapper<BFloatAsBits, OperationPass<>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(BFloatAsBits)
  StringRef getArgument() const final { return "kvcache-bfloat-as-bits"; }
  StringRef getDescription() const final {
    return "turn bf16 values that are only moved into i16";
  }
  void runOnOperation() final { getOperation()->walk(asBits); }
};
} // namespace

std::unique_ptr<Pass> kvcache::createBFloatAsBitsPass() {
  return std::make_unique<BFloatAsBits>();
}
