//===- VerifyTargetLegal.cpp - What a target can compile ------------------===//
//
// Rules that hold for every target (what kernels do not know yet), then those
// of the CPU and of PTX targets. One message per op: what it is, which value,
// what is accepted.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "kvcache/Dialect/KVCache/Utils/Utils.h"
#include "kvcache/Format/Image.h"

using namespace mlir;

namespace kvcache {

#define GEN_PASS_DEF_VERIFYTARGETLEGALPASS
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

namespace {
/// Starts a diagnostic "'op' op on TARGET: ".
struct Refusal {
  Operation *op;
  const TargetInfo &target;

  InFlightDiagnostic operator()() const {
    return op->emitOpError() << StringRef(target.name) << " ";
  }
};
} // namespace

/// One side's encoding, whatever the target.
static LogicalResult verifyEncoding(const Refusal &refuse, StringRef side,
                                    const Encoding &e) {
  if (isFp8(e.element) || bitsOf(e.element) < 4)
    return refuse() << "compiles elements f32, f16, bf16, i8 and i4, got "
                    << side << " " << nameOf(e.element);
  for (auto [has, name] : {std::pair<bool, StringRef>{e.sparse24, "2of4"},
                           {e.hadamard, "hadamard"},
                           {e.center, "center"}})
    if (has)
      return refuse() << "compiles no " << name << " encodings, got " << side
                      << " " << e.str();
  return success();
}

/// PTX: one side's element and scale kind.
static LogicalResult verifyPtxEncoding(const Refusal &refuse, StringRef side,
                                       const Encoding &e) {
  if (e.element == Element::F32)
    return refuse() << "compiles elements f16, bf16, i8 and i4, got " << side
                    << " f32";
  if (isFloat(e.element))
    return success();
  ScaleKind want = side == "key" ? ScaleKind::Channel : ScaleKind::Token;
  if (e.scale != want)
    return refuse() << "compiles integer " << side << "s with " << nameOf(want)
                    << " scales, got " << nameOf(e.scale);
  return success();
}

static LogicalResult verifyPtxCache(const Refusal &refuse, CacheType cache) {
  if (cache.getExternal())
    return refuse()
           << "compiles caches of our own layout only, got an external "
              "layout";
  if (cache.getOpen().isF32())
    return refuse() << "compiles open dtypes f16 and bf16, got f32";
  for (auto [name, dim] :
       {std::pair<StringRef, int64_t>{"d", cache.getHeadDim()},
        {"dv", cache.getValueDim()}})
    if (dim % 16 != 0 || dim > 256)
      return refuse() << "compiles head dims that are multiples of 16 up to "
                         "256, got "
                      << name << " = " << dim;
  Format format = cache.getFormat();
  if (format.page < 16 || format.page > 128)
    return refuse() << "compiles pages of 16, 32, 64 and 128 tokens, got page "
                       "= "
                    << format.page;
  if (failed(verifyPtxEncoding(refuse, "key", format.key)) ||
      failed(verifyPtxEncoding(refuse, "value", format.value)))
    return failure();
  return success();
}

static LogicalResult verifyCache(const Refusal &refuse, CacheType cache) {
  if (cache.getLatent())
    return refuse() << "compiles caches that store keys and values, got a "
                       "latent one";
  Format format = cache.getFormat();
  if (failed(verifyEncoding(refuse, "key", format.key)) ||
      failed(verifyEncoding(refuse, "value", format.value)))
    return failure();
  if (refuse.target.isGpu && failed(verifyPtxCache(refuse, cache)))
    return failure();
  if (cache.getExternal())
    return success();
  // The image has the last word: alignment, groups, dims.
  std::optional<ImageFamily> family =
      parseImageFamily(refuse.target.imageFamily);
  if (!family)
    return refuse() << "has no page images";
  Expected<PageImage> image = PageImage::create(format, cache.getHeadDim(),
                                                cache.getValueDim(), *family);
  if (const FormatError *error = errorOf(image))
    return refuse() << "has no page image: " << error->message;
  if (ImageAttr assigned = cache.getImage()) {
    std::string hash = std::get<PageImage>(image).hashText();
    if (assigned.getFamily() != StringRef(nameOf(*family)) ||
        assigned.getHash() != hash)
      return refuse() << "compiles image " << nameOf(*family) << " " << hash
                      << ", got " << assigned.getFamily() << " "
                      << assigned.getHash();
  }
  return success();
}

static LogicalResult verifyAttention(const Refusal &refuse, AttentionOp op) {
  if (!op.hasCache())
    return refuse() << "compiles attention to a cache, got tensors k and v "
                       "(kvcache-fuse makes a cache of them)";
  auto q = cast<RankedTensorType>(op.getQ().getType());
  if (q.getRank() != 3)
    return refuse() << "compiles queries [row, head, d], got " << q
                    << " (collapse it and give q_indptr)";
  for (auto [has, name] :
       {std::pair<bool, StringRef>{static_cast<bool>(op.getPositions()),
                                   "key positions"},
        {static_cast<bool>(op.getMask()), "a mask operand"},
        {static_cast<bool>(op.getSinkLogits()), "sink logits"},
        {op.getHeadMap().has_value(), "a head_map"},
        {op.getCausal() == Causal::TopLeft, "causal top_left"}})
    if (has)
      return refuse() << "compiles no attention with " << name << " yet";
  if (refuse.target.isGpu && op.getQIndptr())
    return refuse() << "compiles one query row per sequence, got q_indptr "
                       "(q_len above 1)";
  return success(succeeded(getKernelSpec(op)));
}

LogicalResult verifyTargetLegal(Operation *root, const TargetInfo &target) {
  bool legal = true;
  root->walk([&](Operation *op) {
    Refusal refuse{op, target};
    if (auto attention = dyn_cast<AttentionOp>(op))
      if (failed(verifyAttention(refuse, attention))) {
        legal = false;
        return;
      }
    for (Value value : op->getOperands())
      if (auto cache = dyn_cast<CacheType>(value.getType()))
        if (failed(verifyCache(refuse, cache))) {
          legal = false;
          return;
        }
  });
  return success(legal);
}

namespace {
struct VerifyTargetLegalPass
    : impl::VerifyTargetLegalPassBase<VerifyTargetLegalPass> {
  using VerifyTargetLegalPassBase::VerifyTargetLegalPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    Expected<const TargetInfo *> info = findTarget(target);
    if (const FormatError *error = errorOf(info)) {
      getOperation()->emitError(error->message);
      return signalPassFailure();
    }
    if (failed(verifyTargetLegal(getOperation(),
                                 *std::get<const TargetInfo *>(info))))
      signalPassFailure();
  }
};
} // namespace

} // namespace kvcache
