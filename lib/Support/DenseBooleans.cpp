//===- DenseBooleans.cpp - Constants of i1 between versions of MLIR -------===//
#include "kvcache/Support/DenseBooleans.h"

#include <cctype>
#include <cstdint>
#include <string_view>

using namespace kvcache;

/// Elements of "AxBxi1>..", -1 when it is no static shape of i1.
static int64_t booleansIn(std::string_view type) {
  int64_t count = 1;
  while (!type.empty() && std::isdigit(static_cast<unsigned char>(type[0]))) {
    int64_t size = 0;
    while (!type.empty() && std::isdigit(static_cast<unsigned char>(type[0]))) {
      size = size * 10 + (type[0] - '0');
      if (size > INT32_MAX)
        return -1;
      type.remove_prefix(1);
    }
    count *= size;
    if (count > INT32_MAX || type.empty() || type[0] != 'x')
      return -1;
    type.remove_prefix(1);
  }
  return type.substr(0, 3) == "i1>" ? count : -1;
}

static int digit(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

static std::string repack(std::string_view hex, int64_t count,
                          Booleans wanted) {
  static const char digits[] = "0123456789ABCDEF";
  auto byte = [&](int64_t i) {
    return digit(hex[2 * i]) * 16 + digit(hex[2 * i + 1]);
  };
  std::string out;
  auto put = [&](int value) {
    out += digits[value / 16];
    out += digits[value % 16];
  };
  if (wanted == Booleans::Bytes) {
    for (int64_t i = 0; i < count; ++i)
      put(byte(i / 8) >> (i % 8) & 1);
    return out;
  }
  for (int64_t first = 0; first < count; first += 8) {
    int value = 0;
    for (int64_t i = first; i < count && i < first + 8; ++i)
      value |= (byte(i) != 0) << (i - first);
    put(value);
  }
  return out;
}

std::string kvcache::convertBooleans(const std::string &text, Booleans wanted) {
  static constexpr std::string_view open = "dense<\"0x",
                                    close = "\"> : tensor<";
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(open, at)) != std::string::npos;) {
    size_t begin = found + open.size(), end = text.find('"', begin);
    out.append(text, at, begin - at);
    at = begin;
    if (end == std::string::npos)
      break;
    std::string_view all(text), hex = all.substr(begin, end - begin);
    if (all.substr(end, close.size()) != close)
      continue;
    int64_t count = booleansIn(all.substr(end + close.size(), 400));
    int64_t bits = (count + 7) / 8,
            bytes = static_cast<int64_t>(hex.size()) / 2;
    if (count <= 1 || bytes != (wanted == Booleans::Bits ? count : bits))
      continue;
    if (hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos)
      continue;
    out += repack(hex, count, wanted);
    at = end;
  }
  return out.append(text, at);
}
