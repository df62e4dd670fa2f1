//===- Graph.cpp - Graphs of frameworks for Python ------------------------===//

#include "Native.h"

#include "kvcache/Compiler/GraphCompiler.h"
#include "kvcache/Compiler/XlaCompiler.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

namespace nb = nanobind;
using namespace kvcache;
using namespace kvcache::python;

/// Bytes of an element: "bf16" -> 2, "ui4" -> 1 (one code per byte).
static size_t elementBytes(const std::string &element) {
  if (element == "index")
    return 8;
  size_t digit = element.find_first_of("0123456789");
  return std::max<size_t>(1, std::stoul(element.substr(digit)) / 8);
}

/// Keeps memory safe; Python has checked with better messages.
static GraphArgument argument(const Bytes &array, const GraphValueType &type) {
  bool fits = array.ndim() == type.shape.size() &&
              array.itemsize() == elementBytes(type.element);
  GraphArgument result{array.data(), {}};
  for (size_t i = 0; fits && i < array.ndim(); ++i) {
    fits = type.shape[i] < 0 || type.shape[i] == int64_t(array.shape(i));
    result.shape.push_back(int64_t(array.shape(i)));
  }
  if (!fits)
    throw nb::value_error("an argument does not fit the graph");
  return result;
}

/// The bits of a result as unsigned integers; a copy only where the memory is
/// not the result's own.
static nb::object resultArray(const GraphResult &result,
                              const std::string &element) {
  size_t bytes = elementBytes(element);
  nb::dlpack::dtype dtype{uint8_t(nb::dlpack::dtype_code::UInt),
                          uint8_t(bytes * 8), 1};
  std::vector<size_t> shape(result.shape.begin(), result.shape.end());
  // A reference of Python's own to what keeps the memory.
  auto *kept = new std::shared_ptr<void>(result.owner);
  nb::capsule owner(kept, [](void *p) noexcept {
    delete static_cast<std::shared_ptr<void> *>(p);
  });
  nb::ndarray<nb::numpy> view(result.data, shape.size(), shape.data(), owner,
                              result.strides.data(), dtype);
  nb::rv_policy policy = nb::rv_policy::reference;
  if (!result.owner)
    policy = nb::rv_policy::copy;
  return view.cast(policy);
}

static nb::list callGraph(Graph &graph, const std::vector<Bytes> &arrays) {
  if (arrays.size() != graph.inputs.size())
    throw nb::value_error("wrong number of arguments");
  std::vector<GraphArgument> arguments;
  for (size_t i = 0; i < arrays.size(); ++i)
    arguments.push_back(argument(arrays[i], graph.inputs[i]));
  std::vector<GraphResult> results = [&] {
    nb::gil_scoped_release release;
    return unwrap(graph.call(arguments));
  }();
  nb::list out;
  for (size_t i = 0; i < results.size(); ++i)
    out.append(resultArray(results[i], graph.outputs[i].element));
  return out;
}

void kvcache::python::bindGraphs(nb::module_ &m) {
  nb::class_<GraphValueType>(m, "GraphValueType")
      .def_ro("element", &GraphValueType::element)
      .def_ro("is_tensor", &GraphValueType::isTensor)
      .def_ro("shape", &GraphValueType::shape);
  nb::class_<Graph>(m, "Graph")
      .def_ro("entry", &Graph::entry)
      .def_ro("inputs", &Graph::inputs)
      .def_ro("outputs", &Graph::outputs)
      .def_ro("report", &Graph::report)
      .def("call", &callGraph);
  m.def(
      "compile_graph",
      [](nb::bytes text, const std::string &name, const std::string &entry,
         bool fuse) {
        GraphSource source{std::string(text.c_str(), text.size()), name, entry,
                           fuse};
        nb::gil_scoped_release release;
        return unwrap(Graph::compile(source));
      },
      nb::arg("text"), nb::arg("name"), nb::arg("entry"), nb::arg("fuse"));
  m.def("rewrite_for_xla",
        [](const std::string &text, const std::string &name) {
          XlaGraph graph = [&] {
            nb::gil_scoped_release release;
            return unwrap(rewriteForXla(text, name));
          }();
          return nb::make_tuple(graph.text, graph.report, graph.calls);
        });
  m.def("set_xla_ffi_version", &setXlaFfiVersion);
  m.def("xla_handler",
        [] { return nb::capsule(xlaHandler(), "xla._CUSTOM_CALL_TARGET"); });
  m.attr("XLA_CALL_TARGET") = kXlaCallTarget;
}
