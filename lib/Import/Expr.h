// Reading linalg-on-tensors code as scalar expressions, on demand.
//
// A cursor is a value at a position: a tensor at an index, or a scalar inside
// the body of a linalg.generic whose loops have an index. `resolve` looks one
// step further through everything that only moves elements (reshapes,
// transposes, broadcasts, slices, copies) and says what computes the element.
// Nothing is expanded that is not asked for.

#ifndef KVCACHE_LIB_IMPORT_EXPR_H
#define KVCACHE_LIB_IMPORT_EXPR_H

#include "Space.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/IR/BuiltinAttributes.h"

#include <memory>

namespace kvcache::import {

/// The loops of a generic at given positions.
struct Frame {
  mlir::linalg::GenericOp op;
  Idxs loops;
};

struct Cursor {
  mlir::Value value;
  Idxs at;                            ///< of a tensor
  std::shared_ptr<const Frame> frame; ///< of a scalar in a body

  explicit operator bool() const { return static_cast<bool>(value); }
  bool isTensor() const {
    return llvm::isa<mlir::RankedTensorType>(value.getType());
  }
};

enum class Kind {
  Leaf,     ///< an element that nothing here explains
  Constant, ///< a number known now
  Position, ///< an index as a number
  Op,       ///< a scalar op on operands
  Reduce,   ///< a reduction over loops of a generic
  Concat    ///< an element of a concatenation whose part is not known
};

struct Node {
  Kind kind = Kind::Leaf;
  Cursor cursor;            ///< where the walk stopped
  mlir::Operation *op = {}; ///< Op: the scalar op; Reduce: the combiner
  llvm::SmallVector<Cursor, 3> operands;
  mlir::Attribute constant;
  Idx position;
  /// Reduce: the loops that are not reduced, the reduced loops and their sizes.
  Idxs loops;
  llvm::SmallVector<unsigned> reduced;
  llvm::SmallVector<int64_t> sizes;
  unsigned result = 0;
};

class Reader;

/// Says what an index stands for that is itself read from a tensor.
class IndexReader {
public:
  virtual ~IndexReader() = default;
  /// The position in a dimension of `size`, if `index` is understood.
  virtual std::optional<Idx> position(Reader &read, const Cursor &index,
                                      int64_t size) = 0;
};

class Reader {
public:
  explicit Reader(Space &space) : space(space) {}
  Space &space;
  /// Set while gathers by a page table are looked through.
  IndexReader *indices = nullptr;

  /// The tensor at fresh variables for each dimension.
  Cursor fresh(mlir::Value tensor);

  /// Through moves only; stops at the tensor (or body scalar) that computes.
  Cursor peel(Cursor cursor);
  Node resolve(Cursor cursor);
  /// `resolve`, then through float extensions and truncations.
  Node resolveNumber(Cursor cursor);

  /// The reduced element of a Reduce at positions of the reduced loops.
  Cursor element(const Node &reduce, llvm::ArrayRef<Idx> at);
  Cursor initial(const Node &reduce);

  /// The value when it is one number whatever the index.
  std::optional<double> number(Cursor cursor);

  /// The same element computed the same way.
  bool same(Cursor a, Cursor b);

  /// Digits that the element depends on; false when it reads data (arguments,
  /// gathers) rather than constants and positions only.
  bool dependence(Cursor cursor, llvm::SmallVectorImpl<VarId> &digits);

private:
  bool sameWithin(Cursor a, Cursor b, unsigned &budget);
  bool stepTensor(Cursor &cursor);
  bool stepScalar(Cursor &cursor);
  std::optional<Idx> indexScalar(Cursor cursor);
  Node resolveGeneric(const Cursor &cursor, mlir::linalg::GenericOp op);
  Node resolveScalar(const Cursor &cursor);
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_EXPR_H
