//===- InitAll.cpp - Everything a tool registers --------------------------===//
//
// See InitAll.h. A new dialect or pass library adds one line here.
//
//===----------------------------------------------------------------------===//
#include "kvcache/InitAll.h"
#include "kvcache/Conversion/ExpandFloats/ExpandFloats.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"
#include "kvcache/Conversion/KVCacheToReference/KVCacheToReference.h"
#include "kvcache/Conversion/KVTileToNVVM.h"
#include "kvcache/Conversion/Materialize/Materialize.h"
#include "kvcache/Conversion/OutlineKernels/OutlineKernels.h"
#include "kvcache/Conversion/StableHLOToLinalg/StableHLOToLinalg.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "kvcache/Dialect/KVTile/IR/KVTile.h"
#include "kvcache/Dialect/StableHLO/IR/StableHLO.h"
#include "kvcache/Import/Import.h"
#include "kvcache/Pipelines/CpuPipelines.h"
#include "kvcache/Pipelines/Pipelines.h"
#include "kvcache/Target/TargetInfo.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/InitAllPasses.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"

namespace kvcache {

void registerAllDialects(mlir::DialectRegistry &registry) {
  mlir::registerAllDialects(registry);
  mlir::registerAllExtensions(registry);
  mlir::registerAllToLLVMIRTranslations(registry);
  registry.insert<KVCacheDialect, tile::KVTileDialect>();
  stablehlo::registerStableHLODialect(registry);
}

void registerAllPasses() {
  mlir::registerAllPasses();
  registerKVCachePasses();
  registerOutlineKernelsPasses();
  registerKVTilePasses();
  registerKVTileToNVVMPasses();
  registerPipelines();
  stablehlo::registerStableHLOToLinalgPasses();
  import::registerImportPasses();
  registerExpandFloatsPasses();
  registerKVCacheToReferencePasses();
  registerMaterializePasses();
  registerCpuPipelines();
}

void registerAll(mlir::DialectRegistry &registry) {
  kvcache::registerAllDialects(registry);
  kvcache::registerAllPasses();
}

void printTargets(llvm::raw_ostream &os) {
  for (const TargetInfo &target : allTargets())
    os << llvm::StringRef(target.name) << '\n';
}

} // namespace kvcache
