//===- Image.cpp - Page images: sections, refusals, hash ------------------===//
#include "kvcache/Format/Image.h"

#include <cstdio>

using namespace kvcache;

std::string_view kvcache::nameOf(ImageFamily f) {
  return f == ImageFamily::X86_64 ? "x86-64" : "sm_8x";
}

std::optional<ImageFamily> kvcache::parseImageFamily(std::string_view text) {
  for (ImageFamily f : {ImageFamily::X86_64, ImageFamily::SM8x})
    if (text == nameOf(f))
      return f;
  return std::nullopt;
}

std::vector<FragmentPiece> kvcache::fragmentPieces(const TensorImage &t) {
  std::vector<FragmentPiece> pieces;
  int64_t tileBytes = 4 * t.wordsPerTile(), offset = 0, tile = 0;
  for (int64_t laneBytes : {16, 8, 4}) {
    int64_t per = laneBytes / tileBytes;
    // Only the 16-byte pieces repeat: what is left after them is less than one.
    while (per > 0 && t.tiles() - tile >= per) {
      pieces.push_back({tile, per, laneBytes, offset});
      tile += per;
      offset += 32 * laneBytes;
    }
  }
  return pieces;
}

static std::optional<FormatError>
checkEncoding(std::string_view side, const Encoding &e, ImageFamily family) {
  auto refuse = [&](std::string_view what, std::string_view accepted) {
    return FormatError{std::string(side) + " encoding '" + e.str() +
                       "': " + std::string(what) + " has no page image for " +
                       std::string(nameOf(family)) + " yet; " +
                       std::string(accepted) + " (F18)"};
  };
  if (e.sparse24)
    return refuse("2of4", "leave it out");
  if (e.hadamard)
    return refuse("hadamard", "leave it out");
  if (e.center)
    return refuse("center", "leave it out");
  bool fragments = family == ImageFamily::SM8x;
  bool known = e.element == Element::F16 || e.element == Element::BF16 ||
               e.element == Element::I8 || e.element == Element::I4 ||
               (!fragments && e.element == Element::F32);
  if (!known)
    return refuse("element " + std::string(nameOf(e.element)),
                  fragments ? "accepted: f16 bf16 i8 i4"
                            : "accepted: f32 f16 bf16 i8 i4");
  return std::nullopt;
}

static std::optional<FormatError> checkFragments(const Format &f, int64_t d,
                                                 int64_t dv) {
  for (auto [name, dim] :
       {std::pair("head dim", d), std::pair("value dim", dv)})
    if (dim % 16 || dim > 256)
      return FormatError{std::string(name) + " " + std::to_string(dim) +
                         " has no page image for sm_8x; accepted: multiples of "
                         "16 up to 256 (F19)"};
  if (f.page < 16 || f.page > 128)
    return FormatError{"pages of " + std::to_string(f.page) +
                       " tokens have no page image for sm_8x; accepted: 16 32 "
                       "64 128 (F19)"};
  return std::nullopt;
}

Expected<PageImage> PageImage::create(const Format &format, int64_t headDim,
                                      int64_t valueDim, ImageFamily family) {
  auto resolved = resolve(format, headDim, valueDim);
  if (auto *bad = errorOf(resolved))
    return *bad;
  const Format &f = std::get<Format>(resolved);
  if (auto bad = checkEncoding("key", f.key, family))
    return *bad;
  if (auto bad = checkEncoding("value", f.value, family))
    return *bad;
  if (family == ImageFamily::SM8x)
    if (auto bad = checkFragments(f, headDim, valueDim))
      return *bad;

  PageImage image;
  image.family = family;
  image.format = f;
  image.key = TensorImage(family, false, f.key, f.page, headDim);
  image.value = TensorImage(family, true, f.value, f.page, valueDim);
  int64_t ks = image.key.scaleBytes(), vs = image.value.scaleBytes();
  int64_t kz = f.key.asymmetric ? ks : 0, vz = f.value.asymmetric ? vs : 0;
  int64_t exponents = family == ImageFamily::SM8x && ks + vs > 0 ? 16 : 0;
  image.sizes = {image.key.codeBytes(),
                 image.value.codeBytes(),
                 ks,
                 kz,
                 vs,
                 vz,
                 exponents};
  int64_t at = 0;
  for (size_t s = 0; s < image.sizes.size(); ++s) {
    bool codes = s <= static_cast<size_t>(Section::VCodes);
    int64_t align = codes && family == ImageFamily::SM8x ? 128 : 16;
    at = (at + align - 1) / align * align;
    image.offsets[s] = at;
    at += image.sizes[s];
  }
  image.total = (at + 127) / 128 * 128;
  return image;
}

std::string PageImage::text() const {
  // The number is the revision of the geometry described in Image.h.
  return "image 1 " + std::string(nameOf(family)) + " page " +
         std::to_string(format.page) + " d " + std::to_string(key.channels) +
         " dv " + std::to_string(value.channels) + " key " + format.key.str() +
         " value " + format.value.str();
}

uint64_t PageImage::hash() const {
  // FNV-1a, 64 bits.
  uint64_t h = 14695981039346656037ull;
  for (unsigned char c : text())
    h = (h ^ c) * 1099511628211ull;
  return h;
}

std::string PageImage::hashText() const {
  char s[17];
  std::snprintf(s, sizeof s, "%016llx", (unsigned long long)hash());
  return s;
}
