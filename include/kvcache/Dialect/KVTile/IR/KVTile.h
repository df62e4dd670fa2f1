//===- KVTile.h - The kvtile dialect ----------------------------*- C++ -*-===//
//
// Everything generated from KVTileDialect.td, KVTileAttrs.td, KVTileOps.td.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVTILE_IR_KVTILE_H
#define KVCACHE_DIALECT_KVTILE_IR_KVTILE_H

#include "kvcache/Kernel/KernelSpec.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/RegionKindInterface.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/IR/TensorEncoding.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "kvcache/Dialect/KVTile/IR/KVTileDialect.h.inc"
#include "kvcache/Dialect/KVTile/IR/KVTileEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/KVTile/IR/KVTileAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "kvcache/Dialect/KVTile/IR/KVTileTypes.h.inc"

namespace kvcache::tile {

/// The layout of a tensor type, or none.
std::optional<LayoutKind> getLayout(mlir::Type type);
/// True iff `type` is a ranked tensor with this layout.
bool hasLayout(mlir::Type type, LayoutKind kind);
/// The tensor type of a role under a spec and a schedule (f32; `acc` may be
/// i1).
mlir::RankedTensorType tileType(SpecAttr spec, ScheduleAttr schedule,
                                LayoutKind kind, mlir::Type element = {});
mlir::RankedTensorType tileType(ArraysAttr spec, ScheduleAttr schedule,
                                LayoutKind kind, mlir::Type element = {});

/// The element type of a model dtype and back (f32, f16, bf16).
mlir::Type toType(mlir::MLIRContext *context, Element element);
std::optional<Element> toElement(mlir::Type type);

} // namespace kvcache::tile

#define GET_OP_CLASSES
#include "kvcache/Dialect/KVTile/IR/KVTileOps.h.inc"

#endif // KVCACHE_DIALECT_KVTILE_IR_KVTILE_H
