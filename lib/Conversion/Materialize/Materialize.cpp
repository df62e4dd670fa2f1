//===- Materialize.cpp - Caches as buffers and kernel calls ---------------===//
//
// Kernels are generated in a module of their own, renamed and moved into the
// program, one for each distinct spec.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/Materialize/Materialize.h"
#include "CallKernel.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"
#include "kvcache/Conversion/KVCacheToReference/KVCacheToReference.h"
#include "kvcache/Conversion/KVTileToCPU.h"
#include "kvcache/Conversion/StorageKernels.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"
#include "kvcache/Target/X86/Jit.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/SymbolTable.h"

namespace kvcache {
#define GEN_PASS_DEF_KVCACHEMATERIALIZEPASS
#include "kvcache/Conversion/Materialize/Passes.h.inc"
} // namespace kvcache

using namespace kvcache;
using namespace mlir;

namespace {
/// The kernels of one program.
class Kernels {
public:
  Kernels(ModuleOp module, CpuTier tier, const DeviceKernels &device)
      : module(module), tier(tier), device(device) {}

  /// The kernel of a spec, generated on first use.
  FailureOr<GeneratedKernel> get(Location loc, const KernelSpec &spec);
  /// The kernel of an attention on tensors, likewise.
  FailureOr<GeneratedArrayKernel> get(Location loc, tile::ArraysAttr spec,
                                      int64_t columns,
                                      const ExternalSource *rows = nullptr);
  /// The storage kernels of a cache's spec, likewise.
  FailureOr<StorageSymbols> storage(const KernelSpec &spec, CacheType type);

private:
  FailureOr<GeneratedKernel> onDevice(Location loc, const KernelSpec &spec);

  ModuleOp module;
  CpuTier tier;
  const DeviceKernels &device;
  std::vector<GeneratedKernel> kernels;
  std::vector<GeneratedArrayKernel> arrayKernels;
  std::vector<StorageSymbols> storages;
};
} // namespace

/// Moves the functions of `from` into `to` with `prefix` before their names.
static LogicalResult moveFunctions(ModuleOp from, ModuleOp to,
                                   StringRef prefix) {
  SymbolTableCollection tables;
  for (Operation &op :
       llvm::make_early_inc_range(from.getBody()->getOperations())) {
    auto symbol = dyn_cast<SymbolOpInterface>(op);
    if (!symbol)
      continue;
    std::string name = (prefix + symbol.getName()).str();
    if (failed(SymbolTable::replaceAllSymbolUses(
            &op, StringAttr::get(op.getContext(), name), from)))
      return failure();
    symbol.setName(name);
    symbol.setPrivate();
    // Calls stay calls: kernels are compiled as they are, once.
    if (auto function = dyn_cast<func::FuncOp>(op))
      function.setNoInline(true);
  }
  for (Operation &op :
       llvm::make_early_inc_range(from.getBody()->getOperations()))
    op.moveBefore(to.getBody(), to.getBody()->end());
  return success();
}

/// Declares what runs the kernels of a device.
FailureOr<GeneratedKernel> Kernels::onDevice(Location loc,
                                             const KernelSpec &spec) {
  Expected<DeviceKernel> made = device(spec);
  if (auto *error = std::get_if<FormatError>(&made))
    return emitError(loc, error->message), failure();
  const DeviceKernel &known = std::get<DeviceKernel>(made);
  if (!module.lookupSymbol(kDeviceAttend)) {
    OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
    Type ptr = LLVM::LLVMPointerType::get(b.getContext()), i64 = b.getI64Type();
    auto function = func::FuncOp::create(
        b, loc, kDeviceAttend,
        b.getFunctionType({ptr, i64, i64, i64, i64}, b.getI32Type()));
    function.setPrivate();
  }
  kernels.push_back(
      {spec, kDeviceAttend, "", known.qPack, known.splitTokens, known.handle});
  return kernels.back();
}

FailureOr<GeneratedKernel> Kernels::get(Location loc, const KernelSpec &spec) {
  for (const GeneratedKernel &kernel : kernels)
    if (kernel.spec == spec)
      return kernel;
  if (device)
    return onDevice(loc, spec);
  const TargetInfo &target =
      *std::get<const TargetInfo *>(findTarget("x86-64"));
  auto schedule = chooseSchedule(loc, spec, target, tier);
  if (failed(schedule))
    return failure();
  OwningOpRef<ModuleOp> own = ModuleOp::create(loc);
  if (failed(lowerKernelToCpu(buildAttendKernel(*own, spec, *schedule))))
    return failure();
  std::string prefix = "kvcache_kernel_" + std::to_string(kernels.size()) + "_";
  if (failed(moveFunctions(*own, module, prefix)))
    return failure();
  kernels.push_back({spec, prefix + "attend", prefix + "merge",
                     schedule->getQPack(), schedule->getSplitTokens()});
  return kernels.back();
}

FailureOr<GeneratedArrayKernel> Kernels::get(Location loc,
                                             tile::ArraysAttr spec,
                                             int64_t columns,
                                             const ExternalSource *rows) {
  tile::ScheduleAttr schedule = chooseArraySchedule(spec, columns, tier);
  SmallVector<Type> rowsOf;
  if (rows)
    rowsOf = rowTypesOf(*rows);
  for (const GeneratedArrayKernel &kernel : arrayKernels)
    if (kernel.spec == spec && kernel.schedule == schedule &&
        kernel.rowsOf == rowsOf)
      return kernel;
  OwningOpRef<ModuleOp> own = ModuleOp::create(loc);
  OpBuilder builder = OpBuilder::atBlockEnd(own->getBody());
  auto kernel =
      tile::ArrayKernelOp::create(builder, loc, "attend", spec, schedule);
  if (rows) {
    buildRowsFunction(*own, "keys", *rows, /*isValue=*/false);
    buildRowsFunction(*own, "values", *rows, /*isValue=*/true);
    kernel->setAttr(kKeyRows, builder.getAttr<FlatSymbolRefAttr>("keys"));
    kernel->setAttr(kValueRows, builder.getAttr<FlatSymbolRefAttr>("values"));
  }
  expandArrayAttend(kernel);
  std::string prefix =
      "kvcache_array_kernel_" + std::to_string(arrayKernels.size()) + "_";
  if (failed(lowerArrayKernelToCpu(kernel)) ||
      failed(moveFunctions(*own, module, prefix)))
    return failure();
  arrayKernels.push_back({spec, schedule, prefix + "attend", rowsOf});
  return arrayKernels.back();
}

FailureOr<StorageSymbols> Kernels::storage(const KernelSpec &spec,
                                           CacheType type) {
  StorageTarget target;
  if (ImageAttr image = type.getImage())
    if (auto family = parseImageFamily(image.getFamily()))
      target.family = *family;
  for (const StorageSymbols &known : storages)
    if (known.spec == spec && known.family == target.family)
      return known;
  target.nativeF16 = target.nativeFma = tier != CpuTier::V2;
  target.prefix = "kvcache_storage_" + std::to_string(storages.size()) + "_";
  if (failed(buildStorageKernels(module, spec, target)))
    return failure();
  // Calls stay calls; what is not called goes.
  for (StringRef name : {"append", "seal", "unseal", "read"}) {
    auto function =
        module.lookupSymbol<LLVM::LLVMFuncOp>((target.prefix + name).str());
    function.setPrivate();
    function.setNoInline(true);
  }
  storages.push_back(
      {spec, target.prefix + "append", target.prefix + "seal", target.family});
  return storages.back();
}

/// The spec of an attention, or why no kernel computes it.
static FailureOr<KernelSpec> specOrReason(AttentionOp op, std::string &why) {
  ScopedDiagnosticHandler handler(op.getContext(), [&](Diagnostic &d) {
    why = d.str();
    return success();
  });
  return getKernelSpec(op);
}

static constexpr const char *kOwnPagesOnly =
    "the device's kernels read our own pages with one list per sequence, not ";

/// Attention on tensors or on an external cache.
static FailureOr<Values> attendArrays(Emitter &e, AttentionOp op,
                                      Source &source, Kernels &kernels) {
  tile::ArraysAttr spec = arraysSpecOf(op);
  if (!spec) {
    op.emitWarning("runs as plain loops: no kernel is generated for explicit "
                   "key positions, means over all keys of a cache or more than "
                   "2048 channels");
    return lowerAttention(e, op, source);
  }
  const ExternalSource *rows =
      op.hasCache() ? static_cast<const ExternalSource *>(&source) : nullptr;
  auto kernel = kernels.get(op.getLoc(), spec, columnsOf(op, spec), rows);
  if (failed(kernel))
    return failure();
  return callArrayAttend(e, op, source, *kernel);
}

namespace {
struct Materialize : kvcache::impl::KVCacheMaterializePassBase<Materialize> {
  using KVCacheMaterializePassBase::KVCacheMaterializePassBase;
  explicit Materialize(DeviceKernels device) : device(std::move(device)) {}

  DeviceKernels device;

  FailureOr<CpuTier> tier() {
    if (!cpu.empty()) {
      if (auto parsed = parseCpuTier(cpu.getValue()))
        return *parsed;
      return emitError(getOperation().getLoc(), "unknown CPU tier '")
                 << cpu << "', expected v2, avx2 or avx512",
             failure();
    }
    auto host = x86::hostTier();
    if (host)
      return *host;
    return emitError(getOperation().getLoc(), llvm::toString(host.takeError())),
           failure();
  }

  void runOnOperation() override {
    FailureOr<CpuTier> wanted = tier();
    if (failed(wanted))
      return signalPassFailure();
    Kernels kernels(getOperation(), *wanted, device);
    LoweringOptions options;
    options.onlyCaches = true;
    options.attention = [&](Emitter &e, AttentionOp op,
                            Source &source) -> FailureOr<Values> {
      bool external = bool(op.getCache().getType().getExternal());
      if (device && external)
        return op.emitError(kOwnPagesOnly) << "an external layout";
      if (external)
        return attendArrays(e, op, source, kernels);
      std::string why;
      FailureOr<KernelSpec> spec = specOrReason(op, why);
      if (device && failed(spec))
        return op.emitError("no kernel of the device computes this: ") << why;
      if (failed(spec)) {
        op.emitWarning("runs as plain loops: ") << why;
        return lowerAttention(e, op, source);
      }
      auto kernel = kernels.get(op.getLoc(), *spec);
      if (failed(kernel))
        return failure();
      return callAttend(e, op, static_cast<PagedSource &>(source), *kernel);
    };
    options.arrays = [&](Emitter &e, AttentionOp op,
                         Source &source) -> FailureOr<Values> {
      if (device)
        return op.emitError(kOwnPagesOnly) << "plain tensors";
      return attendArrays(e, op, source, kernels);
    };
    auto storage = [&](Operation *op,
                       PagedSource &source) -> FailureOr<StorageSymbols> {
      auto spec = getCacheSpec(op, source.parts.type);
      return failed(spec) ? FailureOr<StorageSymbols>()
                          : kernels.storage(*spec, source.parts.type);
    };
    options.append = [&](Emitter &e, AppendOp op,
                         PagedSource &source) -> FailureOr<CacheParts> {
      if (!hasOneList(source))
        return lowerAppend(e, op, source);
      auto symbols = storage(op, source);
      if (failed(symbols))
        return failure();
      return callAppend(e, op, source, *symbols);
    };
    options.seal = [&](Emitter &e, SealOp op,
                       PagedSource &source) -> FailureOr<CacheParts> {
      if (device && !hasOneList(source))
        return op.emitError(kOwnPagesOnly) << "one page list per head";
      if (!hasOneList(source))
        return lowerSeal(e, op, source);
      auto symbols = storage(op, source);
      if (failed(symbols))
        return failure();
      return callSeal(e, op, source, *symbols);
    };
    if (failed(lowerKVCacheOps(getOperation(), options)))
      signalPassFailure();
  }
};
} // namespace

std::unique_ptr<Pass>
kvcache::createMaterializeOnDevicePass(DeviceKernels kernels) {
  return std::make_unique<Materialize>(std::move(kernels));
}
