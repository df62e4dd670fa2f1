//===- KernelSpecTest.cpp - What determines a kernel ----------------------===//
#include "kvcache/Kernel/KernelSpec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

using namespace kvcache;
using testing::HasSubstr;

static KernelSpec base() {
  KernelSpec s;
  s.qHeads = 32;
  s.kvHeads = 8;
  s.headDim = 128;
  s.format = std::get<Format>(Format::parse("kivi4"));
  return s;
}

static std::string refusal(KernelSpec s) {
  auto bad = s.verify();
  return bad ? bad->message : "accepted";
}

TEST(KernelSpec, ResolvesAndPrints) {
  KernelSpec s = base();
  s.windowLeft = 3;
  s.scale = 0.125;
  ASSERT_FALSE(s.verify());
  EXPECT_EQ(s.valueDim, 128);
  EXPECT_EQ(s.group(), 4);
  EXPECT_EQ(s.str(), "q_heads=32 kv_heads=8 head_dim=128 value_dim=128 "
                     "dtype=f16 causal window=3:none softcap=none no-alibi "
                     "scale=0.125 "
                     "format=key=i4:channel:g32,value=i4:g32,recent=128");
}

TEST(KernelSpec, RefusesWithBothNumbers) {
  KernelSpec s = base();
  s.qHeads = 3, s.kvHeads = 2;
  EXPECT_THAT(refusal(s),
              HasSubstr("3 query heads cannot share 2 key/value heads"));
  s = base(), s.kvHeads = 0;
  EXPECT_THAT(refusal(s), HasSubstr("at least 1"));
  s = base(), s.headDim = 100;
  EXPECT_THAT(refusal(s), HasSubstr("head dim 100 is not a multiple of 8"));
  s = base(), s.dtype = Element::I8;
  EXPECT_THAT(refusal(s), HasSubstr("model dtype i8; accepted: f32 f16 bf16"));
  s = base(), s.windowLeft = -1;
  EXPECT_THAT(refusal(s), HasSubstr("left side is -1"));
  s = base(), s.softcap = 0.0;
  EXPECT_THAT(refusal(s), HasSubstr("softcap 0"));
  s = base(), s.scale = std::nan("");
  EXPECT_THAT(refusal(s), HasSubstr("softmax scale nan"));
  s = base(), s.format.page = 48;
  EXPECT_THAT(refusal(s), HasSubstr("page=48"));
}
