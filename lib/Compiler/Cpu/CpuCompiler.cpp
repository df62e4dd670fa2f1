//===- CpuCompiler.cpp - From a spec to code that runs --------------------===//

#include "kvcache/Compiler/CpuCompiler.h"
#include "kvcache/Compiler/Compiler.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Target/X86/Jit.h"

using namespace kvcache;

static constexpr const char *entryNames[6] = {"attend", "merge",  "append",
                                              "seal",   "unseal", "read"};

Expected<CpuTier> kvcache::hostCpuTier() {
  llvm::Expected<CpuTier> tier = x86::hostTier();
  if (!tier)
    return FormatError{llvm::toString(tier.takeError())};
  return *tier;
}

static int64_t runtimeDtype(Element e) {
  return e == Element::F32 ? KV_F32 : e == Element::F16 ? KV_F16 : KV_BF16;
}

Expected<KvKernelInfo> kvcache::kernelInfo(const KernelSpec &spec,
                                           int64_t qPack, int64_t splitTokens) {
  auto made = PageImage::create(spec.format, spec.headDim, spec.valueDim,
                                ImageFamily::X86_64);
  if (const FormatError *error = errorOf(made))
    return *error;
  const auto &image = std::get<PageImage>(made);
  KvKernelInfo info{};
  info.q_heads = spec.qHeads;
  info.kv_heads = spec.kvHeads;
  info.head_dim = spec.headDim;
  info.value_dim = spec.valueDim;
  info.dtype = runtimeDtype(spec.dtype);
  info.page_tokens = spec.format.page;
  info.sink_pages = spec.format.sinkPages();
  info.recent_tokens = spec.format.recent;
  info.sealed_record_bytes = image.recordBytes();
  info.open_record_bytes = openRecordBytes(spec.dtype, spec.format.page,
                                           spec.headDim, spec.valueDim);
  info.q_pack = qPack;
  info.split_tokens = splitTokens;
  info.causal = spec.causal;
  // A window longer than any sequence is none (lengths are 32-bit).
  auto side = [](std::optional<int64_t> n) {
    return n && *n < INT32_MAX ? *n : int64_t(-1);
  };
  info.window_left = side(spec.windowLeft);
  info.window_right = side(spec.windowRight);
  info.alibi = spec.alibi;
  info.static_k_scale = spec.format.key.scale == ScaleKind::Tensor;
  info.static_v_scale = spec.format.value.scale == ScaleKind::Tensor;
  info.image_hash = image.hash();
  return info;
}

static Expected<CpuCode> compile(const KernelSpec &spec, CpuTier tier,
                                 const std::string &schedule, bool keepText) {
  CpuOptions options;
  options.tier = tier;
  options.schedule = schedule;
  options.keepText = keepText;
  llvm::Expected<CpuCode> code = compileCpu(spec, options);
  if (!code)
    return FormatError{llvm::toString(code.takeError())};
  return std::move(*code);
}

Expected<CpuKernel> kvcache::compileForCpu(const KernelSpec &spec, CpuTier tier,
                                           const std::string &schedule) {
  auto compiled = compile(spec, tier, schedule, /*keepText=*/false);
  if (const FormatError *error = errorOf(compiled))
    return *error;
  CpuCode &code = std::get<CpuCode>(compiled);
  auto info = kernelInfo(spec, code.qPack, code.splitTokens);
  if (const FormatError *error = errorOf(info))
    return *error;
  CpuKernel kernel;
  kernel.tier = tier;
  kernel.info = std::get<KvKernelInfo>(info);
  kernel.object.assign(code.object.begin(), code.object.end());
  kernel.schedule = code.schedule;
  kernel.lowerMs = code.lowerMs;
  kernel.optimizeMs = code.optimizeMs;
  kernel.emitMs = code.emitMs;
  llvm::copy(entryNames, kernel.entries.begin());
  return kernel;
}

Expected<std::string> kvcache::cpuKernelIR(const KernelSpec &spec, CpuTier tier,
                                           const std::string &schedule,
                                           const std::string &level) {
  if (level != "kvtile" && level != "llvm")
    return FormatError{"a kernel for x86-64 has no IR at level '" + level +
                       "', expected kvtile or llvm"};
  auto compiled = compile(spec, tier, schedule, /*keepText=*/true);
  if (const FormatError *error = errorOf(compiled))
    return *error;
  CpuCode &code = std::get<CpuCode>(compiled);
  return level == "llvm" ? code.llvmText : code.tileText;
}

Expected<KvKernel *> kvcache::loadCpuKernel(const CpuKernel &kernel) {
  auto jit =
      x86::Jit::createFromObject({kernel.object.data(), kernel.object.size()});
  if (!jit)
    return FormatError{llvm::toString(jit.takeError())};
  void *symbols[6];
  for (int i = 0; i < 6; ++i) {
    llvm::Expected<void *> address = (*jit)->lookup(kernel.entries[i]);
    if (!address)
      return FormatError{llvm::toString(address.takeError())};
    symbols[i] = *address;
  }
  KvKernelEntries entries;
  entries.attend = reinterpret_cast<KvAttendFn>(symbols[0]);
  entries.merge = reinterpret_cast<KvAttendFn>(symbols[1]);
  entries.append = reinterpret_cast<KvAppendFn>(symbols[2]);
  entries.seal = reinterpret_cast<KvSealFn>(symbols[3]);
  entries.unseal = reinterpret_cast<KvSealFn>(symbols[4]);
  entries.read = reinterpret_cast<KvReadFn>(symbols[5]);
  KvKernel *made = nullptr;
  auto release = [](void *jit) { delete static_cast<x86::Jit *>(jit); };
  if (kvcache_kernel_create(&kernel.info, &entries, release, jit->get(), &made))
    return FormatError{kvcache_last_error()};
  jit->release();
  return made;
}
