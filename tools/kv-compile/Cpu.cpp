//===- Cpu.cpp - kv-compile for x86-64 ------------------------------------===//
#include "Drivers.h"

using namespace kvcache;
using namespace kvcache::compile;

std::optional<FormatError> compile::runCpu(const Options &) {
  return FormatError{"x86-64 is not linked in"};
}
