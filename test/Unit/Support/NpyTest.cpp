//===- NpyTest.cpp - Reading and writing .npy -----------------------------===//
#include "kvcache/Support/Npy.h"

#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache;
using testing::HasSubstr;

static std::vector<std::byte> file(std::string header, std::string data,
                                   char version = 1) {
  header += '\n';
  std::string text = "\x93NUMPY";
  text += version;
  text += '\0';
  size_t n = header.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
    text += static_cast<char>(n >> 8 * i);
  text += header + data;
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

static std::string error(std::string header, std::string data = "") {
  auto r = parseNpy(file(std::move(header), std::move(data)));
  auto *e = std::get_if<NpyError>(&r);
  return e ? e->message : "";
}

TEST(Npy, RoundTripsEveryRank) {
  for (size_t rank : {0, 1, 2, 3, 5}) {
    NpyArray a;
    a.type = {NpyType::Int, 2};
    for (size_t i = 0; i < rank; ++i)
      a.shape.push_back(i + 1);
    a.data.resize(a.elements() * 2, std::byte{7});
    auto r = parseNpy(formatNpy(a));
    ASSERT_TRUE(std::holds_alternative<NpyArray>(r))
        << std::get<NpyError>(r).message;
    EXPECT_EQ(std::get<NpyArray>(r).shape, a.shape);
    EXPECT_EQ(std::get<NpyArray>(r).data, a.data);
    EXPECT_EQ(formatNpy(a).size() % 64, a.data.size() % 64);
  }
}

TEST(Npy, ReadsVersionsAndFortranOrder) {
  std::string data("\0\1\2\3\4\5", 6);
  for (char version : {1, 2, 3}) {
    auto r = parseNpy(
        file("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", data,
             version));
    ASSERT_TRUE(std::holds_alternative<NpyArray>(r));
    auto &a = std::get<NpyArray>(r);
    EXPECT_EQ(std::memcmp(a.data.data(), "\0\2\4\1\3\5", 6), 0);
    EXPECT_EQ(a.str(), "uint8 [2, 3]");
  }
}

TEST(Npy, RefusesWithReason) {
  auto header = [](std::string descr, std::string shape) {
    return "{'descr': '" + descr +
           "', 'fortran_order': False, 'shape': " + shape + ", }";
  };
  EXPECT_THAT(error(header(">f4", "(1,)"), "abcd"), HasSubstr("big-endian"));
  EXPECT_THAT(error(header("<c8", "(1,)")), HasSubstr("'<c8'"));
  EXPECT_THAT(error(header("<f16", "(1,)")), HasSubstr("2, 4 or 8 bytes"));
  EXPECT_THAT(error(header("<f4", "(1)")), HasSubstr("needs a comma"));
  EXPECT_THAT(error(header("<f4", "(-1,)")), HasSubstr("non-negative"));
  EXPECT_THAT(error(header("<f4", "(2,)"), "abcd"),
              HasSubstr("needs 8 bytes of data, the file holds 4"));
  EXPECT_THAT(error(header("<f4", "(99999999999999999999,)")),
              HasSubstr("64 bits"));
  EXPECT_THAT(error(header("<f4", "(4294967296, 4294967296, 0)")),
              HasSubstr("too large"));
  EXPECT_THAT(error("{'descr': '<f4', 'shape': (), }"),
              HasSubstr("must all be given"));
  EXPECT_THAT(error("{'descr': [('a', '<f4')], 'fortran_order': False}"),
              HasSubstr("structured"));
  EXPECT_THAT(error("{'descr': '<f4', 'descr': '<f4'}"), HasSubstr("twice"));
  EXPECT_THAT(error("{'x': 1}"), HasSubstr("unknown key 'x'"));
  auto r = parseNpy({});
  EXPECT_THAT(std::get<NpyError>(r).message, HasSubstr("not a .npy"));
}

TEST(Npy, TruncationAtEveryByteIsAnError) {
  NpyArray a{{NpyType::Float, 4}, {3, 2}, std::vector<std::byte>(24)};
  auto bytes = formatNpy(a);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_TRUE(
        std::holds_alternative<NpyError>(parseNpy(std::span(bytes).first(n))));
}
