//===- KernelSpec.cpp - Checking and naming kernel specs ------------------===//
//
// The rules that hold whatever the target; targets add their own refusals.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Kernel/KernelSpec.h"

#include <cmath>
#include <cstdio>

using namespace kvcache;

double KernelSpec::softmaxScale() const {
  return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(headDim));
}

static std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

static std::optional<FormatError> checkHeads(int64_t q, int64_t kv) {
  std::string both = std::to_string(q) + " query heads cannot share " +
                     std::to_string(kv) + " key/value heads: ";
  if (q < 1 || kv < 1)
    return FormatError{both + "both must be at least 1"};
  if (q % kv)
    return FormatError{both + "the number of query heads must be a multiple of "
                              "the number of key/value heads"};
  if (q > (1 << 20))
    return FormatError{std::to_string(q) +
                       " query heads; at most 1048576 are supported"};
  return std::nullopt;
}

std::optional<FormatError> KernelSpec::verify() {
  if (auto bad = checkHeads(qHeads, kvHeads))
    return bad;
  if (valueDim == 0)
    valueDim = headDim;
  if (!isFloat(dtype))
    return FormatError{"model dtype " + std::string(nameOf(dtype)) +
                       "; accepted: f32 f16 bf16"};
  auto resolved = resolve(format, headDim, valueDim);
  if (auto *bad = errorOf(resolved))
    return *bad;
  format = std::get<Format>(resolved);
  for (auto [name, side] :
       {std::pair("left", windowLeft), std::pair("right", windowRight)})
    if (side && (*side < 0 || *side > (int64_t(1) << 40)))
      return FormatError{"window's " + std::string(name) + " side is " +
                         std::to_string(*side) +
                         "; expected 0 or more neighbours"};
  if (softcap && !(std::isfinite(*softcap) && *softcap > 0))
    return FormatError{"softcap " + number(*softcap) +
                       "; expected a positive number"};
  if (scale && !std::isfinite(*scale))
    return FormatError{"softmax scale " + number(*scale) +
                       "; expected a finite number"};
  return std::nullopt;
}

std::string KernelSpec::str() const {
  auto side = [](const std::optional<int64_t> &s) {
    return s ? std::to_string(*s) : std::string("none");
  };
  std::string s = "q_heads=" + std::to_string(qHeads);
  s += " kv_heads=" + std::to_string(kvHeads);
  s += " head_dim=" + std::to_string(headDim);
  s += " value_dim=" + std::to_string(valueDim);
  s += " dtype=" + std::string(nameOf(dtype));
  s += causal ? " causal" : " full";
  s += " window=" + side(windowLeft) + ":" + side(windowRight);
  s += " softcap=" + (softcap ? number(*softcap) : "none");
  s += alibi ? " alibi" : " no-alibi";
  s += " scale=" + number(softmaxScale());
  return s + " format=" + format.str();
}
