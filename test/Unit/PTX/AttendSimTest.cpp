//===- AttendSimTest.cpp - Emitted PTX, run and compared ------------------===//
//
// Compiles attend, runs the PTX text in the simulator with every check on, and
// compares with f64 attention over the decoded cache, within the bounds that a
// fused kernel must meet.
//
//===----------------------------------------------------------------------===//
#include "CacheModel.h"
#include "kvcache/Compiler/GpuCompiler.h"
#include "kvcache/Support/Npy.h"
#include "kvcache/sim.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

using namespace kvcache;
using namespace kvcache::test;

namespace {
struct Case {
  const char *format;
  int64_t qHeads = 4, kvHeads = 1, headDim = 64, valueDim = 0;
  Element dtype = Element::F16;
  std::vector<int32_t> lengths = {200};
  int64_t window = 0;
  double softcap = 0;
  bool alibi = false;
  const char *schedule = "";
  const char *target = "sm_80";
};

struct Output {
  std::vector<uint16_t> out;
  std::vector<float> lse;
  std::vector<int32_t> counters;
};
} // namespace

static KernelSpec specOf(const Case &c) {
  KernelSpec spec;
  spec.qHeads = c.qHeads, spec.kvHeads = c.kvHeads;
  spec.headDim = c.headDim;
  spec.valueDim = c.valueDim ? c.valueDim : c.headDim;
  spec.dtype = c.dtype;
  spec.format = std::get<Format>(Format::parse(c.format));
  if (c.window)
    spec.windowLeft = c.window - 1;
  if (c.softcap)
    spec.softcap = c.softcap;
  spec.alibi = c.alibi;
  return spec;
}

template <typename T>
static sim::Buffer bufferOf(std::vector<T> &v, const char *name,
                            bool initialised = true) {
  return {v.data(), v.size() * sizeof(T), initialised, false, name};
}

/// One launch over all rows of the model.
static Output run(const GpuKernel &kernel, CacheModel &model,
                  bool flushSubnormals = false) {
  const KernelSpec &spec = model.spec;
  int64_t chunks = (spec.group() + kernel.qPack - 1) / kernel.qPack;
  int64_t items = model.rows() * spec.kvHeads * chunks;
  int64_t partials = model.rows() * spec.qHeads * model.maxSplits *
                     kvcache_partial_floats(spec.valueDim);
  Output result;
  result.out.resize(model.rows() * spec.qHeads * spec.valueDim);
  result.lse.resize(model.rows() * spec.qHeads);
  std::vector<int32_t> workspace(partials + items, 0);
  std::vector<sim::Buffer> buffers = {
      bufferOf(model.query, "q"),
      bufferOf(model.rowSequence, "row_seq"),
      bufferOf(model.queryEnds, "q_indptr"),
      bufferOf(model.sealedTable, "sealed_table"),
      bufferOf(model.openTable, "open_table"),
      bufferOf(model.sealedPages, "sealed_pages"),
      bufferOf(model.lengths, "lengths"),
      bufferOf(model.sealedPool, "sealed_pool"),
      bufferOf(model.openPool, "open_pool"),
      bufferOf(model.slopes, "slopes"),
      bufferOf(result.out, "out", false),
      bufferOf(result.lse, "lse", false),
      bufferOf(workspace, "workspace")};
  auto p = [](size_t i) { return sim::Arg::pointer(i); };
  auto n = [](int64_t v) { return sim::Arg::value<int64_t>(v); };
  std::vector<sim::Arg> args = {p(0),
                                p(1),
                                p(2),
                                p(3),
                                p(4),
                                n(model.tableStride),
                                n(0),
                                p(5),
                                p(6),
                                p(7),
                                p(8),
                                n(0),
                                n(0),
                                n(0),
                                p(9),
                                p(10),
                                p(11),
                                p(12),
                                n(0),
                                n(model.rows()),
                                n(model.maxSplits),
                                n(0),
                                n(items * model.maxSplits)};
  auto module = sim::Module::parse(kernel.ptx, "attend.ptx");
  sim::Launch launch;
  launch.entry = "attend";
  launch.grid = {items * model.maxSplits, 1, 1};
  launch.block = {kernel.launches[0].block, 1, 1};
  launch.flushSubnormals = flushSubnormals;
  sim::Result ran = sim::runKernel(*module, launch, buffers, args);
  if (ran.violation)
    ADD_FAILURE() << ran.violation->kind << ": " << ran.violation->message;
  result.counters.assign(workspace.begin() + partials, workspace.end());
  return result;
}

static void compare(const CacheModel &model, const Output &output) {
  const KernelSpec &spec = model.spec;
  bool bf16 = spec.dtype == Element::BF16 ||
              spec.format.key.element == Element::BF16 ||
              spec.format.value.element == Element::BF16;
  double bound = bf16 ? 1.5e-2 : 2e-3, lseBound = bf16 ? 1e-2 : 1e-3;
  for (int64_t row = 0; row < model.rows(); ++row) {
    double error = 0, norm = 0, worstLse = 0;
    for (int64_t h = 0; h < spec.qHeads; ++h) {
      auto expected = model.answer(row, h);
      int64_t at = row * spec.qHeads + h;
      for (int64_t c = 0; c < spec.valueDim; ++c) {
        double x = fromBits16(spec.dtype, output.out[at * spec.valueDim + c]);
        error += (x - expected.out[c]) * (x - expected.out[c]);
        norm += expected.out[c] * expected.out[c];
      }
      double lse = output.lse[at];
      if (std::isinf(expected.lse))
        EXPECT_EQ(lse, expected.lse) << "row " << row << " head " << h;
      else
        worstLse =
            std::max(worstLse, std::abs(lse - expected.lse) /
                                   std::max(1.0, std::abs(expected.lse)));
    }
    EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm) + 1e-30)
        << "row " << row << " length " << model.lengths[row];
    EXPECT_LE(worstLse, lseBound)
        << "row " << row << " length " << model.lengths[row];
    if (std::getenv("KVCACHE_VERBOSE"))
      std::printf("  length %d: out %.2e lse %.2e\n", model.lengths[row],
                  norm > 0 ? std::sqrt(error / norm) : 0.0, worstLse);
  }
  for (int32_t counter : output.counters)
    EXPECT_EQ(counter, 0);
}

static void check(const Case &c, uint32_t seed = 1) {
  SCOPED_TRACE(c.format);
  const TargetInfo &target =
      *std::get<const TargetInfo *>(findTarget(c.target));
  auto result = compileForGpu(specOf(c), target, c.schedule);
  if (auto *bad = errorOf(result)) {
    ADD_FAILURE() << bad->message;
    return;
  }
  const GpuKernel &kernel = std::get<GpuKernel>(result);
  CacheModel model(specOf(c), c.lengths, seed, kernel.splitTokens);
  try {
    compare(model, run(kernel, model));
  } catch (const sim::Error &error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(AttendSim, Presets) {
  check({.format = "f16", .lengths = {100, 64, 1}});
  check({.format = "int8", .lengths = {100, 64, 1}});
  check({.format = "kivi4", .lengths = {200, 129, 260}});
  check({.format = "bf16", .dtype = Element::BF16, .lengths = {100}});
}

TEST(AttendSim, HeadsAndDims) {
  check({.format = "kivi4,recent=0", .qHeads = 8, .headDim = 128});
  check({.format = "kivi4,recent=0",
         .qHeads = 14,
         .kvHeads = 2,
         .headDim = 80,
         .valueDim = 48});
  check({.format = "int8", .qHeads = 12, .headDim = 112, .valueDim = 96});
  check({.format = "f16", .qHeads = 16, .headDim = 48, .valueDim = 256});
  check({.format = "kivi4,recent=0", .qHeads = 1, .headDim = 256});
}

TEST(AttendSim, Encodings) {
  for (const char *format :
       {"key=i4:channel:g32:sym,value=i4:token:g16:sym",
        "key=i8:channel:g16:sbf16,value=i8:token:g32:sf32",
        "key=i4:channel:g32:sf32,value=i4:token:g32:sbf16",
        "key=i8:channel:sym,value=i8:token:sym",
        "key=i4:channel:g8,value=i4:token:g8",
        "key=i8:channel:g1:sf32,value=i8:token:g4:sbf16",
        "key=i4:channel:g2:sym,value=i4:token:g1:sym",
        "key=f16,value=i4:token:g64", "key=i4:channel:g16,value=f16",
        "key=bf16,value=i8:token", "key=i8:channel,value=bf16"})
    check({.format = format, .lengths = {130}});
}

TEST(AttendSim, Pages) {
  check({.format = "kivi4,recent=20,page=16", .lengths = {90}});
  check({.format = "kivi4,recent=20,page=32,sinks=40", .lengths = {300}});
  check({.format = "int8,page=128", .lengths = {300}});
  check(
      {.format = "kivi4,recent=0,page=128", .headDim = 128, .lengths = {400}});
}

TEST(AttendSim, MasksAndScores) {
  check({.format = "kivi4", .lengths = {300, 5}, .window = 100});
  check({.format = "int8", .lengths = {300}, .softcap = 2.0});
  check({.format = "f16", .qHeads = 6, .lengths = {150}, .alibi = true});
  check({.format = "kivi4,recent=0", .lengths = {0, 70, 0}});
}

TEST(AttendSim, Models) {
  check({.format = "kivi4,recent=0", .dtype = Element::BF16});
  check({.format = "f16", .dtype = Element::BF16});
  check({.format = "bf16"});
  check({.format = "kivi4,recent=0", .schedule = "subnormal_codes=false"});
  check({.format = "key=i8:channel:sym,value=i8:token:sym",
         .schedule = "subnormal_codes=false"});
  check({.format = "kivi4,recent=0", .schedule = "warps=1,tile_tokens=16"});
  check({.format = "kivi4,recent=0",
         .schedule = "split_tokens=64",
         .target = "sm_90"});
}

TEST(AttendSim, ManySplits) {
  check({.format = "kivi4", .lengths = {1500, 700}});
}

static GpuKernel compiled(const Case &c) {
  return std::get<GpuKernel>(compileForGpu(
      specOf(c), *std::get<const TargetInfo *>(findTarget(c.target)), ""));
}

// Bytes that no token owns never reach the result.
TEST(AttendSim, PoisonDoesNotMatter) {
  for (const char *format : {"f16", "kivi4,recent=0"}) {
    Case c{.format = format, .lengths = {77, 13}};
    GpuKernel kernel = compiled(c);
    std::vector<Output> outputs;
    for (uint16_t poison : {0x7e00, 0x7c00, 0x0000}) {
      CacheModel model(specOf(c), c.lengths, 5, 0, poison);
      outputs.push_back(run(kernel, model));
    }
    EXPECT_EQ(outputs[0].out, outputs[1].out);
    EXPECT_EQ(outputs[0].out, outputs[2].out);
    EXPECT_EQ(outputs[0].lse, outputs[2].lse);
  }
}

// Pages before the window, and their table entries, are not touched.
TEST(AttendSim, OldPagesAreNotRead) {
  Case c{.format = "kivi4,recent=40,page=16", .lengths = {300}, .window = 50};
  CacheModel model(specOf(c), c.lengths, 5);
  for (int64_t p = 0; p < (300 - 50) / 16; ++p)
    model.sealedTable[p] = model.openTable[p] = p % 2 ? -1 : 1 << 30;
  compare(model, run(compiled(c), model));
}

/// One head whose queries, keys and values are given; all pages open.
static Output runPlain(KernelSpec spec, std::vector<float> query,
                       const std::vector<std::vector<float>> &keys,
                       const std::vector<float> &values) {
  auto kernel = std::get<GpuKernel>(compileForGpu(
      spec, *std::get<const TargetInfo *>(findTarget("sm_80")), ""));
  CacheModel model(spec, {int32_t(keys.size())}, 1);
  for (int64_t c = 0; c < spec.headDim; ++c)
    model.query[c] = toBits16(spec.dtype, query[c]);
  auto *record = reinterpret_cast<uint16_t *>(
      model.openPool.data() + model.openTable[0] * kernel.openRecordBytes);
  for (size_t j = 0; j < keys.size(); ++j) {
    for (int64_t c = 0; c < spec.headDim; ++c)
      record[j * spec.headDim + c] = toBits16(spec.dtype, keys[j][c]);
    for (int64_t c = 0; c < spec.valueDim; ++c)
      record[spec.format.page * spec.headDim + j * spec.valueDim + c] =
          toBits16(spec.dtype, values[j]);
  }
  return run(kernel, model);
}

static KernelSpec oneHead(Element dtype, int64_t d) {
  return specOf({.format = dtype == Element::F16 ? "f16" : "bf16",
                 .qHeads = 1,
                 .headDim = d,
                 .dtype = dtype});
}

// Scores far beyond the 16-bit floats (cases C06, C55) and known sums (C57).
TEST(AttendSim, LargeAndKnownScores) {
  KernelSpec spec = oneHead(Element::F16, 128);
  std::vector<float> all32(128, 32.0f), second = all32;
  second[5] = 31.984375f;
  Output big = runPlain(spec, all32, {all32, second}, {1, 0});
  EXPECT_NEAR(fromBits16(Element::F16, big.out[0]), 0.511047, 1e-3);

  spec = oneHead(Element::BF16, 64);
  spec.scale = 1.0;
  Output low = runPlain(spec, std::vector<float>(64, 64.0f),
                        {std::vector<float>(64, -64.0f)}, {7});
  EXPECT_EQ(fromBits16(Element::BF16, low.out[0]), 7.0f);
  EXPECT_EQ(low.lse[0], -262144.0f);

  spec = oneHead(Element::F16, 64);
  std::vector<float> zero(64, 0.0f);
  Output even =
      runPlain(spec, zero, std::vector(8, zero), {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_NEAR(even.lse[0], 2.079442, 1e-5);
  EXPECT_EQ(fromBits16(Element::F16, even.out[0]), 3.5f);
  spec.windowLeft = 3;
  Output window =
      runPlain(spec, zero, std::vector(8, zero), {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(fromBits16(Element::F16, window.out[0]), 5.5f);
}

// A sequence's result is bitwise the same alone and in any batch.
TEST(AttendSim, BatchDoesNotMatter) {
  Case c{.format = "kivi4,recent=0,sinks=10", .lengths = {700}};
  GpuKernel kernel = compiled(c);
  CacheModel alone(specOf(c), {700}, 7), again(specOf(c), {700}, 7);
  Output first = run(kernel, alone);
  // The same tokens in a launch that has room for a longer neighbour.
  again.maxSplits += 3;
  Output second = run(kernel, again);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
}

/// An f16 array of the shipped capture.
static std::vector<uint16_t> capture(const char *name) {
  auto read = readNpy(std::string(KVCACHE_CAPTURE) + "/" + name);
  if (auto *bad = std::get_if<NpyError>(&read)) {
    ADD_FAILURE() << bad->message;
    return {};
  }
  const NpyArray &array = std::get<NpyArray>(read);
  std::vector<uint16_t> bits(array.elements());
  std::memcpy(bits.data(), array.data.data(), array.data.size());
  return bits;
}

// Real keys, values and queries: three prefixes of one text.
TEST(AttendSim, RealCapture) {
  std::vector<uint16_t> k = capture("k.npy"), v = capture("v.npy"),
                        q = capture("q.npy");
  ASSERT_FALSE(k.empty() || v.empty() || q.empty());
  std::vector<int32_t> lengths = {993, 1008, 1024};
  Contents contents;
  contents.element = [&](bool isValue, int64_t, int64_t h, int64_t t,
                         int64_t c) {
    return fromBits16(Element::F16, (isValue ? v : k)[(t * 3 + h) * 64 + c]);
  };
  for (int32_t n : lengths) // queries are those of positions 992..1023
    contents.query.insert(contents.query.end(),
                          q.begin() + (n - 1 - 992) * 9 * 64,
                          q.begin() + (n - 992) * 9 * 64);
  for (const char *format : {"f16", "int8", "kivi4", "kivi4,recent=0",
                             "key=i4:channel:g32:sym,value=i4:token:g32:sym"}) {
    SCOPED_TRACE(format);
    Case c{.format = format, .qHeads = 9, .kvHeads = 3, .lengths = lengths};
    CacheModel model(specOf(c), lengths, 1, 0, 0xffff, &contents);
    compare(model, run(compiled(c), model));
  }
}

// Pages whose values differ by powers of two, and channels far from zero: what
// the kernel takes out as exponents must come back exactly.
TEST(AttendSim, ScalesFarApart) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> noise(1 << 16);
  for (float &x : noise)
    x = normal(random);
  Contents contents;
  contents.element = [&](bool isValue, int64_t s, int64_t, int64_t t,
                         int64_t c) {
    float x = noise[(t * 131 + c * 7 + (isValue ? 5 : 0)) % noise.size()];
    int page = int(t / 64);
    // Sequence 0: tiny; 1: huge; both with jumps from page to page.
    int base = s == 0 ? -12 : isValue ? 11 : 3;
    x = std::ldexp(x + (c % 5 == 0 ? 6.0f : 0.0f), base + (page * 5) % 4 - 2);
    return fromBits16(Element::F16, toBits16(Element::F16, x));
  };
  for (int64_t i = 0; i < 2 * 4 * 64; ++i) // sequence 0 with large queries
    contents.query.push_back(
        toBits16(Element::F16, noise[i] * (i < 4 * 64 ? 300.0f : 0.02f)));
  for (const char *format :
       {"kivi4,recent=0", "int8", "key=i8:channel:g4,value=i4:token:g8",
        "key=i4:channel:g32:sym:sf32,value=i8:token:g16:sym:sf32"}) {
    SCOPED_TRACE(format);
    Case c{.format = format, .lengths = {256, 320}};
    CacheModel model(specOf(c), c.lengths, 1, 0, 0xffff, &contents);
    compare(model, run(compiled(c), model));
  }
}

// On a device that flushed subnormal inputs of products, the offset form of
// codes would be the right schedule, and the default one wrong.
TEST(AttendSim, OffsetCodesNeedNoSubnormals) {
  for (bool subnormal : {false, true}) {
    Case c{.format = "kivi4,recent=0"};
    auto kernel = std::get<GpuKernel>(compileForGpu(
        specOf(c), *std::get<const TargetInfo *>(findTarget("sm_80")),
        subnormal ? "subnormal_codes=true" : "subnormal_codes=false"));
    CacheModel model(specOf(c), c.lengths, 5);
    Output kept = run(kernel, model), flushed = run(kernel, model, true);
    if (subnormal)
      EXPECT_NE(kept.out, flushed.out);
    else
      compare(model, flushed);
  }
}

/// A random legal point; the same seed gives the same one.
static Case randomCase(uint32_t seed, std::string &format) {
  std::mt19937 random(seed);
  auto pick = [&](auto... options) {
    std::common_type_t<decltype(options)...> all[] = {options...};
    return all[random() % sizeof...(options)];
  };
  Case c{.format = ""};
  c.dtype = pick(Element::F16, Element::F16, Element::BF16);
  c.kvHeads = pick(1, 1, 2);
  c.qHeads = c.kvHeads * pick(1, 3, 4, 5, 7, 8, 16);
  c.headDim = pick(16, 48, 64, 80, 96, 112, 128, 192, 256);
  c.valueDim = random() % 3 ? c.headDim : pick(16, 32, 64, 96, 144);
  int64_t page = pick(16, 32, 64, 128);
  auto side = [&](bool isValue) -> std::string {
    std::string element = pick("f16", "bf16", "i8", "i4", "i8", "i4");
    if (element[0] != 'i')
      return element;
    int64_t all = isValue ? c.valueDim : page;
    std::vector<int64_t> groups;
    for (int64_t g = 1; g <= all; ++g)
      if (all % g == 0)
        groups.push_back(g);
    int64_t group = random() % 2 ? groups[random() % groups.size()] : all;
    return element + (isValue ? ":token:g" : ":channel:g") +
           std::to_string(group) + pick(":asym", ":asym", ":sym") +
           pick("", "", ":sbf16", ":sf32");
  };
  format = "key=" + side(false) + ",value=" + side(true) +
           ",page=" + std::to_string(page);
  if (random() % 2)
    format += ",recent=" + std::to_string(pick(1, 20, 100));
  if (random() % 4 == 0)
    format += ",sinks=" + std::to_string(pick(1, 17, 64));
  c.lengths = {int32_t(random() % 400), int32_t(random() % 60)};
  if (random() % 3 == 0)
    c.window = pick(1, 5, 64, 100, 1000);
  if (random() % 5 == 0)
    c.softcap = pick(1.5, 30.0);
  c.alibi = random() % 5 == 0;
  c.schedule = pick("", "", "", "subnormal_codes=false", "warps=2",
                    "split_tokens=64", "warps=8,q_pack=2");
  c.target = pick("sm_80", "sm_86", "sm_90");
  return c;
}

// KVCACHE_SIM_POINTS sets how many, KVCACHE_SIM_SEED the first seed.
TEST(AttendSim, RandomPoints) {
  const char *points = std::getenv("KVCACHE_SIM_POINTS");
  const char *first = std::getenv("KVCACHE_SIM_SEED");
  uint32_t seed = first ? uint32_t(std::atoi(first)) : 1;
  for (int i = 0, n = points ? std::atoi(points) : 12; i < n; ++i, ++seed) {
    std::string format;
    Case c = randomCase(seed, format);
    c.format = format.c_str();
    check(c, seed);
    ASSERT_FALSE(HasFailure()) << "KVCACHE_SIM_SEED=" << seed
                               << " KVCACHE_SIM_POINTS=1 AttendSimTest "
                                  "--gtest_filter=AttendSim.RandomPoints";
  }
}
