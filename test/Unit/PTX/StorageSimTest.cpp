//===- StorageSimTest.cpp - append, seal, unseal, read as PTX
//--------------===//
//
// Runs the storage kernels in the simulator: what they store is bitwise what
// the plain codec stores, and what they read is bitwise what it decodes.
//
//===----------------------------------------------------------------------===//
#include "CacheModel.h"
#include "kvcache/Compiler/GpuCompiler.h"
#include "kvcache/sim.h"

#include <gtest/gtest.h>

#include <cstring>

using namespace kvcache;
using namespace kvcache::test;

namespace {
class StorageSim : public testing::TestWithParam<const char *> {
protected:
  void SetUp() override {
    spec.qHeads = spec.kvHeads = 2;
    spec.headDim = 64;
    spec.valueDim = 48;
    spec.format = std::get<Format>(Format::parse(GetParam()));
    auto compiled = compileForGpu(
        spec, *std::get<const TargetInfo *>(findTarget("sm_80")), "");
    ASSERT_FALSE(errorOf(compiled)) << errorOf(compiled)->message;
    kernel = std::get<GpuKernel>(compiled);
    module = sim::Module::parse(kernel.ptx, "storage.ptx");
  }

  void launch(const char *entry, int64_t blocks,
              std::vector<sim::Buffer> buffers, std::vector<sim::Arg> args) {
    sim::Launch how;
    how.entry = entry;
    how.grid = {blocks, 1, 1};
    how.block = {128, 1, 1};
    sim::Result ran = sim::runKernel(*module, how, buffers, args);
    if (ran.violation)
      ADD_FAILURE() << entry << ": " << ran.violation->kind << ": "
                    << ran.violation->message;
  }

  /// The same random tokens, all open or all sealed.
  CacheModel model(bool sealed) {
    KernelSpec one = spec;
    one.format.recent = sealed ? 0 : 1 << 20;
    return CacheModel(one, {2 * int32_t(spec.format.page)}, 3);
  }

  KernelSpec spec;
  GpuKernel kernel;
  std::shared_ptr<const sim::Module> module;
};

template <typename T>
sim::Buffer bufferOf(std::vector<T> &v, const char *name,
                     bool initialised = true) {
  return {v.data(), v.size() * sizeof(T), initialised, false, name};
}
sim::Arg p(size_t i) { return sim::Arg::pointer(i); }
sim::Arg n(int64_t v) { return sim::Arg::value<int64_t>(v); }
} // namespace

TEST_P(StorageSim, SealStoresWhatTheCodecStores) {
  CacheModel open = model(false), sealed = model(true);
  std::vector<int32_t> pages = {open.openTable[0], open.openTable[1]};
  std::vector<uint8_t> pool(sealed.sealedPool.size(), 0xff);
  launch("seal", 4,
         {bufferOf(pages, "pages"), bufferOf(pool, "sealed"),
          bufferOf(open.openPool, "open")},
         {p(0), p(0), p(1), p(2), n(0), n(0), n(0), n(4)});
  const PageImage &image = sealed.image;
  for (int32_t page : pages)
    for (int64_t h = 0; h < 2; ++h)
      for (Section s :
           {Section::KCodes, Section::VCodes, Section::KScales, Section::KZeros,
            Section::VScales, Section::VZeros, Section::Exponents}) {
        int64_t at = (page * 2 + h) * image.recordBytes() + image.offset(s);
        EXPECT_EQ(std::memcmp(&pool[at], &sealed.sealedPool[at], image.size(s)),
                  0)
            << "section " << int(s) << " of page " << page << " head " << h;
      }
}

TEST_P(StorageSim, ReadDecodes) {
  CacheModel sealed = model(true);
  int64_t page = spec.format.page;
  std::vector<int32_t> pages = {sealed.sealedTable[0], sealed.sealedTable[1]};
  std::vector<float> k(2 * page * 2 * spec.headDim),
      v(2 * page * 2 * spec.valueDim);
  launch("read", 4,
         {bufferOf(pages, "pages"), bufferOf(sealed.sealedPool, "sealed"),
          bufferOf(sealed.openPool, "open"), bufferOf(k, "k", false),
          bufferOf(v, "v", false)},
         {p(0), n(1), p(1), p(2), n(0), n(0), p(3), p(4), n(0), n(4)});
  int64_t wrong = 0;
  for (int64_t t = 0; t < 2 * page; ++t)
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t c = 0; c < spec.headDim; ++c)
        wrong += k[(t * 2 + h) * spec.headDim + c] !=
                 sealed.element(false, 0, h, t, c);
      for (int64_t c = 0; c < spec.valueDim; ++c)
        wrong += v[(t * 2 + h) * spec.valueDim + c] !=
                 sealed.element(true, 0, h, t, c);
    }
  EXPECT_EQ(wrong, 0);
}

TEST_P(StorageSim, UnsealRoundsToTheModel) {
  CacheModel sealed = model(true);
  std::vector<int32_t> pages = {sealed.sealedTable[1]};
  launch("unseal", 2,
         {bufferOf(pages, "pages"), bufferOf(sealed.sealedPool, "sealed"),
          bufferOf(sealed.openPool, "open")},
         {p(0), p(0), p(1), p(2), n(0), n(0), n(0), n(2)});
  int64_t page = spec.format.page, wrong = 0;
  for (int64_t t = 0; t < page; ++t)
    for (int64_t c = 0; c < spec.headDim; ++c) {
      uint16_t bits;
      std::memcpy(&bits,
                  &sealed.openPool[pages[0] * 2 * kernel.openRecordBytes +
                                   (t * spec.headDim + c) * 2],
                  2);
      wrong += bits !=
               toBits16(spec.dtype, sealed.element(false, 0, 0, page + t, c));
    }
  EXPECT_EQ(wrong, 0);
}

TEST_P(StorageSim, AppendStoresOrRefuses) {
  CacheModel open = model(false);
  int64_t page = spec.format.page, rows = 5;
  std::vector<uint16_t> k(rows * 2 * spec.headDim), v(rows * 2 * spec.valueDim);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t c = 0; c < spec.headDim; ++c)
        k[(r * 2 + h) * spec.headDim + c] =
            toBits16(spec.dtype, open.element(false, 0, h, r, c));
      for (int64_t c = 0; c < spec.valueDim; ++c)
        v[(r * 2 + h) * spec.valueDim + c] =
            toBits16(spec.dtype, open.element(true, 0, h, r, c));
    }
  // Row 3 is padding that holds NaN; its slot says so.
  k[3 * 2 * spec.headDim] = 0x7e00;
  std::vector<int64_t> slots = {page, page + 1, 5, -1, 6};
  std::vector<uint8_t> pool(open.openPool.size(), 0xff);
  std::vector<int64_t> status = {INT64_MAX};
  auto run = [&] {
    launch("append", 1,
           {bufferOf(k, "k"), bufferOf(v, "v"), bufferOf(slots, "slots"),
            bufferOf(pool, "open"), bufferOf(status, "status")},
           {p(0), p(1), p(2), p(3), n(0), n(0), p(4), n(0), n(rows)});
  };
  run();
  EXPECT_EQ(status[0], INT64_MAX);
  // Row 1 went to page 1, token 1.
  EXPECT_EQ(std::memcmp(&pool[2 * kernel.openRecordBytes + spec.headDim * 2],
                        &k[2 * spec.headDim], spec.headDim * 2),
            0);
  v[4 * 2 * spec.valueDim + 7] = 0x7c00; // inf
  run();
  EXPECT_EQ(status[0], 4);
}

INSTANTIATE_TEST_SUITE_P(Formats, StorageSim,
                         testing::Values("f16", "int8", "kivi4",
                                         "key=i4:channel:g8:sym:sf32,"
                                         "value=i8:token:g24:sbf16,page=32"));
