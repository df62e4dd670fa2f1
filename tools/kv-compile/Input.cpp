//===- Input.cpp - The spec of an input file ------------------------------===//
#include "Drivers.h"

using namespace kvcache;
using namespace kvcache::compile;

Expected<KernelSpec> compile::specOf(const Options &options) {
  return options.spec;
}
