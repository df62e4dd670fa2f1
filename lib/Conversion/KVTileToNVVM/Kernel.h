//===- Kernel.h - One attend kernel as code of a GPU thread -----*- C++ -*-===//
//
// Lowers a `kvtile.kernel` to one `llvm.func`. A block computes one work item;
// its warps take the tiles of the split in turn, each with a state of its own.
//
// g = lane / 4, t = lane % 4. Every tensor becomes 32-bit registers of a lane:
//   acc   T x N   per 16 tokens: (g; 2t), (g; 2t+1), (g+8; 2t), (g+8; 2t+1)
//   rows  N       columns 2t, 2t+1
//   out   V x N   per 16 channels as acc; then, with zero rows, one more tile
//                 whose row r is the sum of p * zero of channel group r
// Column c belongs to head c of the chunk, or c % 4 when at most 4 heads fill
// it (the other half repeats them).
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETONVVM_KERNEL_H
#define KVCACHE_LIB_CONVERSION_KVTILETONVVM_KERNEL_H

#include "Plan.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"

#include <vector>

namespace kvcache::gpu {

/// The stored keys and values of one iteration of a page loop.
struct StoredTile {
  tile::PageClass pageClass;
  Value record;      ///< address of the head's record
  Value tokenInPage; ///< i32, first token of the tile within its page
  Value firstToken;  ///< i32, its position in the sequence
};

/// The B fragments of the queries: two registers per 16 channels.
struct Query {
  Half half = Half::F16;
  Values registers;
  Values low; ///< second part, added by a second product; may be empty
  Value column0,
      column1; ///< powers of two taken out of columns 2t, 2t+1, or null
};

class Kernel {
public:
  Kernel(Plan plan, tile::KernelOp source, mlir::OpBuilder &builder);
  /// Writes the function before the source op.
  mlir::LogicalResult run();

private:
  // Prologue.cpp: arguments and the work item.
  void createFunction();
  void decodeItem();
  void decodeSplit();
  void findVisible();
  Value argument(llvm::StringRef name) { return arguments.lookup(name); }
  /// Loads element `index` (i64) of an i32 array argument.
  Value loadIndex(llvm::StringRef array, Value index);
  /// The chunk's first query head (i64).
  Value firstHead();
  /// The chunk's head of a column, clamped to the heads that exist.
  Value headOfColumn(Value column);

  // Query.cpp.
  Query loadQuery(tile::PageClass pageClass);
  Values rawQuery(tile::PageClass pageClass);
  Query normalised(Values raw);
  Query splitBF16(Values raw);
  Values loadSlopes();

  // Loop.cpp: walking the kernel.
  mlir::LogicalResult lower(mlir::Operation &op);
  mlir::LogicalResult lowerElementwise(mlir::Operation &op);
  mlir::LogicalResult lowerLoop(tile::PageLoopOp loop);
  Value loadEntry(tile::PageClass pageClass, Value unit);
  StoredTile openTile(tile::PageClass pageClass, Value unit, Value entry);
  Values overTiles(tile::PageClass pageClass, Values inits,
                   llvm::function_ref<Values(Values)> body);
  Values reduce(tile::ReduceOp op);
  Values visible(tile::VisibleOp op);
  Values distance();
  /// Position of the token of row g + 8 * half of a 16-token tile.
  Value tokenOf(int64_t tokenTile, int64_t half);
  int64_t registersOf(mlir::Type type);
  Values constant(mlir::Type type, mlir::Attribute value);

  // Codes.cpp: sealed codes to A fragments.
  struct Exponents {
    Value keyScale, valueScale, keyZero, valueZero;
  };
  Exponents loadExponents();
  Value sectionAt(Section section, Value byteOffset);
  /// Words of one piece of one 16-token block of the tile.
  Values loadPiece(const TensorImage &side, Section section,
                   const FragmentPiece &piece, int64_t block);
  /// The A fragment in `words`; codes come as codes times `codeUnit`, in rows
  /// g + 8 of i4 times 16 more.
  Values decode(const TensorImage &side, llvm::ArrayRef<Value> words);
  double codeUnit() { return plan.subnormal() ? 0x1p-24 : 1.0; }
  /// What rows g + 8 carry beyond rows g.
  static double upperFactor(const TensorImage &side) {
    return side.bits() == 4 ? 16.0 : 1.0;
  }
  /// Two consecutive scales or zeros as f32.
  std::pair<Value, Value> loadPair(ScaleType type, Value pointer);
  Value loadScale(ScaleType type, Value pointer);
  /// x = hi + lo, both f16 pairs.
  std::pair<Value, Value> splitPair(Value x0, Value x1);
  struct InPlaceScale {
    Value exponent, inverse, unit;
  };
  InPlaceScale inPlaceScale(const TensorImage &side, Value scale, Value zero);
  std::pair<Value, Value> decodePair(const TensorImage &side, Value codes,
                                     double factor, const InPlaceScale &unit,
                                     Value scales, Value zeros);

  // Score.cpp.
  Values score();
  Values scorePlain();
  Values scoreOpen();
  Values scoreFolded();
  Values scoreInPlace();
  struct Folded {
    Values high, low; ///< two registers each
  };
  Folded foldTile(Value scaleRow, int64_t keyTile, Value exponent);
  Values keyZeros(int64_t groups, const Exponents &exponents);
  Values finishFolded(std::vector<Values> acc, Values zeros,
                      const Exponents &exponents);

  // Accumulate.cpp.
  Values accumulate(Values p, Values out, Values alpha);
  Values accumulatePlain(Values p, Values out, Values alpha);
  Values accumulateOpen(Values p, Values out, Values alpha);
  Values accumulateFolded(Values p, Values out, Values alpha);
  Values accumulateInPlace(Values p, Values out, Values alpha);
  /// P as B fragments of one 16-token tile, rows times `f0` and `f1`.
  Values toB(Half half, llvm::ArrayRef<Value> p, Value f0, Value f1);
  std::vector<Values> allB(Half half, Values p);
  std::vector<Values> scaledB(Values p, int64_t group, const Exponents &e);
  Values zeroRows(Values p, Values rows, Values alpha, const Exponents &e);
  /// out tile * alpha + acc * unit (rows g + 8: unit / upper).
  void addTile(Values &out, int64_t tile, llvm::ArrayRef<Value> acc,
               Values alpha, Value unit, double upper);

  // Partial.cpp: the end of a work item.
  void storePartial(Values max, Values sum, Values out);
  void addZeroRows(Values &out);
  void mergeWarps();
  void mergeSplits();
  void mergeHead(Value head);
  Value arriveLast();
  Value queryRow(Value head);
  Value partialRow(Value head, Value split);
  Value isEmpty(Value max);

  Plan plan;
  tile::KernelOp source;
  Emitter e;
  llvm::StringMap<Value> arguments;
  llvm::DenseMap<Value, Values> values;

  Value lane, g, t, warp;
  /// The work item: i64 row (of the launch), row (of q), kv head, chunk, split.
  Value localRow, row, kvHead, chunk, split, sequence;
  Value validHeads;               ///< i32, of this chunk
  Value length, position, splits; ///< i32
  Value firstPage, endPage;       ///< i32, logical pages of the split
  Value isSealed;                 ///< i1, their class
  Value firstVisible, endVisible; ///< i32, tokens
  Value sharedState, sharedFlag;  ///< addresses

  // Of the page loop being lowered.
  StoredTile stored;
  Query query;
};

} // namespace kvcache::gpu

#endif // KVCACHE_LIB_CONVERSION_KVTILETONVVM_KERNEL_H
