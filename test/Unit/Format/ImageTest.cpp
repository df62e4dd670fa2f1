//===- ImageTest.cpp - Page images are bijective, aligned, in bounds ------===//
#include "kvcache/Format/Image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache;
using testing::HasSubstr;

static Format parsed(const std::string &text) {
  auto f = Format::parse(text);
  if (auto *bad = errorOf(f))
    ADD_FAILURE() << bad->message;
  return std::get<Format>(f);
}

static PageImage image(const std::string &text, int64_t d, int64_t dv,
                       ImageFamily family) {
  auto i = PageImage::create(parsed(text), d, dv, family);
  if (auto *bad = errorOf(i)) {
    ADD_FAILURE() << text << ": " << bad->message;
    return {};
  }
  return std::get<PageImage>(i);
}

static std::string refusal(const std::string &text, int64_t d, int64_t dv,
                           ImageFamily family) {
  auto i = PageImage::create(parsed(text), d, dv, family);
  auto *bad = errorOf(i);
  return bad ? bad->message : "accepted";
}

/// Every element has a place of its own, all places are used, and `element` is
/// the inverse of `code`.
static void checkBijection(const TensorImage &t) {
  std::vector<char> used(t.codeBytes() * 8 / t.bits());
  for (int64_t tok = 0; tok < t.page; ++tok)
    for (int64_t ch = 0; ch < t.channels; ++ch) {
      auto at = t.code(tok, ch);
      int64_t bit = at.byte * 8 + at.shift;
      ASSERT_EQ(bit % t.bits(), 0);
      ASSERT_LT(bit, t.codeBytes() * 8);
      ASSERT_FALSE(used[bit / t.bits()]++);
      auto e = t.element(bit / 32, bit % 32 / t.bits());
      ASSERT_EQ(e.token, tok) << "channel " << ch;
      ASSERT_EQ(e.channel, ch) << "token " << tok;
    }
}

static void checkScales(const TensorImage &t) {
  std::vector<int64_t> members(t.scaleCount());
  if (members.empty())
    return;
  for (int64_t tok = 0; tok < t.page; ++tok)
    for (int64_t ch = 0; ch < t.channels; ++ch) {
      int64_t i = t.scaleIndex(tok, ch);
      ASSERT_LT(i, t.scaleCount());
      members[i]++;
      auto o = t.groupOrigin(i);
      ASSERT_TRUE(o.token <= tok && tok < o.token + t.groupTokens());
      ASSERT_TRUE(o.channel <= ch && ch < o.channel + t.groupChannels());
    }
  for (int64_t n : members)
    ASSERT_EQ(n, t.groupTokens() * t.groupChannels());
}

static void checkSections(const PageImage &p) {
  int64_t end = 0;
  for (int s = 0; s <= int(Section::Exponents); ++s) {
    auto sec = static_cast<Section>(s);
    ASSERT_GE(p.offset(sec), end);
    ASSERT_EQ(p.offset(sec) % 16, 0);
    if (p.family == ImageFamily::SM8x && s < 2) {
      ASSERT_EQ(p.offset(sec) % 128, 0);
    }
    end = p.offset(sec) + p.size(sec);
  }
  ASSERT_LE(end, p.recordBytes());
  ASSERT_EQ(p.recordBytes() % 128, 0);
  ASSERT_LT(p.recordBytes() - end, 128);
}

static void check(const PageImage &p) {
  SCOPED_TRACE(p.text());
  checkBijection(p.key);
  checkBijection(p.value);
  checkScales(p.key);
  checkScales(p.value);
  checkSections(p);
}

static const char *encodings[] = {
    "i8:channel",    "i8:token:g8", "i8:tensor", "i4:head",    "i4:channel:g1",
    "i4:token:sf32", "f16",         "bf16",      "i8:head:sym"};

TEST(Image, X86) {
  for (int64_t page : {1, 2, 4, 8, 16, 32, 64, 256})
    for (auto [d, dv] : {std::pair(8, 8), {64, 64}, {72, 80}, {192, 128}})
      for (unsigned k = 0; k < std::size(encodings); ++k)
        check(image("key=" + std::string(encodings[k]) + ",value=" +
                        encodings[(k + page + d / 8) % std::size(encodings)] +
                        ",page=" + std::to_string(page),
                    d, dv, ImageFamily::X86_64));
  check(image("key=f32", 64, 64, ImageFamily::X86_64));
}

TEST(Image, Fragments) {
  for (int64_t page : {16, 32, 128})
    for (auto [d, dv] : {std::pair(16, 32),
                         {48, 64},
                         {80, 96},
                         {96, 80},
                         {112, 112},
                         {128, 128},
                         {192, 128},
                         {256, 256}})
      for (unsigned k = 0; k < std::size(encodings); ++k)
        check(image("key=" + std::string(encodings[k]) + ",value=" +
                        encodings[(k + page / 16) % std::size(encodings)] +
                        ",page=" + std::to_string(page),
                    d, dv, ImageFamily::SM8x));
}

TEST(Image, FragmentPieces) {
  auto widths = [](const char *f, int64_t d) {
    std::string s;
    for (auto &p : fragmentPieces(image(f, d, 64, ImageFamily::SM8x).key))
      s += (s.empty() ? "" : " ") + std::to_string(p.laneBytes);
    return s;
  };
  EXPECT_EQ(widths("key=i4", 64), "16");
  EXPECT_EQ(widths("key=i4", 80), "16 4");
  EXPECT_EQ(widths("key=i4", 96), "16 8");
  EXPECT_EQ(widths("key=i4", 112), "16 8 4");
  EXPECT_EQ(widths("key=i4", 192), "16 16 16");
  EXPECT_EQ(widths("key=i8", 80), "16 16 8");
  EXPECT_EQ(widths("f16", 48), "16 16 16");
}

// A lane finds all elements of a tile where the comment in Image.h says.
TEST(Image, FragmentOrderOfInt4) {
  TensorImage k = image("key=i4", 112, 64, ImageFamily::SM8x).key;
  for (auto &p : fragmentPieces(k))
    for (int64_t f = 0; f < p.tiles; ++f)
      for (int64_t lane = 0; lane < 32; ++lane)
        for (int64_t n = 0; n < 8; ++n) {
          int64_t reg = n % 4, g = lane / 4, t = lane % 4;
          int64_t row = g + reg % 2 * 8, col = 2 * t + n / 4 + reg / 2 * 8;
          auto at = k.code(row + 16, (p.firstTile + f) * 16 + col);
          EXPECT_EQ(
              at.byte * 2 + at.shift / 4,
              (k.blockBytes() + p.offset + lane * p.laneBytes + f * 4) * 2 + n);
        }
}

TEST(Image, SectionsOfKivi4) {
  PageImage p = image("kivi4", 128, 128, ImageFamily::SM8x);
  EXPECT_EQ(p.offset(Section::VCodes), 4096);
  EXPECT_EQ(p.size(Section::KScales), 512);
  EXPECT_EQ(p.offset(Section::Exponents), 8192 + 4 * 512);
  EXPECT_EQ(p.size(Section::Exponents), 16);
  EXPECT_EQ(p.recordBytes(), 8192 + 2048 + 128);
  EXPECT_EQ(image("kivi4", 128, 128, ImageFamily::X86_64).recordBytes(), 10240);
  EXPECT_EQ(image("f16", 64, 64, ImageFamily::SM8x).size(Section::Exponents),
            0);
  EXPECT_EQ(openRecordBytes(Element::F16, 64, 128, 128), 32768);
}

TEST(Image, HashNamesTheBytes) {
  auto h = [](const char *f, int64_t d, ImageFamily family) {
    return image(f, d, d, family).hashText();
  };
  auto x = ImageFamily::X86_64;
  EXPECT_EQ(h("kivi4", 128, x), h("kivi4,sinks=4,recent=0", 128, x));
  EXPECT_EQ(h("kivi4", 128, x),
            h("key=i4:channel:g32,value=i4:token:g32", 128, x));
  EXPECT_NE(h("kivi4", 128, x), h("kivi4", 64, x));
  EXPECT_NE(h("kivi4", 128, x), h("kivi4", 128, ImageFamily::SM8x));
  EXPECT_NE(h("kivi4", 128, x), h("kivi4,page=32", 128, x));
  EXPECT_EQ(h("kivi4", 128, x).size(), 16u);
}

TEST(Image, Refusals) {
  auto x = ImageFamily::X86_64, s = ImageFamily::SM8x;
  EXPECT_THAT(refusal("fp8", 64, 64, x),
              HasSubstr("key encoding 'e4m3': element e4m3 has no page image "
                        "for x86-64 yet; accepted: f32 f16 bf16 i8 i4"));
  EXPECT_THAT(refusal("f16,value=f16:2of4", 64, 64, x),
              HasSubstr("value encoding 'f16:2of4': 2of4 has no page image"));
  EXPECT_THAT(refusal("key=i8:hadamard", 64, 64, x), HasSubstr("hadamard has"));
  EXPECT_THAT(refusal("key=i8:center", 64, 64, x), HasSubstr("center has"));
  EXPECT_THAT(refusal("key=f32", 64, 64, s), HasSubstr("accepted: f16 bf16"));
  EXPECT_THAT(refusal("f16", 72, 64, s), HasSubstr("head dim 72"));
  EXPECT_THAT(refusal("f16", 64, 272, s), HasSubstr("value dim 272"));
  EXPECT_THAT(refusal("f16,page=8", 64, 64, s), HasSubstr("pages of 8 tokens"));
  EXPECT_THAT(refusal("f16", 60, 64, x), HasSubstr("head dim 60"));
}
