//===- DenseBooleans.h - Constants of i1 between versions of MLIR -*- C++ -*-=//
//
// Long constants are printed as bytes in hexadecimal. For i1 that is one bit an
// element up to LLVM 22, and one byte an element in the newer versions that
// frameworks bring along.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SUPPORT_DENSEBOOLEANS_H
#define KVCACHE_SUPPORT_DENSEBOOLEANS_H

#include <string>

namespace kvcache {

enum class Booleans { Bits, Bytes };

/// MLIR text with `dense<"0x.."> : tensor<..xi1>` in the wanted form; what is
/// in neither form stays.
std::string convertBooleans(const std::string &text, Booleans wanted);

} // namespace kvcache

#endif // KVCACHE_SUPPORT_DENSEBOOLEANS_H
