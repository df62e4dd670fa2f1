//===- KernelSpecTest.cpp - From attention ops to kernel specs ------------===//
//
// What a spec says is what the op says; what it cannot say is refused by name.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/Utils/Utils.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace kvcache;

namespace {

class KernelSpecOfOp : public testing::Test {
protected:
  KernelSpecOfOp() { context.loadDialect<KVCacheDialect, func::FuncDialect>(); }

  /// The spec of the one attention in `text`; else the message is in `error`.
  FailureOr<KernelSpec> specOf(const std::string &text) {
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diag) {
      error = diag.str();
      return success();
    });
    module = parseSourceString<ModuleOp>(text, ParserConfig(&context));
    if (!module)
      return failure();
    AttentionOp op;
    module->walk([&](AttentionOp found) { op = found; });
    return getKernelSpec(op);
  }

  /// A function around one attention to a kivi4 cache of 2 heads.
  FailureOr<KernelSpec> specOfAttributes(const std::string &operands,
                                         const std::string &attributes) {
    std::string cache = "!kvcache.cache<kv = 2, d = 72, dv = 64, open = bf16, "
                        "#kvcache.format<kivi4>, unassigned>";
    return specOf("func.func @f(%q: tensor<5x6x72xbf16>, %c: " + cache +
                  ", %s: tensor<6xf32>, %m: tensor<1x1x9xi1>, "
                  "%p: tensor<5x1x9xi32>) {\n"
                  "  %o, %l = kvcache.attention %q, %c " +
                  operands + " {" + attributes + "} : tensor<5x6x72xbf16>, " +
                  cache +
                  " -> tensor<5x6x64xbf16>, tensor<5x6xf32>\n  return\n}\n");
  }

  MLIRContext context{MLIRContext::Threading::DISABLED};
  OwningOpRef<ModuleOp> module;
  std::string error;
};

TEST_F(KernelSpecOfOp, Defaults) {
  FailureOr<KernelSpec> spec = specOfAttributes("", "");
  ASSERT_TRUE(succeeded(spec)) << error;
  EXPECT_EQ(spec->qHeads, 6);
  EXPECT_EQ(spec->kvHeads, 2);
  EXPECT_EQ(spec->headDim, 72);
  EXPECT_EQ(spec->valueDim, 64);
  EXPECT_EQ(spec->dtype, Element::BF16);
  EXPECT_EQ(spec->format.value.group, 32);
  EXPECT_FALSE(spec->causal || spec->alibi || spec->softcap || spec->scale ||
               spec->windowLeft || spec->windowRight);
}

TEST_F(KernelSpecOfOp, EveryAttribute) {
  FailureOr<KernelSpec> spec = specOfAttributes(
      "slopes(%s : tensor<6xf32>)",
      "causal = #kvcache.causal<bottom_right>, scale = 0.5, softcap = 30.0, "
      "window = #kvcache.window<left = 3>");
  ASSERT_TRUE(succeeded(spec)) << error;
  EXPECT_TRUE(spec->causal && spec->alibi);
  EXPECT_EQ(spec->scale, 0.5);
  EXPECT_EQ(spec->softcap, 30.0);
  EXPECT_EQ(spec->windowLeft, 3);
  EXPECT_EQ(spec->windowRight, std::nullopt);
}

TEST_F(KernelSpecOfOp, RefusesByName) {
  const std::pair<const char *, const char *> operands[] = {
      {"mask(%m : tensor<1x1x9xi1>)", "a mask operand"},
      {"positions(%p : tensor<5x1x9xi32>)", "explicit key positions"},
      {"sink_logits(%s : tensor<6xf32>)", "sink logits"}};
  for (auto [text, name] : operands) {
    EXPECT_TRUE(failed(specOfAttributes(text, "")));
    EXPECT_THAT(error, testing::HasSubstr(name));
  }
  const std::pair<const char *, const char *> attributes[] = {
      {"causal = #kvcache.causal<top_left>", "anchored top_left"},
      {"head_map = array<i64: 0, 0, 0, 1, 1, 1>", "a head map"}};
  for (auto [text, name] : attributes) {
    EXPECT_TRUE(failed(specOfAttributes("", text)));
    EXPECT_THAT(error, testing::HasSubstr(name));
  }
}

TEST_F(KernelSpecOfOp, RefusesTensors) {
  EXPECT_TRUE(failed(
      specOf("func.func @f(%q: tensor<1x2x8xf32>, %k: tensor<1x2x4x8xf32>) {\n"
             "  %o, %l = kvcache.attention %q, %k, %k : tensor<1x2x8xf32>, "
             "tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32> -> tensor<1x2x8xf32>, "
             "tensor<1x2xf32>\n  return\n}\n")));
  EXPECT_THAT(error, testing::HasSubstr("keys and values that are tensors"));
}

// C44: the usual slopes, also for head counts that are no power of two.
TEST(AlibiSlopes, Usual) {
  EXPECT_THAT(usualAlibiSlopes(6),
              testing::ElementsAre(0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f,
                                   0.125f));
  std::vector<float> twelve = usualAlibiSlopes(12);
  ASSERT_EQ(twelve.size(), 12u);
  EXPECT_EQ(twelve[7], 0.00390625f);
  EXPECT_FLOAT_EQ(twelve[8], 0.70710678f);
  EXPECT_FLOAT_EQ(twelve[11], 0.08838835f);
}

} // namespace
