// What is behind the keys and values of a match: arrays of codes, their scales
// and zeros, and the page table that gathers them.

#ifndef KVCACHE_LIB_IMPORT_CACHE_H
#define KVCACHE_LIB_IMPORT_CACHE_H

#include "Expr.h"

#include "kvcache/Dialect/KVCache/IR/KVCache.h"

#include "llvm/ADT/Twine.h"

#include <string>

namespace kvcache::import {

/// Where a page number comes from.
struct PageTable {
  VarId page;   ///< the variable that stands for the number
  Cursor entry; ///< the element of the table, an integer
  TableRule rule = TableRule::Clamp;
  int64_t pages = 0; ///< of the pool
};

/// Page tables met so far: each distinct one has a variable of its own.
class PageTables : public IndexReader {
public:
  std::optional<Idx> position(Reader &read, const Cursor &index,
                              int64_t size) override;
  std::vector<PageTable> tables;
};

/// constant * product of factors, each a number of the graph or its inverse.
struct Product {
  struct Factor {
    Cursor value;
    bool inverse = false;
    bool isUnsigned = false; ///< of an integer
  };
  double constant = 1;
  std::vector<Factor> factors;
};

/// One side: element = code * scale + sum of zeros.
struct CachedSide {
  Cursor array; ///< the element of the array that holds the code
  Element element = Element::F32;
  bool isDecoded = false; ///< false: the array holds the numbers themselves
  bool isSigned = true;
  unsigned width = 64; ///< of the narrowest type that decoded values round to
  /// The digit that selects a code within its container.
  std::optional<VarId> slot;
  PackOrder order = PackOrder::LowFirst;
  Product scale;
  std::vector<Product> zeros;
  Cursor valid; ///< false for pages that read as NaN, if there are any
};

/// Finds a side behind an expression, or says what is in the way.
class CacheReader {
public:
  CacheReader(Space &space, Reader &read) : space(space), read(read) {}

  bool match(Cursor source, CachedSide &side);
  std::string reason;
  bool sawCodes = false; ///< there are codes, which `reason` refuses
  PageTables tables;

private:
  /// Bits of a container: `bits` of them from `shift` on, plus `offset`.
  struct Field {
    Cursor container;
    unsigned width = 0, bits = 0;
    bool isSigned = false;
    int64_t shift = 0, offset = 0;
    std::optional<VarId> digit; ///< the shift is this digit times `step`
    int64_t step = 0;
  };

  bool refuse(const llvm::Twine &why);
  bool decode(Cursor x, CachedSide &side);
  bool decodeOp(const Node &node, CachedSide &side);
  bool decodeSum(const Node &node, CachedSide &side);
  bool decodeInteger(Cursor x, bool isSigned, CachedSide &side);
  bool matchCode(Cursor x, bool isSigned, CachedSide &side);
  bool matchField(Cursor x, bool isSigned, Field &field);
  bool matchShift(Cursor x, Field &field);
  bool matchContainer(Cursor x, Field &field);
  bool matchParts(llvm::ArrayRef<Cursor> parts, bool isSigned, CachedSide &side,
                  VarId slot);
  bool finish(const Field &field, CachedSide &side);
  bool parts(const Cursor &tensor, VarId &which, std::vector<Cursor> &out);
  bool concatenated(mlir::Value tensor, int64_t &dim,
                    llvm::SmallVectorImpl<mlir::Value> &inputs);
  Node simplify(Cursor cursor);
  std::optional<bool> truth(Cursor condition);
  std::optional<int64_t> integer(Cursor cursor);

  Space &space;
  Reader &read;
  unsigned budget = 0;
};

} // namespace kvcache::import

#endif // KVCACHE_LIB_IMPORT_CACHE_H
