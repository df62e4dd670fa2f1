//===- KVCache.h - The kvcache dialect --------------------------*- C++ -*-===//
//
// Everything of the dialect: enums, attributes, the cache type, the ops.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_DIALECT_KVCACHE_IR_KVCACHE_H
#define KVCACHE_DIALECT_KVCACHE_IR_KVCACHE_H

#include "kvcache/Format/Format.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace kvcache {

/// Formats and encodings are attribute parameters: they need a hash.
llvm::hash_code hash_value(const Encoding &encoding);
llvm::hash_code hash_value(const Format &format);

} // namespace kvcache

#include "kvcache/Dialect/KVCache/IR/KVCacheDialect.h.inc"

#include "kvcache/Dialect/KVCache/IR/KVCacheEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "kvcache/Dialect/KVCache/IR/KVCacheAttrs.h.inc"

#define GET_TYPEDEF_CLASSES
#include "kvcache/Dialect/KVCache/IR/KVCacheTypes.h.inc"

#define GET_OP_CLASSES
#include "kvcache/Dialect/KVCache/IR/KVCacheOps.h.inc"

namespace kvcache {

/// The MLIR type of one code: f16, f8E4M3FN, i4, ...
mlir::Type elementType(mlir::MLIRContext *context, Element element);

/// The MLIR type of scales and zeros.
mlir::Type scaleType(mlir::MLIRContext *context, ScaleType type);

/// The element of a float type of the dialect (f16, bf16, f32), if it is one.
std::optional<Element> elementOf(mlir::Type type);

/// Places of head, token and channel among the dimensions of a plain tensor of
/// `rank` dimensions; `head` is -1 when there is none (rank 2).
struct LayoutDims {
  int64_t head, token, channel;
};
LayoutDims layoutDims(Layout layout, int64_t rank);

/// Codes per container: 1 without packing, else the container's bits over the
/// element's. `container` is the element type of the codes' tensor.
int64_t codesPerContainer(mlir::Type container, Element element,
                          PackingAttr packing);

} // namespace kvcache

#endif // KVCACHE_DIALECT_KVCACHE_IR_KVCACHE_H
