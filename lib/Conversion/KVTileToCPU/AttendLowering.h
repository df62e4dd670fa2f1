//===- AttendLowering.h - State of lowering one kernel ----------*- C++ -*-===//
//
// How tile tensors are held on the CPU:
//
//   rows    a vector of `npad` lanes
//   acc     [N][T] f32 in scratch memory where two loops need it, else nothing:
//           elementwise ops are evaluated inside the loop that consumes them
//   query   [N][dpad] f32 in scratch memory
//   out     [N][vpad] f32 in scratch memory, updated in place
//
// so that a page costs one pass for the scores, one for the maximum, one for
// the exponentials and one for the output, each over vectors of the tier's
// width.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETOCPU_ATTENDLOWERING_H
#define KVCACHE_LIB_CONVERSION_KVTILETOCPU_ATTENDLOWERING_H

#include "TileEvaluator.h"
#include "kvcache/Dialect/KVTile/IR/KVTile.h"
#include "kvcache/Format/Image.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"

namespace kvcache {

/// An i64 in the IR that the geometry templates of Image.h compute with.
struct Idx {
  CpuBuilder *b;
  mlir::Value v;
};
inline Idx operator+(Idx a, Idx x) { return {a.b, a.b->add(a.v, x.v)}; }
inline Idx operator+(Idx a, int64_t x) { return {a.b, a.b->add(a.v, x)}; }
inline Idx operator*(Idx a, int64_t x) { return {a.b, a.b->mul(a.v, x)}; }
inline Idx operator/(Idx a, int64_t x) { return {a.b, a.b->div(a.v, x)}; }
inline Idx operator%(Idx a, int64_t x) { return {a.b, a.b->rem(a.v, x)}; }
inline Idx selectLess(Idx a, int64_t bound, Idx x, Idx y) {
  CpuBuilder &b = *a.b;
  return {a.b, b.select(b.less(a.v, b.i64(bound)), x.v, y.v)};
}

/// The fields of an argument struct, loaded in the entry block.
class Fields {
public:
  void loadAttend(CpuBuilder &b, mlir::Value args);
  mlir::Value operator[](llvm::StringRef name) const {
    return values.lookup(name);
  }

private:
  llvm::StringMap<mlir::Value> values;
};

/// Sequence facts that both attend and merge derive from the arguments.
struct SequenceSplits {
  mlir::Value length, pages, sinks, sealed, step; ///< step: pages per split
  mlir::Value sinkSplits, sealedSplits, openSplits, count;
};
SequenceSplits computeSplits(CpuBuilder &b, const KernelSpec &spec,
                             int64_t splitTokens, const Fields &fields,
                             mlir::Value seq);

class AttendLowering : public TileEvaluator {
public:
  AttendLowering(tile::KernelOp kernel, const PageImage &image);

  /// Emits the function `attend` before the kernel.
  mlir::LogicalResult run();

private:
  // What one iteration of a page loop works on.
  struct Tile {
    tile::PageClass pageClass;
    Value record;            ///< its bytes
    Value ahead, afterAhead; ///< two records in a row, to prefetch
    Value first;             ///< position of its first token
    Value count;             ///< stored tokens
    Value low, high;         ///< visible tokens, relative, inclusive, i32
  };
  /// How an encoding's scales enter the products.
  enum class ScaleMode {
    None,   ///< the code is the value
    Fold,   ///< into the other operand, or into the result, per group
    Decode, ///< while decoding, per element
  };
  using Finish = llvm::function_ref<void(Value tok, llvm::ArrayRef<Value> acc)>;

  // Item.cpp: one work item.
  mlir::LogicalResult emitItem(Value item);
  void emitLoadQuery(tile::LoadQueryOp op);
  void emitLoadSlopes(tile::LoadSlopesOp op);
  void emitQuerySums();
  mlir::LogicalResult emitPageLoop(tile::PageLoopOp op);
  void findRun(const SequenceSplits &splits);
  void loadQueryBlock(Value head, Value valid, int64_t i, Value ch, int64_t w);
  /// Number of the chunk's i-th head among all query heads, and whether it
  /// exists (null: it always does).
  Value headOf(int64_t i, Value &valid);
  void emitStorePartial(tile::StorePartialOp op);
  Value recordOf(tile::PageClass pageClass, Value page);
  std::pair<Value, Value> visibleTokens(tile::MaskAttr mask);
  void enterTile(tile::PageClass pageClass, Value page, Value endPage);
  /// Prefetches the bytes `prefetch_bytes` after those that iteration `i` of
  /// `count` over the keys (the values) works on.
  void prefetchAhead(Value i, int64_t count, bool values);

  // Elementwise.cpp: statistics and elementwise ops.
  mlir::LogicalResult emitOp(mlir::Operation *op);
  Value placeOf(Value memory, At at) override;
  Value statisticOf(Value memory, At at) override;
  Value leafOf(mlir::Operation *op, At at) override;
  int64_t accBytes() const override { return n * tokens * 4; }
  int64_t rowLanes() const override { return npad; }
  Value visible(Value t, int64_t w);
  Value materialize(Value v, mlir::Operation *at);
  Value emitReduce(tile::ReduceOp op);
  Value tokenLimit();

  // Scales.cpp.
  ScaleMode modeOf(const TensorImage &t) const;
  Value scales(const TensorImage &t);
  Value zeros(const TensorImage &t);
  mlir::Type scaleElement(const TensorImage &t);
  /// What the lanes of a vector of scales run along.
  enum class Lanes { Tokens, Channels };
  Value loadScale(const TensorImage &t, Value tok, Value ch, int64_t w,
                  Lanes lanes);
  Value loadZero(const TensorImage &t, Value tok, Value ch, int64_t w,
                 Lanes lanes, Value scale);
  Value loadSide(const TensorImage &t, Value section, Value tok, Value ch,
                 int64_t w, Lanes lanes);

  // Score.cpp: f32 products with keys.
  void emitScore(tile::ScoreOp op);
  void scoreOpen();
  void scoreSealed();
  void foldQuery(Value tok);
  void scoreRange(Value from, int64_t tokens, bool folded);
  Values dotKeys(Value tok, int64_t u, Value ch, int64_t channels, Value query,
                 Values acc, bool decode);
  Values keyValues(Value tok, Value ch, bool decode);
  int64_t keyLanes() const;
  int64_t keyUnit() const;

  // Accumulate.cpp: f32 products with values.
  void emitAccumulate(tile::AccumulateOp op);
  void rescaleOut(Value alpha);
  void accumulateOpen(Value p);
  void accumulateSealed(Value p);
  void accumulateGroups(Value p);
  void accumulateChannels(Value p);
  void foldProbabilities(Value p, Value ch);
  void addBlocks(Value ch, int64_t channels, Value tok, Value tokens, Value p,
                 bool open, bool decode, Value post);
  Values dotValues(Value ch, llvm::ArrayRef<int64_t> widths, Value tok,
                   Value end, Value p, Values acc, bool open, bool decode);
  Values valueTokens(Value tok, Value ch, int64_t w, bool open, bool decode);
  void sumProbabilities(Value p, Value tok, int64_t tokens);
  int64_t valueUnit(bool open) const;

  // IntegerProducts.cpp: products with codes by vpdpbusd.
  /// Rows of queries or probabilities in two signed bytes.
  struct IntegerRows {
    const TensorImage *image = nullptr;
    bool folded = false; ///< the page's scales are part of the rows
    int64_t length = 0, groups = 0, stride = 0;
    /// Bytes [groups][n][stride]; per row: S, 1/S, what to add, sum of x.
    Value hi, lo, factor, inverse, correction, sum;
  };
  bool usesIntegers(const TensorImage &t) const;
  IntegerRows makeIntegerRows(const TensorImage &t);
  Values forVectors(
      int64_t length, mlir::ValueRange inits,
      llvm::function_ref<Values(Value i, int64_t width, mlir::ValueRange)>
          body);
  std::pair<Value, Value> rowScales(const IntegerRows &r, Value g, Value i,
                                    int64_t width);
  void quantizeRows(const IntegerRows &r, Value x, int64_t rowStride);
  Value rowElement(const IntegerRows &r, Value x, int64_t rowStride, Value g,
                   int64_t head, Value i, int64_t width);
  void scaleRows(const IntegerRows &r, Value x, int64_t rowStride, Value first,
                 int64_t together);
  void splitRows(const IntegerRows &r, Value x, int64_t rowStride, Value first,
                 int64_t together);
  void storeBytes(const IntegerRows &r, Value shifted, Value place);
  void dotUnit(const IntegerRows &r,
               llvm::ArrayRef<llvm::SmallVector<Value>> codes, Value group,
               Value at, Values &acc);
  Value combine(const IntegerRows &r, Value group, int64_t head, Value hi,
                Value lo);
  Values dotKeysInteger(Value tok, int64_t u, Value group, Value first);
  void emitScoreInteger();
  void emitAccumulateInteger(Value p);
  void addIntegerBlocks(const IntegerRows &r, Value group, Value tok, Value ch,
                        llvm::ArrayRef<int64_t> widths);

  tile::KernelOp kernel;
  KernelSpec spec;
  tile::ScheduleAttr schedule;
  PageImage image;
  mlir::Type dtype;

  int64_t n, tokens, d, v; ///< N, T, head and value dim
  int64_t npad, dpad, vpad;

  // Function scope.
  Fields fields;
  Value query, querySums, foldedQuery, foldedZeros, out, foldedP, pSums;
  IntegerRows integerKeys, integerValues;

  // Item scope.
  Value split, seq, kvHead, chunk, row, position, length;
  Value firstPage, endPage, regionEnd, runIsSealed;

  // Tile scope.
  Tile tile;
  Value scores;
};

/// Emits `merge` before the kernel.
void emitMerge(tile::KernelOp kernel);

/// Opens `i32 name(ptr, i64, i64)` with the insertion point in its entry.
mlir::func::FuncOp openEntry(CpuBuilder &b, llvm::StringRef name);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_KVTILETOCPU_ATTENDLOWERING_H
