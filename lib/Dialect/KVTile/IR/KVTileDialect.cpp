//===- KVTileDialect.cpp - Registration of kvtile -------------------------===//

#include "kvcache/Dialect/KVTile/IR/KVTile.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kvcache::tile;

#include "kvcache/Dialect/KVTile/IR/KVTileDialect.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "kvcache/Dialect/KVTile/IR/KVTileTypes.cpp.inc"

void KVTileDialect::initialize() {
  registerAttributes();
  addTypes<
#define GET_TYPEDEF_LIST
#include "kvcache/Dialect/KVTile/IR/KVTileTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "kvcache/Dialect/KVTile/IR/KVTileOps.cpp.inc"
      >();
}
