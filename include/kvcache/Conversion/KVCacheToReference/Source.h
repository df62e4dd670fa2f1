//===- Source.h - Where keys and values are loaded from ---------*- C++ -*-===//
//
// Attention and `read` are written once against this interface; plain tensors,
// our own pages and external arrays implement it. All loads give the decoded
// f32.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_SOURCE_H
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_SOURCE_H

#include "kvcache/Conversion/KVCacheToReference/Check.h"
#include "kvcache/Conversion/KVCacheToReference/Emitter.h"
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "kvcache/Format/Image.h"

namespace kvcache {

/// The tensors that stand for a cache value.
struct CacheParts {
  CacheType type;
  Values pools, tables, scales;
  mlir::Value sealedPages, lengths, means;
  /// How many sequences there are; 0 if the tensors disagree.
  mlir::Value sequences;
};

/// Emits a call that records a failed check when `ok` is false.
void emitCheck(Emitter &e, mlir::Value ok, Check kind,
               mlir::ValueRange numbers);

/// `ok` and whether two sizes agree; static sizes that do cost nothing.
mlir::Value checkSizes(Emitter &e, mlir::Value ok, mlir::Value have,
                       mlir::Value expected);

class Source {
public:
  virtual ~Source() = default;

  virtual mlir::Value sequences(Emitter &e) = 0;
  /// Tokens of a sequence (index), unchecked.
  virtual mlir::Value length(Emitter &e, mlir::Value seq) = 0;
  /// Checks the length and the table entries from `firstToken` on; gives the
  /// length, or 0 if a check failed.
  virtual mlir::Value checkedLength(Emitter &e, mlir::Value seq,
                                    mlir::Value firstToken) = 0;
  /// Tokens that there are arrays for, past the length too: what `mean_all`
  /// runs over.
  virtual mlir::Value capacity(Emitter &e, mlir::Value seq) {
    return length(e, seq);
  }
  /// Finds a token's row; what it returns is passed to `load`.
  virtual Values locate(Emitter &e, mlir::Value seq, mlir::Value head,
                        mlir::Value token) = 0;
  /// One channel of the key (or value) of a located token, f32.
  virtual mlir::Value load(Emitter &e, mlir::ValueRange row, bool isValue,
                           mlir::Value channel) = 0;
};

/// k and v tensors of rank 4 with optional lengths.
std::unique_ptr<Source> makeDenseSource(mlir::Value k, mlir::Value v,
                                        mlir::Value lengths, Layout layout);

/// A cache; reports an error at `loc` for what the reference cannot read.
mlir::FailureOr<std::unique_ptr<Source>> makeSource(mlir::Location loc,
                                                    const CacheParts &parts);

/// Our own pages, for `append` and `seal` too.
class PagedSource : public Source {
public:
  static mlir::FailureOr<std::unique_ptr<PagedSource>>
  create(mlir::Location loc, const CacheParts &parts);

  mlir::Value sequences(Emitter &e) override;
  mlir::Value length(Emitter &e, mlir::Value seq) override;
  mlir::Value checkedLength(Emitter &e, mlir::Value seq,
                            mlir::Value firstToken) override;
  Values locate(Emitter &e, mlir::Value seq, mlir::Value head,
                mlir::Value token) override;
  mlir::Value load(Emitter &e, mlir::ValueRange row, bool isValue,
                   mlir::Value channel) override;

  /// Page number of a logical page in a table (0 sealed, 1 open).
  mlir::Value pageNumber(Emitter &e, int which, mlir::Value seq,
                         mlir::Value head, mlir::Value page);
  /// First byte of a head's record.
  mlir::Value record(Emitter &e, int which, mlir::Value number,
                     mlir::Value head);
  /// ok if the table entry is a page of its pool; records the failure.
  mlir::Value checkPage(Emitter &e, int which, mlir::Value seq,
                        mlir::Value head, mlir::Value page);
  mlir::Value isSealed(Emitter &e, mlir::Value seq, mlir::Value page);
  /// Byte of an element in an open record.
  mlir::Value openOffset(Emitter &e, bool isValue, mlir::Value token,
                         mlir::Value channel);
  mlir::Value loadOpen(Emitter &e, mlir::Value pool, mlir::Value base,
                       bool isValue, mlir::Value token, mlir::Value channel);
  /// Static scale of a head, or null.
  mlir::Value staticScale(Emitter &e, bool isValue, mlir::Value head);
  /// Head lists in a table: kv or 1.
  mlir::Value lists(Emitter &e, int which);
  mlir::Value columns(Emitter &e);

  CacheParts parts;
  PageImage image;
  Element open;
  int64_t page, kv, openBytes;

private:
  mlir::Value loadSealed(Emitter &e, mlir::Value base, bool isValue,
                         mlir::Value token, mlir::Value channel,
                         mlir::Value head);
};

/// Arrays that somebody else lays out.
class ExternalSource : public Source {
public:
  ExternalSource(const CacheParts &parts)
      : parts(parts), layout(parts.type.getExternal()),
        page(parts.type.getFormat().page) {}

  mlir::Value sequences(Emitter &) override { return parts.sequences; }
  mlir::Value length(Emitter &e, mlir::Value seq) override;
  mlir::Value checkedLength(Emitter &e, mlir::Value seq,
                            mlir::Value firstToken) override;
  mlir::Value capacity(Emitter &e, mlir::Value seq) override;
  /// Page, token within it, head.
  Values locate(Emitter &e, mlir::Value seq, mlir::Value head,
                mlir::Value token) override;
  mlir::Value load(Emitter &e, mlir::ValueRange row, bool isValue,
                   mlir::Value channel) override;

  bool hasTable() const { return layout.getTable() != TableRule::None; }
  /// The array with this number: pools first, then scales.
  mlir::Value array(int64_t number) const {
    return number < static_cast<int64_t>(parts.pools.size())
               ? parts.pools[number]
               : parts.scales[number - parts.pools.size()];
  }
  /// One decoded channel; `extract` gives an element of an array.
  mlir::Value
  decode(Emitter &e, mlir::ValueRange row, bool isValue, mlir::Value channel,
         llvm::function_ref<mlir::Value(int64_t array, mlir::ValueRange at)>
             extract) const;

  CacheParts parts;
  ExternalAttr layout;
  int64_t page;

private:
  mlir::Value room(Emitter &e, unsigned coordinate);
  mlir::Value pages(Emitter &e) { return room(e, 0); }
  mlir::Value entry(Emitter &e, mlir::Value seq, mlir::Value head,
                    mlir::Value logical);
};

/// Room in the table, and an open page, for the next token of `seq`.
mlir::Value checkRoom(Emitter &e, PagedSource &source, mlir::Value seq,
                      mlir::Value token);
/// The logical pages [first, end) of a (checked) sequence that are due to be
/// sealed and are not yet.
std::pair<mlir::Value, mlir::Value> pagesDue(Emitter &e, PagedSource &source,
                                             mlir::Value seq);
/// Loops for the changes of a cache: the parts of the new one.
CacheParts lowerAppend(Emitter &e, AppendOp op, PagedSource &source);
CacheParts lowerSeal(Emitter &e, SealOp op, PagedSource &source);

/// Loops for an attention on keys and values from anywhere: out and lse.
Values lowerAttention(Emitter &e, AttentionOp op, Source &source);

/// The code in an integer: `shift` (index, may be null) bits up, the element's
/// bits, signed if the encoding is symmetric; as f32.
mlir::Value unpackCode(Emitter &e, mlir::Value container, mlir::Value shift,
                       const Encoding &encoding);

/// Unsigned integer of `bytes` bytes at `at` of an i8 tensor, as i32.
mlir::Value loadBytes(Emitter &e, mlir::Value pool, mlir::Value at,
                      unsigned bytes);
/// Stores the low `bytes` bytes of an i32; gives the new tensor.
mlir::Value storeBytes(Emitter &e, mlir::Value pool, mlir::Value at,
                       unsigned bytes, mlir::Value word);

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_SOURCE_H
