//===- SimFuzz.cpp - libFuzzer target: hostile PTX ------------------------===//
//
// Any text must end in an error, a violation or a normal run: never in a crash,
// a hang (few steps are allowed) or an access outside the arguments (build with
// -fsanitize=address). Every entry is run on two small buffers.
//
//===----------------------------------------------------------------------===//
#include "kvcache/sim.h"

using namespace kvcache::sim;

static void runEntry(const Module &m, const std::string &entry,
                     uint32_t checks) {
  // The number of parameters is not public: try the usual counts.
  for (size_t n = 0; n <= 4; ++n) {
    std::vector<uint8_t> x(256), y(256);
    std::vector<Buffer> buffers{{x.data(), x.size(), true, false, "x"},
                                {y.data(), y.size(), false, false, "y"}};
    std::vector<Arg> args;
    for (size_t i = 0; i < n; ++i)
      args.push_back(i < 2 ? Arg::pointer(i) : Arg::value(uint32_t(7)));
    Launch l;
    l.entry = entry;
    l.block = {64, 1, 1};
    l.checks = checks;
    l.maxSteps = 20000;
    l.threads = 1;
    l.sharedBytes = 1024;
    try {
      runKernel(m, l, buffers, args);
      return;
    } catch (const Error &) {
    }
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    auto m = Module::parse(std::string(data, data + size), "fuzz.ptx");
    for (const std::string &e : m->entries())
      for (uint32_t checks : {uint32_t(CheckAll), uint32_t(CheckNone)})
        runEntry(*m, e, checks);
  } catch (const Error &) {
  }
  return 0;
}
