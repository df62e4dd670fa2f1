//===- Arrays.cpp - Arrays of other frameworks, through DLPack ------------===//
//
// NumPy reads no bfloat16 (nor fp8) through DLPack; here any array in host
// memory becomes a NumPy view of its bits, with the name of its element type
// beside it.
//
//===----------------------------------------------------------------------===//

#include "Native.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <vector>

namespace nb = nanobind;
using Any = nb::ndarray<nb::ro>;

static std::string dtypeName(nb::dlpack::dtype t) {
  using Code = nb::dlpack::dtype_code;
  std::string bits = std::to_string(int(t.bits));
  if (t.lanes != 1)
    return "vector of " + bits + "-bit elements";
  switch (Code(t.code)) {
  case Code::Int:
    return "int" + bits;
  case Code::UInt:
    return "uint" + bits;
  case Code::Float:
    return "float" + bits;
  case Code::Bfloat:
    return "bfloat" + bits;
  case Code::Bool:
    return "bool";
  default:
    return "element type " + std::to_string(int(t.code)) + " of " + bits +
           " bits";
  }
}

static nb::dlpack::dtype unsignedOf(size_t bytes) {
  return {uint8_t(nb::dlpack::dtype_code::UInt), uint8_t(bytes * 8), 1};
}

// (view of the bits as unsigned integers, name of the element type).
static std::pair<nb::object, std::string> fromDLPack(nb::object array) {
  Any a;
  if (!nb::try_cast<Any>(array, a))
    throw nb::type_error("cannot be read through DLPack");
  if (a.device_type() != nb::device::cpu::value)
    throw nb::value_error("lies in another device's memory; copy it to the "
                          "host first");
  size_t bytes = a.itemsize();
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
    throw nb::value_error("has elements that are no whole bytes");
  std::vector<size_t> shape(a.ndim());
  std::vector<int64_t> strides(a.ndim());
  for (size_t i = 0; i < a.ndim(); ++i) {
    shape[i] = a.shape(i);
    strides[i] = a.stride(i);
  }
  // The view keeps the array itself alive, which owns the memory.
  nb::ndarray<nb::numpy, nb::ro> view(a.data(), a.ndim(), shape.data(), array,
                                      strides.data(), unsignedOf(bytes));
  return {nb::cast(view), dtypeName(a.dtype())};
}

void kvcache::python::bindArrays(nb::module_ &m) {
  m.def("from_dlpack", &fromDLPack);
}
