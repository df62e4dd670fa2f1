//===- CacheModel.cpp - A cache in memory and attention over it -----------===//
#include "CacheModel.h"

#include "kvcache/Format/Codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

using namespace kvcache;
using namespace kvcache::test;

uint16_t test::toBits16(Element dtype, float x) {
  return uint16_t(codec::toElementBits(dtype, x));
}
float test::fromBits16(Element dtype, uint16_t bits) {
  return codec::fromElementBits(dtype, uint32_t(bits));
}

CacheModel::CacheModel(KernelSpec given, std::vector<int32_t> lens,
                       uint32_t seed, int64_t splitTokens, uint16_t poison,
                       const Contents *contents)
    : spec(std::move(given)), lengths(std::move(lens)), random(seed) {
  spec.verify();
  image = std::get<PageImage>(PageImage::create(
      spec.format, spec.headDim, spec.valueDim, ImageFamily::SM8x));
  int64_t page = spec.format.page, total = 0;
  for (int32_t n : lengths) {
    int64_t pages = (n + page - 1) / page;
    total += pages;
    tableStride = std::max(tableStride, pages + 1);
    int64_t sealed = std::max<int64_t>(
        (n - spec.format.recent) / page - spec.format.sinkPages(), 0);
    sealedPages.push_back(int32_t(sealed));
    maxSplits = std::max(
        maxSplits, kvcache_num_splits(n, sealed, page, spec.format.sinkPages(),
                                      splitTokens ? splitTokens
                                                  : kvcache_split_tokens(n)));
    rowSequence.push_back(int32_t(rowSequence.size()));
    queryEnds.push_back(int32_t(queryEnds.size()));
  }
  queryEnds.push_back(int32_t(queryEnds.size()));
  sealedPool.resize((total + 1) * spec.kvHeads * image.recordBytes());
  openPool.resize(
      (total + 1) * spec.kvHeads *
      openRecordBytes(spec.dtype, page, spec.headDim, spec.valueDim));
  for (std::vector<uint8_t> *pool : {&sealedPool, &openPool})
    for (size_t i = 0; i < pool->size(); ++i)
      (*pool)[i] = uint8_t(i % 2 ? poison >> 8 : poison);
  sealedTable.assign(lengths.size() * tableStride, -1);
  openTable = sealedTable;
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows() * spec.qHeads * spec.headDim; ++i)
    query.push_back(toBits16(spec.dtype, normal(random)));
  for (int64_t h = 0; h < spec.qHeads; ++h)
    slopes.push_back(std::exp2(-8.0f * float(h + 1) / float(spec.qHeads)));
  if (contents)
    query = contents->query;
  keys.resize(lengths.size());
  values.resize(lengths.size());
  // Pages in an order of their own, over all sequences.
  std::vector<int32_t> numbers(total + 1);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), random);
  int64_t next = 0;
  for (int64_t s = 0; s < rows(); ++s) {
    int64_t sinks = spec.format.sinkPages();
    for (int64_t p = 0; p < (lengths[s] + page - 1) / page; ++p) {
      bool sealed = p >= sinks && p < sinks + sealedPages[s];
      (sealed ? sealedTable : openTable)[s * tableStride + p] = numbers[next++];
    }
    fillSequence(s, contents);
  }
}

float &CacheModel::element(bool isValue, int64_t s, int64_t head, int64_t token,
                           int64_t channel) {
  int64_t dim = isValue ? spec.valueDim : spec.headDim;
  auto &all = (isValue ? values : keys)[s];
  return all[(head * lengths[s] + token) * dim + channel];
}

void CacheModel::fillRandom(int64_t s) {
  std::normal_distribution<float> normal;
  for (bool isValue : {false, true})
    for (int64_t h = 0; h < spec.kvHeads; ++h)
      for (int64_t c = 0; c < (isValue ? spec.valueDim : spec.headDim); ++c) {
        // Channels with means and scales of their own, as real ones have.
        float mean = 2 * normal(random),
              scale = std::exp(0.7f * normal(random));
        for (int64_t t = 0; t < lengths[s]; ++t)
          element(isValue, s, h, t, c) = fromBits16(
              spec.dtype, toBits16(spec.dtype, mean + scale * normal(random)));
      }
}

void CacheModel::fillSequence(int64_t s, const Contents *contents) {
  int64_t n = lengths[s], page = spec.format.page;
  keys[s].resize(spec.kvHeads * n * spec.headDim);
  values[s].resize(spec.kvHeads * n * spec.valueDim);
  if (!contents)
    fillRandom(s);
  else
    for (bool isValue : {false, true})
      for (int64_t h = 0; h < spec.kvHeads; ++h)
        for (int64_t t = 0; t < n; ++t)
          for (int64_t c = 0; c < (isValue ? spec.valueDim : spec.headDim); ++c)
            element(isValue, s, h, t, c) =
                contents->element(isValue, s, h, t, c);
  int64_t openBytes =
      openRecordBytes(spec.dtype, page, spec.headDim, spec.valueDim);
  for (int64_t h = 0; h < spec.kvHeads; ++h)
    for (int64_t p = 0; p < (n + page - 1) / page; ++p) {
      int32_t sealed = sealedTable[s * tableStride + p];
      int32_t open = openTable[s * tableStride + p];
      if (sealed >= 0)
        seal(s, h, p,
             &sealedPool[(sealed * spec.kvHeads + h) * image.recordBytes()]);
      else
        storeOpen(s, h, p, &openPool[(open * spec.kvHeads + h) * openBytes]);
    }
}

void CacheModel::storeOpen(int64_t s, int64_t head, int64_t p,
                           uint8_t *record) {
  int64_t page = spec.format.page;
  for (int64_t t = 0; t < page && p * page + t < lengths[s]; ++t)
    for (bool isValue : {false, true}) {
      int64_t dim = isValue ? spec.valueDim : spec.headDim;
      int64_t base = isValue ? page * spec.headDim : 0;
      for (int64_t c = 0; c < dim; ++c) {
        uint16_t bits =
            toBits16(spec.dtype, element(isValue, s, head, p * page + t, c));
        std::memcpy(record + (base + t * dim + c) * 2, &bits, 2);
      }
    }
}

static void storeScale(ScaleType type, uint8_t *at, float x) {
  uint32_t bits = codec::toElementBits(codec::elementOf(type), x);
  std::memcpy(at, &bits, bytesOf(type));
}

static int exponentOf(float most) {
  if (most == 0)
    return 0;
  return std::clamp(int(std::floor(std::log2(most))), -126, 126);
}

void CacheModel::encodeSide(const TensorImage &side, Section codes,
                            Section scales, Section zeros, int64_t s,
                            int64_t head, int64_t p, uint8_t *record,
                            int exponentAt) {
  const Encoding &e = side.encoding;
  int64_t page = spec.format.page, first = p * page;
  bool coded = isInteger(e.element);
  std::vector<float> scale(coded ? side.scaleCount() : 0), zero(scale);
  float mostScale = 0, mostZero = 0;
  for (int64_t i = 0; i < int64_t(scale.size()); ++i) {
    auto origin = side.groupOrigin<int64_t>(i);
    float low = std::numeric_limits<float>::infinity(), high = -low;
    for (int64_t t = 0; t < side.groupTokens(); ++t)
      for (int64_t c = 0; c < side.groupChannels(); ++c) {
        float x = element(side.isValue, s, head, first + origin.token + t,
                          origin.channel + c);
        low = std::min(low, x), high = std::max(high, x);
      }
    int64_t at = i * bytesOf(e.scaleType);
    if (e.asymmetric) {
      auto range = codec::fromRange(e, low, high);
      scale[i] = range.scale, zero[i] = range.zero;
      storeScale(e.scaleType, record + image.offset(zeros) + at, zero[i]);
    } else {
      scale[i] = codec::fromAbsMax(e, std::max(-low, high));
    }
    storeScale(e.scaleType, record + image.offset(scales) + at, scale[i]);
    mostScale = std::max(mostScale, std::abs(scale[i]));
    mostZero = std::max(mostZero, std::abs(zero[i]));
  }
  for (int64_t t = 0; t < page; ++t)
    for (int64_t c = 0; c < side.channels; ++c) {
      float &x = element(side.isValue, s, head, first + t, c);
      auto where = side.code<int64_t>(t, c);
      uint8_t *at = record + image.offset(codes) + where.byte;
      if (!coded) {
        uint16_t bits = toBits16(e.element, x);
        std::memcpy(at, &bits, 2);
        x = fromBits16(e.element, bits);
        continue;
      }
      int64_t i = side.scaleIndex<int64_t>(t, c);
      uint32_t code = codec::encode(e, x, scale[i], zero[i]);
      uint8_t mask = uint8_t(((1u << side.bits()) - 1) << where.shift);
      *at = uint8_t((*at & ~mask) | code << where.shift);
      x = codec::decode(e, code, scale[i], zero[i]);
    }
  if (image.size(Section::Exponents)) {
    int32_t exponents[2] = {exponentOf(mostScale), exponentOf(mostZero)};
    uint8_t *at = record + image.offset(Section::Exponents) + exponentAt * 4;
    std::memcpy(at, &exponents[0], 4);
    std::memcpy(at + 8, &exponents[1], 4);
  }
}

void CacheModel::seal(int64_t s, int64_t head, int64_t p, uint8_t *record) {
  encodeSide(image.key, Section::KCodes, Section::KScales, Section::KZeros, s,
             head, p, record, 0);
  encodeSide(image.value, Section::VCodes, Section::VScales, Section::VZeros, s,
             head, p, record, 1);
}

CacheModel::Answer CacheModel::answer(int64_t row, int64_t head) const {
  int64_t s = rowSequence[row], n = lengths[s], position = n - 1;
  int64_t kvHead = head / spec.group();
  const float *k = keys[s].data() + kvHead * n * spec.headDim;
  const float *v = values[s].data() + kvHead * n * spec.valueDim;
  const uint16_t *q = &query[(row * spec.qHeads + head) * spec.headDim];
  std::vector<double> score(n, -std::numeric_limits<double>::infinity());
  double top = score.empty() ? -INFINITY : score[0];
  for (int64_t j = 0; j < n; ++j) {
    if (spec.windowLeft && j < position - *spec.windowLeft)
      continue;
    double x = 0;
    for (int64_t c = 0; c < spec.headDim; ++c)
      x += double(fromBits16(spec.dtype, q[c])) * k[j * spec.headDim + c];
    x *= spec.softmaxScale();
    if (spec.softcap)
      x = *spec.softcap * std::tanh(x / *spec.softcap);
    if (spec.alibi)
      x += slopes[head] * double(j - position);
    score[j] = x;
    top = std::max(top, x);
  }
  Answer result{std::vector<double>(spec.valueDim, 0.0), -INFINITY};
  if (n == 0)
    return result;
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    double p = std::exp(score[j] - top);
    sum += p;
    for (int64_t c = 0; c < spec.valueDim; ++c)
      result.out[c] += p * v[j * spec.valueDim + c];
  }
  for (double &x : result.out)
    x /= sum;
  result.lse = top + std::log(sum);
  return result;
}
