//===- Runner.h - Running one function of a file on arrays ------*- C++ -*-===//
//
// What kv-run does, as a function.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNNER_RUNNER_H
#define KVCACHE_RUNNER_RUNNER_H

#include "mlir/IR/DialectRegistry.h"
#include "llvm/Support/Error.h"

#include <string>
#include <vector>

namespace kvcache {

struct RunOptions {
  std::string file, entry, device = "cpu";
  std::vector<std::string> args, outs; ///< .npy paths
  bool fuse = true;
  unsigned repeat = 0; ///< calls to time (0: one, untimed)
};

/// Parses, checks, compiles and runs; writes one array per result. Diagnostics
/// of the compiler go to stderr; the returned error is the final word.
llvm::Error run(const RunOptions &options,
                const mlir::DialectRegistry &registry);

} // namespace kvcache

#endif // KVCACHE_RUNNER_RUNNER_H
