//===- ArraySource.h - Looking through views of a tensor --------*- C++ -*-===//
//
// Private to the fusion: a tensor that is a slice, reshape, transpose or cast
// of another one is that other one under an affine map.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_DIALECT_KVCACHE_TRANSFORMS_ARRAYSOURCE_H
#define KVCACHE_LIB_DIALECT_KVCACHE_TRANSFORMS_ARRAYSOURCE_H

#include "mlir/IR/AffineMap.h"
#include "mlir/IR/Value.h"

namespace kvcache {

struct ArraySource {
  mlir::Value array;
  mlir::AffineMap map; ///< (page, token, head, channel) -> index of array
};

/// Moves `source` to the tensor its array is a view of, as far as every offset,
/// stride and inner size on the way is static.
ArraySource throughViews(ArraySource source);

} // namespace kvcache

#endif // KVCACHE_LIB_DIALECT_KVCACHE_TRANSFORMS_ARRAYSOURCE_H
