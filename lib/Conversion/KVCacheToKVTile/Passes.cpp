//===- Passes.cpp - Passes of the schedule level --------------------------===//
//
// Thin shells over the functions of KVCacheToKVTile.h.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/StringExtras.h"

namespace kvcache {
#define GEN_PASS_DEF_KVTILECHOOSESCHEDULEPASS
#define GEN_PASS_DEF_KVTILEVERIFYSCHEDULEPASS
#define GEN_PASS_DEF_KVTILEEXPANDATTENDPASS
#include "kvcache/Conversion/KVTilePasses.h.inc"
} // namespace kvcache

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

namespace {
/// A target and, on x86-64, a tier.
struct Choice {
  const TargetInfo *target;
  CpuTier tier;
};
} // namespace

/// What a pass's options name, or an error on the module.
static FailureOr<Choice> findChoice(ModuleOp module, StringRef target,
                                    StringRef cpu) {
  Expected<const TargetInfo *> info = findTarget(std::string_view(target));
  if (auto *error = std::get_if<FormatError>(&info))
    return module.emitError() << error->message;
  std::optional<CpuTier> tier = parseCpuTier(std::string_view(cpu));
  if (!tier)
    return module.emitError()
           << "unknown cpu '" << cpu << "', expected v2, avx2 or avx512";
  return Choice{std::get<const TargetInfo *>(info), *tier};
}

static LogicalResult refuseArrays(ArrayKernelOp kernel,
                                  const TargetInfo &target) {
  return kernel.emitOpError("kernels on arrays have no schedule on ")
         << StringRef(target.name) << "; expected x86-64";
}

namespace {

struct ChooseSchedule
    : public kvcache::impl::KVTileChooseSchedulePassBase<ChooseSchedule> {
  using KVTileChooseSchedulePassBase::KVTileChooseSchedulePassBase;

  LogicalResult chooseArrays(ArrayKernelOp kernel, const Choice &choice) {
    if (choice.target->isGpu)
      return refuseArrays(kernel, *choice.target);
    FailureOr<ScheduleAttr> schedule = overrideSchedule(
        kernel.getLoc(),
        chooseArraySchedule(kernel.getSpec(), /*columns=*/0, choice.tier),
        overrides);
    if (succeeded(schedule))
      kernel.setScheduleAttr(*schedule);
    return schedule;
  }

  void runOnOperation() override {
    FailureOr<Choice> choice = findChoice(getOperation(), target, cpu);
    if (failed(choice))
      return signalPassFailure();
    for (auto kernel : getOperation().getOps<KernelOp>()) {
      if (kernel.getSchedule())
        continue;
      KernelSpec spec = kernel.getSpec().getKernelSpec();
      FailureOr<ScheduleAttr> schedule =
          chooseSchedule(kernel.getLoc(), spec, *choice->target, choice->tier);
      if (succeeded(schedule))
        schedule = overrideSchedule(kernel.getLoc(), *schedule, overrides);
      if (failed(schedule))
        return signalPassFailure();
      kernel.setScheduleAttr(*schedule);
    }
    for (auto kernel : getOperation().getOps<ArrayKernelOp>())
      if (!kernel.getSchedule() && failed(chooseArrays(kernel, *choice)))
        return signalPassFailure();
  }
};

struct VerifySchedule
    : public kvcache::impl::KVTileVerifySchedulePassBase<VerifySchedule> {
  using KVTileVerifySchedulePassBase::KVTileVerifySchedulePassBase;

  void runOnOperation() override {
    FailureOr<Choice> choice = findChoice(getOperation(), target, cpu);
    if (failed(choice))
      return signalPassFailure();
    for (auto kernel : getOperation().getOps<KernelOp>()) {
      if (!kernel.getSchedule()) {
        kernel.emitOpError("expected a schedule; run kvtile-choose-schedule");
        return signalPassFailure();
      }
      if (failed(verifySchedule(
              kernel.getLoc(), kernel.getSpec().getKernelSpec(),
              *kernel.getSchedule(), *choice->target, choice->tier)))
        return signalPassFailure();
    }
    for (auto kernel : getOperation().getOps<ArrayKernelOp>())
      if (failed(verifyArrays(kernel, *choice)))
        return signalPassFailure();
  }

  static LogicalResult verifyArrays(ArrayKernelOp kernel,
                                    const Choice &choice) {
    if (choice.target->isGpu)
      return refuseArrays(kernel, *choice.target);
    if (!kernel.getSchedule())
      return kernel.emitOpError(
          "expected a schedule; run kvtile-choose-schedule");
    return verifyArraySchedule(kernel.getLoc(), kernel.getSpec(),
                               *kernel.getSchedule(), choice.tier);
  }
};

struct ExpandAttend
    : public kvcache::impl::KVTileExpandAttendPassBase<ExpandAttend> {
  void runOnOperation() override {
    for (auto kernel : getOperation().getOps<KernelOp>())
      if (kernel.getSchedule() && kernel.getBody().empty())
        expandAttend(kernel);
    for (auto kernel : getOperation().getOps<ArrayKernelOp>())
      if (kernel.getSchedule() && kernel.getBody().empty())
        expandArrayAttend(kernel);
  }
};

} // namespace
