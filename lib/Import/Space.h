// Index variables and index expressions.
//
// Recognition reads a tensor at symbolic positions. A position is a sum of
// variables with strides; going through a reshape splits variables into digits
// (8 = 2 x 4), after which every use of the variable means its digits. Head
// maps, grouped heads and collapsed batches thus need no pattern of their own:
// they are which digits of a row an operand uses.

#ifndef KVCACHE_LIB_IMPORT_SPACE_H
#define KVCACHE_LIB_IMPORT_SPACE_H

#include "mlir/Support/LLVM.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <optional>
#include <vector>

namespace kvcache::import {

using VarId = unsigned;

/// A variable times a stride.
struct Term {
  VarId var;
  int64_t stride;
  bool operator==(const Term &o) const = default;
};

/// offset + sum of terms; terms are kept by falling stride.
struct Idx {
  llvm::SmallVector<Term, 2> terms;
  int64_t offset = 0;
  bool operator==(const Idx &o) const = default;
  static Idx constant(int64_t value) { return {{}, value}; }
};

using Idxs = llvm::SmallVector<Idx, 0>;

/// The variables of one match.
class Space {
public:
  /// A variable in [0, extent).
  VarId newVar(int64_t extent);
  /// Its index; an extent of 1 needs no variable.
  Idx newIdx(int64_t extent);

  int64_t extent(VarId var) const { return vars[var].extent; }
  bool isSplit(VarId var) const { return vars[var].split; }

  /// The expression in undivided digits, by falling stride.
  Idx resolve(const Idx &idx) const;
  /// The digits of a variable, most significant first.
  llvm::SmallVector<VarId, 2> digits(VarId var) const;
  void collectDigits(const Idx &idx, llvm::SmallVectorImpl<VarId> &out) const;

  /// scale * idx + offset.
  Idx affine(const Idx &idx, int64_t scale, int64_t offset = 0) const;
  Idx add(const Idx &a, const Idx &b) const;

  /// [min, max] that the expression takes.
  std::pair<int64_t, int64_t> range(const Idx &idx) const;

  /// Position in `shape` of the linear position `idx`; splits variables where
  /// that is needed, nullopt when digits straddle dimensions.
  std::optional<Idxs> delinearize(const Idx &idx,
                                  llvm::ArrayRef<int64_t> shape);

  bool equal(const Idx &a, const Idx &b) const {
    return resolve(a) == resolve(b);
  }
  bool equal(llvm::ArrayRef<Idx> a, llvm::ArrayRef<Idx> b) const;

private:
  struct Var {
    int64_t extent;
    bool split = false;
    VarId high = 0, low = 0;
  };
  bool split(VarId var, int64_t lowExtent);
  std::vector<Var> vars;
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_SPACE_H
