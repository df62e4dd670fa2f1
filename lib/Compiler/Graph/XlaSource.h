//===- XlaSource.h - Which lowered value is which StableHLO value -*- C++ -*-=//
//
// Recognition works on a lowered copy of the graph. Each tensor of the graph
// has a number; while the copy is brought to its normal form the numbers are
// uses of the values ("kv.mark" ops), so that whatever a pass puts in the place
// of a value takes over its numbers. A number thus never lies.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_COMPILER_GRAPH_XLASOURCE_H
#define KVCACHE_LIB_COMPILER_GRAPH_XLASOURCE_H

#include "GraphModule.h"

#include "mlir/IR/IRMapping.h"

namespace kvcache {

/// Puts the bodies of called functions and composites in the place of calls.
mlir::LogicalResult inlineCalls(mlir::ModuleOp module);

class SourceValues {
public:
  /// Numbers the tensors of `original` and marks them in `copy`.
  void mark(mlir::ModuleOp original, const mlir::IRMapping &copy);

  /// Takes the marks out of the normal form again: numbers are then attributes
  /// of ops (kSourceAttr), which recognition hands on, or known by argument.
  void settle(mlir::ModuleOp copy);

  /// The values of the original that `value` of the copy equals, outermost and
  /// first ones first.
  llvm::SmallVector<mlir::Value> of(mlir::Value value) const;

private:
  std::vector<mlir::Value> originals;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<int64_t>> arguments;
};

} // namespace kvcache

#endif // KVCACHE_LIB_COMPILER_GRAPH_XLASOURCE_H
