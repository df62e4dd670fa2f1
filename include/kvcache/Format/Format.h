//===- Format.h - Storage formats as values ---------------------*- C++ -*-===//
//
// A storage format says how the keys and values of a cache are coded. It is
// plain data: this library knows no IR and no LLVM. The string grammar
//
//   key=ELEM[:SCALE][:gN][:asym|:sym][:2of4][:hadamard][:center][:sTYPE],
//   value=...,page=N[,sinks=N][,recent=N]        or   PRESET[,override...]
//
// and this struct are a bijection (docs/spec.md, "Formats"): `parse` fills in
// every default, `str` prints the canonical form, and parse(str(f)) == f.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_FORMAT_FORMAT_H
#define KVCACHE_FORMAT_FORMAT_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvcache {

/// Element types of a cache. Order: floats, then fp8, then integers.
enum class Element : uint8_t { F32, F16, BF16, E4M3, E5M2, I8, I4, I2, I1 };

unsigned bitsOf(Element e);
bool isFloat(Element e);   // f32 f16 bf16
bool isFp8(Element e);     // e4m3 e5m2
bool isInteger(Element e); // i8 i4 i2 i1
std::string_view nameOf(Element e);

/// The granularity of scales, with x of one head seen as [tokens, channels].
///   None     floats: the stored value is the value
///   Tensor   one static scale per kv head, given when the cache is made
///   Head     one per sealed page and head
///   Token    one per token and group of `group` channels
///   Channel  one per channel and group of `group` tokens
enum class ScaleKind : uint8_t { None, Tensor, Head, Token, Channel };
std::string_view nameOf(ScaleKind k);

/// How a scale and a zero are stored.
enum class ScaleType : uint8_t { F16, BF16, F32 };
inline unsigned bytesOf(ScaleType t) { return t == ScaleType::F32 ? 4 : 2; }
std::string_view nameOf(ScaleType t); // "sf16" ...

/// How one tensor (the keys, or the values) is coded.
struct Encoding {
  Element element = Element::F16;
  ScaleKind scale = ScaleKind::None;
  /// Tokens (channel) or channels (token) per group; 0 = all of them (the whole
  /// page, all channels). Always 0 for the other kinds.
  int64_t group = 0;
  /// In a preset a group adapts to the shape instead of being refused; see
  /// `resolveGroup`. Not part of the printed form of a resolved encoding:
  /// presets print by their name plus overrides.
  bool adaptive = false;
  bool asymmetric = false;
  bool sparse24 = false;
  bool hadamard = false;
  bool center = false;
  ScaleType scaleType = ScaleType::F16;

  bool operator==(const Encoding &) const = default;

  /// "i4:channel:g32:asym:sf16"; every part that is not a default of ELEM is
  /// printed, defaults are left out.
  std::string str() const;
};

/// A parse or legality error: what was wrong, which value, what is accepted.
struct FormatError {
  std::string message;
};
template <typename T>
using Expected = std::variant<T, FormatError>;

/// The error in `e`, or null.
template <typename T>
const FormatError *errorOf(const Expected<T> &e) {
  return std::get_if<FormatError>(&e);
}

/// Parses one encoding ("i4:channel:g32:asym").
Expected<Encoding> parseEncoding(std::string_view text);

/// A whole storage format.
struct Format {
  Encoding key, value;
  int64_t page = 64;
  int64_t sinks = 0;
  int64_t recent = 0;

  bool operator==(const Format &) const = default;

  static Expected<Format> parse(std::string_view text);
  std::string str() const;

  /// The names `parse` accepts in front of overrides.
  static const std::vector<std::string_view> &presetNames();

  /// Pages at the front that are never sealed: ceil(sinks / page).
  int64_t sinkPages() const { return (sinks + page - 1) / page; }
};

/// The group actually used for `channels` channels and pages of `page` tokens:
/// tokens per group for channel scales, channels per group for token scales, 0
/// for the other kinds. Refuses a group that does not divide, naming the values
/// that would do; an adaptive group (from a preset) is fitted instead: token
/// groups become the largest multiple of 8 that divides the channels and is at
/// most N, channel groups at most the page.
Expected<int64_t> resolveGroup(const Encoding &e, int64_t page,
                               int64_t channels);

/// The format with groups resolved for these dims (no adaptive groups left; a
/// group that spans everything becomes 0), or why these dims cannot be stored
/// in it. Head dims are multiples of 8.
Expected<Format> resolve(const Format &f, int64_t headDim, int64_t valueDim);

/// The number of scale groups of one page of one head: [rows, cols] of the
/// scale array. channel: [page/group, channels]; token: [page, channels/group];
/// head: [1, 1]; tensor, none: [0, 0]. `e` is resolved.
struct GroupShape {
  int64_t rows = 0, cols = 0;
  int64_t count() const { return rows * cols; }
};
GroupShape scaleShape(const Encoding &e, int64_t page, int64_t channels);

/// What `kv.Format(...).describe()` prints: the expansion, and bytes per token
/// per head, scales, zeros and metadata included.
std::string describe(const Format &f, int64_t headDim = 128,
                     int64_t valueDim = 128);

/// Bits of codes and sparse metadata per element: 2:4 keeps half of the codes
/// and spends one bit an element on saying which.
double codeBits(const Encoding &e);

/// Bytes per token of one head's keys or values in a sealed page, overheads
/// included, padding not. `e` is resolved.
double bytesPerToken(const Encoding &e, int64_t page, int64_t channels);

} // namespace kvcache

#endif // KVCACHE_FORMAT_FORMAT_H
