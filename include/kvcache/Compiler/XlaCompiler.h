//===- XlaCompiler.h - Attention of StableHLO graphs inside XLA --*- C++
//-*-===//
//
// A StableHLO graph is rewritten: each recognised attention becomes a custom
// call of one function of this process, and everything else stays for XLA. The
// function finds the kernel by the hash of its code, so an executable that XLA
// kept on disk never runs another kernel than its own.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_COMPILER_XLACOMPILER_H
#define KVCACHE_COMPILER_XLACOMPILER_H

#include "kvcache/Format/Format.h"

#include <string>

namespace kvcache {

/// The target of the custom calls.
inline constexpr char kXlaCallTarget[] = "kvcache_attention";

struct XlaGraph {
  std::string text;   ///< the rewritten graph
  std::string report; ///< JSON, as --kvcache-import=report writes it
  int64_t calls = 0;
};

/// Rewrites a module of StableHLO and compiles the kernels that it calls, which
/// then stay in this process.
Expected<XlaGraph> rewriteForXla(const std::string &text,
                                 const std::string &name);

/// The version of XLA's FFI that the handler tells XLA (what XLA has itself).
void setXlaFfiVersion(int major, int minor);

/// The handler to register with XLA (XLA_FFI_Handler), for platform "Host".
void *xlaHandler();

} // namespace kvcache

#endif // KVCACHE_COMPILER_XLACOMPILER_H
