//===- EmitTest.cpp - Legality, emission, ptxas reports, target facts -----===//
#include "kvcache/Target/PTX/PTX.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Parser/Parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache;
using testing::HasSubstr;

static const TargetInfo &target(std::string_view name) {
  return *std::get<const TargetInfo *>(findTarget(name));
}

/// Emits a module; its errors, or the PTX.
static std::string emit(const char *text, std::string_view name = "sm_80") {
  mlir::DialectRegistry registry;
  registry.insert<mlir::arith::ArithDialect, mlir::LLVM::LLVMDialect,
                  mlir::NVVM::NVVMDialect>();
  ptx::registerDialects(registry);
  mlir::MLIRContext context(registry);
  std::string errors;
  mlir::ScopedDiagnosticHandler handler(&context,
                                        [&](mlir::Diagnostic &diagnostic) {
                                          errors += diagnostic.str();
                                          return mlir::success();
                                        });
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  if (!module)
    return "does not parse: " + errors;
  auto ptx = ptx::emitPTX(*module, target(name));
  return failed(ptx) ? errors : *ptx;
}

TEST(Emit, WritesAKernel) {
  std::string text = emit(R"(
    llvm.func @k(%p: !llvm.ptr<1>) attributes {nvvm.kernel} {
      %t = nvvm.read.ptx.sreg.tid.x : i32
      %a = llvm.getelementptr %p[%t] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      llvm.store %t, %a : i32, !llvm.ptr<1>
      llvm.return
    })");
  EXPECT_THAT(text, HasSubstr(".target sm_80"));
  EXPECT_THAT(text, HasSubstr(".entry k("));
  EXPECT_THAT(text, HasSubstr("st.global.b32"));
}

// LLVM aborts on what a chip lacks; none of these may reach it.
TEST(Emit, RefusesByName) {
  EXPECT_THAT(emit(R"(llvm.func @k() {
    nvvm.wgmma.fence.aligned
    llvm.return
  })"),
              HasSubstr("'nvvm.wgmma.fence.aligned' cannot be emitted"));
  EXPECT_THAT(emit(R"(llvm.func @k(%x: f32) -> f32 {
    %0 = llvm.call_intrinsic "llvm.nvvm.no.such"(%x) : (f32) -> f32
    llvm.return %0 : f32
  })"),
              HasSubstr("'llvm.nvvm.no.such' cannot be emitted"));
  EXPECT_THAT(emit(R"(llvm.func @k(%x: f32) -> f32 {
    %0 = arith.addf %x, %x : f32
    llvm.return %0 : f32
  })"),
              HasSubstr("is left over after lowering"));
  EXPECT_THAT(emit("module {}", "x86-64"), HasSubstr("is not a PTX target"));
}

TEST(Ptxas, ReadsItsReport) {
  auto kernels = ptx::parseUsage(
      "ptxas info    : Compiling entry function 'attend' for 'sm_80'\n"
      "ptxas info    : Function properties for attend\n"
      "    16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n"
      "ptxas info    : Used 128 registers, used 1 barriers, 16 bytes "
      "cumulative stack size, 8592 bytes smem, 536 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function 'read' for 'sm_80'\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 46 registers, 408 bytes cmem[0]\n");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].entry, "attend");
  EXPECT_EQ(kernels[0].registers, 128);
  EXPECT_EQ(kernels[0].sharedBytes, 8592);
  EXPECT_EQ(kernels[0].stackBytes, 16);
  EXPECT_EQ(kernels[0].spillStoreBytes, 20);
  EXPECT_EQ(kernels[0].spillLoadBytes, 24);
  EXPECT_EQ(kernels[1].registers, 46);
  EXPECT_EQ(kernels[1].sharedBytes, 0);
}

TEST(Ptxas, SaysWhatItRefused) {
  if (!ptx::findPtxas())
    GTEST_SKIP() << "ptxas was not found";
  auto result =
      ptx::assemble(".version 7.8\n.target sm_80\nnonsense\n", target("sm_80"));
  ASSERT_TRUE(errorOf(result));
  EXPECT_THAT(errorOf(result)->message, HasSubstr("ptxas failed for sm_80"));
}

TEST(Targets, ListAndFacts) {
  auto unknown = findTarget("sm_75");
  ASSERT_TRUE(errorOf(unknown));
  EXPECT_EQ(errorOf(unknown)->message,
            "unknown target 'sm_75', expected one of: x86-64, sm_80, sm_86, "
            "sm_87, sm_89, sm_90, sm_90a");
  EXPECT_EQ(target("sm_80").sharedBytesPerBlock, 166912);
  EXPECT_EQ(target("sm_86").sharedBytesPerBlock, 101376);
  EXPECT_EQ(target("sm_90a").sharedBytesPerBlock, 232448);
  EXPECT_TRUE(target("sm_90a").archSpecific);
  EXPECT_FALSE(target("sm_90").archSpecific);
}

TEST(Targets, Occupancy) {
  // 128 threads of 128 registers: 4 blocks of 4 warps of 64.
  EXPECT_DOUBLE_EQ(occupancy(target("sm_80"), 128, 128, 0), 0.25);
  // Shared memory allows 3 blocks of 51 KB with the reserved 1 KB each.
  EXPECT_DOUBLE_EQ(occupancy(target("sm_80"), 128, 32, 51 * 1024), 12.0 / 64.0);
}
