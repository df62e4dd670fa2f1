// The stablehlo subset with the chlo, sdy and tm_tensor ops that exports carry.

#ifndef KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLO_H
#define KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLO_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace kvcache::stablehlo {

/// True for `array<i64: ..>` and for `dense<..>` of integers, the spelling of
/// files older than dense arrays.
bool isIntList(mlir::Attribute attr);

/// The integers of an attribute that `isIntList` accepts; empty for null.
llvm::SmallVector<int64_t> getInts(mlir::Attribute attr);

/// Registers stablehlo, chlo, sdy and tm_tensor.
void registerStableHLODialect(mlir::DialectRegistry &registry);

} // namespace kvcache::stablehlo

// clang-format off
#include "kvcache/Dialect/StableHLO/IR/StableHLODialect.h.inc"
#include "kvcache/Dialect/StableHLO/IR/CHLODialect.h.inc"
#include "kvcache/Dialect/StableHLO/IR/SdyDialect.h.inc"
#include "kvcache/Dialect/StableHLO/IR/TMTensorDialect.h.inc"
#include "kvcache/Dialect/StableHLO/IR/StableHLOEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/StableHLO/IR/StableHLOAttrs.h.inc"
#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/StableHLO/IR/SdyAttrs.h.inc"

#define GET_OP_CLASSES
#include "kvcache/Dialect/StableHLO/IR/StableHLOOps.h.inc"

// clang-format on

#endif // KVCACHE_DIALECT_STABLEHLO_IR_STABLEHLO_H
