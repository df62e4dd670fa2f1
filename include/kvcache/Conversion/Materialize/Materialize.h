//===- Materialize.h - Caches as buffers and kernel calls -------*- C++ -*-===//
//
// See Passes.td.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_MATERIALIZE_H
#define KVCACHE_CONVERSION_MATERIALIZE_H

#include "mlir/Pass/Pass.h"

namespace kvcache {

#define GEN_PASS_DECL
#include "kvcache/Conversion/Materialize/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "kvcache/Conversion/Materialize/Passes.h.inc"

} // namespace kvcache

#endif // KVCACHE_CONVERSION_MATERIALIZE_H
