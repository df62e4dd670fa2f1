//===- Resolve.cpp - Formats for given head dims --------------------------===//
//
// What a format means for a shape: actual group sizes, shapes of scale arrays,
// bytes per token.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Format/Format.h"

#include <cstdio>

using namespace kvcache;

static std::string divisors(int64_t n) {
  std::string s;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0)
      s += (s.empty() ? "g" : " g") + std::to_string(d);
  return s;
}

Expected<int64_t> kvcache::resolveGroup(const Encoding &e, int64_t page,
                                        int64_t channels) {
  bool perChannel = e.scale == ScaleKind::Channel;
  if (!perChannel && e.scale != ScaleKind::Token)
    return int64_t(0);
  int64_t all = perChannel ? page : channels;
  if (e.group == 0)
    return all;
  if (e.adaptive && perChannel)
    return std::min(e.group, page);
  if (e.adaptive) {
    for (int64_t g = e.group / 8 * 8; g >= 8; g -= 8)
      if (channels % g == 0)
        return g;
    return std::min(e.group, channels);
  }
  if (all % e.group == 0 && e.group <= all)
    return e.group;
  return FormatError{"group g" + std::to_string(e.group) + " of '" + e.str() +
                     "' does not divide " +
                     (perChannel
                          ? "the page of " + std::to_string(all) + " tokens"
                          : "the " + std::to_string(all) + " channels") +
                     "; these do: " + divisors(all) + " (F12)"};
}

static std::optional<FormatError> resolveOne(Encoding &e, int64_t page,
                                             int64_t channels) {
  auto g = resolveGroup(e, page, channels);
  if (auto *bad = errorOf(g))
    return *bad;
  int64_t all = e.scale == ScaleKind::Channel ? page : channels;
  e.group = std::get<int64_t>(g) == all ? 0 : std::get<int64_t>(g);
  e.adaptive = false;
  return std::nullopt;
}

static std::optional<FormatError> checkDim(std::string_view what, int64_t dim) {
  if (dim >= 8 && dim <= 1024 && dim % 8 == 0)
    return std::nullopt;
  return FormatError{std::string(what) + " " + std::to_string(dim) +
                     " is not a multiple of 8 from 8 to 1024 (F14)"};
}

Expected<Format> kvcache::resolve(const Format &f, int64_t headDim,
                                  int64_t valueDim) {
  Format r = f;
  if (auto bad = checkDim("head dim", headDim))
    return *bad;
  if (auto bad = checkDim("value dim", valueDim))
    return *bad;
  if (f.page < 1 || f.page > 256 || (f.page & (f.page - 1)))
    return FormatError{"page=" + std::to_string(f.page) +
                       " is not a power of two from 1 to 256 (F11)"};
  if (auto bad = resolveOne(r.key, f.page, headDim))
    return *bad;
  if (auto bad = resolveOne(r.value, f.page, valueDim))
    return *bad;
  return r;
}

GroupShape kvcache::scaleShape(const Encoding &e, int64_t page,
                               int64_t channels) {
  switch (e.scale) {
  case ScaleKind::Channel:
    return {e.group ? page / e.group : 1, channels};
  case ScaleKind::Token:
    return {page, e.group ? channels / e.group : 1};
  case ScaleKind::Head:
    return {1, 1};
  case ScaleKind::None:
  case ScaleKind::Tensor:
    return {0, 0};
  }
  return {0, 0};
}

double kvcache::codeBits(const Encoding &e) {
  return e.sparse24 ? bitsOf(e.element) / 2.0 + 1 : bitsOf(e.element);
}

double kvcache::bytesPerToken(const Encoding &e, int64_t page,
                              int64_t channels) {
  double arrays = e.asymmetric ? 2 : 1;
  return channels * codeBits(e) / 8 + scaleShape(e, page, channels).count() *
                                          arrays * bytesOf(e.scaleType) / page;
}

/// Every part spelled out, defaults included.
static std::string expanded(const Encoding &e) {
  std::string s(nameOf(e.element));
  if (e.scale != ScaleKind::None)
    s += ":" + std::string(nameOf(e.scale));
  if (e.group)
    s += ":g" + std::to_string(e.group);
  if (e.scale != ScaleKind::None)
    s += e.asymmetric ? ":asym" : ":sym";
  s += e.sparse24 ? ":2of4" : "";
  s += e.hadamard ? ":hadamard" : "";
  s += e.center ? ":center" : "";
  if (e.scale != ScaleKind::None && e.scale != ScaleKind::Tensor)
    s += ":" + std::string(nameOf(e.scaleType));
  return s;
}

std::string kvcache::describe(const Format &f, int64_t headDim,
                              int64_t valueDim) {
  auto resolved = resolve(f, headDim, valueDim);
  if (auto *bad = errorOf(resolved))
    return bad->message;
  const Format &r = std::get<Format>(resolved);
  double k = bytesPerToken(r.key, r.page, headDim);
  double v = bytesPerToken(r.value, r.page, valueDim);
  char line[256];
  std::string s = f.str() + "\n";
  s += "  key    " + expanded(r.key) + "\n  value  " + expanded(r.value) + "\n";
  std::snprintf(line, sizeof line,
                "  page   %lld tokens; sinks %lld (%lld pages); recent %lld\n",
                (long long)r.page, (long long)r.sinks, (long long)r.sinkPages(),
                (long long)r.recent);
  s += line;
  std::snprintf(line, sizeof line,
                "  bytes per token per head, sealed, head dim %lld, value dim "
                "%lld: key %g + value %g = %g (f16: %lld, ratio %.2f)\n",
                (long long)headDim, (long long)valueDim, k, v, k + v,
                (long long)(2 * (headDim + valueDim)),
                2.0 * (headDim + valueDim) / (k + v));
  return s + line;
}
