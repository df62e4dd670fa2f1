//===- SimTest.cpp - The simulator's C++ interface ------------------------===//
#include "kvcache/sim.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache::sim;
using testing::HasSubstr;

static std::string module(const std::string &body,
                          const std::string &params = "",
                          const std::string &target = "sm_80") {
  return ".version 8.0\n.target " + target +
         "\n.address_size 64\n.visible .entry k(" + params + ")\n{\n" + body +
         "\nret;\n}\n";
}

/// The message with which a text is refused, when parsed or before it runs.
static std::string refusal(const std::string &text) {
  try {
    auto m = Module::parse(text, "t.ptx");
    std::vector<Buffer> buffers;
    Launch l;
    l.entry = "k";
    runKernel(*m, l, buffers, {});
  } catch (const Error &e) {
    return e.what();
  }
  return "";
}

TEST(Sim, RefusesUnknownInstructionsByLine) {
  EXPECT_THAT(refusal(module("frobnicate.b32 %r1;")),
              HasSubstr("t.ptx:6: error: unknown instruction 'frobnicate'"));
  EXPECT_THAT(
      refusal(module(".reg .b32 %r<3>;\nadd.s32.odd %r1, %r1, %r2;")),
      HasSubstr("t.ptx:7: error: unknown or unsupported modifier '.odd'"));
}

TEST(Sim, RefusesBrokenText) {
  EXPECT_THAT(refusal("garbage"), HasSubstr("error"));
  EXPECT_THAT(refusal(module("bra NOWHERE;")), HasSubstr("unknown label"));
  EXPECT_THAT(refusal(module("mov.u32 %r1, 5;")), HasSubstr("t.ptx:6: error"));
  EXPECT_THAT(refusal(module(".reg .b32 %r<2>;\n{ mov.u32 %r1, 1;")),
              HasSubstr("not closed"));
  EXPECT_THAT(refusal(module(".reg .b64 %rd<2>;\nadd.s32 %rd1, %rd1, 1;")),
              HasSubstr("has 8 bytes, expected 4"));
}

TEST(Sim, NotesUnknownDirectives) {
  auto m = Module::parse(".novel 3;\n" + module(""), "t.ptx");
  ASSERT_EQ(m->notes().size(), 1u);
  EXPECT_THAT(m->notes()[0], HasSubstr("'.novel'"));
}

static Result runOn(const std::string &text, std::vector<uint32_t> &data,
                    Launch l = {}) {
  auto m = Module::parse(text, "t.ptx");
  l.entry = "k";
  std::vector<Buffer> buffers{
      {data.data(), data.size() * 4, true, false, "data"}};
  return runKernel(*m, l, buffers, {Arg::pointer(0)});
}

static const char *const kCopy =
    ".reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;\n"
    "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\n"
    "mul.wide.u32 %rd2, %r1, 8;\nadd.s64 %rd3, %rd1, %rd2;\n"
    "setp.lt.u32 %p1, %r1, 8;\n@%p1 ld.global.u32 %r2, [%rd3];\n"
    "@%p1 st.global.u32 [%rd3+4], %r2;";

TEST(Sim, CountersAreExact) {
  std::vector<uint32_t> data(16, 7);
  Launch l;
  l.block = {32, 1, 1};
  l.counters = true;
  Result r = runOn(module(kCopy, ".param .u64 p"), data, l);
  ASSERT_FALSE(r.violation) << r.violation->message;
  EXPECT_EQ(data[1], 7u);
  // 7 instructions and ret; the guarded two run in 8 threads.
  EXPECT_EQ(r.warpInstructions, 8u);
  EXPECT_EQ(r.threadInstructions, 6 * 32u + 2 * 8u);
  // 8 lanes, 8 bytes apart: 64 bytes, 2 sectors.
  EXPECT_THAT(r.counters, HasSubstr("\"global_load\": {\"requests\": 1, "
                                    "\"bytes\": 32, \"sectors\": 2}"));
}

TEST(Sim, ReportsBlockThreadAndAddress) {
  std::vector<uint32_t> data(15, 7);
  Launch l;
  l.block = {32, 1, 1};
  Result r = runOn(module(kCopy, ".param .u64 p"), data, l);
  ASSERT_TRUE(r.violation);
  EXPECT_EQ(r.violation->kind, "bounds");
  EXPECT_EQ(r.violation->line, 13);
  EXPECT_EQ(r.violation->thread[0], 7);
  EXPECT_THAT(r.violation->message, HasSubstr("byte 60 of 'data'"));
}

TEST(Sim, BankConflictsAreCounted) {
  std::string text = module(
      ".shared .align 16 .b8 s[8192];\n.reg .b32 %r<9>;\n"
      "mov.u32 %r1, %tid.x;\nmov.u32 %r3, s;\nshl.b32 %r2, %r1, 7;\n"
      "add.s32 %r2, %r2, %r3;\nst.shared.u32 [%r2], %r1;\n"
      "shl.b32 %r4, %r1, 2;\nadd.s32 %r4, %r4, %r3;\nst.shared.u32 [%r4], %r1;",
      ".param .u64 p");
  std::vector<uint32_t> data(1);
  Launch l;
  l.block = {32, 1, 1};
  l.counters = true;
  l.checks = CheckBounds;
  Result r = runOn(text, data, l);
  ASSERT_FALSE(r.violation) << r.violation->message;
  EXPECT_THAT(r.counters, HasSubstr("\"shared_store\": {\"requests\": 2, "
                                    "\"bytes\": 256, \"bank_conflicts\": 31}"));
}

TEST(Sim, StepLimitEndsEndlessLoops) {
  std::vector<uint32_t> data(1);
  Launch l;
  l.maxSteps = 1000;
  Result r = runOn(module("L: bra L;", ".param .u64 p"), data, l);
  ASSERT_TRUE(r.violation);
  EXPECT_EQ(r.violation->kind, "steps");
}

TEST(Sim, RefusesWrongLaunches) {
  auto m = Module::parse(module("", ".param .u64 p"), "t.ptx");
  std::vector<Buffer> none;
  Launch l;
  l.entry = "nope";
  EXPECT_THROW(runKernel(*m, l, none, {}), Error);
  l.entry = "k";
  EXPECT_THROW(runKernel(*m, l, none, {}), Error);
  EXPECT_THROW(runKernel(*m, l, none, {Arg::value(uint32_t(1))}), Error);
  l.block = {2048, 1, 1};
  EXPECT_THROW(runKernel(*m, l, none, {Arg::value(uint64_t(1))}), Error);
}

TEST(Sim, TensorMapsAreChecked) {
  TensorMapDesc d;
  d.dtype = "f16";
  d.dims = {64, 16};
  d.strides = {128};
  d.box = {64, 16};
  d.swizzle = "128B";
  EXPECT_EQ(encodeTensorMap(d).size(), 128u);
  d.swizzle = "64B";
  EXPECT_THROW(encodeTensorMap(d), Error);
  d.swizzle = "none";
  d.strides = {100};
  EXPECT_THROW(encodeTensorMap(d), Error);
}
