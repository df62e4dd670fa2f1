//===- AttendCpuTest.cpp - CPU kernels against float64 attention ----------===//

#include "CpuHarness.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace kvcache;
using namespace kvcache::test;

namespace {

struct Case {
  const char *format;
  int64_t qHeads = 8, kvHeads = 2, d = 64, v = 0;
  Element dtype = Element::F16;
  std::optional<int64_t> left = std::nullopt;
  std::optional<double> softcap = std::nullopt;
  bool alibi = false, causal = true;
  std::vector<int64_t> lengths = {0, 1, 70, 333};
  std::vector<int64_t> qLens = {1, 1, 3, 2};
};

KernelSpec specOf(const Case &c) {
  KernelSpec spec;
  spec.qHeads = c.qHeads;
  spec.kvHeads = c.kvHeads;
  spec.headDim = c.d;
  spec.valueDim = c.v ? c.v : c.d;
  spec.dtype = c.dtype;
  auto format = Format::parse(c.format);
  if (auto *error = std::get_if<FormatError>(&format))
    ADD_FAILURE() << error->message;
  else
    spec.format = std::get<Format>(format);
  spec.windowLeft = c.left;
  spec.softcap = c.softcap;
  spec.alibi = c.alibi;
  spec.causal = c.causal;
  if (auto error = spec.verify())
    ADD_FAILURE() << c.format << ": " << error->message;
  return spec;
}

/// interface.md's bounds: relative error per sequence, LSE.
std::pair<double, double> boundsOf(const KernelSpec &spec) {
  auto has = [&](Element e) {
    return spec.dtype == e || spec.format.key.element == e ||
           spec.format.value.element == e;
  };
  if (spec.dtype == Element::F32 && spec.format.key.element == Element::F32 &&
      spec.format.value.element == Element::F32)
    return {1e-5, 1e-5};
  if (has(Element::BF16))
    return {1.5e-2, 1e-2};
  return {2e-3, 1e-3};
}

void check(const Case &c, CpuTier tier, const std::string &schedule = "") {
  KernelSpec spec = specOf(c);
  SCOPED_TRACE(spec.str() + " tier " + std::string(nameOf(tier)));
  CompiledKernel kernel = compileKernel(spec, tier, schedule);
  ASSERT_EQ(kernel.error, "");
  RandomCache cache(spec, c.lengths, c.qLens, 1);
  Result want = cache.reference();
  cache.poison();
  Result got = cache.run(kernel);
  auto [relative, lse] = boundsOf(spec);
  int64_t row = 0;
  for (std::size_t s = 0; s < c.qLens.size(); ++s) {
    int64_t rows = c.qLens[s], first = row * spec.qHeads * spec.valueDim;
    EXPECT_LE(relativeError(&got.out[std::size_t(first)],
                            &want.out[std::size_t(first)],
                            rows * spec.qHeads * spec.valueDim),
              relative)
        << "sequence " << s;
    for (int64_t i = row * spec.qHeads; i < (row + rows) * spec.qHeads; ++i) {
      float a = got.lse[std::size_t(i)], b = want.lse[std::size_t(i)];
      if (std::isinf(b))
        ASSERT_EQ(a, b) << "lse " << i;
      else
        ASSERT_LE(std::abs(a - b), lse * std::max(1.0f, std::abs(b)))
            << "lse " << i << ": " << a << " " << b;
    }
    // Alone: the same bits.
    Result alone = cache.runSequence(kernel, int64_t(s));
    for (int64_t i = 0; i < rows * spec.qHeads * spec.valueDim; ++i)
      ASSERT_EQ(alone.out[std::size_t(i)], got.out[std::size_t(first + i)]);
    row += rows;
  }
}

bool runs(CpuTier tier) { return uint8_t(tier) <= uint8_t(x86::detectTier()); }

class Tiers : public testing::TestWithParam<CpuTier> {
protected:
  void SetUp() override {
    if (!runs(GetParam()))
      GTEST_SKIP() << "this machine lacks " << nameOf(GetParam());
  }
};

TEST_P(Tiers, Presets) {
  for (const char *format : {"f16", "bf16", "int8", "kivi4", "kivi4,sinks=4"})
    check({format}, GetParam());
  check({"key=f32", 4, 1, 64, 0, Element::F32}, GetParam());
}

TEST_P(Tiers, ScaleKinds) {
  const char *formats[] = {
      "key=i8:channel:g16,value=i8:token:g16,page=32",
      "key=i8:channel:g1:sym,value=i8:channel:g1,page=16",
      "key=i4:channel:g8,value=i4:channel:g2:sym,page=16",
      "key=i4:token:g8:sf32,value=i4:token:g8:sbf16,page=32",
      "key=i8:token:g2,value=i8:token:g4:sym,page=16",
      "key=i4:head,value=i8:head:sym,page=128",
      "key=i8:tensor:sym,value=i4:tensor:sym",
      "key=i8:token:sym,value=f16,page=256",
      "key=bf16,value=i4:channel:g64:sf32",
      "key=f32,value=i8:token:g32"};
  for (const char *format : formats)
    check({format}, GetParam());
}

TEST_P(Tiers, PageSizes) {
  std::vector<int64_t> pages = {1, 2, 4, 8, 16, 256};
  if (GetParam() != CpuTier::AVX512)
    pages = {1, 8}; // what depends on the page alone is the same code
  for (int64_t page : pages)
    for (const char *format :
         {"key=i8:channel,value=i4:token,page=",
          "key=i4:token,value=i8:channel,page=", "key=f16,value=f16,page="})
      check({(format + std::to_string(page)).c_str()}, GetParam());
}

TEST_P(Tiers, Dims) {
  std::vector<int64_t> dims = {8, 72, 80, 96, 112, 192, 256};
  if (GetParam() != CpuTier::AVX512)
    dims = {8, 80};
  for (int64_t d : dims)
    for (const char *format : {"f16", "int8", "kivi4"})
      check({format, 6, 2, d}, GetParam());
  check({"kivi4", 6, 2, 192, 128}, GetParam());
  check({"int8", 6, 2, 72, 40}, GetParam());
}

TEST_P(Tiers, Groups) {
  std::vector<int64_t> groups = {1, 3, 5, 7, 16, 34};
  if (GetParam() != CpuTier::AVX512)
    groups = {3, 16};
  for (int64_t q : groups)
    for (const char *format : {"f16", "int8", "kivi4"})
      check(
          {format, q, 1, 64, 0, Element::BF16, {}, {}, false, true, {100}, {1}},
          GetParam());
}

TEST_P(Tiers, Masks) {
  for (const char *format :
       {"key=f16,page=16,recent=20,sinks=17", "kivi4,page=32,recent=5"}) {
    Case c{format};
    c.left = 40;
    check(c, GetParam());
    c.left = 0;
    c.softcap = 3.0;
    check(c, GetParam());
    c.left.reset();
    c.alibi = true;
    check(c, GetParam());
    c.causal = false;
    check(c, GetParam());
  }
  // More queries than tokens.
  Case c{"f16", 4, 2};
  c.lengths = {2, 0};
  c.qLens = {4, 2};
  check(c, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, Tiers, testing::Values(CpuTier::V2, CpuTier::AVX2, CpuTier::AVX512),
    [](const auto &info) { return std::string(nameOf(info.param)); });

} // namespace
