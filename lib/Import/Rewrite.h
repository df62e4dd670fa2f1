// From a match to kvcache.attention.

#ifndef KVCACHE_LIB_IMPORT_REWRITE_H
#define KVCACHE_LIB_IMPORT_REWRITE_H

#include "Cache.h"
#include "Match.h"

#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include "llvm/Support/JSON.h"

#include <limits>

namespace kvcache::import {

using Digits = llvm::SmallVector<VarId, 4>;

/// A sum in a narrow type keeps nothing of an ordinary score beside a number
/// this low, so that rows of such numbers become means; none for f32.
inline std::optional<double> absorbingLimit(mlir::Type sumType) {
  if (sumType && sumType.isF16())
    return -8192;
  if (sumType && sumType.isBF16())
    return -1024;
  return std::nullopt;
}
/// What makes such a number so low that f32 keeps nothing either.
inline constexpr double kAbsorbingFactor = 0x1p40;
inline constexpr double kLowestFloat = -std::numeric_limits<float>::max();
double absorbing(double value, mlir::Type sumType);

mlir::Value reshape(mlir::ImplicitLocOpBuilder &b, mlir::Value tensor,
                    llvm::ArrayRef<int64_t> shape);
/// A float as f32.
mlir::Value toFloat(mlir::ImplicitLocOpBuilder &b, mlir::Value x);

/// Decides what the op can say of a match, then builds it.
class Rewriter {
public:
  Rewriter(Matcher &matcher)
      : space(matcher.space), read(matcher.read), m(matcher.match) {}

  /// Everything that can fail; nothing is built yet.
  bool plan();
  /// Builds the attention before the root and replaces the root's value; the
  /// replacement.
  mlir::Value build();

  std::string reason;
  llvm::json::Object attributes();

  using Digits = import::Digits;
  /// Digits of [page or sequence, kv head, token, channel].
  using Groups = std::array<Digits, 4>;

private:
  bool refuse(const llvm::Twine &why);
  bool isUsedElsewhere();
  bool collect(Cursor cursor, Digits &digits);
  void refresh(Digits &digits);
  void refreshAll();
  bool classify();
  void chooseQueryDigits(llvm::ArrayRef<VarId> queryOnly, bool &batchFirst);
  bool planMasks();
  void planStatic();
  bool staticGrid(Cursor cursor, llvm::function_ref<void(double)> take);
  std::optional<double> lowest(const BiasTerm &bias);
  bool planHiddenFill();
  bool recogniseVisible();
  bool planEmptyRows();
  bool convertBiasToMask(const BiasTerm &bias);

  // Lengths.cpp
  struct LengthTerm {
    Cursor bound; ///< keys below bound + add are visible
    int64_t add = 0;
  };
  void splitMasks();
  std::optional<int64_t> keyOffset(Cursor cursor);
  bool matchLength(const MaskTerm &mask, LengthTerm &length);
  void planLengths();
  mlir::Value lengthOperand(mlir::ImplicitLocOpBuilder &b);
  bool planSlopes(const BiasTerm &bias);

  int64_t product(llvm::ArrayRef<VarId> digits) const;
  mlir::Value
  gather(mlir::ImplicitLocOpBuilder &b, llvm::ArrayRef<VarId> loops,
         llvm::ArrayRef<Cursor> sources, mlir::Type element,
         llvm::function_ref<mlir::Value(mlir::ImplicitLocOpBuilder &,
                                        mlir::ValueRange)>
             body);
  mlir::Value operand(mlir::ImplicitLocOpBuilder &b, Cursor source,
                      llvm::ArrayRef<Digits> dims,
                      llvm::ArrayRef<ScoreFactor> factors = {},
                      double scale = 1);
  mlir::Value queries(mlir::ImplicitLocOpBuilder &b);
  mlir::Value keys(mlir::ImplicitLocOpBuilder &b);
  mlir::Value withoutNaNs(mlir::ImplicitLocOpBuilder &b, mlir::Value out,
                          mlir::Value lse);
  bool classifySecond(const Digits &rows, const Digits &v);
  mlir::Value maskOperand(mlir::ImplicitLocOpBuilder &b);
  mlir::Value sinkOperand(mlir::ImplicitLocOpBuilder &b);
  mlir::Value visibleConstant(mlir::ImplicitLocOpBuilder &b);
  mlir::Value scatterBack(mlir::ImplicitLocOpBuilder &b, mlir::Value out);

  // Caches behind keys and values (CachePlan.cpp, CacheBuild.cpp).
  void planCache();
  bool refuseCache(const llvm::Twine &why);
  bool planPages();
  bool splitPages();
  bool planSlot(CachedSide &side, Digits &channels);
  bool planSide(const CachedSide &side, const Digits &channels);
  bool planParams(const CachedSide &side, const Groups &groups);
  Groups groupsOf(const Digits &channels) const;
  mlir::Value cachedOperand(mlir::ImplicitLocOpBuilder &b,
                            const CachedSide &side, const Digits &channels);
  mlir::Value pageTable(mlir::ImplicitLocOpBuilder &b);
  mlir::Value gatherPages(mlir::ImplicitLocOpBuilder &b, mlir::Value pool);
  mlir::Value validRows(mlir::ImplicitLocOpBuilder &b, mlir::Value out);
  mlir::Value param(mlir::ImplicitLocOpBuilder &b,
                    llvm::ArrayRef<Product> terms, Groups groups,
                    mlir::Type element);
  mlir::Value viewOf(mlir::ImplicitLocOpBuilder &b, const Cursor &cursor,
                     const Groups &groups);
  llvm::json::Value cacheAttributes() const;
  std::string encodingText(const CachedSide &side, const Groups &groups,
                           mlir::Type element, const Groups &used) const;

  Space &space;
  Reader &read;
  Match &m;
  Digits rootDigits, batch, kv, group, query, key, depth, value;
  Digits depth2; ///< channels of the second product
  Digits maskDigits, sinkDigits;
  std::vector<MaskTerm> dynamicMasks;
  std::vector<BiasTerm> biases;    ///< kept as numbers
  std::vector<LengthTerm> lengths; ///< the least of them
  std::vector<float> slopes;       ///< of ALiBi, one per head
  std::vector<char> visible;       ///< [query][key]; empty: all
  bool staticMask = false;         ///< `visible` needs an operand
  bool lowBias = false;            ///< a bias may hide keys by itself
  /// What hidden keys have in an additive mask, when that is finite.
  std::optional<double> hiddenFill;
  size_t numBiases = 0;
  bool fillAdds = false; ///< biases are added to the fill as well
  bool causalTopLeft = false, causalBottomRight = false;
  std::optional<int64_t> left, right;
  EmptyRows emptyRows = EmptyRows::Zero;

  std::optional<CacheReader> cache;
  CachedSide keySide, valueSide;
  bool cached = false;
  std::string cacheReason;    ///< why a cache was seen but not used
  Digits columns, pageTokens; ///< of the table, of a page: digits of the key
  Digits subPages;            ///< parts of a page that are pages of our own
  mlir::Value table;          ///< once built
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_REWRITE_H
