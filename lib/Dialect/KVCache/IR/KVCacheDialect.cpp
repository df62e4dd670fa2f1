//===- KVCacheDialect.cpp - Registration and small helpers ----------------===//
//
// Registers attributes, types and ops; the helpers that several of them share.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/IR/KVCache.h"

#include "mlir/Transforms/InliningUtils.h"

using namespace mlir;

#include "kvcache/Dialect/KVCache/IR/KVCacheDialect.cpp.inc"
#include "kvcache/Dialect/KVCache/IR/KVCacheEnums.cpp.inc"

namespace kvcache {

namespace {
/// Every op is pure and may be inlined anywhere.
struct KVCacheInliner : DialectInlinerInterface {
  using DialectInlinerInterface::DialectInlinerInterface;
  bool isLegalToInline(Operation *, Region *, bool, IRMapping &) const final {
    return true;
  }
};
} // namespace

void KVCacheDialect::initialize() {
  addInterfaces<KVCacheInliner>();
  registerAttributes();
  registerTypes();
  addOperations<
#define GET_OP_LIST
#include "kvcache/Dialect/KVCache/IR/KVCacheOps.cpp.inc"
      >();
}

llvm::hash_code hash_value(const Encoding &e) {
  return llvm::hash_combine(static_cast<int>(e.element),
                            static_cast<int>(e.scale), e.group, e.adaptive,
                            e.asymmetric, e.sparse24, e.hadamard, e.center,
                            static_cast<int>(e.scaleType));
}

llvm::hash_code hash_value(const Format &f) {
  return llvm::hash_combine(hash_value(f.key), hash_value(f.value), f.page,
                            f.sinks, f.recent);
}

Type elementType(MLIRContext *context, Element element) {
  switch (element) {
  case Element::F32:
    return Float32Type::get(context);
  case Element::F16:
    return Float16Type::get(context);
  case Element::BF16:
    return BFloat16Type::get(context);
  case Element::E4M3:
    return Float8E4M3FNType::get(context);
  case Element::E5M2:
    return Float8E5M2Type::get(context);
  default:
    return IntegerType::get(context, bitsOf(element));
  }
}

Type scaleType(MLIRContext *context, ScaleType type) {
  switch (type) {
  case ScaleType::F16:
    return Float16Type::get(context);
  case ScaleType::BF16:
    return BFloat16Type::get(context);
  case ScaleType::F32:
    return Float32Type::get(context);
  }
  return {};
}

std::optional<Element> elementOf(Type type) {
  if (type.isF32())
    return Element::F32;
  if (type.isF16())
    return Element::F16;
  if (type.isBF16())
    return Element::BF16;
  return std::nullopt;
}

LayoutDims layoutDims(Layout layout, int64_t rank) {
  if (rank < 3)
    return {-1, rank - 2, rank - 1};
  if (layout == Layout::HND)
    return {rank - 3, rank - 2, rank - 1};
  return {rank - 2, rank - 3, rank - 1};
}

int64_t codesPerContainer(Type container, Element element,
                          PackingAttr packing) {
  if (!packing)
    return 1;
  return container.getIntOrFloatBitWidth() / bitsOf(element);
}

} // namespace kvcache
