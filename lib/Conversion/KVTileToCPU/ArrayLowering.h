//===- ArrayLowering.h - State of lowering a kernel on arrays ---*- C++ -*-===//
//
// How tile tensors are held, by what the lanes of a vector run along:
//
//           queries (many columns)      channels and tokens (few columns)
//   rows    a vector of `npad` lanes    the same
//   query   [D][npad] f32               [N][dpad] f32
//   acc     [T][npad] f32               [N][T] f32
//   out     [V][npad] f32               [N][vpad] f32
//
// all in scratch memory on the stack. With queries in the lanes a key or value
// element is loaded once, repeated, and multiplied with vectors of columns:
// keys and values are used as they lie, the statistics need no sums across
// lanes, and the products are those of a blocked matrix product. Elements that
// are not f32, or whose channels do not lie next to each other, are converted
// to f32 tile by tile first.
//
// An item is computed by one function, which gives true if its output is not
// finite. It is then computed again with care: values behind a mask may be NaN
// and must not meet a probability of 0.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETOCPU_ARRAYLOWERING_H
#define KVCACHE_LIB_CONVERSION_KVTILETOCPU_ARRAYLOWERING_H

#include "TileEvaluator.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringMap.h"

namespace kvcache {

class ArrayLowering : public TileEvaluator {
public:
  explicit ArrayLowering(tile::ArrayKernelOp kernel);

  /// Emits the entry and the function of one item before the kernel.
  mlir::LogicalResult run();

protected:
  /// One of the two operands that tiles are made of.
  struct Side {
    llvm::StringRef name;     ///< "k" or "v"
    mlir::Type element, held; ///< as given; as tiles have it
    int64_t channels = 0, pad = 0;
    mlir::FlatSymbolRefAttr rows; ///< the function that gives them, or null
    Value base, stride;     ///< of the item: first row, bytes between rows
    Value channelStride;    ///< in elements
    Value scratch;          ///< [T][pad] of `held`
    Value tile, tileStride; ///< rows of `held`, their channels side by side
  };

  // What differs between the two kinds.
  virtual void emitLoadQuery() = 0;
  virtual void emitScore(tile::ScoreOp op) = 0;
  virtual Value emitReduce(tile::ReduceOp op) = 0;
  virtual void emitAccumulate(tile::AccumulateOp op) = 0;
  /// Bytes of channel c, column n within `out`.
  virtual Value outPlace(Value c, Value n) = 0;
  /// Bytes of token t, column n within the mask's scratch.
  virtual Value maskPlace(Value t, Value n) = 0;
  virtual int64_t outFloats() const = 0;

  // ArrayItem.cpp: which item, where its rows are, where its results go.
  mlir::LogicalResult emitItem(Value item);
  void findItem(Value item);
  void findColumns();
  Value loadOr(llvm::StringRef array, Value index, Value otherwise);
  Value loadColumns(llvm::StringRef array);
  /// Calls `body` with (column, head within chunk, row within item), for every
  /// column that exists or, if `all`, for all with clamped head and row.
  void
  forColumns(bool all,
             llvm::function_ref<void(Value n, Value head, Value row)> body);
  Value queryPlace(Value head, Value row);
  void emitStoreResult(tile::StoreResultOp op);
  Value isBroken();
  void storeColumn(Value n, Value head, Value row, Value factors, Value lses);
  void emitMeans(Value sums);
  Value loadFloat(mlir::Type element, Value place);
  void storeFloat(Value x, mlir::Type element, Value place);
  int64_t bytesOf(mlir::Type element) const {
    return element.getIntOrFloatBitWidth() / 8;
  }

  // ArrayTile.cpp: tiles and what is read of them.
  mlir::LogicalResult emitOp(mlir::Operation *op);
  mlir::LogicalResult emitPageLoop(tile::PageLoopOp op);
  std::pair<Value, Value> visibleTokens();
  void enterTile(Value number);
  void enterSide(Side &side);
  void callRows(Side &side, Value first, Value count, Value to);
  void gatherRows(Side &side, Value rows);
  void convertRows(Side &side, Value rows);
  void loadMask();
  void zero(Value memory, int64_t floats);

  tile::ArrayKernelOp kernel;
  tile::ArraysAttr spec;
  tile::ScheduleAttr schedule;
  int64_t n, npad, tokens, d, v; ///< N, its padding, T, head and value dim
  int64_t pack, rowsPerItem, chunks;

  // Function scope.
  llvm::StringMap<Value> fields;
  Value careful, query, out, maskScratch, low, high, positions, mean;
  Side key, value;

  // Item scope.
  Value seq, kvHead, chunk, firstHead, heads, row0, validRows, rowBase, length,
      position;
  Value firstToken, lastToken, exists; ///< exists: i1 per column
  Value broken; ///< i32 in memory: the result of the item

  // Tile scope.
  Value first, count;
};

/// The two kinds.
std::unique_ptr<ArrayLowering> createQueryLanes(tile::ArrayKernelOp kernel);
std::unique_ptr<ArrayLowering> createChannelLanes(tile::ArrayKernelOp kernel);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_KVTILETOCPU_ARRAYLOWERING_H
