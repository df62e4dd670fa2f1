//===- Image.h - Where a sealed page keeps its bytes ------------*- C++ -*-===//
//
// The page image: one sealed page of one kv head is one contiguous record of
//
//   K codes, V codes, K scales, K zeros, V scales, V zeros [, exponents]
//
// in this order, each section aligned (16 bytes; codes of fragment images 128),
// the record rounded up to 128 bytes. The image follows from (format, dims,
// family) alone: seal, unseal, read, attend and saved files agree on it.
//
// Geometry exists once, as templates over an arithmetic type `I`: plain int64_t
// here, an IR value wrapper in the code generators. `I` needs +, *, /, % with
// int64_t constants (all values are non-negative), I + I, and
// `selectLess(I a, int64_t bound, I x, I y)` = a < bound ? x : y.
//
// Codes of symmetric encodings are stored biased to unsigned (code + 128 for
// i8,
// + 8 for i4), so that kernels treat every code as unsigned. 32-bit words are
// little-endian; slot j of a word is its j-th element from the low end.
//
// Family x86-64 (keys token-in-lane, values channel-in-lane), L = min(page,
// 16):
//   K floats [tok/L][ch][tok%L]            V floats [tok][ch]
//   K i8     [tok/L][ch/4][tok%L][ch%4]    V i8     [tok/Q][ch][tok%Q],
//                                                   Q = min(page, 4)
//   K i4     [tok/L][ch/8][tok%L][ch%4],   V i4     [tok/2Q][ch][tok%Q], nibble
//            nibble (ch%8)/4                        (tok/Q)%2, Q = min(page/2,
//            4)
//                                          page 1:  byte ch%(dv/2), nibble
//                                                   ch/(dv/2)
// Family sm_8x: m16n8k16 A fragments (g = lane/4, t = lane%4; register a0 rows
// g, columns 2t 2t+1; a1 rows g+8; a2 columns 2t+8 2t+9; a3 both). Keys: row =
// token, column = channel; values: row = channel, column = token; natural
// order. Within each block of 16 tokens the channel tiles of 16 are grouped
// into pieces that a lane loads at once: 16 bytes while they last, then 8, then
// 4
// (`fragmentPieces`). A lane's bytes of a tile:
//   f16 bf16  words a0 a1 a2 a3
//   i8        word 0 = a0.lo a0.hi a1.lo a1.hi, word 1 = a2.lo a2.hi a3.lo
//   a3.hi i4        one word, nibbles a0.lo a1.lo a2.lo a3.lo a0.hi a1.hi a2.hi
//   a3.hi
//
// Scales and zeros (both families): channel kind [page/group][channels]; token
// kind transposed, [channels/group][page]; head [1]; none and tensor: no
// section.
//
// Exponents (sm_8x, when scales or zeros are stored): four i32 words, the
// largest exponent of |key scales|, |value scales|, |key zeros|, |value zeros|
// of the record, floor(log2(x)) clamped to [-126, 126]; 0 where all are zero or
// there is no such array. Kernels take the exact power of two 2^-e out and give
// it back in f32: |s * 2^-e| < 2 (< 4 at the clamp), the largest one >= 1
// unless clamped. For symmetric codes the kernel's zero is -bias * s: its
// exponent is the scale's + 7 (i8) or + 3 (i4).
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_FORMAT_IMAGE_H
#define KVCACHE_FORMAT_IMAGE_H

#include "kvcache/Format/Format.h"

#include <array>

namespace kvcache {

/// Whose order the bytes lie in. `sm_8x` serves sm_80 to sm_90.
enum class ImageFamily : uint8_t { X86_64, SM8x };
std::string_view nameOf(ImageFamily f); // "x86-64" "sm_8x"
std::optional<ImageFamily> parseImageFamily(std::string_view text);

inline int64_t selectLess(int64_t a, int64_t bound, int64_t x, int64_t y) {
  return a < bound ? x : y;
}

/// A code's place: byte offset in its section, bit shift within that byte.
template <typename I>
struct BitAddress {
  I byte, shift;
};
/// An element of a page.
template <typename I>
struct PageElement {
  I token, channel;
};

/// Consecutive channel tiles of one 16-token block that each lane loads at
/// once: lane l finds `laneBytes` bytes, `tiles` tiles, at offset + l *
/// laneBytes.
struct FragmentPiece {
  int64_t firstTile, tiles, laneBytes, offset;
};

/// The geometry of the keys, or of the values, of a record.
class TensorImage {
public:
  TensorImage() = default;
  TensorImage(ImageFamily family, bool isValue, const Encoding &resolved,
              int64_t page, int64_t channels)
      : family(family), isValue(isValue), encoding(resolved), page(page),
        channels(channels) {}

  ImageFamily family = ImageFamily::X86_64;
  bool isValue = false;
  Encoding encoding;
  int64_t page = 0, channels = 0;

  unsigned bits() const { return bitsOf(encoding.element); }
  int64_t codeBytes() const { return page * channels * bits() / 8; }
  /// 32-bit words of codes; a whole number for every legal shape.
  int64_t codeWords() const { return codeBytes() / 4; }
  int64_t slotsPerWord() const { return 32 / bits(); }
  /// What is added to a symmetric code to store it unsigned.
  int64_t codeBias() const {
    return isInteger(encoding.element) && !encoding.asymmetric
               ? int64_t(1) << (bits() - 1)
               : 0;
  }

  /// Where the code of (token, channel) lies.
  template <typename I>
  BitAddress<I> code(I token, I channel) const;

  /// The element in slot `slot` (0 .. slotsPerWord()-1) of code word `word`;
  /// the inverse of `code`.
  template <typename I>
  PageElement<I> element(I word, int64_t slot) const;

  /// Tokens (channel kind) or channels (token kind) that share a scale; what
  /// spans everything for the other kinds.
  int64_t groupSize() const {
    if (encoding.group)
      return encoding.group;
    return encoding.scale == ScaleKind::Token ? channels : page;
  }
  int64_t scaleCount() const {
    return scaleShape(encoding, page, channels).count();
  }
  int64_t scaleBytes() const {
    return scaleCount() * bytesOf(encoding.scaleType);
  }
  /// Index into the scale (and zero) array for (token, channel).
  template <typename I>
  I scaleIndex(I token, I channel) const;
  /// The group that array index `index` belongs to: its first token and
  /// channel. Elements of the group: `groupTokens()` by `groupChannels()`.
  template <typename I>
  PageElement<I> groupOrigin(I index) const;
  int64_t groupTokens() const {
    return encoding.scale == ScaleKind::Token     ? 1
           : encoding.scale == ScaleKind::Channel ? groupSize()
                                                  : page;
  }
  int64_t groupChannels() const {
    return encoding.scale == ScaleKind::Token     ? groupSize()
           : encoding.scale == ScaleKind::Channel ? 1
                                                  : channels;
  }

  /// Fragment images: 32-bit words of one tile in a lane (f16 4, i8 2, i4 1).
  int64_t wordsPerTile() const { return bits() / 4; }
  int64_t tiles() const { return channels / 16; }
  int64_t blockBytes() const { return 16 * channels * bits() / 8; }

private:
  template <typename I>
  BitAddress<I> rowCode(I token, I channel) const;
  template <typename I>
  PageElement<I> rowElement(I word, int64_t slot) const;
  template <typename I>
  BitAddress<I> fragmentCode(I token, I channel) const;
  template <typename I>
  PageElement<I> fragmentElement(I word, int64_t slot) const;

  /// Tokens in a lane group of x86 keys.
  int64_t lanes() const { return page < 16 ? page : 16; }
  /// Tokens that x86 values keep together (per nibble half for i4).
  int64_t quad() const {
    int64_t most = bits() == 4 ? page / 2 : page;
    return most < 4 ? most : 4;
  }
  /// Fragment images: tiles in a 16-byte piece, and tiles covered by those.
  int64_t tilesPerPiece() const { return 4 / wordsPerTile(); }
  int64_t fullTiles() const {
    return tiles() / tilesPerPiece() * tilesPerPiece();
  }
  /// Words of a block before its 8-byte and its 4-byte piece.
  int64_t fullWords() const { return fullTiles() / tilesPerPiece() * 128; }
  bool hasHalfPiece() const {
    return (tiles() - fullTiles()) * wordsPerTile() >= 2;
  }
};

/// The pieces of one 16-token block of a fragment image, in order.
std::vector<FragmentPiece> fragmentPieces(const TensorImage &t);

enum class Section : uint8_t {
  KCodes,
  VCodes,
  KScales,
  KZeros,
  VScales,
  VZeros,
  Exponents
};

/// A whole record.
class PageImage {
public:
  /// The image of `format` for these dims, or why `family` has none: the
  /// message names the value and what is accepted.
  static Expected<PageImage> create(const Format &format, int64_t headDim,
                                    int64_t valueDim, ImageFamily family);

  ImageFamily family = ImageFamily::X86_64;
  Format format; ///< resolved
  TensorImage key, value;

  int64_t offset(Section s) const { return offsets[static_cast<size_t>(s)]; }
  int64_t size(Section s) const { return sizes[static_cast<size_t>(s)]; }
  int64_t recordBytes() const { return total; }

  /// Names the image in manifests and files: equal hashes, equal bytes. Sinks
  /// and the recent window do not take part.
  uint64_t hash() const;
  std::string hashText() const; ///< 16 hex digits
  std::string text() const;     ///< what is hashed

private:
  std::array<int64_t, 7> offsets{}, sizes{};
  int64_t total = 0;
};

/// Bytes of one kv head of an open page: K [page][headDim] then V
/// [page][valueDim] in the model's dtype, token-major, rounded up to 128.
inline int64_t openRecordBytes(Element dtype, int64_t page, int64_t headDim,
                               int64_t valueDim) {
  return (page * (headDim + valueDim) * bitsOf(dtype) / 8 + 127) / 128 * 128;
}

//===----------------------------------------------------------------------===//
// Geometry
//===----------------------------------------------------------------------===//

template <typename I>
BitAddress<I> TensorImage::code(I token, I channel) const {
  return family == ImageFamily::SM8x ? fragmentCode(token, channel)
                                     : rowCode(token, channel);
}

template <typename I>
PageElement<I> TensorImage::element(I word, int64_t slot) const {
  return family == ImageFamily::SM8x ? fragmentElement(word, slot)
                                     : rowElement(word, slot);
}

template <typename I>
BitAddress<I> TensorImage::rowCode(I tok, I ch) const {
  I zero = tok * 0;
  int64_t d = channels, n = lanes(), q = quad(), size = bits() / 8;
  if (!isValue && bits() == 4)
    return {tok / n * (d / 2 * n) + ch / 8 * (n * 4) + tok % n * 4 + ch % 4,
            ch % 8 / 4 * 4};
  if (!isValue && bits() == 8)
    return {tok / n * (d * n) + ch / 4 * (n * 4) + tok % n * 4 + ch % 4, zero};
  if (!isValue)
    return {(tok / n * (d * n) + ch * n + tok % n) * size, zero};
  if (bits() == 4 && page == 1)
    return {ch % (d / 2), ch / (d / 2) * 4};
  if (bits() == 4)
    return {tok / (2 * q) * (d * q) + ch * q + tok % q, tok / q % 2 * 4};
  if (bits() == 8)
    return {tok / q * (d * q) + ch * q + tok % q, zero};
  return {(tok * d + ch) * size, zero};
}

template <typename I>
PageElement<I> TensorImage::rowElement(I word, int64_t slot) const {
  int64_t d = channels, n = lanes(), q = quad();
  if (!isValue && bits() <= 8) {
    // [tok/L][ch/C][tok%L] words of C channels.
    int64_t c = slotsPerWord();
    int64_t in = bits() == 4 ? slot % 2 * 4 + slot / 2 : slot;
    return {word / (n * (d / c)) * n + word % n, word / n % (d / c) * c + in};
  }
  if (!isValue) {
    I e = word * slotsPerWord() + slot;
    return {e / (n * d) * n + e % n, e / n % d};
  }
  if (bits() == 4) {
    I b = word * 4 + slot / 2;
    int64_t high = slot % 2;
    if (page == 1)
      return {word * 0, b + high * (d / 2)};
    return {b / (q * d) * (2 * q) + b % q + high * q, b / q % d};
  }
  I e = word * slotsPerWord() + slot;
  if (bits() == 8)
    return {e / (q * d) * q + e % q, e / q % d};
  return {e / d, e % d};
}

template <typename I>
BitAddress<I> TensorImage::fragmentCode(I tok, I ch) const {
  I row = (isValue ? ch : tok) % 16, col = (isValue ? tok : ch) % 16;
  I lane = row % 8 * 4 + col % 8 / 2;
  I high = row / 8, right = col / 8, half = col % 2; // register high + 2*right
  // Byte within the tile's words of a lane, and shift.
  I in = high * 4 + right * 8 + half * 2, shift = high * 0;
  if (bits() == 8)
    in = right * 4 + high * 2 + half;
  if (bits() == 4) {
    in = right + half * 2;
    shift = high * 4;
  }
  int64_t per = tilesPerPiece(), full = fullTiles(), tileBytes = bits();
  I tile = ch / 16;
  I at = tile / per * 512 + lane * 16 + tile % per * tileBytes;
  if (full < tiles()) {
    // Tiles past the 16-byte pieces: at most one 8-byte and one 4-byte piece.
    // `full` is a multiple of `per`, so a tile's number in its piece stays.
    int64_t base = fullWords() * 4;
    int64_t in8 = hasHalfPiece() ? full + 8 / tileBytes : full;
    I at8 = lane * 8 + tile % per * tileBytes + base;
    I at4 = lane * 4 + (base + (hasHalfPiece() ? 256 : 0));
    at = selectLess(tile, full, at, selectLess(tile, in8, at8, at4));
  }
  return {tok / 16 * blockBytes() + at + in, shift};
}

template <typename I>
PageElement<I> TensorImage::fragmentElement(I word, int64_t slot) const {
  int64_t blockWords = blockBytes() / 4, w = wordsPerTile();
  I block = word / blockWords, r = word % blockWords;
  I lane = r % 128 / 4, tile = r / 128 * tilesPerPiece() + r % 4 / w,
    sub = r % w;
  int64_t f = fullWords(), full = fullTiles();
  if (full < tiles()) {
    // f is a multiple of 128 and h of 64: remainders need no subtraction.
    int64_t h = hasHalfPiece() ? f + 64 : f;
    int64_t tiles8 = hasHalfPiece() ? 2 / w : 0;
    I lane8 = r % 64 / 2, tile8 = r % 2 / w + full;
    I lane4 = r % 32, tile4 = r * 0 + (full + tiles8);
    lane = selectLess(r, f, lane, selectLess(r, h, lane8, lane4));
    tile = selectLess(r, f, tile, selectLess(r, h, tile8, tile4));
  }
  // Register = high + 2 * right, from the word and the slot.
  I right = sub * 0, high = sub * 0;
  int64_t half = slot % 2;
  if (bits() == 16) {
    high = sub % 2;
    right = sub / 2;
  } else if (bits() == 8) {
    high = high + slot / 2;
    right = sub;
  } else {
    high = high + slot % 2;
    right = right + slot / 2 % 2;
    half = slot / 4;
  }
  I row = lane / 4 + high * 8, col = lane % 4 * 2 + half + right * 8;
  if (isValue)
    return {block * 16 + col, tile * 16 + row};
  return {block * 16 + row, tile * 16 + col};
}

template <typename I>
I TensorImage::scaleIndex(I token, I channel) const {
  if (encoding.scale == ScaleKind::Channel)
    return token / groupSize() * channels + channel;
  if (encoding.scale == ScaleKind::Token)
    return channel / groupSize() * page + token;
  return token * 0;
}

template <typename I>
PageElement<I> TensorImage::groupOrigin(I index) const {
  if (encoding.scale == ScaleKind::Channel)
    return {index / channels * groupSize(), index % channels};
  if (encoding.scale == ScaleKind::Token)
    return {index % page, index / page * groupSize()};
  return {index * 0, index * 0};
}

} // namespace kvcache

#endif // KVCACHE_FORMAT_IMAGE_H
