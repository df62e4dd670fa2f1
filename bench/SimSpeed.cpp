//===- SimSpeed.cpp - How fast the simulator runs -------------------------===//
//
// Prints, per loop, thread instructions (or multiply-adds) per second of CPU
// time and core, without checks and with all of them, one worker.
//
//===----------------------------------------------------------------------===//
#include "kvcache/sim.h"
#include <cstdio>
#include <ctime>

using namespace kvcache;

/// A kernel that repeats `body`; '#' is the number of one of 8 chains.
static std::string loop(const std::string &body, int unroll) {
  std::string s = ".version 8.0\n.target sm_80\n.address_size 64\n"
                  ".visible .entry k(.param .u64 out, .param .u32 n)\n{\n"
                  ".reg .pred %p; .reg .b32 %r<20>; .reg .f32 %f<40>; "
                  ".reg .b64 %rd<4>;\n"
                  "ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];\n"
                  "mov.u32 %r2, %tid.x; cvt.rn.f32.u32 %f0, %r2;\n"
                  "mov.u32 %r4, 0x3c003c00; mov.u32 %r5, 0;\n"
                  "mov.u32 %r6, 0; mov.u32 %r7, 1;\n";
  for (int i = 1; i < 40; ++i)
    s += "mov.f32 %f" + std::to_string(i) + ", 0f3f800001;\n";
  s += "L:\n";
  for (int i = 0; i < unroll; ++i) {
    std::string b = body;
    for (size_t p; (p = b.find('#')) != std::string::npos;)
      b.replace(p, 1, std::to_string(i % 8 * 4 + 1));
    s += b;
  }
  return s + "add.s32 %r5, %r5, 1; setp.lt.s32 %p, %r5, %r1; @%p bra L;\n"
             "mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;\n"
             "st.global.f32 [%rd3], %f1;\nret;\n}\n";
}

static void measure(const char *name, const std::string &ptx, int n,
                    double unit, const char *what) {
  auto m = sim::Module::parse(ptx, name);
  for (uint32_t checks : {uint32_t(sim::CheckNone), uint32_t(sim::CheckAll)}) {
    std::vector<float> out(256);
    std::vector<sim::Buffer> buffers{{out.data(), 1024, true, false, "out"}};
    std::vector<sim::Arg> args{sim::Arg::pointer(0), sim::Arg::value(n)};
    sim::Launch l;
    l.entry = "k";
    l.block = {256, 1, 1};
    l.checks = checks;
    l.threads = 1;
    clock_t t0 = clock();
    sim::Result r = sim::runKernel(*m, l, buffers, args);
    double s = double(clock() - t0) / CLOCKS_PER_SEC;
    if (r.violation)
      std::printf("%s: %s\n", name, r.violation->message.c_str());
    double work = unit > 0 ? unit * n : double(r.threadInstructions);
    std::printf("%-8s checks %-4s %8.2f G %s/s\n", name,
                checks ? "all" : "none", work / s * 1e-9, what);
  }
}

int main() {
  measure("ffma", loop("fma.rn.f32 %f#, %f#, %f38, %f39;\n", 64), 4000, 0,
          "thread instructions");
  measure("integer",
          loop("add.s32 %r6, %r6, %r4;\nxor.b32 %r7, %r7, %r6;\n", 32), 4000, 0,
          "thread instructions");
  measure("mma",
          loop("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%f1,%f2,%f3,%f4},{%r4,%r4,%r4,%r4},{%r4,%r4},"
               "{%f1,%f2,%f3,%f4};\n",
               16),
          1000, 16.0 * 8 * 2048, "multiply-adds");
  std::printf(
      "limit: per warp instruction an indirect call, operand look-ups and "
      "(checks) a flag byte per operand; the arithmetic is two vector "
      "operations\n");
}
