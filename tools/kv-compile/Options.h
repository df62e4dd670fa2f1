//===- Options.h - Flags of kv-compile --------------------------*- C++ -*-===//
#ifndef KVCACHE_TOOLS_KV_COMPILE_OPTIONS_H
#define KVCACHE_TOOLS_KV_COMPILE_OPTIONS_H

#include "kvcache/Kernel/KernelSpec.h"
#include "kvcache/Target/TargetInfo.h"

#include <string>

namespace kvcache::compile {

enum class Emit { PTX, Cubin, Object, LLVM, Package };

struct Options {
  bool help = false;
  std::string input;  ///< FILE.mlir, or empty: the spec comes from flags
  std::string output; ///< -o
  const TargetInfo *target = nullptr;
  std::optional<CpuTier> tier;
  Emit emit = Emit::PTX;
  bool report = false;
  std::string schedule;
  KernelSpec spec; ///< verified, when there is no input file
};

/// Reads the command line, or says what is wrong with it.
Expected<Options> parseOptions(int argc, char **argv);

/// The text of --help.
std::string usage();

} // namespace kvcache::compile

#endif // KVCACHE_TOOLS_KV_COMPILE_OPTIONS_H
