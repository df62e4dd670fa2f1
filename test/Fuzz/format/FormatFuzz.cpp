//===- FormatFuzz.cpp - libFuzzer target of format strings ----------------===//
//
// Whatever parses prints as a canonical text that parses to the same format,
// and resolves, or is refused in one line of text, for any dims.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Format/Image.h"

#include <cstdlib>

using namespace kvcache;

static void require(bool holds) {
  if (!holds)
    std::abort();
}

static void checkMessage(const FormatError &error) {
  require(!error.message.empty() && error.message.size() < 4096);
  for (char c : error.message)
    require(c >= ' ' && c <= '~');
}

static void checkImages(const Format &f, int64_t d, int64_t dv) {
  describe(f, d, dv);
  for (ImageFamily family : {ImageFamily::X86_64, ImageFamily::SM8x}) {
    auto image = PageImage::create(f, d, dv, family);
    if (auto *bad = errorOf(image)) {
      checkMessage(*bad);
      continue;
    }
    auto &p = std::get<PageImage>(image);
    int64_t last = p.offset(Section::Exponents) + p.size(Section::Exponents);
    require(last <= p.recordBytes() && p.recordBytes() % 128 == 0);
    auto at = p.value.code<int64_t>(p.value.page - 1, dv - 1);
    require(at.byte < p.value.codeBytes());
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string_view text(reinterpret_cast<const char *>(data), size);
  auto first = Format::parse(text);
  if (auto *bad = errorOf(first)) {
    checkMessage(*bad);
    return 0;
  }
  auto &f = std::get<Format>(first);
  auto again = Format::parse(f.str());
  require(!errorOf(again) && std::get<Format>(again) == f);
  require(std::get<Format>(again).str() == f.str());
  for (int64_t d : {8, 64, 72, 112, 256})
    checkImages(f, d, 320 - d);
  return 0;
}
