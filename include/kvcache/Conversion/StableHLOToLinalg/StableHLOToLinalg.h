// From the stablehlo subset to linalg, tensor, arith, math and scf.

#ifndef KVCACHE_CONVERSION_STABLEHLOTOLINALG_STABLEHLOTOLINALG_H
#define KVCACHE_CONVERSION_STABLEHLOTOLINALG_STABLEHLOTOLINALG_H

#include "mlir/Pass/Pass.h"

namespace kvcache::stablehlo {

#define GEN_PASS_DECL
#include "kvcache/Conversion/StableHLOToLinalg/Passes.h.inc"

/// Lowers every stablehlo, chlo, sdy and tm_tensor op of `module`, and makes
/// unsigned types signless. Ops that have no lowering are errors.
llvm::LogicalResult lowerToLinalg(mlir::Operation *module);

#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/StableHLOToLinalg/Passes.h.inc"

} // namespace kvcache::stablehlo

#endif // KVCACHE_CONVERSION_STABLEHLOTOLINALG_STABLEHLOTOLINALG_H
