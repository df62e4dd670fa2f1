//===- XlaSlice.h - The part of a graph that one kernel computes -*- C++ -*-==//
#ifndef KVCACHE_LIB_COMPILER_GRAPH_XLASLICE_H
#define KVCACHE_LIB_COMPILER_GRAPH_XLASLICE_H

#include "XlaKernels.h"
#include "XlaSource.h"

#include "kvcache/Dialect/KVCache/IR/KVCache.h"

namespace kvcache {

/// An attention with all that lies between tensors of the original graph:
/// masks, copies, changes of layout.
struct Slice {
  llvm::SmallVector<mlir::Value> leaves;     ///< of the original graph
  llvm::SmallVector<mlir::Value> leafCopies; ///< in the lowered copy
  llvm::SmallVector<mlir::Value> results;    ///< in the lowered copy
  /// Of the original, for each result: what it takes the place of.
  llvm::SmallVector<llvm::SmallVector<mlir::Value>> replaced;
  mlir::Operation *insertBefore = nullptr; ///< of the original graph
  llvm::SetVector<mlir::Operation *> ops;  ///< of the copy, operands first
};

/// Cuts the slice of an attention out, or says why that is not possible.
mlir::FailureOr<Slice> cutSlice(AttentionOp attention,
                                const SourceValues &source, std::string &why);

/// Compiles the slice (unless this process has it); the kernel's name.
mlir::FailureOr<std::string> compileSlice(const Slice &slice,
                                          GraphModule &graph, CpuTier tier,
                                          std::string &why);

} // namespace kvcache

#endif // KVCACHE_LIB_COMPILER_GRAPH_XLASLICE_H
