// Evaluating masks and biases that depend on positions alone.

#ifndef KVCACHE_LIB_IMPORT_STATIC_H
#define KVCACHE_LIB_IMPORT_STATIC_H

#include "Expr.h"

namespace kvcache::import {

/// A scalar expression compiled once and evaluated at many positions.
class Tape {
public:
  Tape(Reader &read, Space &space) : read(read), space(space) {}

  /// False when the expression reads data or an op that is not evaluated.
  bool compile(Cursor cursor);
  /// The value when variable `loops[i]` is `values[i]`.
  double evaluate(llvm::ArrayRef<VarId> loops, llvm::ArrayRef<int64_t> values);

private:
  struct Step {
    Kind kind;
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
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_STATIC_H
