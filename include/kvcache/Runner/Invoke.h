//===- Invoke.h - Calling a compiled function on arrays ---------*- C++ -*-===//
//
// From a function of the LLVM dialect whose tensors have become memref
// descriptors to a call with arrays, and back.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_RUNNER_INVOKE_H
#define KVCACHE_RUNNER_INVOKE_H

#include "kvcache/Support/Npy.h"
#include "kvcache/Target/X86/Jit.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"

namespace kvcache {

/// Seconds of one call: on the clock, and of all processors together.
struct CallTime {
  double wall = 0, processors = 0;
};

/// Translates `module` (LLVM dialect), compiles it for `tier` and calls
/// `entry`, whose type was `type` before lowering. `arrays` were checked
/// against it. With `times` the call is repeated as often as it has entries,
/// and timed.
llvm::Expected<std::vector<NpyArray>>
invoke(mlir::ModuleOp module, llvm::StringRef entry, mlir::FunctionType type,
       std::vector<NpyArray> arrays, CpuTier tier,
       llvm::MutableArrayRef<CallTime> times = {},
       x86::JitSymbols symbols = {});

} // namespace kvcache

#endif // KVCACHE_RUNNER_INVOKE_H
