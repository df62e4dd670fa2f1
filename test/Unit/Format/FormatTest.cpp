//===- FormatTest.cpp - Grammar of format strings -------------------------===//
//
// Labels in test names are those of docs/spec-formats.md.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Format/Format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache;
using testing::HasSubstr;

static Format parsed(std::string_view text) {
  auto f = Format::parse(text);
  if (auto *bad = errorOf(f)) {
    ADD_FAILURE() << text << ": " << bad->message;
    return {};
  }
  return std::get<Format>(f);
}

static std::string refusal(std::string_view text) {
  auto f = Format::parse(text);
  auto *bad = errorOf(f);
  return bad ? bad->message : "accepted: " + std::get<Format>(f).str();
}

TEST(Format, Defaults) {
  Format f = parsed("key=i4");
  EXPECT_EQ(f.page, 64);
  EXPECT_EQ(f.key, f.value);
  EXPECT_EQ(f.key.scale, ScaleKind::Token);
  EXPECT_TRUE(f.key.asymmetric);
  EXPECT_EQ(f.key.scaleType, ScaleType::F16);
  f = parsed("key=e4m3,value=bf16,page=16,sinks=20,recent=3");
  EXPECT_EQ(f.key.scale, ScaleKind::Head);
  EXPECT_FALSE(f.key.asymmetric);
  EXPECT_EQ(f.value.scale, ScaleKind::None);
  EXPECT_EQ(f.sinkPages(), 2);
  EXPECT_FALSE(parsed("key=i8:tensor").key.asymmetric);
}

TEST(Format, CanonicalText) {
  auto canonical = [](std::string_view t) { return parsed(t).str(); };
  EXPECT_EQ(canonical("key=i4:sf32:asym:g32:channel"),
            "key=i4:channel:g32:sf32");
  EXPECT_EQ(canonical("key=i8:channel:asym:sf16,value=i8:token,page=64"),
            "int8");
  EXPECT_EQ(canonical("key=f16,value=f16,sinks=0,recent=5"), "f16,recent=5");
  EXPECT_EQ(canonical("kivi4,sinks=4,page=128"), "kivi4,page=128,sinks=4");
  EXPECT_EQ(canonical("kivi4,key=i8:tensor:sym"), "kivi4,key=i8:tensor");
  EXPECT_EQ(canonical("kivi4,key=f16,value=f16"), "f16,recent=128");
  EXPECT_EQ(canonical("key=i4:channel:g32,value=i4:g32,recent=128"),
            "key=i4:channel:g32,value=i4:g32,recent=128");
  EXPECT_EQ(canonical("key=i1:channel:2of4:hadamard:center:sbf16"),
            "key=i1:channel:2of4:hadamard:center:sbf16");
}

TEST(Format, PrintingIsABijection) {
  std::vector<std::string> encodings;
  for (const char *e :
       {"f32", "f16", "bf16", "e4m3", "e5m2", "i8", "i4", "i2", "i1"})
    for (const char *k : {"", ":tensor", ":head", ":token", ":token:g8",
                          ":channel", ":channel:g16"})
      for (const char *z : {"", ":sym", ":asym"})
        for (const char *x : {"", ":2of4", ":hadamard:center"})
          for (const char *s : {"", ":sbf16", ":sf32"})
            encodings.push_back(std::string(e) + k + z + x + s);
  std::vector<std::string> legal;
  for (auto &e : encodings) {
    auto p = parseEncoding(e);
    if (errorOf(p))
      continue;
    legal.push_back(e);
    auto again = parseEncoding(std::get<Encoding>(p).str());
    ASSERT_FALSE(errorOf(again)) << e;
    EXPECT_EQ(std::get<Encoding>(p), std::get<Encoding>(again)) << e;
  }
  EXPECT_GT(legal.size(), 500u);
  unsigned i = 0;
  for (auto &e : legal) {
    std::string start =
        i % 3 ? "key=" + e
              : std::string(Format::presetNames()[i % 10]) + ",value=" + e;
    if (i % 3 == 1)
      start += ",value=" + legal[(i * 7) % legal.size()];
    start += ",page=" + std::to_string(16 << (i % 5)) +
             (i % 2 ? ",sinks=3" : ",recent=7");
    ++i;
    Format f = parsed(start);
    EXPECT_EQ(f, parsed(f.str())) << start << " -> " << f.str();
    EXPECT_EQ(f.str(), parsed(f.str()).str());
  }
}

TEST(Format, Presets) {
  for (std::string_view p : Format::presetNames())
    EXPECT_EQ(parsed(p).str(), p);
  Format k = parsed("kivi4");
  EXPECT_EQ(k.recent, 128);
  EXPECT_EQ(k.key.scale, ScaleKind::Channel);
  EXPECT_EQ(k.value.scale, ScaleKind::Token);
}

TEST(Format, PresetGroupsAdapt) {
  auto at = [](std::string_view t, int64_t d) {
    return std::get<Format>(resolve(parsed(t), d, d));
  };
  EXPECT_EQ(at("kivi4", 72).value.group, 24);
  EXPECT_EQ(at("kivi4", 80).value.group, 16);
  EXPECT_EQ(at("kivi4", 112).value.group, 16);
  EXPECT_EQ(at("kivi4", 128).value.group, 32);
  EXPECT_EQ(at("kivi4", 32).value.group, 0);
  EXPECT_EQ(at("kivi4,page=16", 128).key.group, 0);
  EXPECT_EQ(at("kivi4", 128).str(),
            "key=i4:channel:g32,value=i4:g32,recent=128");
  EXPECT_EQ(at("int8", 64).str(), "int8");
}

TEST(Format, Refusals_F1_to_F9) {
  EXPECT_THAT(refusal("key=f8"), HasSubstr("unknown element 'f8'; accepted"));
  EXPECT_THAT(refusal("key="), HasSubstr("unknown element ''"));
  EXPECT_THAT(refusal("key=i4:row"), HasSubstr("unknown part 'row'"));
  EXPECT_THAT(refusal("key=i4::sym"), HasSubstr("unknown part ''"));
  EXPECT_THAT(refusal("key=i4:token:head"), HasSubstr("second scale kind"));
  EXPECT_THAT(refusal("key=i4:2of4:2of4"), HasSubstr("given twice"));
  EXPECT_THAT(refusal("key=i4:g0"), HasSubstr("'g0' is not a number from 1"));
  EXPECT_THAT(refusal("key=i4:g99999999999"), HasSubstr("F4"));
  EXPECT_THAT(refusal("key=f16:token"), HasSubstr("element f16 is stored"));
  EXPECT_THAT(refusal("key=f32:sf16"), HasSubstr("F5"));
  EXPECT_THAT(refusal("key=i8:head:g4"), HasSubstr("g4 with a head scale"));
  EXPECT_THAT(refusal("key=e4m3:asym"), HasSubstr("e4m3 has no zero point"));
  EXPECT_THAT(refusal("key=i1:sym"), HasSubstr("F8"));
  EXPECT_THAT(refusal("key=i8:tensor:asym"), HasSubstr("F9"));
  EXPECT_THAT(refusal("key=i1:tensor"), HasSubstr("F9"));
}

TEST(Format, Refusals_F10_to_F14) {
  EXPECT_THAT(refusal(""), HasSubstr("'' is not a preset; accepted: f16"));
  EXPECT_THAT(refusal("kivi3"), HasSubstr("'kivi3' is not a preset"));
  EXPECT_THAT(refusal("kivi4,int8"), HasSubstr("not an override"));
  EXPECT_THAT(refusal("page=64"), HasSubstr("names a preset or its key="));
  EXPECT_THAT(refusal("f16,pages=3"), HasSubstr("unknown item 'pages'"));
  EXPECT_THAT(refusal("f16,page=3,page=4"), HasSubstr("page= is given twice"));
  EXPECT_THAT(refusal("f16,sinks=-1"), HasSubstr("sinks='-1' is not a number"));
  EXPECT_THAT(refusal("f16,"), HasSubstr("''"));
  EXPECT_THAT(refusal("f16,page=0"), HasSubstr("page=0 is not a power of two"));
  EXPECT_THAT(refusal("f16,page=48"), HasSubstr("F11"));
  EXPECT_THAT(refusal("f16,page=512"), HasSubstr("F11"));
  EXPECT_THAT(refusal("key=i4:channel:g24"),
              HasSubstr("does not divide the page of 64 tokens; these do: g1 "
                        "g2 g4 g8 g16 g32 g64"));
  EXPECT_THAT(refusal("key=i4:channel:g128"), HasSubstr("F12"));
  EXPECT_THAT(refusal("f16,value=f16:2of4,page=2"), HasSubstr("F13"));
  auto g = resolve(parsed("key=i4:g48"), 64, 64);
  EXPECT_THAT(errorOf(g)->message, HasSubstr("divide the 64 channels"));
  auto d = resolve(parsed("f16"), 60, 64);
  EXPECT_THAT(errorOf(d)->message, HasSubstr("head dim 60 is not a multiple"));
  d = resolve(parsed("f16"), 64, 2048);
  EXPECT_THAT(errorOf(d)->message, HasSubstr("value dim 2048"));
}

TEST(Format, ShapesAndBytes) {
  auto f = std::get<Format>(resolve(parsed("kivi4"), 128, 128));
  EXPECT_EQ(scaleShape(f.key, 64, 128).rows, 2);
  EXPECT_EQ(scaleShape(f.key, 64, 128).cols, 128);
  EXPECT_EQ(scaleShape(f.value, 64, 128).rows, 64);
  EXPECT_EQ(scaleShape(f.value, 64, 128).cols, 4);
  // 64 bytes of codes and 2 * 2 * 128 / 32 of scales and zeros.
  EXPECT_DOUBLE_EQ(bytesPerToken(f.key, 64, 128), 64 + 16);
  EXPECT_DOUBLE_EQ(bytesPerToken(f.value, 64, 128), 64 + 16);
  f = std::get<Format>(resolve(parsed("sparse24"), 128, 128));
  EXPECT_DOUBLE_EQ(bytesPerToken(f.key, 64, 128), 128 + 16);
  EXPECT_THAT(describe(parsed("kivi4")), HasSubstr("= 160 (f16: 512, ratio "
                                                   "3.20)"));
}
