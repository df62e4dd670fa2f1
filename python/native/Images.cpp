//===- Images.cpp - Page image geometry for Python ------------------------===//
//
// Where each code of a page lies, as arrays: for tests and tools that look into
// records. Users of the package never need it.
//
//===----------------------------------------------------------------------===//

#include "Native.h"

#include "kvcache/Format/Image.h"

#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace kvcache;
using namespace kvcache::python;

// An int64 array that owns `values`.
static nb::object toNumpy(std::vector<int64_t> &&values,
                          std::initializer_list<size_t> shape) {
  auto *kept = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(kept, [](void *p) noexcept {
    delete static_cast<std::vector<int64_t> *>(p);
  });
  return nb::cast(nb::ndarray<nb::numpy, int64_t>(kept->data(), shape.size(),
                                                  shape.begin(), owner));
}

// Byte and bit shift of each code [page, channels], and of each element its
// index in the scale array.
static nb::dict sideMap(const TensorImage &t) {
  std::vector<int64_t> byte, shift, scale;
  for (int64_t token = 0; token < t.page; ++token)
    for (int64_t channel = 0; channel < t.channels; ++channel) {
      auto at = t.code(token, channel);
      byte.push_back(at.byte);
      shift.push_back(at.shift);
      scale.push_back(t.scaleIndex(token, channel));
    }
  size_t rows = size_t(t.page), cols = size_t(t.channels);
  nb::dict d;
  d["byte"] = toNumpy(std::move(byte), {rows, cols});
  d["shift"] = toNumpy(std::move(shift), {rows, cols});
  d["scale_index"] = toNumpy(std::move(scale), {rows, cols});
  d["code_bits"] = t.bits();
  d["bias"] = t.codeBias();
  d["group"] = t.groupSize();
  return d;
}

static nb::dict imageMap(const std::string &format, int64_t headDim,
                         int64_t valueDim, const std::string &family) {
  auto f = parseImageFamily(family);
  if (!f)
    throw nb::value_error(
        ("image family '" + family + "', expected x86-64 or sm_8x").c_str());
  PageImage image = unwrap(
      PageImage::create(unwrap(Format::parse(format)), headDim, valueDim, *f));
  nb::dict sections, d;
  const char *names[] = {"k_codes",  "v_codes", "k_scales", "k_zeros",
                         "v_scales", "v_zeros", "exponents"};
  for (unsigned s = 0; s < 7; ++s)
    sections[names[s]] = nb::make_tuple(image.offset(static_cast<Section>(s)),
                                        image.size(static_cast<Section>(s)));
  d["k"] = sideMap(image.key);
  d["v"] = sideMap(image.value);
  d["sections"] = sections;
  d["record_bytes"] = image.recordBytes();
  d["hash"] = image.hashText();
  return d;
}

void kvcache::python::bindImages(nb::module_ &m) {
  m.def("image_map", &imageMap, nb::arg("format"), nb::arg("head_dim"),
        nb::arg("value_dim"), nb::arg("family"));
}
