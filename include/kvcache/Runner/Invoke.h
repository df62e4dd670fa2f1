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

/// Translates `module` (LLVM dialect), compiles it for `tier` and calls
/// `entry`, whose type was `type` before lowering. `arrays` were checked
/// against it.
llvm::Expected<std::vector<NpyArray>>
invoke(mlir::ModuleOp module, llvm::StringRef entry, mlir::FunctionType type,
       std::vector<NpyArray> arrays, CpuTier tier);

} // namespace kvcache

#endif // KVCACHE_RUNNER_INVOKE_H
