//===- DenseBooleansTest.cpp - Constants of i1 between versions of MLIR ---===//
#include "kvcache/Support/DenseBooleans.h"

#include <gtest/gtest.h>

using namespace kvcache;

static std::string constant(const std::string &hex, const std::string &type) {
  return "%0 = c dense<\"0x" + hex + "\"> : tensor<" + type + "> loc(#l)\n";
}

TEST(DenseBooleans, BytesBecomeBitsAndBack) {
  std::string bytes = constant("01000001000000000101", "2x5xi1");
  std::string bits = constant("0903", "2x5xi1");
  EXPECT_EQ(convertBooleans(bytes, Booleans::Bits), bits);
  EXPECT_EQ(convertBooleans(bits, Booleans::Bytes), bytes);
}

TEST(DenseBooleans, WhatIsInTheWantedFormStays) {
  std::string bits = constant("0903", "2x5xi1");
  EXPECT_EQ(convertBooleans(bits, Booleans::Bits), bits);
}

TEST(DenseBooleans, EverythingElseStays) {
  for (const std::string &text :
       {constant("01000001", "4xi8"), constant("0100", "?xi1"),
        constant("01zz", "2xi1"), constant("010001", "2xi1"),
        std::string("dense<\"0x01"), std::string("dense<true> : tensor<9xi1>"),
        constant("01", "99999999999999999999xi1"), std::string()})
    EXPECT_EQ(convertBooleans(text, Booleans::Bits), text);
}

TEST(DenseBooleans, EachOfSeveral) {
  std::string text = constant("0100", "2xi1") + constant("0001", "2xi1");
  EXPECT_EQ(convertBooleans(text, Booleans::Bits),
            constant("01", "2xi1") + constant("02", "2xi1"));
}
