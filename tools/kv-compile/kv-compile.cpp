//===- kv-compile.cpp - From a spec or a file to code ---------------------===//
//
// See usage() in Options.cpp. Nothing is written before everything succeeded,
// so that a failure leaves no output file behind.
//
//===----------------------------------------------------------------------===//
#include "Drivers.h"

#include <cstdio>

using namespace kvcache;
using namespace kvcache::compile;

int main(int argc, char **argv) {
  auto parsed = parseOptions(argc, argv);
  if (auto *bad = std::get_if<FormatError>(&parsed)) {
    std::fprintf(stderr, "kv-compile: error: %s\n", bad->message.c_str());
    return 1;
  }
  const Options &options = std::get<Options>(parsed);
  if (options.help) {
    std::fputs(usage().c_str(), stdout);
    return 0;
  }
  if (auto bad = options.target->isGpu ? runGpu(options) : runCpu(options)) {
    std::fprintf(stderr, "kv-compile: error: %s\n", bad->message.c_str());
    return 1;
  }
  return 0;
}
