//===- TileEvaluator.h - Elementwise ops on tiles, when needed --*- C++ -*-===//
//
// Ops on `rows` tensors become vectors at once. Ops on `acc` tensors wait until
// a reduction or an accumulation needs them and are evaluated inside its loop,
// one vector at a time; a tensor that a later op needs too is kept in memory on
// the way, in place of one that is no longer needed.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETOCPU_TILEEVALUATOR_H
#define KVCACHE_LIB_CONVERSION_KVTILETOCPU_TILEEVALUATOR_H

#include "CpuBuilder.h"
#include "kvcache/Dialect/KVTile/IR/KVTile.h"

#include "llvm/ADT/DenseMap.h"

#include <optional>

namespace kvcache {

class TileEvaluator {
public:
  using Value = mlir::Value;
  using Values = CpuBuilder::Values;

  TileEvaluator(mlir::Location loc, int64_t vectorBits) : b(loc, vectorBits) {}
  virtual ~TileEvaluator() = default;

protected:
  /// A vector of an acc tensor: w elements from token t, column n. Which of the
  /// two the lanes run along is the lowering's choice.
  struct At {
    Value n, t;
    int64_t w;
  };
  using Memo = llvm::DenseMap<Value, Value>;

  /// Address of the vector within a piece of acc memory.
  virtual Value placeOf(Value memory, At at) = 0;
  /// The columns' statistics, stored as f32, for a vector.
  virtual Value statisticOf(Value memory, At at) = 0;
  /// What an op that reads the tile itself gives (visible, distance, ...).
  virtual Value leafOf(mlir::Operation *op, At at) = 0;
  /// Bytes of one piece of acc memory.
  virtual int64_t accBytes() const = 0;
  /// Lanes of a `rows` tensor's vector.
  virtual int64_t rowLanes() const = 0;

  /// The value of a splat constant.
  static std::optional<double> splatValue(Value v);
  static bool isElementwise(mlir::Operation *op);
  Value apply(mlir::Operation *op, llvm::ArrayRef<Value> operands);

  /// A rows tensor as a vector.
  Value rows(Value v);
  /// Handles an elementwise op: at once on rows, later on tiles.
  void emitElementwise(mlir::Operation *op);
  Value evaluate(Value x, At at, Memo &memo);
  /// Stores the statistics that evaluating `x` will repeat.
  void prepareSlice(Value x);
  /// True if ops after `at` read `x`, other than through `stop`, which is kept.
  bool isNeededAfter(Value x, mlir::Operation *at, Value stop) const;
  /// Memory for `x`, computed at op `at`; in place of what is not needed later.
  Value bufferFor(Value x, mlir::Operation *at);
  /// Memory in which a reduction keeps its operand on the way, or null. Reading
  /// uses accBuffers, which the caller changes afterwards.
  Value keepFor(Value x, mlir::Operation *reduction);

  CpuBuilder b;
  /// Pieces of acc memory, and the tensor that each holds.
  struct Buffer {
    Value memory, holds;
  };
  llvm::SmallVector<Buffer> buffers;
  llvm::DenseMap<Value, Value> rowValues;  ///< rows tensors
  llvm::DenseMap<Value, Value> accBuffers; ///< acc tensors in memory
  llvm::DenseMap<Value, Value> rowMemory;  ///< rows stored for broadcasts
};

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_KVTILETOCPU_TILEEVALUATOR_H
