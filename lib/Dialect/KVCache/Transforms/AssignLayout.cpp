//===- AssignLayout.cpp - Page images for unassigned caches ---------------===//
//
// The image follows from format, head dims and family (lib/Format/Image), so a
// type replacer over the whole tree does it, after a walk that reports where a
// cache has no image.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "kvcache/Format/Image.h"
#include "mlir/IR/AttrTypeSubElements.h"

using namespace mlir;

namespace kvcache {

#define GEN_PASS_DEF_ASSIGNLAYOUTPASS
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

/// The image attribute of a cache type, or why it has none.
static Expected<ImageAttr> imageOf(CacheType type, ImageFamily family) {
  if (type.getLatent())
    return FormatError{"latent caches have no page image"};
  Expected<PageImage> image = PageImage::create(
      type.getFormat(), type.getHeadDim(), type.getValueDim(), family);
  if (const FormatError *error = errorOf(image))
    return *error;
  return ImageAttr::get(type.getContext(), nameOf(family),
                        std::get<PageImage>(image).hashText());
}

LogicalResult assignLayout(Operation *root, const TargetInfo &target) {
  std::optional<ImageFamily> family = parseImageFamily(target.imageFamily);
  if (!family)
    return root->emitError("target ")
           << StringRef(target.name) << " has no page images";
  llvm::DenseMap<Type, Type> images;
  // Errors want an operation, so types are collected op by op.
  WalkResult result = root->walk([&](Operation *op) {
    AttrTypeWalker walker;
    bool failed = false;
    walker.addWalk([&](CacheType type) {
      if (!type.isUnassigned() || images.contains(type) || failed)
        return;
      Expected<ImageAttr> image = imageOf(type, *family);
      if (const FormatError *error = errorOf(image)) {
        op->emitError("no page image on ")
            << StringRef(target.name) << ": " << error->message;
        failed = true;
        return;
      }
      images[type] = type.withLayout(std::get<ImageAttr>(image));
    });
    walker.walk(op->getAttrDictionary());
    for (Type type : op->getResultTypes())
      walker.walk(type);
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (Type type : block.getArgumentTypes())
          walker.walk(type);
    return failed ? WalkResult::interrupt() : WalkResult::advance();
  });
  if (result.wasInterrupted())
    return failure();
  AttrTypeReplacer replacer;
  replacer.addReplacement([&](CacheType type) -> std::optional<Type> {
    auto it = images.find(type);
    return it == images.end() ? std::nullopt : std::optional<Type>(it->second);
  });
  replacer.recursivelyReplaceElementsIn(root, /*replaceAttrs=*/true,
                                        /*replaceLocs=*/false,
                                        /*replaceTypes=*/true);
  return success();
}

namespace {
struct AssignLayoutPass : impl::AssignLayoutPassBase<AssignLayoutPass> {
  using AssignLayoutPassBase::AssignLayoutPassBase;

  void runOnOperation() override {
    Expected<const TargetInfo *> info = findTarget(target);
    if (const FormatError *error = errorOf(info)) {
      getOperation()->emitError(error->message);
      return signalPassFailure();
    }
    if (failed(
            assignLayout(getOperation(), *std::get<const TargetInfo *>(info))))
      signalPassFailure();
  }
};
} // namespace

} // namespace kvcache
