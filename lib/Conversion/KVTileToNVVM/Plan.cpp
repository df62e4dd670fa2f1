//===- Plan.cpp - What the GPU lowering can and cannot do -----------------===//
#include "Plan.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

static constexpr int64_t kWidestWindow = 1 << 30;

static bool isCode(Element e) { return e == Element::I8 || e == Element::I4; }

/// Keys need channel scales, values token scales; the other kinds have no
/// kernel on PTX targets yet.
static LogicalResult checkScales(tile::KernelOp kernel, StringRef side,
                                 const Encoding &e, ScaleKind wanted) {
  if (!isCode(e.element) || e.scale == wanted)
    return success();
  return emitError(kernel.getLoc())
         << side << " encoding '" << e.str() << "': scale kind '"
         << nameOf(e.scale) << "' has no kernel on PTX targets yet, accepted: '"
         << nameOf(wanted) << "'";
}

static LogicalResult checkSchedule(tile::KernelOp kernel, const Plan &plan) {
  tile::ScheduleAttr s = plan.schedule;
  int64_t page = plan.spec.format.page;
  if (plan.heads > kColumns)
    return emitError(kernel.getLoc())
           << "expected q_pack of at most " << kColumns
           << " on PTX targets, got " << plan.heads;
  if (plan.tokens < kTile || plan.tokens > page || page % plan.tokens != 0)
    return emitError(kernel.getLoc())
           << "expected tile_tokens to be a multiple of " << kTile
           << " that divides the page (" << page << "), got " << plan.tokens;
  if (plan.warps != 1 && plan.warps != 2 && plan.warps != 4 && plan.warps != 8)
    return emitError(kernel.getLoc())
           << "expected 1, 2, 4 or 8 warps, got " << plan.warps;
  if (s.getOrientation() != tile::Orientation::KeysA)
    return emitError(
        kernel.getLoc(),
        "orientation 'queries_a' has no kernel on PTX targets yet, accepted: "
        "'keys_a'");
  if (s.getDotKind() != tile::DotKind::F16 &&
      s.getDotKind() != tile::DotKind::BF16)
    return emitError(kernel.getLoc())
           << "dot_kind '" << stringifyDotKind(s.getDotKind())
           << "' has no kernel on PTX targets yet, accepted: 'f16'";
  return success();
}

static Product keyProduct(const TensorImage &key) {
  if (!isCode(key.encoding.element))
    return Product::Plain;
  return key.groupSize() < kTile ? Product::InPlace : Product::Folded;
}

static Product valueProduct(const TensorImage &value) {
  if (!isCode(value.encoding.element))
    return Product::Plain;
  return value.groupSize() % kTile ? Product::InPlace : Product::Folded;
}

FailureOr<Plan> kvcache::gpu::makePlan(tile::KernelOp kernel) {
  Plan plan;
  if (!kernel.getSchedule())
    return emitError(kernel.getLoc(),
                     "expected a schedule; run kvtile-choose-schedule");
  plan.spec = kernel.getSpec().getKernelSpec();
  plan.schedule = *kernel.getSchedule();
  KernelSpec &spec = plan.spec;
  // Positions are i32: a wider window hides nothing.
  for (std::optional<int64_t> *side : {&spec.windowLeft, &spec.windowRight})
    if (*side && **side >= kWidestWindow)
      side->reset();
  if (spec.dtype == Element::F32)
    return emitError(
        kernel.getLoc(),
        "dtype 'f32' has no kernel on PTX targets yet, accepted: 'f16' 'bf16'");
  auto image = PageImage::create(spec.format, spec.headDim, spec.valueDim,
                                 ImageFamily::SM8x);
  if (auto *bad = std::get_if<FormatError>(&image))
    return emitError(kernel.getLoc()) << bad->message;
  plan.image = std::get<PageImage>(image);
  if (failed(checkScales(kernel, "key", plan.image.key.encoding,
                         ScaleKind::Channel)) ||
      failed(checkScales(kernel, "value", plan.image.value.encoding,
                         ScaleKind::Token)))
    return failure();
  plan.tokens = plan.schedule.getTileTokens();
  plan.heads = plan.schedule.getQPack();
  plan.warps = plan.schedule.getWarps();
  plan.model = spec.dtype == Element::BF16 ? Half::BF16 : Half::F16;
  plan.key = keyProduct(plan.image.key);
  plan.value = valueProduct(plan.image.value);
  if (failed(checkSchedule(kernel, plan)))
    return failure();
  return plan;
}
