//===- Arrays.cpp - .npy arrays as arguments and results ------------------===//
#include "kvcache/Runner/Arrays.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/TypeUtilities.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

using namespace kvcache;
using namespace mlir;

/// Integer widths that one byte per element holds loosely.
static bool isNarrow(Type element) {
  return element.isInteger(1) || element.isInteger(2) || element.isInteger(4);
}

static bool isElement(Type element) {
  return element.isIndex() || isNarrow(element) || element.isInteger(8) ||
         element.isInteger(16) || element.isInteger(32) ||
         element.isInteger(64) ||
         isa<Float16Type, BFloat16Type, Float32Type, Float64Type,
             Float8E4M3FNType, Float8E5M2Type>(element);
}

bool kvcache::isRunnable(Type type) {
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    return isElement(tensor.getElementType()) && !tensor.getEncoding();
  return isElement(type);
}

unsigned kvcache::elementBytes(Type element) {
  if (element.isIndex())
    return 8;
  return std::max(1u, element.getIntOrFloatBitWidth() / 8);
}

NpyType kvcache::resultType(Type element) {
  unsigned bytes = elementBytes(element);
  if (isa<BFloat16Type, Float8E4M3FNType, Float8E5M2Type>(element))
    return {NpyType::UInt, bytes};
  if (isa<FloatType>(element))
    return {NpyType::Float, bytes};
  if (element.isSignlessInteger(1))
    return {NpyType::Bool, 1};
  // Codes narrower than a byte are unsigned unless their type says otherwise.
  bool isUnsigned = element.isUnsignedInteger() ||
                    (isNarrow(element) && !element.isSignedInteger());
  return {isUnsigned ? NpyType::UInt : NpyType::Int, bytes};
}

/// Every dtype that may stand for `element`, the usual one first.
static SmallVector<NpyType> accepted(Type element) {
  SmallVector<NpyType> types = {resultType(element)};
  unsigned bytes = elementBytes(element);
  if (isa<BFloat16Type, Float8E4M3FNType, Float8E5M2Type>(element) ||
      element.isInteger(4) || element.isInteger(2))
    types.push_back({NpyType::Void, bytes}); // as ml_dtypes saves them
  if (element.isSignlessInteger()) {
    types.push_back({NpyType::Int, bytes});
    types.push_back({NpyType::UInt, bytes});
  }
  return types;
}

std::string kvcache::describeArgument(Type type) {
  std::string text = resultType(getElementTypeOrSelf(type)).str() + " [";
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    for (auto [i, d] : llvm::enumerate(tensor.getShape()))
      text += (i ? ", " : "") +
              (ShapedType::isDynamic(d) ? "?" : std::to_string(d));
  return text + "]";
}

/// Narrow integers: every value must fit, then only its bits are kept.
static llvm::Error maskNarrow(NpyArray &array, Type element) {
  unsigned bits = element.getIntOrFloatBitWidth();
  int low = element.isUnsignedInteger() || bits == 1 ? 0 : -(1 << (bits - 1));
  int high =
      element.isSignedInteger() ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  bool isSigned = array.type.kind == NpyType::Int;
  for (auto [i, byte] : llvm::enumerate(array.data)) {
    int value = isSigned ? static_cast<int8_t>(byte) : static_cast<int>(byte);
    if (value < low || value > high)
      return llvm::createStringError("element %zu is %d, expected %d to %d", i,
                                     value, low, high);
    byte = static_cast<std::byte>(value & ((1 << bits) - 1));
  }
  return llvm::Error::success();
}

llvm::Error kvcache::checkArgument(NpyArray &array, Type type) {
  Type element = getElementTypeOrSelf(type);
  ArrayRef<int64_t> shape;
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    shape = tensor.getShape();
  bool fits = llvm::is_contained(accepted(element), array.type) &&
              shape.size() == array.shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = ShapedType::isDynamic(shape[i]) || shape[i] == array.shape[i];
  if (!fits)
    return llvm::createStringError("expected " + describeArgument(type) +
                                   ", got " + array.str());
  if (isNarrow(element) && array.type.kind != NpyType::Bool)
    return maskNarrow(array, element);
  return llvm::Error::success();
}

AlignedBytes::AlignedBytes(size_t size) {
  // Large arrays in large pages, as NumPy has them: half the time of a pass
  // over keys and values would be page walks.
  constexpr size_t hugePage = size_t(2) << 20;
  size_t alignment = size < 2 * hugePage ? 128 : hugePage;
  size_t room = (size / alignment + 2) * alignment;
  bytes.reset(static_cast<std::byte *>(std::aligned_alloc(alignment, room)));
#ifdef MADV_HUGEPAGE
  if (bytes && alignment == hugePage)
    madvise(bytes.get(), room, MADV_HUGEPAGE);
#endif
}

NpyArray kvcache::gatherResult(Type element, const std::byte *base,
                               ArrayRef<int64_t> sizes,
                               ArrayRef<int64_t> strides) {
  NpyArray array;
  array.type = resultType(element);
  array.shape.assign(sizes.begin(), sizes.end());
  unsigned bytes = array.type.bytes;
  int64_t count = array.elements();
  array.data.resize(count * bytes);
  SmallVector<int64_t> index(sizes.size(), 0);
  for (int64_t n = 0, from = 0; n < count; ++n) {
    std::memcpy(&array.data[n * bytes], base + from * bytes, bytes);
    for (size_t i = sizes.size(); i-- > 0;) {
      from += strides[i];
      if (++index[i] < sizes[i])
        break;
      from -= strides[i] * sizes[i];
      index[i] = 0;
    }
  }
  if (isNarrow(element)) {
    unsigned bits = element.getIntOrFloatBitWidth();
    for (std::byte &b : array.data) {
      int value = static_cast<int>(b) & ((1 << bits) - 1);
      if (element.isSignedInteger() && value >> (bits - 1))
        value -= 1 << bits;
      b = static_cast<std::byte>(value);
    }
  }
  return array;
}
