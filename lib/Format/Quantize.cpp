//===- Quantize.cpp - Coding whole arrays ---------------------------------===//
#include "kvcache/Format/Quantize.h"
#include "kvcache/Format/Codec.h"

#include <algorithm>
#include <cstdio>

using namespace kvcache;
using namespace kvcache::codec;

Expected<Quantized> kvcache::quantizedLayout(const Encoding &e,
                                             const ArrayShape &shape) {
  std::string_view extra = e.sparse24   ? "2of4"
                           : e.hadamard ? "hadamard"
                           : e.center   ? "center"
                                        : "";
  if (!extra.empty())
    return FormatError{"'" + std::string(extra) + "' in '" + e.str() +
                       "' does not code single elements; give element, scale, "
                       "group, zero mode and scale type only"};
  auto g = resolveGroup(e, shape.tokens, shape.channels);
  if (auto *bad = errorOf(g))
    return *bad;
  Encoding resolved = e;
  resolved.group = std::get<int64_t>(g);
  Quantized q;
  q.codeBytes = isFloat(e.element) ? bitsOf(e.element) / 8 : 1;
  // A dimension of 0 has no group, not one of size 0.
  if (shape.tokens && shape.channels)
    q.scales = scaleShape(resolved, shape.tokens, shape.channels);
  else if (e.scale == ScaleKind::Channel)
    q.scales = {0, shape.channels};
  else if (e.scale == ScaleKind::Token)
    q.scales = {shape.tokens, 0};
  if (e.scale == ScaleKind::Tensor || e.scale == ScaleKind::Head)
    q.scales = {1, 1};
  return q;
}

namespace {
/// Which scale each element of one [tokens, channels] slice uses.
struct Groups {
  Groups(const Encoding &e, const ArrayShape &s, const GroupShape &g)
      : rowSize(g.rows ? std::max<int64_t>(s.tokens / g.rows, 1) : 1),
        colSize(g.cols ? std::max<int64_t>(s.channels / g.cols, 1) : 1),
        cols(g.cols) {}
  int64_t index(int64_t token, int64_t channel) const {
    return token / rowSize * cols + channel / colSize;
  }
  int64_t rowSize, colSize, cols;
};
} // namespace

static FormatError refusedElement(const float *x, const ArrayShape &s,
                                  int64_t at, const Encoding &e, float limit) {
  char text[256];
  int64_t t = at / s.channels;
  std::snprintf(text, sizeof text,
                "element [%lld, %lld, %lld] is %g; '%s' stores finite numbers "
                "up to %g in magnitude",
                (long long)(t / s.tokens), (long long)(t % s.tokens),
                (long long)(at % s.channels), x[at], e.str().c_str(), limit);
  return {text};
}

static void storeFloat(uint8_t *to, Element e, float x) {
  uint32_t bits = toElementBits(e, x);
  for (unsigned b = 0; b < bitsOf(e) / 8; ++b)
    to[b] = static_cast<uint8_t>(bits >> (8 * b));
}
static float loadFloat(const uint8_t *from, Element e) {
  uint32_t bits = 0;
  for (unsigned b = 0; b < bitsOf(e) / 8; ++b)
    bits |= uint32_t(from[b]) << (8 * b);
  return fromElementBits(e, bits);
}

/// Fills scale and zero of one slice from its values.
static void findScales(const float *x, const ArrayShape &s, const Encoding &e,
                       const Groups &groups, int64_t count, float *scale,
                       float *zero) {
  std::vector<float> min(count, HUGE_VALF), max(count, -HUGE_VALF);
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t c = 0; c < s.channels; ++c) {
      float v = x[t * s.channels + c];
      int64_t i = groups.index(t, c);
      min[i] = std::min(min[i], v);
      max[i] = std::max(max[i], v);
    }
  for (int64_t i = 0; i < count; ++i) {
    bool empty = max[i] < min[i];
    if (e.asymmetric) {
      auto sz = fromRange(e, empty ? 0 : min[i], empty ? 0 : max[i]);
      scale[i] = sz.scale;
      zero[i] = sz.zero;
    } else {
      scale[i] = fromAbsMax(
          e, empty ? 0 : std::max(std::fabs(min[i]), std::fabs(max[i])));
    }
  }
}

static uint8_t encodeOne(const Encoding &e, float x, float s, float z) {
  if (isFp8(e.element))
    return s == 0 ? 0 : toFp8(e.element, x / s);
  return static_cast<uint8_t>(encode(e, x, s, z) - codeBias(e));
}

static float decodeOne(const Encoding &e, uint8_t code, float s, float z) {
  if (isFp8(e.element))
    return fromFp8(e.element, code) * s;
  uint32_t stored =
      e.asymmetric ? code : static_cast<uint32_t>(int8_t(code) + codeBias(e));
  return decode(e, stored, s, z);
}

Expected<Quantized> kvcache::quantize(const float *x, const ArrayShape &shape,
                                      const Encoding &e, float tensorScale) {
  auto layout = quantizedLayout(e, shape);
  if (auto *bad = errorOf(layout))
    return *bad;
  Quantized q = std::move(std::get<Quantized>(layout));
  float limit = largestAccepted(e);
  for (int64_t i = 0, n = shape.count(); i < n; ++i)
    if (!(std::fabs(x[i]) <= limit))
      return refusedElement(x, shape, i, e, limit);
  q.codes.resize(shape.count() * q.codeBytes);
  if (isFloat(e.element)) {
    for (int64_t i = 0, n = shape.count(); i < n; ++i)
      storeFloat(&q.codes[i * q.codeBytes], e.element, x[i]);
    return q;
  }
  int64_t count = q.scales.count(), slice = shape.tokens * shape.channels;
  bool isStatic = e.scale == ScaleKind::Tensor;
  q.scale.assign(shape.batch * count, tensorScale);
  q.zero.assign(e.asymmetric ? shape.batch * count : 0, 0.0f);
  Groups groups(e, shape, q.scales);
  for (int64_t b = 0; b < shape.batch; ++b) {
    const float *xb = x + b * slice;
    float *scale = q.scale.data() + b * count;
    float *zero = e.asymmetric ? q.zero.data() + b * count : nullptr;
    if (!isStatic)
      findScales(xb, shape, e, groups, count, scale, zero);
    for (int64_t i = 0; i < slice; ++i) {
      int64_t g = groups.index(i / shape.channels, i % shape.channels);
      q.codes[b * slice + i] =
          encodeOne(e, xb[i], scale[g], zero ? zero[g] : 0.0f);
    }
  }
  return q;
}

Expected<std::vector<float>>
kvcache::dequantize(const uint8_t *codes, const float *scale, const float *zero,
                    const ArrayShape &shape, const Encoding &e) {
  auto layout = quantizedLayout(e, shape);
  if (auto *bad = errorOf(layout))
    return *bad;
  const Quantized &q = std::get<Quantized>(layout);
  std::vector<float> x(shape.count());
  if (isFloat(e.element)) {
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = loadFloat(codes + i * q.codeBytes, e.element);
    return x;
  }
  int64_t count = q.scales.count(), slice = shape.tokens * shape.channels;
  Groups groups(e, shape, q.scales);
  for (int64_t i = 0; i < shape.count(); ++i) {
    int64_t b = i / slice, in = i % slice;
    int64_t g =
        b * count + groups.index(in / shape.channels, in % shape.channels);
    x[i] = decodeOne(e, codes[i], scale[g], e.asymmetric ? zero[g] : 0.0f);
  }
  return x;
}
