//===- InitAll.h - Everything a tool registers ------------------*- C++ -*-===//
//
// One place that knows every dialect, pass and pipeline, so that all tools
// accept the same ones.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_INITALL_H
#define KVCACHE_INITALL_H

#include "llvm/Support/raw_ostream.h"

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace kvcache {

/// Registers our dialects and the upstream ones that any stage produces or
/// accepts, with the extensions their conversions need.
void registerAllDialects(mlir::DialectRegistry &registry);

/// Registers our passes and pipelines and the upstream passes (once a process).
void registerAllPasses();

/// Both.
void registerAll(mlir::DialectRegistry &registry);

/// Writes the names of all targets, one a line.
void printTargets(llvm::raw_ostream &os);

} // namespace kvcache

#endif // KVCACHE_INITALL_H
