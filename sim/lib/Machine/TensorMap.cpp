//===- TensorMap.cpp - 128-byte tensor maps from the host -----------------===//
#include "TensorMap.h"
#include "kvcache/sim.h"

namespace kvcache::sim {

[[noreturn]] static void fail(const std::string &s) {
  throw Error("error: tensor map: " + s);
}

static int choice(const std::string &v,
                  std::initializer_list<const char *> names, const char *what) {
  int i = 0;
  std::string all;
  for (const char *n : names) {
    if (v == n)
      return i;
    all += (i++ ? ", " : "") + std::string(n);
  }
  fail(std::string("unknown ") + what + " '" + v + "', expected " + all);
}

std::vector<uint8_t> encodeTensorMap(const TensorMapDesc &d) {
  TensorMap m = {};
  size_t rank = d.dims.size();
  if (rank < 1 || rank > 5)
    fail("expected 1 to 5 dims, got " + std::to_string(rank));
  if (d.strides.size() != rank - 1)
    fail("expected " + std::to_string(rank - 1) + " strides for " +
         std::to_string(rank) + " dims, got " +
         std::to_string(d.strides.size()));
  if (d.box.size() != rank)
    fail("expected a box of " + std::to_string(rank) + " dims, got " +
         std::to_string(d.box.size()));
  if (!d.elementStrides.empty() && d.elementStrides.size() != rank)
    fail("expected " + std::to_string(rank) + " element strides");
  static const char *const types[] = {
      "u8",  "u16",     "u32", "s32",  "u64",  "s64",     "f16",
      "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz"};
  int type = -1;
  for (int i = 0; i < 13; ++i)
    if (d.dtype == types[i])
      type = i;
  if (d.dtype == "i32")
    type = 3;
  if (d.dtype == "i64")
    type = 5;
  if (d.dtype == "i8" || d.dtype == "s8" || d.dtype == "e4m3" ||
      d.dtype == "e5m2")
    type = 0;
  if (type < 0)
    fail("unknown dtype '" + d.dtype + "'");
  m.elemType = uint8_t(type);
  m.rank1 = uint8_t(rank - 1);
  m.swizzle =
      uint8_t(choice(d.swizzle, {"none", "32B", "64B", "128B"}, "swizzle"));
  m.fill = uint8_t(choice(d.oobFill, {"zero", "nan"}, "oob"));
  m.interleave =
      uint8_t(choice(d.interleave, {"none", "16B", "32B"}, "interleave"));
  int elem = tensorElemBytes(type);
  for (size_t i = 0; i < rank; ++i) {
    if (d.dims[i] < 1 || d.dims[i] > (uint64_t(1) << 32))
      fail("dim " + std::to_string(i) + " is out of range");
    if (d.box[i] < 1 || d.box[i] > 256)
      fail("box dims are 1 to 256, got " + std::to_string(d.box[i]));
    uint32_t es = d.elementStrides.empty() ? 1 : d.elementStrides[i];
    if (es < 1 || es > 8)
      fail("element strides are 1 to 8, got " + std::to_string(es));
    m.dims[i] = uint32_t(d.dims[i]);
    m.box[i] = d.box[i];
    m.elementStrides[i] = es;
    if (i + 1 < rank) {
      if (d.strides[i] % 16 || d.strides[i] >> 40)
        fail("strides are multiples of 16 below 2^40, got " +
             std::to_string(d.strides[i]));
      m.strides[i] = d.strides[i];
    }
  }
  uint64_t inner = uint64_t(d.box[0]) * uint64_t(elem);
  if (m.interleave == 0 && inner % 16)
    fail("the inner box of " + std::to_string(inner) +
         " bytes is not a multiple of 16");
  static const uint64_t spans[] = {0, 32, 64, 128};
  if (m.swizzle && inner > spans[m.swizzle])
    fail("the inner box of " + std::to_string(inner) +
         " bytes exceeds the swizzle of " + std::to_string(spans[m.swizzle]));
  std::vector<uint8_t> out(128);
  std::memcpy(out.data(), &m, 128);
  return out;
}

Arg tensorMapArg(const TensorMapDesc &d, size_t buffer) {
  Arg a;
  a.bytes = encodeTensorMap(d);
  a.pointers.push_back({0, buffer, 0});
  a.align = 64;
  return a;
}

} // namespace kvcache::sim
