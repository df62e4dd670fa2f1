//===- GraphCompiler.h - Graphs of frameworks, run in this process -*- C++ -*-//
//
// A graph (StableHLO, linalg, TOSA or kvcache ops) is imported, its attentions
// become fused kernels, and one of its functions is called on arrays where they
// lie. No IR and no LLVM type is in the interface. Errors are messages that
// name the file and line of the graph.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_COMPILER_GRAPHCOMPILER_H
#define KVCACHE_COMPILER_GRAPHCOMPILER_H

#include "kvcache/Format/Format.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvcache {

struct GraphSource {
  std::string text;  ///< MLIR, as text or bytecode
  std::string name;  ///< what messages call it
  std::string entry; ///< the function; "": the only public one, or main
  bool fuse = true;  ///< false: attention stays as the graph writes it
};

/// The type of an argument or result.
struct GraphValueType {
  std::string element; ///< as MLIR names it: f32, bf16, i4, ui8, index, ..
  bool isTensor = false;
  std::vector<int64_t> shape; ///< -1: any size
};

/// An argument in row-major order.
struct GraphArgument {
  const void *data;
  std::vector<int64_t> shape;
};

/// A result; strides are in elements. `owner` keeps its memory (null: an
/// argument's or the code's).
struct GraphResult {
  std::byte *data = nullptr;
  std::vector<int64_t> shape, strides;
  std::shared_ptr<void> owner;
};

class Graph {
public:
  virtual ~Graph() = default;

  static Expected<std::unique_ptr<Graph>> compile(const GraphSource &source);

  /// Runs the function; arguments have been checked against `inputs`. May be
  /// called from several threads at once.
  virtual Expected<std::vector<GraphResult>>
  call(const std::vector<GraphArgument> &arguments) = 0;

  std::string entry;
  std::vector<GraphValueType> inputs, outputs;
  std::string report; ///< JSON, as --kvcache-import=report writes it
};

} // namespace kvcache

#endif // KVCACHE_COMPILER_GRAPHCOMPILER_H
