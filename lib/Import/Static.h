// Evaluating masks and biases that depend on positions alone.

#ifndef KVCACHE_LIB_IMPORT_STATIC_H
#define KVCACHE_LIB_IMPORT_STATIC_H

#include "Expr.h"

#include <optional>

namespace kvcache::import {

/// A scalar expression compiled once and evaluated at many positions.
class Tape {
public:
  Tape(Reader &read, Space &space) : read(read), space(space) {}

  /// False when the expression reads data or an op that is not evaluated.
  bool compile(Cursor cursor);
  /// The value when variable `loops[i]` is `values[i]`.
  double evaluate(llvm::ArrayRef<VarId> loops, llvm::ArrayRef<int64_t> values);
  /// The value, if it is the same wherever the last variable is in [low, high)
  /// and the others are `values`; nullopt when intervals do not tell.
  std::optional<double> evaluateRange(llvm::ArrayRef<VarId> loops,
                                      llvm::ArrayRef<int64_t> values,
                                      int64_t low, int64_t high);

private:
  /// What a step's value may be; not known: anything, NaN included.
  struct Range {
    double low = 0, high = 0;
    bool known = false;
    bool isPoint() const { return known && low == high; }
  };
  Range rangeOf(const Range *steps, mlir::Operation *op,
                const int *operands) const;
  struct Step {
    Kind kind = Kind::Leaf;
    mlir::Operation *op = nullptr;
    int operands[3] = {0, 0, 0};
    double constant = 0;
    Idx position;
    std::vector<double> elements; ///< a constant tensor, flattened
  };
  int add(Cursor cursor, unsigned depth);
  int64_t place(const Idx &idx, llvm::ArrayRef<VarId> loops,
                llvm::ArrayRef<int64_t> values) const;
  Reader &read;
  Space &space;
  std::vector<Step> steps;
  std::vector<double> results;
  std::vector<Range> ranges;
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_STATIC_H
