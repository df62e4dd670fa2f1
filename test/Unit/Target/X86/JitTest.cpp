//===- JitTest.cpp - Objects and in-process code --------------------------===//
#include "kvcache/Target/X86/Jit.h"

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Target/TargetMachine.h"

#include <cmath>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache;
using namespace kvcache::x86;
using testing::HasSubstr;

static std::unique_ptr<llvm::Module> parse(llvm::LLVMContext &context,
                                           llvm::StringRef text) {
  llvm::SMDiagnostic error;
  auto module = llvm::parseAssemblyString(text, error, context);
  EXPECT_TRUE(module) << error.getMessage().str();
  return module;
}

static const char *kDot = R"(
define float @dot(ptr %a, ptr %b, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi float [0.0, %entry], [%t, %loop]
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %x = load float, ptr %pa
  %y = load float, ptr %pb
  %t = call float @llvm.fma.f32(float %x, float %y, float %s)
  %next = add i64 %i, 1
  %c = icmp slt i64 %next, %n
  br i1 %c, label %loop, label %done
done:
  ret float %t
}
declare float @llvm.fma.f32(float, float, float)
)";

TEST(X86Jit, RunsOnTheHost) {
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = parse(*context, kDot);
  auto jit = Jit::create(std::move(context), std::move(module), detectTier());
  ASSERT_TRUE(bool(jit)) << llvm::toString(jit.takeError());
  auto dot = (*jit)->lookup("dot");
  ASSERT_TRUE(bool(dot));
  float a[] = {1, 2, 3}, b[] = {4, 5, 6};
  EXPECT_EQ(
      reinterpret_cast<float (*)(float *, float *, int64_t)>(*dot)(a, b, 3),
      32);
  auto missing = (*jit)->lookup("absent");
  EXPECT_THAT(llvm::toString(missing.takeError()), HasSubstr("absent"));
}

TEST(X86Jit, LinksLibmUnlessSelfContained) {
  const char *text = R"(
define float @f(float %x) {
  %y = call float @llvm.exp.f32(float %x)
  ret float %y
}
declare float @llvm.exp.f32(float)
)";
  for (bool selfContained : {false, true}) {
    auto context = std::make_unique<llvm::LLVMContext>();
    auto module = parse(*context, text);
    auto jit = Jit::create(std::move(context), std::move(module), CpuTier::V2,
                           2, selfContained);
    if (selfContained) {
      EXPECT_THAT(llvm::toString(jit.takeError()), HasSubstr("'expf'"));
      continue;
    }
    ASSERT_TRUE(bool(jit)) << llvm::toString(jit.takeError());
    auto f = cantFail((*jit)->lookup("f"));
    EXPECT_EQ(reinterpret_cast<float (*)(float)>(f)(1), std::exp(1.0f));
  }
}

TEST(X86Jit, NoLoopBecomesALibraryCall) {
  const char *text = R"(
define void @clear(ptr noalias %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %q = getelementptr i8, ptr %p, i64 %i
  store i8 0, ptr %q
  %next = add i64 %i, 1
  %c = icmp slt i64 %next, %n
  br i1 %c, label %loop, label %done
done:
  ret void
}
)";
  for (CpuTier tier : {CpuTier::V2, CpuTier::AVX2, CpuTier::AVX512}) {
    llvm::LLVMContext context;
    auto module = parse(context, text);
    auto machine = cantFail(createTargetMachine(tier));
    optimize(*module, *machine, 3);
    auto object = cantFail(emitObject(*module, *machine));
    EXPECT_FALSE(bool(checkSelfContained(object)));
  }
}

TEST(X86Jit, TierFromTheEnvironment) {
  setenv("KVCACHE_CPU", "v2", 1);
  EXPECT_EQ(cantFail(hostTier()), CpuTier::V2);
  setenv("KVCACHE_CPU", "pentium", 1);
  EXPECT_EQ(llvm::toString(hostTier().takeError()),
            "KVCACHE_CPU is 'pentium', expected v2, avx2 or avx512");
  unsetenv("KVCACHE_CPU");
  EXPECT_EQ(cantFail(hostTier()), detectTier());
}
