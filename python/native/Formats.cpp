//===- Formats.cpp - Formats, specs and quantisers for Python -------------===//

#include "Native.h"

#include "kvcache/Format/Quantize.h"
#include "kvcache/Kernel/KernelSpec.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>

namespace nb = nanobind;
using namespace kvcache;
using namespace kvcache::python;

// A NumPy array that owns `values`.
template <typename T>
static nb::object toNumpy(std::vector<T> &&values,
                          std::initializer_list<size_t> shape) {
  auto *kept = new std::vector<T>(std::move(values));
  nb::capsule owner(
      kept, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(),
                                            shape.begin(), owner));
}

static Encoding encodingOf(const std::string &text) {
  return unwrap(parseEncoding(text));
}

static ArrayShape shapeOf(const Bytes &x) {
  if (x.ndim() != 3)
    throw nb::value_error("expected an array [batch, tokens, channels]");
  return {int64_t(x.shape(0)), int64_t(x.shape(1)), int64_t(x.shape(2))};
}

// x [batch, tokens, channels] f32 -> codes (bytes), scale, zero or None.
static nb::tuple quantizeArray(Bytes x, const std::string &text,
                               float tensorScale) {
  Encoding e = encodingOf(text);
  ArrayShape shape = shapeOf(x);
  checkBytes(x.nbytes(), shape.count() * 4, "x");
  Quantized q = [&] {
    nb::gil_scoped_release release;
    return unwrap(
        quantize(static_cast<const float *>(x.data()), shape, e, tensorScale));
  }();
  size_t rows = size_t(q.scales.rows), cols = size_t(q.scales.cols);
  size_t batch = size_t(shape.batch);
  nb::object scale = nb::none(), zero = nb::none();
  if (!q.scale.empty())
    scale = toNumpy(std::move(q.scale), {batch, rows, cols});
  if (!q.zero.empty())
    zero = toNumpy(std::move(q.zero), {batch, rows, cols});
  nb::object codes = toNumpy(std::move(q.codes),
                             {batch, size_t(shape.tokens),
                              size_t(shape.channels), size_t(q.codeBytes)});
  return nb::make_tuple(codes, scale, zero);
}

static nb::object dequantizeArray(Bytes codes, std::optional<Bytes> scale,
                                  std::optional<Bytes> zero,
                                  const std::string &text) {
  Encoding e = encodingOf(text);
  ArrayShape shape = shapeOf(codes);
  Quantized layout = unwrap(quantizedLayout(e, shape));
  checkBytes(codes.nbytes(), shape.count() * layout.codeBytes, "codes");
  int64_t scales = shape.batch * layout.scales.count() * 4;
  const float *s = nullptr, *z = nullptr;
  if (scale) {
    checkBytes(scale->nbytes(), scales, "scale");
    s = static_cast<const float *>(scale->data());
  }
  if (zero) {
    checkBytes(zero->nbytes(), scales, "zero");
    z = static_cast<const float *>(zero->data());
  }
  std::vector<float> x = [&] {
    nb::gil_scoped_release release;
    return unwrap(
        dequantize(static_cast<const uint8_t *>(codes.data()), s, z, shape, e));
  }();
  return toNumpy(std::move(x), {size_t(shape.batch), size_t(shape.tokens),
                                size_t(shape.channels)});
}

// Bytes of one code, and rows and columns of the scale array, of a page of
// [tokens, channels].
static std::tuple<int64_t, int64_t, int64_t>
quantizedShape(const std::string &text, int64_t tokens, int64_t channels) {
  Quantized q =
      unwrap(quantizedLayout(encodingOf(text), {1, tokens, channels}));
  return {q.codeBytes, q.scales.rows, q.scales.cols};
}

static Element dtypeOf(const std::string &name) {
  for (auto [text, element] :
       {std::pair("float32", Element::F32), std::pair("float16", Element::F16),
        std::pair("bfloat16", Element::BF16)})
    if (name == text)
      return element;
  throw nb::value_error(
      ("dtype '" + name + "', expected float16, bfloat16 or float32").c_str());
}

static KernelSpec makeSpec(int64_t qHeads, int64_t kvHeads, int64_t headDim,
                           int64_t valueDim, const std::string &dtype,
                           const std::string &format, bool causal,
                           std::optional<int64_t> windowLeft,
                           std::optional<double> softcap, bool alibi,
                           std::optional<double> scale) {
  KernelSpec spec;
  spec.qHeads = qHeads;
  spec.kvHeads = kvHeads;
  spec.headDim = headDim;
  spec.valueDim = valueDim;
  spec.dtype = dtypeOf(dtype);
  spec.format = unwrap(Format::parse(format));
  spec.causal = causal;
  spec.windowLeft = windowLeft;
  spec.softcap = softcap;
  spec.alibi = alibi;
  spec.scale = scale;
  if (auto error = spec.verify())
    throw nb::value_error(error->message.c_str());
  return spec;
}

static void bindFormat(nb::module_ &m) {
  nb::class_<Encoding>(m, "Encoding")
      .def_prop_ro(
          "element",
          [](const Encoding &e) { return std::string(nameOf(e.element)); })
      .def_prop_ro(
          "scale",
          [](const Encoding &e) { return std::string(nameOf(e.scale)); })
      .def_ro("group", &Encoding::group)
      .def_ro("asymmetric", &Encoding::asymmetric)
      .def_prop_ro("code_bits",
                   [](const Encoding &e) { return bitsOf(e.element); })
      .def("__str__", &Encoding::str);
  nb::class_<Format>(m, "Format")
      .def("__init__",
           [](Format *self, const std::string &text) {
             new (self) Format(unwrap(Format::parse(text)));
           })
      .def_ro("page", &Format::page)
      .def_ro("sinks", &Format::sinks)
      .def_ro("recent", &Format::recent)
      .def_ro("key", &Format::key)
      .def_ro("value", &Format::value)
      .def("describe",
           [](const Format &f, int64_t headDim, int64_t valueDim) {
             unwrap(resolve(f, headDim, valueDim));
             return describe(f, headDim, valueDim);
           })
      .def("resolve",
           [](const Format &f, int64_t headDim, int64_t valueDim) {
             return unwrap(resolve(f, headDim, valueDim));
           })
      .def("__eq__", [](const Format &a, const Format &b) { return a == b; })
      .def("__str__", &Format::str);
}

void kvcache::python::bindFormats(nb::module_ &m) {
  bindFormat(m);
  nb::class_<KernelSpec>(m, "Spec")
      .def(
          "__init__",
          [](KernelSpec *self, int64_t qHeads, int64_t kvHeads, int64_t headDim,
             int64_t valueDim, const std::string &dtype,
             const std::string &format, bool causal,
             std::optional<int64_t> windowLeft, std::optional<double> softcap,
             bool alibi, std::optional<double> scale) {
            new (self) KernelSpec(makeSpec(qHeads, kvHeads, headDim, valueDim,
                                           dtype, format, causal, windowLeft,
                                           softcap, alibi, scale));
          },
          nb::kw_only(), nb::arg("q_heads"), nb::arg("kv_heads"),
          nb::arg("head_dim"), nb::arg("value_dim"), nb::arg("dtype"),
          nb::arg("format"), nb::arg("causal"), nb::arg("window_left").none(),
          nb::arg("softcap").none(), nb::arg("alibi"), nb::arg("scale").none())
      .def_ro("format", &KernelSpec::format)
      .def_prop_ro("softmax_scale", &KernelSpec::softmaxScale)
      .def("__str__", &KernelSpec::str);
  m.def("quantize", &quantizeArray);
  m.def("dequantize", &dequantizeArray, nb::arg("codes"),
        nb::arg("scale").none(), nb::arg("zero").none(), nb::arg("encoding"));
  m.def("quantized_shape", &quantizedShape);
  m.def("encoding", &encodingOf);
}
