//===- Drivers.h - The two halves of kv-compile -----------------*- C++ -*-===//
#ifndef KVCACHE_TOOLS_KV_COMPILE_DRIVERS_H
#define KVCACHE_TOOLS_KV_COMPILE_DRIVERS_H

#include "Options.h"

#include <optional>

namespace kvcache::compile {

/// Compiles as the options say and writes the output, or says what failed.
std::optional<FormatError> runGpu(const Options &options);
std::optional<FormatError> runCpu(const Options &options);

/// The spec of the options: from the flags, or from the one attention on a
/// cache of the input file.
Expected<KernelSpec> specOf(const Options &options);

/// Writes a file in whole or not at all.
std::optional<FormatError> writeFile(const std::string &path,
                                     const std::string &bytes);

} // namespace kvcache::compile

#endif // KVCACHE_TOOLS_KV_COMPILE_DRIVERS_H
