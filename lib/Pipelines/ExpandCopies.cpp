// Copies between memrefs become linalg.copy, hence loops: LLVM's lowering of
// strided ones calls a library function that is not there.

#include "kvcache/Pipelines/CpuPipelines.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Pass/Pass.h"

using namespace mlir;

namespace {
struct ExpandCopies : PassWrapper<ExpandCopies, OperationPass<>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ExpandCopies)
  StringRef getArgument() const final { return "kvcache-expand-copies"; }
  StringRef getDescription() const final {
    return "turn memref.copy into linalg.copy";
  }
  void getDependentDialects(DialectRegistry &registry) const final {
    registry.insert<linalg::LinalgDialect>();
  }
  void runOnOperation() final {
    getOperation()->walk([](memref::CopyOp copy) {
      OpBuilder b(copy);
      linalg::CopyOp::create(b, copy.getLoc(), copy.getSource(),
                             copy.getTarget());
      copy.erase();
    });
  }
};
} // namespace

std::unique_ptr<Pass> kvcache::createExpandCopiesPass() {
  return std::make_unique<ExpandCopies>();
}
