//===- TestKernel.cpp - A kernel written by hand, for runtime tests -------===//

#include "TestKernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace kvcache::test;

static KvKernelInfo config = testInfo();

float kvcache::test::coded(float x) { return std::rint(x * 4) / 4; }

KvKernelInfo kvcache::test::testInfo(int64_t sinkPages, int64_t recent,
                                     int64_t windowLeft) {
  KvKernelInfo info{};
  info.q_heads = qHeads;
  info.kv_heads = kvHeads;
  info.head_dim = headDim;
  info.value_dim = valueDim;
  info.dtype = KV_F32;
  info.page_tokens = page;
  info.sink_pages = sinkPages;
  info.recent_tokens = recent;
  info.sealed_record_bytes = info.open_record_bytes = recordBytes;
  info.q_pack = 2;
  info.split_tokens = 8; // many splits at small lengths
  info.causal = 1;
  info.window_left = windowLeft;
  info.window_right = -1;
  info.image_hash = 0x1234;
  return info;
}

void kvcache::test::configure(const KvKernelInfo &info) { config = info; }

// Both kinds of record: K [page][headDim], then V [page][valueDim].
static const float *record(const void *pool, int64_t slot, int64_t head) {
  return static_cast<const float *>(pool) +
         (slot * kvHeads + head) * recordBytes / 4;
}

static int64_t splitsOf(int64_t length, int64_t sealed) {
  return kvcache_num_splits(length, sealed, page, config.sink_pages,
                            config.split_tokens);
}

// The pages of split `split`: [begin, end) and whether they are sealed.
static bool splitPages(int64_t length, int64_t sealed, int64_t split,
                       int64_t &begin, int64_t &end) {
  int64_t pages = (length + page - 1) / page, step = config.split_tokens / page;
  int64_t sinks = std::min(pages, config.sink_pages);
  int64_t bounds[4] = {0, sinks, sinks + sealed, pages};
  for (int kind = 0; kind < 3; ++kind) {
    int64_t n = (bounds[kind + 1] - bounds[kind] + step - 1) / step;
    if (split < n) {
      begin = bounds[kind] + split * step;
      end = std::min(begin + step, bounds[kind + 1]);
      return kind == 1;
    }
    split -= n;
  }
  begin = end = 0;
  return false;
}

static float *partial(const KvAttendArgs *a, int64_t row, int64_t head,
                      int64_t split) {
  int64_t floats = kvcache_partial_floats(valueDim);
  return static_cast<float *>(a->workspace) +
         ((row * qHeads + head) * a->max_splits + split) * floats;
}

static void attendHead(const KvAttendArgs *a, int64_t row, int64_t head,
                       int64_t split) {
  int64_t s = static_cast<int32_t *>(a->row_seq)[row];
  const auto *indptr = static_cast<int32_t *>(a->q_indptr);
  int64_t length = static_cast<int32_t *>(a->lengths)[s];
  int64_t sealed = static_cast<int32_t *>(a->sealed_pages)[s];
  if (split >= splitsOf(length, sealed))
    return;
  int64_t position = length - indptr[s + 1] + row;
  int64_t first = config.window_left < 0
                      ? 0
                      : std::max<int64_t>(0, position - config.window_left);
  int64_t begin, end;
  bool isSealed = splitPages(length, sealed, split, begin, end);
  const auto *table =
      static_cast<const int32_t *>(isSealed ? a->sealed_table : a->open_table);
  const float *q =
      static_cast<const float *>(a->q) + (row * qHeads + head) * headDim;
  double m = -INFINITY, l = 0, o[valueDim] = {};
  for (int64_t t = std::max(begin * page, first);
       t < std::min(end * page, position + 1); ++t) {
    int32_t slot = table[s * a->table_seq_stride + t / page];
    const float *r = record(isSealed ? a->sealed_pool : a->open_pool, slot,
                            head / (qHeads / kvHeads));
    double x = 0;
    for (int64_t c = 0; c < headDim; ++c)
      x += double(q[c]) * r[(t % page) * headDim + c];
    x = x / std::sqrt(double(headDim)) * M_LOG2E;
    double m2 = std::max(m, x), alpha = std::exp2(m - m2);
    double p = std::exp2(x - m2);
    l = l * alpha + p;
    for (int64_t c = 0; c < valueDim; ++c)
      o[c] = o[c] * alpha + p * r[page * headDim + (t % page) * valueDim + c];
    m = m2;
  }
  float *out = partial(a, row - a->row_begin, head, split);
  std::copy(o, o + valueDim, out);
  out[valueDim] = float(m);
  out[valueDim + 1] = float(l);
}

extern "C" int32_t test_attend(const KvAttendArgs *a, int64_t begin,
                               int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t split = i % a->max_splits, rest = i / a->max_splits;
    int64_t kv = rest % kvHeads, row = a->row_begin + rest / kvHeads;
    for (int64_t g = 0; g < qHeads / kvHeads; ++g)
      attendHead(a, row, kv * (qHeads / kvHeads) + g, split);
  }
  return KVCACHE_OK;
}

extern "C" int32_t test_merge(const KvAttendArgs *a, int64_t begin,
                              int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t row = a->row_begin + i / qHeads, head = i % qHeads;
    int64_t s = static_cast<int32_t *>(a->row_seq)[row];
    int64_t splits = splitsOf(static_cast<int32_t *>(a->lengths)[s],
                              static_cast<int32_t *>(a->sealed_pages)[s]);
    double m = -INFINITY, l = 0, o[valueDim] = {};
    for (int64_t j = 0; j < splits; ++j)
      m = std::max<double>(m,
                           partial(a, row - a->row_begin, head, j)[valueDim]);
    for (int64_t j = 0; j < splits && m > -INFINITY; ++j) {
      const float *p = partial(a, row - a->row_begin, head, j);
      double w = std::exp2(p[valueDim] - m);
      l += w * p[valueDim + 1];
      for (int64_t c = 0; c < valueDim; ++c)
        o[c] += w * p[c];
    }
    float *out =
        static_cast<float *>(a->out) + (row * qHeads + head) * valueDim;
    for (int64_t c = 0; c < valueDim; ++c)
      out[c] = l > 0 ? float(o[c] / l) : 0.0f;
    static_cast<float *>(a->lse)[row * qHeads + head] =
        l > 0 ? float((m + std::log2(l)) * M_LN2) : -INFINITY;
  }
  return KVCACHE_OK;
}

extern "C" int32_t test_append(const KvAppendArgs *a, int64_t begin,
                               int64_t end) {
  const auto *k = static_cast<const float *>(a->k);
  const auto *v = static_cast<const float *>(a->v);
  const auto *slots = static_cast<const int64_t *>(a->slots);
  for (int64_t r = begin; r < end; ++r)
    for (int64_t i = 0; slots[r] >= 0 && i < kvHeads * headDim; ++i)
      if (!std::isfinite(k[r * kvHeads * headDim + i]) ||
          !std::isfinite(v[r * kvHeads * headDim + i])) {
        auto *status = static_cast<int64_t *>(a->status);
        *status = std::min(*status, r);
        return KVCACHE_REFUSED;
      }
  for (int64_t r = begin; r < end; ++r)
    for (int64_t h = 0; slots[r] >= 0 && h < kvHeads; ++h) {
      auto *rec = const_cast<float *>(record(a->open_pool, slots[r] / page, h));
      int64_t t = slots[r] % page;
      std::copy_n(k + (r * kvHeads + h) * headDim, headDim, rec + t * headDim);
      std::copy_n(v + (r * kvHeads + h) * valueDim, valueDim,
                  rec + page * headDim + t * valueDim);
    }
  return KVCACHE_OK;
}

static int32_t convert(const KvSealArgs *a, int64_t begin, int64_t end,
                       void *from, void *to, bool code) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t h = i % kvHeads;
    const float *src =
        record(from, static_cast<int32_t *>(a->src)[i / kvHeads], h);
    auto *dst = const_cast<float *>(
        record(to, static_cast<int32_t *>(a->dst)[i / kvHeads], h));
    std::transform(src, src + recordBytes / 4, dst,
                   [&](float x) { return code ? coded(x) : x; });
  }
  return KVCACHE_OK;
}

extern "C" int32_t test_seal(const KvSealArgs *a, int64_t begin, int64_t end) {
  return convert(a, begin, end, a->open_pool, a->sealed_pool, true);
}

extern "C" int32_t test_unseal(const KvSealArgs *a, int64_t begin,
                               int64_t end) {
  return convert(a, begin, end, a->sealed_pool, a->open_pool, false);
}

extern "C" int32_t test_read(const KvReadArgs *a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t n = i / kvHeads, h = i % kvHeads;
    const float *r = record(a->is_sealed ? a->sealed_pool : a->open_pool,
                            static_cast<int32_t *>(a->pages)[n], h);
    for (int64_t t = 0; t < page; ++t) {
      int64_t row = (n * page + t) * kvHeads + h;
      std::copy_n(r + t * headDim, headDim,
                  static_cast<float *>(a->k) + row * headDim);
      std::copy_n(r + page * headDim + t * valueDim, valueDim,
                  static_cast<float *>(a->v) + row * valueDim);
    }
  }
  return KVCACHE_OK;
}

KvKernelEntries kvcache::test::testEntries() {
  return {test_attend, test_merge,  test_append,
          test_seal,   test_unseal, test_read};
}
