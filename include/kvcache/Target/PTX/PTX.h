//===- PTX.h - From NVVM to PTX text and cubins -----------------*- C++ -*-===//
//
// The last step of the GPU targets, in process: a module of `llvm` and `nvvm`
// ops becomes LLVM IR, then PTX by LLVM's NVPTX backend. `ptxas`, when the CUDA
// toolkit is installed, turns PTX into a cubin and says how many registers each
// kernel uses and whether it spills.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TARGET_PTX_PTX_H
#define KVCACHE_TARGET_PTX_PTX_H

#include "kvcache/Target/TargetInfo.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/DialectRegistry.h"

#include <optional>
#include <string>
#include <vector>

namespace kvcache::ptx {

/// Milliseconds spent in each step of one emission.
struct PhaseTimes {
  double translate = 0; ///< MLIR to LLVM IR
  double optimize = 0;  ///< LLVM's middle end
  double codegen = 0;   ///< instruction selection to text
};

/// What emission needs to know of the dialects it translates: `builtin`, `llvm`
/// and `nvvm`, nothing else (loading more costs time in every process).
void registerDialects(mlir::DialectRegistry &registry);

/// Checks that every op of `module` exists on `target`, so that LLVM, which
/// aborts on an instruction that a chip lacks, never sees one. Emits an error
/// that names the op and what it needs.
mlir::LogicalResult verifyLegal(mlir::ModuleOp module,
                                const TargetInfo &target);

/// The module as LLVM IR text, optimised as for `emitPTX`.
mlir::FailureOr<std::string> emitLLVMIR(mlir::ModuleOp module,
                                        const TargetInfo &target);

/// The module as PTX text. Errors are emitted at the module.
mlir::FailureOr<std::string> emitPTX(mlir::ModuleOp module,
                                     const TargetInfo &target,
                                     PhaseTimes *times = nullptr);

/// What ptxas says of one kernel.
struct KernelUsage {
  std::string entry;
  int registers = 0;
  int64_t sharedBytes = 0; ///< static
  int64_t stackBytes = 0;
  int64_t spillStoreBytes = 0, spillLoadBytes = 0;
};

/// A cubin and what ptxas printed about it.
struct Assembly {
  std::string cubin;
  std::vector<KernelUsage> kernels;
};

/// The path of ptxas: $CUDA_HOME/bin, $CUDA_PATH/bin, PATH,
/// /usr/local/cuda/bin.
std::optional<std::string> findPtxas();

/// Runs ptxas on PTX text. On failure the message holds what ptxas said.
Expected<Assembly> assemble(llvm::StringRef ptx, const TargetInfo &target);

/// Reads the "-v" report of ptxas.
std::vector<KernelUsage> parseUsage(llvm::StringRef report);

} // namespace kvcache::ptx

#endif // KVCACHE_TARGET_PTX_PTX_H
