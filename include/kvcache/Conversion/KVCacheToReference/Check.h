//===- Check.h - Checks of tables and lengths in generated code -*- C++ -*-===//
//
// Generated code never aborts on bad page tables or lengths. It stores what it
// found in a record, a global of the module, treats the sequence as empty and
// goes on; the caller looks at the record afterwards.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_CHECK_H
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_CHECK_H

#include <cstdint>
#include <string>

namespace kvcache {

/// The symbol of the record: five i64, a kind (0: nothing failed) and four
/// numbers. The first failure stays.
inline constexpr char kCheckRecord[] = "kvcache_check_record";
/// The function that fills it.
inline constexpr char kCheckFailed[] = "kvcache_check_failed";

enum class Check : int64_t {
  None,
  PageCount,   ///< sequence, length, pages needed, table columns
  PageNumber,  ///< sequence, logical page, page number, pages in the pool
  Length,      ///< sequence, length
  SealedPages, ///< sequence, sealed pages, length, most possible
  AppendValue, ///< row
  AppendRow,   ///< row, sequence, sequences
  QueryRows,   ///< sequence, first row, end row, rows of q
  Room,        ///< sequence, tokens, tokens the result has room for
  Sizes,       ///< two dynamic sizes that must agree
  Groups,      ///< size of scales, size of codes that it must divide
};

/// The message of a record, empty if nothing failed.
std::string describeCheck(const int64_t *record);

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_CHECK_H
