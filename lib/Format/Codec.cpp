//===- Codec.cpp - Limits and fp8 -----------------------------------------===//
#include "kvcache/Format/Codec.h"

#include <cfloat>

using namespace kvcache;
using namespace kvcache::codec;

static bool accepts(const Encoding &e, float x) {
  if (isFloat(e.element))
    return std::isfinite(
        fromElementBits(e.element, toElementBits(e.element, x)));
  if (e.scale == ScaleKind::Tensor)
    return true;
  if (e.asymmetric) {
    float range = x + x;
    return std::isfinite(range) &&
           std::isfinite(
               stored(e.scaleType, e.element == Element::I1 ? range : x));
  }
  float s = fromAbsMax(e, x);
  float decoded = s == 0 ? 0 : s * std::nearbyint(x / s);
  return std::isfinite(s) && std::isfinite(decoded);
}

float codec::largestAccepted(const Encoding &e) {
  // Positive floats order like their bits, and acceptance is monotone.
  uint32_t low = 0, high = toBits(FLT_MAX);
  while (low < high) {
    uint32_t mid = low + (high - low + 1) / 2;
    if (accepts(e, fromBits(mid)))
      low = mid;
    else
      high = mid - 1;
  }
  return fromBits(low);
}

namespace {
struct Fp8Info {
  int mantissa, bias;
  float max;
};
} // namespace

static Fp8Info fp8Info(Element e) {
  return e == Element::E4M3 ? Fp8Info{3, 7, 448.0f} : Fp8Info{2, 15, 57344.0f};
}

uint8_t codec::toFp8(Element e, float x) {
  Fp8Info f = fp8Info(e);
  uint8_t sign = toBits(x) >> 31 ? 0x80 : 0;
  if (std::isnan(x))
    return 0x7f;
  double a = std::fmin(std::fabs(x), f.max);
  if (a == 0)
    return sign;
  int exponent = std::max(std::ilogb(a), 1 - f.bias);
  // Exact: a power of two of a float fits a double.
  int r =
      static_cast<int>(std::nearbyint(std::ldexp(a, f.mantissa - exponent)));
  int one = 1 << f.mantissa;
  // A carry out of the fraction runs into the exponent by itself.
  int code = r < one ? r : ((exponent + f.bias - 1) << f.mantissa) + r;
  return sign | static_cast<uint8_t>(code);
}

float codec::fromFp8(Element e, uint8_t code) {
  Fp8Info f = fp8Info(e);
  int exponent = (code & 0x7f) >> f.mantissa;
  int fraction = code & ((1 << f.mantissa) - 1);
  float sign = code & 0x80 ? -1.0f : 1.0f;
  if (e == Element::E4M3 ? (code & 0x7f) == 0x7f : exponent == 31)
    return fraction ? std::nanf("") : sign * HUGE_VALF;
  if (exponent == 0)
    return sign * std::ldexp(float(fraction), 1 - f.bias - f.mantissa);
  return sign * std::ldexp(float(fraction + (1 << f.mantissa)),
                           exponent - f.bias - f.mantissa);
}
