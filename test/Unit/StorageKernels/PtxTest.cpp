//===- PtxTest.cpp - The same kernels as PTX ------------------------------===//
//
// The block model: entry points, barriers, no local memory; ptxas accepts the
// text without spills where it is installed.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Target/PTX/PTX.h"
#include "Lowering.h"
#include "kvcache/Conversion/StorageKernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace kvcache;
using testing::HasSubstr;
using testing::Not;

std::string test::emitStorageKernels(KernelSpec spec,
                                     std::string_view targetName) {
  mlir::DialectRegistry registry;
  ptx::registerDialects(registry);
  mlir::MLIRContext context(registry);
  mlir::OwningOpRef<mlir::ModuleOp> module(
      mlir::ModuleOp::create(mlir::UnknownLoc::get(&context)));
  StorageTarget target;
  target.family = ImageFamily::SM8x;
  target.model = StorageTarget::Model::Blocks;
  if (failed(buildStorageKernels(*module, spec, target)) ||
      failed(lowerToLLVMDialect(*module)))
    return "";
  const TargetInfo &info =
      *std::get<const TargetInfo *>(findTarget(targetName));
  auto text = ptx::emitPTX(*module, info);
  return failed(text) ? "" : *text;
}

static std::string emit(const std::string &format, Element dtype, int64_t d,
                        std::string_view targetName) {
  KernelSpec spec;
  spec.qHeads = spec.kvHeads = 8;
  spec.headDim = d;
  spec.dtype = dtype;
  spec.format = std::get<Format>(Format::parse(format));
  return test::emitStorageKernels(spec, targetName);
}

static size_t count(const std::string &text, const std::string &what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + 1))
    ++n;
  return n;
}

static void assemble(const std::string &text, std::string_view targetName) {
  if (!ptx::findPtxas())
    return;
  const TargetInfo &info =
      *std::get<const TargetInfo *>(findTarget(targetName));
  auto assembly = ptx::assemble(text, info);
  if (auto *bad = errorOf(assembly)) {
    ADD_FAILURE() << bad->message;
    return;
  }
  auto &kernels = std::get<ptx::Assembly>(assembly).kernels;
  EXPECT_EQ(kernels.size(), 4u);
  for (auto &k : kernels) {
    EXPECT_EQ(k.spillStoreBytes + k.spillLoadBytes, 0) << k.entry;
    EXPECT_EQ(k.stackBytes, 0) << k.entry;
  }
}

TEST(StorageKernelsPtx, Kivi4) {
  for (const char *target : {"sm_80", "sm_86", "sm_89", "sm_90"}) {
    std::string text = emit("kivi4", Element::F16, 128, target);
    for (const char *entry : {"append", "seal", "unseal", "read"})
      EXPECT_THAT(text, HasSubstr(".entry " + std::string(entry) + "("));
    EXPECT_THAT(text, HasSubstr(".reqntid 128"));
    EXPECT_THAT(text, HasSubstr("bar.sync"));
    EXPECT_THAT(text, HasSubstr("div.rn.f32"));
    EXPECT_THAT(text, HasSubstr("fma.rn.f32"));
    EXPECT_THAT(text, Not(HasSubstr(".ftz")));
    EXPECT_THAT(text, Not(HasSubstr(".local")));
    EXPECT_THAT(text, Not(HasSubstr(".approx")));
    // Exponents, by the threads that found scales; append's status.
    EXPECT_EQ(count(text, "atom.") + count(text, "red."), 5u);
    assemble(text, target);
  }
}

TEST(StorageKernelsPtx, EveryFormat) {
  const char *formats[] = {"f16", "key=bf16,value=i8:head:sym,page=16",
                           "int8,page=128",
                           "key=i4:token:sf32,value=i8:tensor,page=32"};
  int64_t dims[] = {80, 112, 256, 48};
  Element dtypes[] = {Element::F16, Element::BF16, Element::F32};
  for (size_t i = 0; i < std::size(formats); ++i) {
    SCOPED_TRACE(formats[i]);
    std::string text = emit(formats[i], dtypes[i % 3], dims[i], "sm_80");
    ASSERT_FALSE(text.empty());
    assemble(text, "sm_80");
  }
}
