//===- OutlineKernels.cpp - From attention ops to kernels -----------------===//
//
// Specs in the order of their first use; names are `attend`, `attend_0`, ... as
// the symbol table makes them unique.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/OutlineKernels/OutlineKernels.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace kvcache {

#define GEN_PASS_DEF_OUTLINEKERNELSPASS
#include "kvcache/Conversion/OutlineKernels/Passes.h.inc"

LogicalResult outlineKernels(ModuleOp module) {
  llvm::SetVector<tile::SpecAttr> specs;
  Operation *other = nullptr;
  WalkResult walk = module.walk([&](Operation *op) {
    auto attention = dyn_cast<AttentionOp>(op);
    if (!attention) {
      if (isa_and_nonnull<KVCacheDialect>(op->getDialect()))
        other = op;
      return WalkResult::advance();
    }
    FailureOr<KernelSpec> spec = getKernelSpec(attention);
    if (failed(spec))
      return WalkResult::interrupt();
    specs.insert(tile::SpecAttr::fromKernelSpec(module.getContext(), *spec));
    return WalkResult::advance();
  });
  if (walk.wasInterrupted())
    return failure();
  if (specs.empty()) {
    if (other)
      return other->emitOpError("has no kernel of its own here: expected an "
                                "attention on a cache in the module");
    return success();
  }
  for (auto function :
       llvm::make_early_inc_range(module.getOps<FunctionOpInterface>()))
    function.erase();
  SymbolTable symbols(module);
  OpBuilder builder = OpBuilder::atBlockEnd(module.getBody());
  for (tile::SpecAttr spec : specs) {
    auto kernel =
        tile::KernelOp::create(builder, module.getLoc(), "attend", spec);
    symbols.insert(kernel);
  }
  return success();
}

namespace {
struct OutlineKernelsPass : impl::OutlineKernelsPassBase<OutlineKernelsPass> {
  void runOnOperation() override {
    if (failed(outlineKernels(getOperation())))
      signalPassFailure();
  }
};
} // namespace

} // namespace kvcache
