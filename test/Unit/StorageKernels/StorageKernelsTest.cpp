//===- StorageKernelsTest.cpp - The kernels against Codec and Image -------===//
//
// Compiles append, seal, unseal and read for the host, runs them on random
// pages and compares every byte with what the plain C++ codec and geometry say.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/StorageKernels.h"
#include "Lowering.h"
#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Format/Codec.h"
#include "kvcache/Format/Quantize.h"
#include "kvcache/Target/X86/Jit.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/Module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <random>

using namespace kvcache;
using namespace kvcache::codec;
using testing::HasSubstr;

namespace {

/// The kernels of one spec, compiled.
struct Kernels {
  std::unique_ptr<x86::Jit> jit;
  KvAppendFn append = nullptr;
  KvSealFn seal = nullptr, unseal = nullptr;
  KvReadFn read = nullptr;
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

Kernels compile(const KernelSpec &spec, ImageFamily family,
                CpuTier tier = x86::detectTier()) {
  mlir::OwningOpRef<mlir::ModuleOp> module(
      mlir::ModuleOp::create(mlir::UnknownLoc::get(&context())));
  StorageTarget target;
  target.family = family;
  target.nativeF16 = target.nativeFma = tier != CpuTier::V2;
  Kernels k;
  if (mlir::failed(buildStorageKernels(*module, spec, target)))
    return k;
  auto llvmContext = std::make_unique<llvm::LLVMContext>();
  auto llvmModule = translate(*module, *llvmContext);
  if (!llvmModule)
    return k;
  auto jit =
      x86::Jit::create(std::move(llvmContext), std::move(llvmModule), tier,
                       /*level=*/1, /*selfContained=*/true);
  if (!jit) {
    ADD_FAILURE() << llvm::toString(jit.takeError());
    return k;
  }
  k.jit = std::move(*jit);
  k.append = reinterpret_cast<KvAppendFn>(cantFail(k.jit->lookup("append")));
  k.seal = reinterpret_cast<KvSealFn>(cantFail(k.jit->lookup("seal")));
  k.unseal = reinterpret_cast<KvSealFn>(cantFail(k.jit->lookup("unseal")));
  k.read = reinterpret_cast<KvReadFn>(cantFail(k.jit->lookup("read")));
  return k;
}

KernelSpec makeSpec(const std::string &format, Element dtype, int64_t d,
                    int64_t dv, int64_t heads = 2) {
  KernelSpec s;
  s.qHeads = s.kvHeads = heads;
  s.headDim = d;
  s.valueDim = dv;
  s.dtype = dtype;
  auto f = Format::parse(format);
  if (auto *bad = errorOf(f))
    ADD_FAILURE() << bad->message;
  else
    s.format = std::get<Format>(f);
  if (auto bad = s.verify())
    ADD_FAILURE() << bad->message;
  return s;
}

void storeBits(uint8_t *to, uint32_t bits, unsigned bytes) {
  for (unsigned b = 0; b < bytes; ++b)
    to[b] = static_cast<uint8_t>(bits >> (8 * b));
}
uint32_t loadBits(const uint8_t *from, unsigned bytes) {
  uint32_t bits = 0;
  for (unsigned b = 0; b < bytes; ++b)
    bits |= uint32_t(from[b]) << (8 * b);
  return bits;
}

/// Two pages of random rows, run through every kernel.
class Trial {
public:
  Trial(const std::string &format, Element dtype, int64_t d, int64_t dv,
        ImageFamily family, CpuTier tier = x86::detectTier())
      : spec(makeSpec(format, dtype, d, dv)), bytes(bitsOf(dtype) / 8),
        page(spec.format.page), kernels(compile(spec, family, tier)) {
    image = std::get<PageImage>(PageImage::create(spec.format, d, dv, family));
    open.assign(3 * spec.kvHeads * openBytes(), 0xee);
    sealed.assign(3 * spec.kvHeads * image.recordBytes(), 0xee);
    for (int64_t h = 0; h < spec.kvHeads; ++h) {
      kScale.push_back(0.02f * (h + 1));
      vScale.push_back(0.03f * (h + 1));
    }
  }

  void all() {
    ASSERT_TRUE(kernels.append);
    appendAndCheck();
    sealAndCheck();
    readAndCheck();
    unsealAndCheck();
  }

  int64_t openBytes() const {
    return openRecordBytes(spec.dtype, page, spec.headDim, spec.valueDim);
  }
  /// Rows as bytes of the dtype, channel means apart.
  std::vector<uint8_t> rows(int64_t n, int64_t dim) {
    std::normal_distribution<float> dist(0, 1);
    std::vector<uint8_t> r(n * spec.kvHeads * dim * bytes);
    for (size_t i = 0; i < r.size() / bytes; ++i)
      storeBits(&r[i * bytes],
                toElementBits(spec.dtype, dist(rng) + float(i % dim % 5) - 2),
                bytes);
    return r;
  }
  int32_t append(std::vector<uint8_t> &k, std::vector<uint8_t> &v,
                 std::vector<int64_t> &slots, int64_t &status) {
    KvAppendArgs a{};
    a.k = k.data(), a.v = v.data(), a.slots = slots.data();
    a.open_pool = open.data(), a.status = &status;
    return kernels.append(&a, 0, int64_t(slots.size()));
  }

  KernelSpec spec;
  int64_t bytes, page;
  Kernels kernels;
  PageImage image;
  std::vector<uint8_t> open, sealed, keys, values;
  std::vector<float> kScale, vScale;
  std::mt19937 rng{11};

private:
  void appendAndCheck();
  void sealAndCheck();
  void readAndCheck();
  void unsealAndCheck();

  struct SideData {
    const TensorImage &image;
    Section codes, scales, zeros;
    std::vector<uint8_t> &rows;
    int64_t openOffset;
    float tensorScale;
    unsigned word;
  };
  std::vector<SideData> sides(int64_t head) {
    return {{image.key, Section::KCodes, Section::KScales, Section::KZeros,
             keys, 0, kScale[head], 0},
            {image.value, Section::VCodes, Section::VScales, Section::VZeros,
             values, page * spec.headDim * bytes, vScale[head], 1}};
  }
  /// The rows of page `p` of a head, as f32 [page, dim].
  std::vector<float> floats(const SideData &s, int64_t p, int64_t head) {
    int64_t dim = s.image.channels;
    std::vector<float> x(page * dim);
    for (int64_t t = 0; t < page; ++t)
      for (int64_t c = 0; c < dim; ++c) {
        int64_t i = ((p * page + t) * spec.kvHeads + head) * dim + c;
        x[t * dim + c] = fromElementBits(
            spec.dtype, loadBits(&s.rows[i * bytes], unsigned(bytes)));
      }
    return x;
  }
  Quantized quantized(const SideData &s, int64_t p, int64_t head) {
    auto q = quantize(floats(s, p, head).data(), {1, page, s.image.channels},
                      s.image.encoding, s.tensorScale);
    return std::get<Quantized>(q);
  }
  std::vector<float> decoded(const SideData &s, int64_t p, int64_t head) {
    Quantized q = quantized(s, p, head);
    return std::get<std::vector<float>>(
        dequantize(q.codes.data(), q.scale.data(), q.zero.data(),
                   {1, page, s.image.channels}, s.image.encoding));
  }
  std::vector<uint8_t> expectedRecord(int64_t p, int64_t head);
  void placeSide(std::vector<uint8_t> &record, const SideData &s, int64_t p,
                 int64_t head);
};

void Trial::appendAndCheck() {
  int64_t n = 2 * page;
  keys = rows(n, spec.headDim);
  values = rows(n, spec.valueDim);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < n; ++i) // pages 2 and 0
    slots.push_back(i < page ? 2 * page + i : i - page);
  int64_t status = INT64_MAX;
  ASSERT_EQ(append(keys, values, slots, status), KVCACHE_OK);
  ASSERT_EQ(status, INT64_MAX);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < spec.kvHeads; ++h)
      for (auto &s : sides(h)) {
        int64_t rowBytes = s.image.channels * bytes;
        int64_t record = (slots[i] / page * spec.kvHeads + h) * openBytes();
        ASSERT_EQ(
            0, memcmp(&open[record + s.openOffset + slots[i] % page * rowBytes],
                      &s.rows[(i * spec.kvHeads + h) * rowBytes], rowBytes));
      }
}

void Trial::placeSide(std::vector<uint8_t> &record, const SideData &s,
                      int64_t p, int64_t head) {
  Quantized q = quantized(s, p, head);
  const Encoding &e = s.image.encoding;
  for (int64_t t = 0; t < page; ++t)
    for (int64_t c = 0; c < s.image.channels; ++c) {
      auto at = s.image.code(t, c);
      uint8_t *to = &record[image.offset(s.codes) + at.byte];
      const uint8_t *code = &q.codes[(t * s.image.channels + c) * q.codeBytes];
      if (s.image.bits() == 4) {
        int biased =
            (e.asymmetric ? *code : int8_t(*code)) + int(s.image.codeBias());
        *to = uint8_t((*to & (0xf0 >> at.shift)) | (biased << at.shift));
      } else if (s.image.bits() == 8) {
        *to = uint8_t(*code + s.image.codeBias());
      } else {
        memcpy(to, code, q.codeBytes);
      }
      if (!s.image.scaleCount())
        continue;
      int64_t from = e.scale == ScaleKind::Channel
                         ? t / s.image.groupSize() * q.scales.cols + c
                     : e.scale == ScaleKind::Token
                         ? t * q.scales.cols + c / s.image.groupSize()
                         : 0;
      int64_t i = s.image.scaleIndex(t, c), b = bytesOf(e.scaleType);
      Element se = elementOf(e.scaleType);
      storeBits(&record[image.offset(s.scales) + i * b],
                toElementBits(se, q.scale[from]), unsigned(b));
      if (e.asymmetric)
        storeBits(&record[image.offset(s.zeros) + i * b],
                  toElementBits(se, q.zero[from]), unsigned(b));
    }
  if (image.size(Section::Exponents)) {
    auto exponent = [](const std::vector<float> &x) {
      float m = 0;
      for (float v : x)
        m = std::max(m, std::fabs(v));
      return m == 0 ? 0 : std::clamp(std::ilogb(m), -126, 126);
    };
    bool stored = s.image.scaleCount() > 0;
    uint8_t *words = &record[image.offset(Section::Exponents)];
    storeBits(words + 4 * s.word, stored ? exponent(q.scale) : 0, 4);
    storeBits(words + 4 * (s.word + 2), stored ? exponent(q.zero) : 0, 4);
  }
}

std::vector<uint8_t> Trial::expectedRecord(int64_t p, int64_t head) {
  std::vector<uint8_t> record(image.recordBytes(), 0xee);
  for (auto &s : sides(head))
    placeSide(record, s, p, head);
  return record;
}

void Trial::sealAndCheck() {
  std::vector<int32_t> src = {2, 0}, dst = {0, 2};
  KvSealArgs a{};
  a.src = src.data(), a.dst = dst.data();
  a.sealed_pool = sealed.data(), a.open_pool = open.data();
  a.k_scale = kScale.data(), a.v_scale = vScale.data();
  ASSERT_EQ(kernels.seal(&a, 0, 2 * spec.kvHeads), KVCACHE_OK);
  int64_t n = image.recordBytes();
  for (int64_t p = 0; p < 2; ++p)
    for (int64_t h = 0; h < spec.kvHeads; ++h) {
      auto want = expectedRecord(p, h);
      const uint8_t *got = &sealed[(dst[p] * spec.kvHeads + h) * n];
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(int(got[i]), int(want[i]))
            << "page " << p << " head " << h << " byte " << i << " of " << n
            << "; " << image.text();
    }
  for (int64_t i = spec.kvHeads * n; i < 2 * spec.kvHeads * n; ++i)
    ASSERT_EQ(sealed[i], 0xee) << "a page that nobody sealed";
}

void Trial::readAndCheck() {
  for (bool isSealed : {true, false}) {
    std::vector<int32_t> pages =
        isSealed ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{2, 0};
    std::vector<float> k(2 * page * spec.kvHeads * spec.headDim);
    std::vector<float> v(2 * page * spec.kvHeads * spec.valueDim);
    KvReadArgs a{};
    a.pages = pages.data(), a.is_sealed = isSealed;
    a.sealed_pool = sealed.data(), a.open_pool = open.data();
    a.k_scale = kScale.data(), a.v_scale = vScale.data();
    a.k = k.data(), a.v = v.data();
    ASSERT_EQ(kernels.read(&a, 0, 2 * spec.kvHeads), KVCACHE_OK);
    for (int64_t p = 0; p < 2; ++p)
      for (int64_t h = 0; h < spec.kvHeads; ++h)
        for (auto &s : sides(h)) {
          auto want = isSealed ? decoded(s, p, h) : floats(s, p, h);
          auto &got = s.word ? v : k;
          for (int64_t i = 0; i < int64_t(want.size()); ++i) {
            int64_t t = i / s.image.channels, c = i % s.image.channels;
            int64_t at =
                ((p * page + t) * spec.kvHeads + h) * s.image.channels + c;
            ASSERT_EQ(toBits(got[at]), toBits(want[i])) << image.text();
          }
        }
  }
}

void Trial::unsealAndCheck() {
  std::vector<int32_t> src = {2}, dst = {1};
  KvSealArgs a{};
  a.src = src.data(), a.dst = dst.data();
  a.sealed_pool = sealed.data(), a.open_pool = open.data();
  a.k_scale = kScale.data(), a.v_scale = vScale.data();
  ASSERT_EQ(kernels.unseal(&a, 0, spec.kvHeads), KVCACHE_OK);
  for (int64_t h = 0; h < spec.kvHeads; ++h)
    for (auto &s : sides(h)) {
      auto want = decoded(s, 1, h);
      for (int64_t i = 0; i < int64_t(want.size()); ++i) {
        const uint8_t *got =
            &open[(spec.kvHeads + h) * openBytes() + s.openOffset + i * bytes];
        ASSERT_EQ(loadBits(got, unsigned(bytes)),
                  toElementBits(spec.dtype, want[i]))
            << image.text();
      }
    }
}

void run(const std::string &format, Element dtype, int64_t d, int64_t dv,
         ImageFamily family, CpuTier tier = x86::detectTier()) {
  SCOPED_TRACE(format + " " + std::string(nameOf(dtype)));
  Trial r(format, dtype, d, dv, family, tier);
  r.all();
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
  Trial f16("key=i4,value=i4:sym,page=4", Element::F16, 16, 16, x86Family);
  bool changed;
  EXPECT_EQ(appendWith(f16, 2, false, inf, changed), 2);
  EXPECT_FALSE(changed);
  EXPECT_EQ(appendWith(f16, 3, true, nan, changed), 3);
  EXPECT_EQ(appendWith(f16, 0, true, -inf, changed), 0);
  EXPECT_EQ(appendWith(f16, 1, true, nan, changed), INT64_MAX) << "padding";
  EXPECT_TRUE(changed);
  EXPECT_EQ(appendWith(f16, 2, false, 65504.0f, changed), INT64_MAX);
  Trial f32("key=i8,value=f16,page=4", Element::F32, 16, 16, x86Family);
  EXPECT_EQ(appendWith(f32, 2, false, 65519.0f, changed), INT64_MAX);
  EXPECT_EQ(appendWith(f32, 2, false, -65520.0f, changed), 2);
  EXPECT_EQ(appendWith(f32, 2, true, 65520.0f, changed), 2);
  Trial bf16("key=i8:tensor,value=f16,page=4", Element::BF16, 16, 16,
             x86Family);
  EXPECT_EQ(appendWith(bf16, 2, false, 3e38f, changed), INT64_MAX);
  EXPECT_EQ(appendWith(bf16, 2, true, 65280.0f, changed), INT64_MAX);
  EXPECT_EQ(appendWith(bf16, 2, true, 65536.0f, changed), 2);
}

TEST(StorageKernels, UnsealStaysFinite) {
  Trial r("key=i8:sym,value=i8:sym,page=1", Element::F16, 8, 8, x86Family);
  ASSERT_TRUE(r.kernels.seal);
  std::vector<uint8_t> k(2 * 8 * 2), v(2 * 8 * 2);
  for (int i = 0; i < 16; ++i)
    storeBits(&k[i * 2], 0x7bff, 2); // 65504 decodes to 65532
  std::vector<int64_t> slots = {0};
  int64_t status = INT64_MAX;
  ASSERT_EQ(r.append(k, v, slots, status), KVCACHE_OK);
  int32_t zero = 0;
  KvSealArgs a{};
  a.src = a.dst = &zero;
  a.sealed_pool = r.sealed.data(), a.open_pool = r.open.data();
  r.kernels.seal(&a, 0, 2);
  r.kernels.unseal(&a, 0, 2);
  EXPECT_EQ(loadBits(r.open.data(), 2), 0x7bffu);
}

TEST(StorageKernels, RefusesByName) {
  std::string message;
  mlir::ScopedDiagnosticHandler handler(&context(), [&](mlir::Diagnostic &d) {
    message = d.str();
    return mlir::success();
  });
  EXPECT_FALSE(
      compile(makeSpec("fp8", Element::F16, 64, 64), x86Family).append);
  EXPECT_THAT(message, HasSubstr("element e4m3 has no page image for x86-64"));
}

} // namespace
