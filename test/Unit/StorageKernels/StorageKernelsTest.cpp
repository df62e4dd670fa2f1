//===- StorageKernelsTest.cpp - The kernels against Codec and Image -------===//
//
// Compiles append, seal, unseal and read for the host, runs them on random
// pages and compares every byte with what the plain C++ codec and geometry say.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/StorageKernels.h"
#include "Lowering.h"
#include "Trial.h"
#include "kvcache/Format/Codec.h"
#include "kvcache/Target/X86/Jit.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/Module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>

using namespace kvcache;
using namespace kvcache::codec;
using namespace kvcache::test;
using testing::HasSubstr;

namespace {

/// On this processor, serially.
class JitRunner : public Runner {
public:
  explicit JitRunner(std::unique_ptr<x86::Jit> jit) : jit(std::move(jit)) {}
  int32_t run(const char *kernel, std::vector<Argument> arguments,
              int64_t begin, int64_t end) override {
    std::vector<int64_t> fields;
    for (const Argument &a : arguments)
      fields.push_back(a.data ? reinterpret_cast<int64_t>(a.data) : a.number);
    using Entry = int32_t (*)(const int64_t *, int64_t, int64_t);
    return reinterpret_cast<Entry>(cantFail(jit->lookup(kernel)))(fields.data(),
                                                                  begin, end);
  }

private:
  std::unique_ptr<x86::Jit> jit;
};

mlir::MLIRContext &context() {
  static mlir::MLIRContext *c = [] {
    mlir::DialectRegistry registry;
    mlir::registerBuiltinDialectTranslation(registry);
    mlir::registerLLVMDialectTranslation(registry);
    mlir::arith::registerConvertArithToLLVMInterface(registry);
    auto *made = new mlir::MLIRContext(registry);
    made->loadAllAvailableDialects();
    return made;
  }();
  return *c;
}

std::unique_ptr<llvm::Module> translate(mlir::ModuleOp module,
                                        llvm::LLVMContext &llvmContext) {
  if (mlir::failed(lowerToLLVMDialect(module)))
    return nullptr;
  return mlir::translateModuleToLLVMIR(module, llvmContext);
}

std::unique_ptr<Runner> compile(const KernelSpec &spec, ImageFamily family,
                                CpuTier tier = x86::detectTier()) {
  mlir::OwningOpRef<mlir::ModuleOp> module(
      mlir::ModuleOp::create(mlir::UnknownLoc::get(&context())));
  StorageTarget target;
  target.family = family;
  target.nativeF16 = target.nativeFma = tier != CpuTier::V2;
  if (mlir::failed(buildStorageKernels(*module, spec, target)))
    return nullptr;
  auto llvmContext = std::make_unique<llvm::LLVMContext>();
  auto llvmModule = translate(*module, *llvmContext);
  if (!llvmModule)
    return nullptr;
  auto jit =
      x86::Jit::create(std::move(llvmContext), std::move(llvmModule), tier,
                       /*level=*/1, /*selfContained=*/true);
  if (!jit) {
    ADD_FAILURE() << llvm::toString(jit.takeError());
    return nullptr;
  }
  return std::make_unique<JitRunner>(std::move(*jit));
}

Trial trial(const std::string &format, Element dtype, int64_t d, int64_t dv,
            ImageFamily family, CpuTier tier = x86::detectTier()) {
  KernelSpec spec = makeSpec(format, dtype, d, dv);
  return Trial(spec, family, compile(spec, family, tier));
}

void run(const std::string &format, Element dtype, int64_t d, int64_t dv,
         ImageFamily family, CpuTier tier = x86::detectTier()) {
  SCOPED_TRACE(format + " " + std::string(nameOf(dtype)));
  trial(format, dtype, d, dv, family, tier).all();
}

const auto x86Family = ImageFamily::X86_64;
const auto sm8x = ImageFamily::SM8x;

TEST(StorageKernels, Presets) {
  run("f16", Element::F16, 64, 64, x86Family);
  run("bf16", Element::BF16, 72, 80, x86Family);
  run("int8,page=16", Element::F16, 96, 64, x86Family);
  run("kivi4", Element::F16, 128, 128, x86Family);
  run("kivi4", Element::F16, 80, 112, sm8x);
  run("int8,page=32", Element::BF16, 48, 64, sm8x);
}

TEST(StorageKernels, EveryScaleKind) {
  const char *kinds[] = {"channel",        "channel:g4:sym", "token:g8",
                         "token:g4",       "token:sym",      "head",
                         "head:sym",       "tensor",         "channel:sf32",
                         "token:g24:sbf16"};
  int i = 0;
  for (const char *e : {"i8:", "i4:"})
    for (size_t kind = 0; kind < std::size(kinds); ++kind, ++i)
      run("key=" + std::string(e) + kinds[kind] +
              ",value=" + (i % 3 ? "i4:" : "i8:") +
              kinds[(kind + 3) % std::size(kinds)] + ",page=16",
          i % 2 ? Element::F16 : Element::F32, 48, 96,
          i % 4 == 0 ? sm8x : x86Family);
}

TEST(StorageKernels, FloatElements) {
  run("key=f16,value=bf16,page=8", Element::F32, 8, 16, x86Family);
  run("key=f32,value=f16,page=4", Element::BF16, 16, 8, x86Family);
  run("key=bf16,value=f16,page=16", Element::F16, 32, 16, sm8x);
}

TEST(StorageKernels, SmallPages) {
  for (int page : {1, 2, 4, 8})
    run("key=i4,value=i4:sym,page=" + std::to_string(page), Element::F16, 24,
        40, x86Family);
  run("key=i8:channel,value=i8:channel,page=1", Element::F16, 24, 40,
      x86Family);
  run("int8,page=256", Element::F16, 16, 16, x86Family);
}

// No F16C and no fma: the same bits, nothing undefined in the object.
TEST(StorageKernels, TierV2) {
  run("kivi4,page=16", Element::F16, 64, 64, x86Family, CpuTier::V2);
  run("key=i8:token:sf32,value=i4:head:sf32,page=16", Element::BF16, 64, 64,
      x86Family, CpuTier::V2);
  run("key=f16,value=bf16,page=16", Element::F32, 16, 16, x86Family,
      CpuTier::V2);
}

/// Appends four rows of which row 1 is padding; returns the status.
int64_t appendWith(Trial &r, int64_t row, bool inValues, float x,
                   bool &changed) {
  auto k = r.rows(4, r.spec.headDim), v = r.rows(4, r.spec.valueDim);
  auto &a = inValues ? v : k;
  int64_t dim = inValues ? r.spec.valueDim : r.spec.headDim;
  storeBits(&a[(row * r.spec.kvHeads * dim + 5) * r.bytes],
            toElementBits(r.spec.dtype, x), unsigned(r.bytes));
  std::vector<int64_t> slots = {0, -1, 1, 2};
  auto before = r.open;
  int64_t status = INT64_MAX;
  int32_t rc = r.append(k, v, slots, status);
  EXPECT_EQ(rc, status == INT64_MAX ? KVCACHE_OK : KVCACHE_REFUSED);
  changed = before != r.open;
  return status;
}

TEST(StorageKernels, AppendRefuses) {
  float inf = HUGE_VALF, nan = std::nanf("");
  Trial f16 =
      trial("key=i4,value=i4:sym,page=4", Element::F16, 16, 16, x86Family);
  bool changed;
  EXPECT_EQ(appendWith(f16, 2, false, inf, changed), 2);
  EXPECT_FALSE(changed);
  EXPECT_EQ(appendWith(f16, 3, true, nan, changed), 3);
  EXPECT_EQ(appendWith(f16, 0, true, -inf, changed), 0);
  EXPECT_EQ(appendWith(f16, 1, true, nan, changed), INT64_MAX) << "padding";
  EXPECT_TRUE(changed);
  EXPECT_EQ(appendWith(f16, 2, false, 65504.0f, changed), INT64_MAX);
  Trial f32 = trial("key=i8,value=f16,page=4", Element::F32, 16, 16, x86Family);
  EXPECT_EQ(appendWith(f32, 2, false, 65519.0f, changed), INT64_MAX);
  EXPECT_EQ(appendWith(f32, 2, false, -65520.0f, changed), 2);
  EXPECT_EQ(appendWith(f32, 2, true, 65520.0f, changed), 2);
  Trial bf16 =
      trial("key=i8:tensor,value=f16,page=4", Element::BF16, 16, 16, x86Family);
  EXPECT_EQ(appendWith(bf16, 2, false, 3e38f, changed), INT64_MAX);
  EXPECT_EQ(appendWith(bf16, 2, true, 65280.0f, changed), INT64_MAX);
  EXPECT_EQ(appendWith(bf16, 2, true, 65536.0f, changed), 2);
}

TEST(StorageKernels, UnsealStaysFinite) {
  Trial r =
      trial("key=i8:sym,value=i8:sym,page=1", Element::F16, 8, 8, x86Family);
  ASSERT_TRUE(r.runner);
  std::vector<uint8_t> k(2 * 8 * 2), v(2 * 8 * 2);
  for (int i = 0; i < 16; ++i)
    storeBits(&k[i * 2], 0x7bff, 2); // 65504 decodes to 65532
  std::vector<int64_t> slots = {0};
  int64_t status = INT64_MAX;
  ASSERT_EQ(r.append(k, v, slots, status), KVCACHE_OK);
  r.seal("seal", {0}, {0});
  r.seal("unseal", {0}, {0});
  EXPECT_EQ(loadBits(r.open.data(), 2), 0x7bffu);
}

TEST(StorageKernels, RefusesByName) {
  std::string message;
  mlir::ScopedDiagnosticHandler handler(&context(), [&](mlir::Diagnostic &d) {
    message = d.str();
    return mlir::success();
  });
  EXPECT_FALSE(compile(makeSpec("fp8", Element::F16, 64, 64), x86Family));
  EXPECT_THAT(message, HasSubstr("element e4m3 has no page image for x86-64"));
}

} // namespace
