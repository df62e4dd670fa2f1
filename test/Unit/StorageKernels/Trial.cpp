//===- Trial.cpp - One spec, all storage kernels, every byte --------------===//
#include "Trial.h"
#include "kvcache/Format/Codec.h"

#include <gtest/gtest.h>

using namespace kvcache;
using namespace kvcache::codec;
using namespace kvcache::test;

KernelSpec test::makeSpec(const std::string &format, Element dtype, int64_t d,
                          int64_t dv) {
  KernelSpec s;
  s.qHeads = s.kvHeads = 2;
  s.headDim = d;
  s.valueDim = dv;
  s.dtype = dtype;
  auto f = Format::parse(format);
  if (auto *bad = errorOf(f))
    ADD_FAILURE() << bad->message;
  else
    s.format = std::get<Format>(f);
  if (auto bad = s.verify())
    ADD_FAILURE() << bad->message;
  return s;
}

void test::storeBits(uint8_t *to, uint32_t bits, unsigned bytes) {
  for (unsigned b = 0; b < bytes; ++b)
    to[b] = static_cast<uint8_t>(bits >> (8 * b));
}
uint32_t test::loadBits(const uint8_t *from, unsigned bytes) {
  uint32_t bits = 0;
  for (unsigned b = 0; b < bytes; ++b)
    bits |= uint32_t(from[b]) << (8 * b);
  return bits;
}

Trial::Trial(const KernelSpec &spec, ImageFamily family,
             std::unique_ptr<Runner> runner)
    : spec(spec), bytes(bitsOf(spec.dtype) / 8), page(spec.format.page),
      runner(std::move(runner)) {
  image = std::get<PageImage>(
      PageImage::create(spec.format, spec.headDim, spec.valueDim, family));
  open.assign(3 * spec.kvHeads * openBytes(), 0xee);
  sealed.assign(3 * spec.kvHeads * image.recordBytes(), 0xee);
  for (int64_t h = 0; h < spec.kvHeads; ++h) {
    kScale.push_back(0.02f * (h + 1));
    vScale.push_back(0.03f * (h + 1));
  }
}

void Trial::all() {
  ASSERT_TRUE(runner);
  appendAndCheck();
  sealAndCheck();
  readAndCheck();
  unsealAndCheck();
}

std::vector<uint8_t> Trial::rows(int64_t n, int64_t dim) {
  std::normal_distribution<float> dist(0, 1);
  std::vector<uint8_t> r(n * spec.kvHeads * dim * bytes);
  for (size_t i = 0; i < r.size() / bytes; ++i)
    storeBits(&r[i * bytes],
              toElementBits(spec.dtype, dist(rng) + float(i % dim % 5) - 2),
              unsigned(bytes));
  return r;
}

int32_t Trial::append(std::vector<uint8_t> &k, std::vector<uint8_t> &v,
                      std::vector<int64_t> &slots, int64_t &status) {
  std::vector<Argument> a = {memory(k),
                             memory(v),
                             memory(slots),
                             memory(open),
                             memory(kScale),
                             memory(vScale),
                             {&status, sizeof status, 0}};
  return runner->run("append", a, 0, int64_t(slots.size()));
}

int32_t Trial::seal(const char *kernel, std::vector<int32_t> src,
                    std::vector<int32_t> dst) {
  std::vector<Argument> a = {memory(src),  memory(dst),    memory(sealed),
                             memory(open), memory(kScale), memory(vScale)};
  return runner->run(kernel, a, 0, int64_t(src.size()) * spec.kvHeads);
}

std::vector<Trial::SideData> Trial::sides(int64_t head) {
  return {{image.key, Section::KCodes, Section::KScales, Section::KZeros, keys,
           0, kScale[head], 0},
          {image.value, Section::VCodes, Section::VScales, Section::VZeros,
           values, page * spec.headDim * bytes, vScale[head], 1}};
}

std::vector<float> Trial::floats(const SideData &s, int64_t p, int64_t head) {
  int64_t dim = s.image.channels;
  std::vector<float> x(page * dim);
  for (int64_t t = 0; t < page; ++t)
    for (int64_t c = 0; c < dim; ++c) {
      int64_t i = ((p * page + t) * spec.kvHeads + head) * dim + c;
      x[t * dim + c] = fromElementBits(
          spec.dtype, loadBits(&s.rows[i * bytes], unsigned(bytes)));
    }
  return x;
}

Quantized Trial::quantized(const SideData &s, int64_t p, int64_t head) {
  auto q = quantize(floats(s, p, head).data(), {1, page, s.image.channels},
                    s.image.encoding, s.tensorScale);
  return std::get<Quantized>(q);
}

std::vector<float> Trial::decoded(const SideData &s, int64_t p, int64_t head) {
  Quantized q = quantized(s, p, head);
  return std::get<std::vector<float>>(
      dequantize(q.codes.data(), q.scale.data(), q.zero.data(),
                 {1, page, s.image.channels}, s.image.encoding));
}
void Trial::appendAndCheck() {
  int64_t n = 2 * page;
  keys = rows(n, spec.headDim);
  values = rows(n, spec.valueDim);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < n; ++i) // pages 2 and 0
    slots.push_back(i < page ? 2 * page + i : i - page);
  int64_t status = INT64_MAX;
  ASSERT_EQ(append(keys, values, slots, status), KVCACHE_OK);
  ASSERT_EQ(status, INT64_MAX);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < spec.kvHeads; ++h)
      for (auto &s : sides(h)) {
        int64_t rowBytes = s.image.channels * bytes;
        int64_t record = (slots[i] / page * spec.kvHeads + h) * openBytes();
        ASSERT_EQ(
            0, memcmp(&open[record + s.openOffset + slots[i] % page * rowBytes],
                      &s.rows[(i * spec.kvHeads + h) * rowBytes], rowBytes));
      }
}

void Trial::placeSide(std::vector<uint8_t> &record, const SideData &s,
                      int64_t p, int64_t head) {
  Quantized q = quantized(s, p, head);
  const Encoding &e = s.image.encoding;
  for (int64_t t = 0; t < page; ++t)
    for (int64_t c = 0; c < s.image.channels; ++c) {
      auto at = s.image.code(t, c);
      uint8_t *to = &record[image.offset(s.codes) + at.byte];
      const uint8_t *code = &q.codes[(t * s.image.channels + c) * q.codeBytes];
      if (s.image.bits() == 4) {
        int biased =
            (e.asymmetric ? *code : int8_t(*code)) + int(s.image.codeBias());
        *to = uint8_t((*to & (0xf0 >> at.shift)) | (biased << at.shift));
      } else if (s.image.bits() == 8) {
        *to = uint8_t(*code + s.image.codeBias());
      } else {
        memcpy(to, code, q.codeBytes);
      }
      if (!s.image.scaleCount())
        continue;
      int64_t from = e.scale == ScaleKind::Channel
                         ? t / s.image.groupSize() * q.scales.cols + c
                     : e.scale == ScaleKind::Token
                         ? t * q.scales.cols + c / s.image.groupSize()
                         : 0;
      int64_t i = s.image.scaleIndex(t, c), b = bytesOf(e.scaleType);
      Element se = elementOf(e.scaleType);
      storeBits(&record[image.offset(s.scales) + i * b],
                toElementBits(se, q.scale[from]), unsigned(b));
      if (e.asymmetric)
        storeBits(&record[image.offset(s.zeros) + i * b],
                  toElementBits(se, q.zero[from]), unsigned(b));
    }
  if (image.size(Section::Exponents)) {
    auto exponent = [](const std::vector<float> &x) {
      float m = 0;
      for (float v : x)
        m = std::max(m, std::fabs(v));
      return m == 0 ? 0 : std::clamp(std::ilogb(m), -126, 126);
    };
    bool stored = s.image.scaleCount() > 0;
    uint8_t *words = &record[image.offset(Section::Exponents)];
    storeBits(words + 4 * s.word, stored ? exponent(q.scale) : 0, 4);
    storeBits(words + 4 * (s.word + 2), stored ? exponent(q.zero) : 0, 4);
  }
}

std::vector<uint8_t> Trial::expectedRecord(int64_t p, int64_t head) {
  std::vector<uint8_t> record(image.recordBytes(), 0xee);
  for (auto &s : sides(head))
    placeSide(record, s, p, head);
  return record;
}

void Trial::sealAndCheck() {
  std::vector<int32_t> src = {2, 0}, dst = {0, 2};
  ASSERT_EQ(seal("seal", src, dst), KVCACHE_OK);
  int64_t n = image.recordBytes();
  for (int64_t p = 0; p < 2; ++p)
    for (int64_t h = 0; h < spec.kvHeads; ++h) {
      auto want = expectedRecord(p, h);
      const uint8_t *got = &sealed[(dst[p] * spec.kvHeads + h) * n];
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(int(got[i]), int(want[i]))
            << "page " << p << " head " << h << " byte " << i << " of " << n
            << "; " << image.text();
    }
  for (int64_t i = spec.kvHeads * n; i < 2 * spec.kvHeads * n; ++i)
    ASSERT_EQ(sealed[i], 0xee) << "a page that nobody sealed";
}

void Trial::readAndCheck() {
  for (bool isSealed : {true, false}) {
    std::vector<int32_t> pages =
        isSealed ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{2, 0};
    std::vector<float> k(2 * page * spec.kvHeads * spec.headDim);
    std::vector<float> v(2 * page * spec.kvHeads * spec.valueDim);
    std::vector<Argument> a = {
        memory(pages),  {nullptr, 0, isSealed}, memory(sealed), memory(open),
        memory(kScale), memory(vScale),         memory(k),      memory(v)};
    ASSERT_EQ(runner->run("read", a, 0, 2 * spec.kvHeads), KVCACHE_OK);
    for (int64_t p = 0; p < 2; ++p)
      for (int64_t h = 0; h < spec.kvHeads; ++h)
        for (auto &s : sides(h)) {
          auto want = isSealed ? decoded(s, p, h) : floats(s, p, h);
          auto &got = s.word ? v : k;
          for (int64_t i = 0; i < int64_t(want.size()); ++i) {
            int64_t t = i / s.image.channels, c = i % s.image.channels;
            int64_t at =
                ((p * page + t) * spec.kvHeads + h) * s.image.channels + c;
            ASSERT_EQ(toBits(got[at]), toBits(want[i])) << image.text();
          }
        }
  }
}

void Trial::unsealAndCheck() {
  ASSERT_EQ(seal("unseal", {2}, {1}), KVCACHE_OK);
  for (int64_t h = 0; h < spec.kvHeads; ++h)
    for (auto &s : sides(h)) {
      auto want = decoded(s, 1, h);
      for (int64_t i = 0; i < int64_t(want.size()); ++i) {
        const uint8_t *got =
            &open[(spec.kvHeads + h) * openBytes() + s.openOffset + i * bytes];
        ASSERT_EQ(loadBits(got, unsigned(bytes)),
                  toElementBits(spec.dtype, want[i]))
            << image.text();
      }
    }
}
