//===- SimTest.cpp - The PTX of the storage kernels, executed -------------===//
//
// The same trials as on the CPU, run by the simulator with every check on: what
// a GPU stores is, byte for byte, what the codec says.
//
//===----------------------------------------------------------------------===//
#include "kvcache/sim.h"
#include "Lowering.h"
#include "Trial.h"
#include "kvcache/Format/Codec.h"

#include <gtest/gtest.h>

using namespace kvcache;
using namespace kvcache::test;

namespace {
/// One block per item (append: one thread per row).
class SimRunner : public Runner {
public:
  explicit SimRunner(const std::string &ptx)
      : module(sim::Module::parse(ptx, "storage.ptx")) {}
  int32_t run(const char *kernel, std::vector<Argument> arguments,
              int64_t begin, int64_t end) override;

private:
  std::shared_ptr<const sim::Module> module;
};
} // namespace

int32_t SimRunner::run(const char *kernel, std::vector<Argument> arguments,
                       int64_t begin, int64_t end) {
  std::vector<sim::Buffer> buffers;
  std::vector<sim::Arg> args;
  for (const Argument &a : arguments) {
    if (!a.data) {
      args.push_back(sim::Arg::value<int64_t>(a.number));
      continue;
    }
    args.push_back(sim::Arg::pointer(buffers.size()));
    buffers.push_back({a.data, a.bytes, true, false, kernel});
  }
  args.push_back(sim::Arg::value(begin));
  args.push_back(sim::Arg::value(end));
  sim::Launch launch;
  launch.entry = kernel;
  launch.block = {128, 1, 1};
  bool rows = launch.entry == "append";
  // One block more than needed: its threads must find nothing to do.
  launch.grid = {(rows ? (end - begin + 127) / 128 : end - begin) + 1, 1, 1};
  sim::Result result = sim::runKernel(*module, launch, buffers, args);
  if (result.violation)
    ADD_FAILURE() << kernel << ": " << result.violation->kind << ": "
                  << result.violation->message;
  return KVCACHE_OK;
}

static Trial trial(const std::string &format, Element dtype, int64_t d,
                   int64_t dv) {
  KernelSpec spec = makeSpec(format, dtype, d, dv);
  return Trial(spec, ImageFamily::SM8x,
               std::make_unique<SimRunner>(emitStorageKernels(spec, "sm_80")));
}

TEST(StorageKernelsSim, EveryByte) {
  trial("f16,page=16", Element::F16, 64, 48).all();
  trial("int8,page=32", Element::BF16, 48, 64).all();
  trial("kivi4,page=32", Element::F16, 80, 112).all();
  trial("key=i4:token:g4:sf32,value=i8:channel:g4:sym:sbf16,page=16",
        Element::F32, 32, 64)
      .all();
  trial("key=i8:head,value=i4:tensor,page=16", Element::F16, 32, 32).all();
}

TEST(StorageKernelsSim, AppendRefuses) {
  Trial t = trial("key=i4,value=i8,page=16", Element::F32, 16, 16);
  auto k = t.rows(4, 16), v = t.rows(4, 16);
  std::vector<int64_t> slots = {0, -1, 1, 2};
  int64_t status = INT64_MAX;
  // Row 1 is padding.
  storeBits(&v[(1 * 2 * 16 + 3) * 4], codec::toBits(HUGE_VALF), 4);
  t.append(k, v, slots, status);
  EXPECT_EQ(status, INT64_MAX);
  storeBits(&v[(3 * 2 * 16 + 3) * 4], codec::toBits(HUGE_VALF), 4);
  storeBits(&k[(2 * 2 * 16 + 7) * 4], codec::toBits(-65520.0f), 4);
  t.append(k, v, slots, status);
  EXPECT_EQ(status, 2);
}
