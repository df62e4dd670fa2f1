// What recognition finds before anything is rewritten.

#ifndef KVCACHE_LIB_IMPORT_MATCH_H
#define KVCACHE_LIB_IMPORT_MATCH_H

#include "Expr.h"

#include "llvm/ADT/Twine.h"

#include <string>

namespace kvcache::import {

/// Fills at least this low leave no weight beside any ordinary score.
inline constexpr double kNegligible = -9900.0; // bf16 has 9984 for 1e4

/// A boolean that hides keys: hidden scores are `fill` before the softmax.
struct MaskTerm {
  Cursor condition;
  bool visibleWhen = true; ///< the condition's value for visible keys
  double fill = 0;
  size_t biasesOutside = 0; ///< how many biases are added after the fill
  mlir::Type fillType;      ///< in which the graph fills
};

/// A number added to scaled scores, times `factor`.
struct BiasTerm {
  Cursor value;
  double factor = 1;
  mlir::Type sumType; ///< in which the graph adds it
};

/// A number given at run time that multiplies scores, or divides them.
struct ScoreFactor {
  Cursor value;
  bool inverse = false;
};

/// scale * factors * q.k
struct DotTerm {
  Cursor q, k;
  Idxs depthAt; ///< the contracted position of q and k
  double scale = 1;
  std::vector<ScoreFactor> factors;
  mlir::Operation *op = nullptr;
};

/// softmax(mask(softcap(scale * q.k) + biases)) . v at symbolic positions.
struct Match {
  mlir::Value root; ///< the tensor that attention replaces
  Idxs rootAt;      ///< its symbolic position
  Idxs keyAt;       ///< the position of the key, one index per contracted loop
  DotTerm dot;      ///< of queries and keys
  std::optional<DotTerm> second; ///< added to it: more channels of both
  Cursor v;
  Cursor probabilities;
  Cursor scores;      ///< what the softmax is taken of
  Cursor sink;        ///< a logit without a key, if any
  double softcap = 0; ///< 0: none
  std::vector<MaskTerm> masks;
  std::vector<BiasTerm> biases;
  bool zeroEmptyRows = false; ///< a select turns rows without keys into zeros
  bool zeroNaNs = false;      ///< and rows with NaN in any score
};

/// Bits of a float type or of a tensor's elements; 64 for others.
unsigned floatWidth(mlir::Type type);
/// Whether every use of `value` that computes sees it rounded to at most
/// `width` bits; what only moves elements is followed.
bool isRoundedByUsers(mlir::Value value, unsigned width, unsigned depth = 8);

/// Matches or says why not.
class Matcher {
public:
  explicit Matcher(Space &space) : space(space), read(space) {}
  Space &space;
  Reader read;
  Match match;
  std::string reason;

  /// Whether `root` is an attention's output. `isCandidate` is set when a
  /// softmax feeds a contraction there, recognised or not.
  bool run(mlir::Value root, bool &isCandidate);

private:
  /// A select after the softmax: zero when `condition` has the value.
  struct OuterSelect {
    Cursor condition;
    bool zeroWhen;
  };
  /// What an expression contains, through scalar ops only.
  struct Contents {
    bool exp = false, reduction = false, product = false;
    unsigned budget = 200;
  };

  bool refuse(const llvm::Twine &why);
  void inspect(Cursor cursor, Contents &contents);
  bool holdsProduct(Cursor cursor);
  Cursor strip(Cursor cursor);
  /// a and b when the cursor is a - b, however it is written.
  bool isDifference(Cursor cursor, Cursor &a, Cursor &b);
  bool isShiftedExp(Cursor term, Cursor scores, Cursor shift);
  bool isContraction(const Node &node, Cursor &a, Cursor &b, Idxs &at);
  bool matchRoot(const Node &dot, Cursor divisor, bool &isCandidate);
  bool matchProbability(Cursor p, Cursor divisor);
  void peelShift();
  bool matchQuotient(Cursor p, Cursor divisor);
  bool matchLogSumExp(const Node &exp);
  bool matchLogOfSum(Cursor log);
  bool matchNumerator(Cursor e);
  bool matchRowSum(Cursor sum, Cursor numerator);
  bool matchRowMax(Cursor max, unsigned depth = 6);
  bool isInfinityTest(Cursor condition, Cursor max, bool whenTrue);
  bool matchSinkTerm(Cursor term);
  bool rowElement(const Node &reduce, llvm::function_ref<bool(Cursor)> accept,
                  Cursor &extra);
  bool matchScores(Cursor s, double factor);
  bool matchSelect(const Node &select, double factor);
  bool matchSum(const Node &sum, double factor);
  bool matchProduct(Cursor s, DotTerm term);
  bool matchProductSum(const Node &sum, const DotTerm &term);
  bool matchDot(const Node &dot, DotTerm term);
  void peelScale(Cursor &cursor, double &scale);
  Cursor peelNaNs(Cursor p);
  bool checkOuterSelects();
  bool checkRounding();
  /// The least width of a number between the probabilities and the scores.
  unsigned narrowestScore(Cursor cursor, unsigned &budget);
  bool isAllMasked(Cursor condition);

  Cursor rowMax;
  std::vector<OuterSelect> outer;
  std::vector<OuterSelect> inner; ///< masks on numerators
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_MATCH_H
