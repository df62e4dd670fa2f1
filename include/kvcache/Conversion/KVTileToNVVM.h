//===- KVTileToNVVM.h - From scheduled kernels to GPU code ------*- C++ -*-===//
#ifndef KVCACHE_CONVERSION_KVTILETONVVM_H
#define KVCACHE_CONVERSION_KVTILETONVVM_H

#include "kvcache/Dialect/KVTile/IR/KVTile.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace kvcache {

/// Replaces every `kvtile.kernel` of the module by an `llvm.func` marked
/// `nvvm.kernel`. Fails, naming what it is, at what PTX targets do not do.
mlir::LogicalResult lowerKVTileToNVVM(mlir::ModuleOp module);

#define GEN_PASS_DECL
#include "kvcache/Conversion/KVTileToNVVMPasses.h.inc"
#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/KVTileToNVVMPasses.h.inc"

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVTILETONVVM_H
