//===- AttendTest.cpp - Attention, batches, tables (C13, C64) -------------===//

#include "TestCache.h"

#include <cmath>
#include <cstring>

using namespace kvcache::test;

namespace {

struct Result {
  std::vector<float> out, lse;
};

} // namespace

static Result attend(TestCache &c, const std::vector<float> &q,
                     const std::vector<int64_t> &ids,
                     const std::vector<int64_t> &lens) {
  size_t rows = q.size() / (qHeads * headDim);
  Result r{std::vector<float>(rows * qHeads * valueDim, 7),
           std::vector<float>(rows * qHeads, 7)};
  EXPECT_EQ(kvcache_attend(c.cache, q.data(), ids.data(), lens.data(),
                           int64_t(ids.size()), nullptr, r.out.data(),
                           r.lse.data()),
            KV_OK)
      << kvcache_last_error();
  return r;
}

// Plain attention of one row over the decoded cache.
static std::vector<double> plain(const Rows &k, const float *q, int64_t head,
                                 int64_t position) {
  std::vector<double> o(valueDim), p;
  double sum = 0;
  int64_t kv = head / (qHeads / kvHeads);
  for (int64_t t = 0; t <= position; ++t) {
    double x = 0;
    for (int64_t c = 0; c < headDim; ++c)
      x += double(q[c]) * k[size_t((t * kvHeads + kv) * headDim + c)];
    p.push_back(std::exp(x / std::sqrt(double(headDim))));
    sum += p.back();
  }
  for (int64_t t = 0; t <= position; ++t)
    for (int64_t c = 0; c < valueDim; ++c)
      o[size_t(c)] -=
          p[size_t(t)] / sum * k[size_t((t * kvHeads + kv) * headDim + c)];
  return o;
}

TEST(Attend, EqualsPlainAttentionInAnyBatch) {
  TestCache c(200, 1, 5);
  std::vector<int64_t> ids, lens{1, 3, 2, 1, 4};
  for (int64_t n : {0, 2, 33, 100, 17}) {
    ids.push_back(c.make());
    ASSERT_EQ(c.appendRandom(ids.back(), n), KV_OK);
  }
  std::uniform_real_distribution<float> dist(-1, 1);
  std::vector<float> q(11 * qHeads * headDim);
  for (float &x : q)
    x = dist(c.rng);
  kvcache_set_num_threads(1);
  Result one = attend(c, q, ids, lens);
  kvcache_set_num_threads(3);
  Result three = attend(c, q, ids, lens);
  kvcache_set_num_threads(0);
  EXPECT_EQ(one.out, three.out);
  EXPECT_EQ(one.lse, three.lse);
  int64_t row = 0;
  for (size_t s = 0; s < ids.size(); ++s) {
    Rows k = c.read(ids[s]);
    int64_t length = c.length(ids[s]);
    std::vector<float> own(q.begin() + row * qHeads * headDim,
                           q.begin() + (row + lens[s]) * qHeads * headDim);
    Result alone = attend(c, own, {ids[s]}, {lens[s]});
    for (int64_t r = 0; r < lens[s]; ++r, ++row)
      for (int64_t h = 0; h < qHeads; ++h) {
        int64_t position = length - lens[s] + r;
        const float *got = &one.out[size_t((row * qHeads + h) * valueDim)];
        EXPECT_EQ(std::memcmp(got,
                              &alone.out[size_t((r * qHeads + h) * valueDim)],
                              valueDim * 4),
                  0);
        auto want =
            plain(k, &q[size_t((row * qHeads + h) * headDim)], h, position);
        for (int64_t i = 0; i < valueDim; ++i)
          EXPECT_NEAR(got[i], want[size_t(i)], 1e-5);
        if (position < 0)
          EXPECT_EQ(one.lse[size_t(row * qHeads + h)], -INFINITY);
      }
  }
}

TEST(Attend, EmptyBatches) {
  TestCache c(4);
  EXPECT_EQ(kvcache_attend(c.cache, nullptr, nullptr, nullptr, 0, nullptr,
                           nullptr, nullptr),
            KV_OK);
  int64_t a = c.make(), zero = 0, minus = -1;
  EXPECT_EQ(
      kvcache_attend(c.cache, nullptr, &a, &zero, 1, nullptr, nullptr, nullptr),
      KV_OK);
  EXPECT_EQ(kvcache_attend(c.cache, nullptr, &a, &minus, 1, nullptr, nullptr,
                           nullptr),
            KV_INVALID_ARGUMENT);
}

namespace {

/// Pools and tables of the caller: two open pages, then a table of two pages.
struct Tables {
  alignas(128) float openPool[8 * kvHeads * recordBytes / 4] = {};
  alignas(128) float sealedPool[kvHeads * recordBytes / 4] = {};
  int32_t openTable[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  int32_t sealedTable[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
  int32_t sealedPages[1] = {0}, lengths[1] = {8}, rowSeq[1] = {0},
          indptr[2] = {0, 1};
  float q[qHeads * headDim] = {}, out[qHeads * valueDim], lse[qHeads];
  KvAttendArgs args{};
  KvTableSizes sizes{1, 2, 1, 8};

  Tables() {
    args.q = q;
    args.row_seq = rowSeq;
    args.q_indptr = indptr;
    args.sealed_table = sealedTable;
    args.open_table = openTable;
    args.table_seq_stride = 8;
    args.sealed_pages = sealedPages;
    args.lengths = lengths;
    args.sealed_pool = sealedPool;
    args.open_pool = openPool;
    args.out = out;
    args.lse = lse;
  }
};

} // namespace

// C64: page 4, table of two pages.
TEST(Tables, BoundsAreChecked) {
  Tables t;
  KvKernelInfo info = testInfo();
  EXPECT_EQ(kvcache_check_tables(&info, &t.args, &t.sizes, 0), KV_OK);
  EXPECT_EQ(kvcache_check_tables(&info, &t.args, &t.sizes, 1),
            KV_INVALID_ARGUMENT);
  EXPECT_STREQ(kvcache_last_error(),
               "sequence 0 of 8 tokens and 1 more needs 3 pages of 4 tokens, "
               "its table has 2");
  t.lengths[0] = 9;
  EXPECT_EQ(kvcache_check_tables(&info, &t.args, &t.sizes, 0),
            KV_INVALID_ARGUMENT);
  EXPECT_STREQ(kvcache_last_error(), "sequence 0 of 9 tokens needs 3 pages of "
                                     "4 tokens, its table has 2");
  t.lengths[0] = 8;
  for (int32_t id : {-1, -7, 999}) {
    t.openTable[1] = id;
    EXPECT_EQ(kvcache_check_tables(&info, &t.args, &t.sizes, 0),
              KV_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(kvcache_last_error()),
              "open_table of sequence 0 has page number " + std::to_string(id) +
                  " at position 1, expected 0 to 7 (the open pool has 8 "
                  "pages)");
    t.lengths[0] = 4; // now the entry is in the unused part
    EXPECT_EQ(kvcache_check_tables(&info, &t.args, &t.sizes, 0), KV_OK);
    t.lengths[0] = 8;
  }
}

// C13: entries behind the window are neither read nor checked.
TEST(Tables, EntriesBehindTheWindowAreFree) {
  TestCache c(1, 0, 0, /*windowLeft=*/3);
  auto t = std::make_unique<Tables>();
  t->sizes.table_pages = 8;
  t->lengths[0] = 30;
  for (int64_t p = 0; p < 8; ++p)
    for (int64_t i = 0; i < kvHeads * recordBytes / 4; ++i) {
      int64_t token = i % (recordBytes / 4) - page * headDim;
      t->openPool[p * kvHeads * recordBytes / 4 + i] =
          p < 3        ? NAN
          : token >= 0 ? float(p * page + token / valueDim)
                       : 1.0f;
    }
  for (int32_t garbage : {0, 1, -1, 999}) {
    for (int p = 0; p < 6; ++p)
      t->openTable[p] = garbage;
    ASSERT_EQ(kvcache_attend_tables(c.kernel, &t->args, &t->sizes), KV_OK)
        << kvcache_last_error();
    EXPECT_FLOAT_EQ(t->out[0], (26 + 27 + 28 + 29) / 4.0f);
  }
}
