//===- BuildAttendTest.cpp - The attend kernel at the schedule level ------===//

#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"

#include <gtest/gtest.h>

using namespace mlir;
using namespace kvcache;

namespace {

KernelSpec makeSpec(const char *format) {
  KernelSpec spec;
  spec.qHeads = 8;
  spec.kvHeads = 2;
  spec.headDim = 64;
  spec.valueDim = 72;
  spec.format = std::get<Format>(Format::parse(format));
  EXPECT_FALSE(spec.verify());
  return spec;
}

struct BuildAttend : testing::Test {
  BuildAttend() {
    context.loadDialect<tile::KVTileDialect, arith::ArithDialect,
                        math::MathDialect>();
  }
  std::string build(const KernelSpec &spec, const char *target) {
    OwningOpRef<ModuleOp> module = ModuleOp::create(loc());
    auto info = std::get<const TargetInfo *>(findTarget(target));
    auto schedule = chooseSchedule(loc(), spec, *info);
    EXPECT_TRUE(succeeded(schedule));
    EXPECT_TRUE(succeeded(verifySchedule(loc(), spec, *schedule, *info)));
    buildAttendKernel(*module, spec, *schedule);
    EXPECT_TRUE(succeeded(verify(*module)));
    std::string text;
    llvm::raw_string_ostream stream(text);
    module->print(stream);
    return text;
  }
  Location loc() { return UnknownLoc::get(&context); }
  MLIRContext context;
};

TEST_F(BuildAttend, VerifiesAndRoundTrips) {
  for (const char *target : {"x86-64", "sm_80", "sm_90a"})
    for (const char *format : {"f16", "int8", "kivi4", "key=i4,value=bf16"}) {
      KernelSpec spec = makeSpec(format);
      for (bool extras : {false, true}) {
        if (extras) {
          spec.softcap = 30.0;
          spec.alibi = true;
          spec.windowLeft = 100;
        }
        std::string text = build(spec, target);
        auto parsed = parseSourceString<ModuleOp>(text, &context);
        ASSERT_TRUE(parsed) << text;
        std::string again;
        llvm::raw_string_ostream stream(again);
        parsed->print(stream);
        EXPECT_EQ(text, again);
      }
    }
}

TEST_F(BuildAttend, SpecAttributeIsABijection) {
  KernelSpec spec = makeSpec("kivi4,sinks=4");
  spec.windowRight = 3;
  spec.causal = false;
  spec.scale = 0.25;
  tile::SpecAttr attr = tile::SpecAttr::fromKernelSpec(&context, spec);
  EXPECT_EQ(attr.getKernelSpec(), spec);
}

TEST_F(BuildAttend, IntegersTakeTheIntegerDot) {
  std::string text = build(makeSpec("key=i8:channel,value=f16"), "x86-64");
  EXPECT_NE(text.find("kvtile.score u8s8x2"), std::string::npos) << text;
  EXPECT_NE(text.find("kvtile.accumulate f32"), std::string::npos) << text;
  EXPECT_EQ(text.find("kvtile.accumulate u8s8x2"), std::string::npos) << text;
}

TEST_F(BuildAttend, OverridesAreCheckedByName) {
  auto schedule =
      chooseSchedule(loc(), makeSpec("f16"),
                     *std::get<const TargetInfo *>(findTarget("sm_80")));
  auto changed = overrideSchedule(loc(), *schedule, "warps=2,dot_kind=bf16");
  ASSERT_TRUE(succeeded(changed));
  EXPECT_EQ(changed->getWarps(), 2);
  EXPECT_EQ(changed->getDotKind(), tile::DotKind::BF16);
  std::string message;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &d) {
    message = d.str();
    return success();
  });
  EXPECT_TRUE(failed(overrideSchedule(loc(), *schedule, "warp=2")));
  EXPECT_NE(message.find("unknown schedule field 'warp'"), std::string::npos);
  EXPECT_TRUE(failed(overrideSchedule(loc(), *schedule, "q_pack=99")));
  EXPECT_NE(message.find("q_pack from 1 to 16, got 99"), std::string::npos);
}

} // namespace
