//===- CodecTest.cpp - Encoding and decoding ------------------------------===//
#include "kvcache/Format/Codec.h"
#include "kvcache/Format/Quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

using namespace kvcache;
using namespace kvcache::codec;
using testing::ElementsAre;
using testing::HasSubstr;

static Encoding enc(std::string_view text) {
  auto e = parseEncoding(text);
  if (auto *bad = errorOf(e))
    ADD_FAILURE() << bad->message;
  return std::get<Encoding>(e);
}

static Quantized coded(const std::vector<float> &x, ArrayShape s,
                       std::string_view e, float scale = 1.0f) {
  auto q = quantize(x.data(), s, enc(e), scale);
  if (auto *bad = errorOf(q)) {
    ADD_FAILURE() << e << ": " << bad->message;
    return {};
  }
  return std::get<Quantized>(q);
}

static std::vector<float> decoded(const Quantized &q, ArrayShape s,
                                  std::string_view e) {
  return std::get<std::vector<float>>(
      dequantize(q.codes.data(), q.scale.data(), q.zero.data(), s, enc(e)));
}

static std::string refusal(float x, std::string_view e) {
  auto q = quantize(&x, {1, 1, 1}, enc(e));
  auto *bad = errorOf(q);
  return bad ? bad->message : "accepted";
}

// The compiler's own _Float16 is the oracle (all f16 values; rounding around
// every midpoint).
TEST(Codec, HalfPrecision) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    uint16_t bits = static_cast<uint16_t>(h);
    _Float16 f;
    std::memcpy(&f, &bits, 2);
    float wide = f16BitsToF32(h);
    if (f != f) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_EQ(f32ToF16Bits(wide) & 0x7c00u, 0x7c00u);
      EXPECT_NE(f32ToF16Bits(wide) & 0x3ffu, 0u);
      continue;
    }
    EXPECT_EQ(toBits(wide), toBits(static_cast<float>(f)));
    EXPECT_EQ(f32ToF16Bits(wide), h);
    if ((h & 0x7fff) >= 0x7bff)
      continue;
    float mid = (wide + f16BitsToF32(h + 1)) / 2;
    uint32_t even = h & 1 ? h + 1 : h;
    EXPECT_EQ(f32ToF16Bits(mid), even);
    EXPECT_EQ(f32ToF16Bits(std::nextafter(mid, wide)), h);
    EXPECT_EQ(f32ToF16Bits(std::nextafter(mid, 2 * mid)), h + 1);
  }
  EXPECT_EQ(f32ToF16Bits(65519.99f), 0x7bffu);
  EXPECT_EQ(f32ToF16Bits(65520.0f), 0x7c00u);
  EXPECT_EQ(f32ToF16Bits(-1e30f), 0xfc00u);
  EXPECT_EQ(f32ToF16Bits(HUGE_VALF), 0x7c00u);
  EXPECT_EQ(f32ToF16Bits(1e-30f), 0u);
}

TEST(Codec, BFloat16) {
  EXPECT_EQ(f32ToBF16Bits(1.0f), 0x3f80u);
  EXPECT_EQ(f32ToBF16Bits(fromBits(0x3f808000)), 0x3f80u);
  EXPECT_EQ(f32ToBF16Bits(fromBits(0x3f818000)), 0x3f82u);
  EXPECT_EQ(f32ToBF16Bits(fromBits(0x3f808001)), 0x3f81u);
  EXPECT_EQ(f32ToBF16Bits(fromBits(0x7f7f8000)), 0x7f80u);
  EXPECT_EQ(f32ToBF16Bits(fromBits(0x7f800001)), 0x7fc0u);
  EXPECT_EQ(f32ToBF16Bits(fromBits(0xffffffff)), 0xffffu);
  EXPECT_EQ(bf16BitsToF32(0xbf80u), -1.0f);
}

TEST(Codec, Fp8) {
  for (Element e : {Element::E4M3, Element::E5M2})
    for (int c = 0; c < 256; ++c) {
      float x = fromFp8(e, static_cast<uint8_t>(c));
      if (std::isfinite(x)) {
        EXPECT_EQ(toFp8(e, x), c) << nameOf(e);
      }
      // Halfway to the next one goes to the even code.
      float y = fromFp8(e, static_cast<uint8_t>(c + 1));
      if (std::isfinite(x) && std::isfinite(y) && (c & 0x7f) != 0x7f) {
        EXPECT_EQ(toFp8(e, (x + y) / 2), c & 1 ? c + 1 : c) << nameOf(e);
      }
    }
  // Saturation with a static scale of 1.
  std::vector<uint8_t> got;
  for (float x : {448.f, 464.f, 465.f, 1000.f, -1000.f, HUGE_VALF, -HUGE_VALF,
                  std::nanf("")})
    got.push_back(toFp8(Element::E4M3, x));
  EXPECT_THAT(got, ElementsAre(0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7e, 0xfe, 0x7f));
  EXPECT_EQ(fromFp8(Element::E5M2, 0x7b), 57344.0f);
}

TEST(Codec, Asymmetric) {
  std::vector<float> x = {10, 10.25f, 10.5f, 11};
  Quantized q = coded(x, {1, 1, 4}, "i4:sf32");
  EXPECT_THAT(q.codes, ElementsAre(0, 4, 7, 15));
  EXPECT_EQ(q.scale[0], 1.0f / 15);
  EXPECT_EQ(q.zero[0], 10.0f);
  // f16 scales: codes come from the stored ones.
  q = coded({-1, 0, 2}, {1, 1, 3}, "i8");
  EXPECT_EQ(q.scale[0], f16BitsToF32(f32ToF16Bits(3.0f / 255)));
  EXPECT_EQ(q.codes[2], std::min(255.0f, std::nearbyint(3.0f / q.scale[0])));
  EXPECT_EQ(decoded(q, {1, 1, 3}, "i8")[1],
            std::fma(float(q.codes[1]), q.scale[0], -1.0f));
}

TEST(Codec, Symmetric) {
  Quantized q = coded({-7, 3.5f, 1, 2.5f}, {1, 1, 4}, "i4:sym");
  EXPECT_EQ(q.scale[0], 1.0f);
  EXPECT_TRUE(q.zero.empty());
  EXPECT_THAT(q.codes, ElementsAre(0xf9, 4, 1, 2)); // half to even
  EXPECT_THAT(decoded(q, {1, 1, 4}, "i4:sym"), ElementsAre(-7, 4, 1, 2));
  q = coded({-1000, 300, 0, 2}, {1, 1, 4}, "i8:tensor:sym", 2.0f);
  EXPECT_THAT(q.codes, ElementsAre(0x81, 127, 0, 1));
  EXPECT_EQ(q.scales.count(), 1);
}

TEST(Codec, GroupsAndShapes) {
  std::vector<float> x(2 * 4 * 8);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = float(i * 37 % 64);
  ArrayShape s{2, 4, 8};
  Quantized q = coded(x, s, "i4:channel:g2:sf32");
  EXPECT_EQ(q.scales.rows, 2);
  EXPECT_EQ(q.scales.cols, 8);
  // Slice 1, tokens 2 and 3, channel 5.
  float a = x[32 + 2 * 8 + 5], b = x[32 + 3 * 8 + 5];
  EXPECT_EQ(q.zero[16 + 8 + 5], std::min(a, b));
  EXPECT_EQ(q.scale[16 + 8 + 5], std::fabs(a - b) / 15);
  q = coded(x, s, "i4:token:g4:sf32");
  EXPECT_EQ(q.scales.rows, 4);
  EXPECT_EQ(q.scales.cols, 2);
  EXPECT_EQ(q.zero[3], *std::min_element(&x[12], &x[16]));
  q = coded(x, s, "i8:head");
  EXPECT_EQ(q.scale.size(), 2u);
  q = coded(x, s, "bf16");
  EXPECT_EQ(q.codes.size(), 128u);
  EXPECT_EQ(decoded(q, s, "bf16"), x);
}

TEST(Codec, ConstantGroups) {
  for (const char *e :
       {"i8", "i4", "i2", "i1:token", "i8:sym", "i4:head:sym", "e4m3", "e5m2"})
    for (float v : {3.7f, 0.0f, -1e-30f}) {
      std::vector<float> x(32, v);
      auto y = decoded(coded(x, {1, 4, 8}, e), {1, 4, 8}, e);
      for (float got : y) {
        ASSERT_TRUE(std::isfinite(got)) << e;
        EXPECT_NEAR(got, v, 0.004f) << e;
        if (v == 0) {
          EXPECT_EQ(toBits(got) & 0x7fffffffu, 0u) << e;
        }
      }
    }
}

// Half of a step, for dims whose range must not secretly include 0.
TEST(Codec, RangeWithoutPhantomZeros) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> dist(10, 11);
  for (int64_t d : {80, 96, 112}) {
    std::vector<float> x(8 * d);
    for (float &v : x)
      v = dist(rng);
    auto y = decoded(coded(x, {1, 8, d}, "i4"), {1, 8, d}, "i4");
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_LE(std::fabs(x[i] - y[i]), 0.0375f);
  }
}

TEST(Codec, TwoLevels) {
  Quantized q = coded({-2, 5, 1, 2}, {1, 1, 4}, "i1:token");
  EXPECT_THAT(decoded(q, {1, 1, 4}, "i1:token"), ElementsAre(-2, 5, -2, 5));
}

TEST(Codec, LargestAccepted) {
  EXPECT_EQ(largestAccepted(enc("f16")), std::nextafter(65520.0f, 0.0f));
  EXPECT_EQ(largestAccepted(enc("f32")), 3.4028234663852886e38f);
  EXPECT_EQ(largestAccepted(enc("i8")), std::nextafter(65520.0f, 0.0f));
  EXPECT_EQ(largestAccepted(enc("i1:token")), std::nextafter(32760.0f, 0.0f));
  EXPECT_EQ(largestAccepted(enc("i8:tensor")), 3.4028234663852886e38f);
  EXPECT_EQ(largestAccepted(enc("i4:sf32")), 3.4028234663852886e38f / 2);
  float a = largestAccepted(enc("i8:sym"));
  EXPECT_TRUE(std::isfinite(fromAbsMax(enc("i8:sym"), a)));
  EXPECT_FALSE(
      std::isfinite(fromAbsMax(enc("i8:sym"), std::nextafter(a, HUGE_VALF))));
  for (const char *e : {"i8:sym:sbf16", "i4:sym:sbf16", "e4m3:sf32", "i8:sf32",
                        "i2:sbf16", "i8:sym:sf32"}) {
    float m = largestAccepted(enc(e));
    for (float y :
         decoded(coded({-m, m, m / 2, 0}, {1, 1, 4}, e), {1, 1, 4}, e))
      EXPECT_TRUE(std::isfinite(y)) << e;
  }
}

TEST(Codec, Refusals) {
  EXPECT_THAT(refusal(HUGE_VALF, "i8"),
              HasSubstr("element [0, 0, 0] is inf; 'i8' stores finite"));
  EXPECT_THAT(refusal(std::nanf(""), "f32"), HasSubstr("is nan"));
  EXPECT_THAT(refusal(70000, "i4"), HasSubstr("is 70000"));
  EXPECT_EQ(refusal(70000, "i4:sbf16"), "accepted");
  EXPECT_THAT(refusal(70000, "f16"), HasSubstr("up to 65520"));
  EXPECT_THAT(refusal(1, "i8:2of4"), HasSubstr("'2of4' in 'i8:2of4'"));
  EXPECT_THAT(refusal(1, "i8:g3"), HasSubstr("does not divide"));
  EXPECT_EQ(coded({}, {0, 4, 8}, "i8").codes.size(), 0u);
  EXPECT_EQ(coded({}, {2, 0, 8}, "i8:channel").scale.size(), 0u);
}
