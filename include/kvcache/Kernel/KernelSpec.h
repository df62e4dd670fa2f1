//===- KernelSpec.h - What determines a kernel ------------------*- C++ -*-===//
//
// Everything that a generated kernel depends on besides its target and its
// schedule. A plain value: `kv-compile` makes it from flags, the compiler from
// a `kvcache.attention` on a cache, Python from kv.AttentionSpec. Two specs
// that differ in any field are different kernels (the compile cache is keyed by
// `str()`, the target, the schedule and the compiler's own version).
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_KERNEL_KERNELSPEC_H
#define KVCACHE_KERNEL_KERNELSPEC_H

#include "kvcache/Format/Format.h"

#include <optional>
#include <string>

namespace kvcache {

struct KernelSpec {
  int64_t qHeads = 0, kvHeads = 0;
  int64_t headDim = 0, valueDim = 0;
  Element dtype =
      Element::F16; ///< model dtype: q, out, open pages (f32 f16 bf16)
  Format format;    ///< resolved for headDim and valueDim

  bool causal = true;
  /// Neighbours to the left that a query sees besides itself (interface.md's
  /// window=N is left = N-1); unset: unbounded. Right is bounded by `causal`
  /// only, unless windowRight is set.
  std::optional<int64_t> windowLeft, windowRight;
  std::optional<double> softcap;
  bool alibi = false;          ///< slopes come as an argument
  std::optional<double> scale; ///< unset: 1/sqrt(headDim)

  int64_t group() const { return qHeads / kvHeads; }
  double softmaxScale() const;

  /// Checks every field and resolves the format; the message names the value
  /// and what is accepted ("3 query heads cannot share 2 key/value heads:
  /// ...").
  std::optional<FormatError> verify();

  /// Canonical text, one line, every field.
  std::string str() const;

  bool operator==(const KernelSpec &) const = default;
};

} // namespace kvcache

#endif // KVCACHE_KERNEL_KERNELSPEC_H
