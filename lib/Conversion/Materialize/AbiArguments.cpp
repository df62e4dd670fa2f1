//===- AbiArguments.cpp - Tensors as arguments of kernels -----------------===//
#include "AbiArguments.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

using namespace kvcache;
using namespace mlir;

Value kvcache::bufferOf(Emitter &e, Value tensor, bool readOnly) {
  auto type = cast<RankedTensorType>(tensor.getType());
  auto memref = MemRefType::get(type.getShape(), type.getElementType());
  return bufferization::ToBufferOp::create(e, memref, tensor, readOnly);
}

StridedArray kvcache::stridedArrayOf(Emitter &e, Value tensor) {
  auto type = cast<RankedTensorType>(tensor.getType());
  SmallVector<int64_t> dynamic(type.getRank(), ShapedType::kDynamic);
  auto layout =
      StridedLayoutAttr::get(e.getContext(), ShapedType::kDynamic, dynamic);
  auto memref = MemRefType::get(type.getShape(), type.getElementType(), layout);
  Value buffer =
      bufferization::ToBufferOp::create(e, memref, tensor, /*read_only=*/true);
  auto metadata = memref::ExtractStridedMetadataOp::create(e, buffer);
  Value address = memref::ExtractAlignedPointerAsIndexOp::create(e, buffer);
  unsigned bits = type.getElementTypeBitWidth();
  Value start = e.mul(metadata.getOffset(), e.index(std::max(bits / 8, 1u)));
  StridedArray array;
  array.pointer =
      LLVM::IntToPtrOp::create(e, LLVM::LLVMPointerType::get(e.getContext()),
                               toI64(e, e.add(address, start)));
  array.sizes = e.sizesOf(tensor);
  array.strides = llvm::to_vector_of<Value>(metadata.getStrides());
  return array;
}

Value kvcache::numbersOf(Emitter &e, Value size) {
  return memref::AllocOp::create(
      e, MemRefType::get({ShapedType::kDynamic}, e.getI64Type()), size);
}

Value kvcache::tensorOf(Emitter &e, Value memref) {
  auto type = cast<MemRefType>(memref.getType());
  return bufferization::ToTensorOp::create(
      e, RankedTensorType::get(type.getShape(), type.getElementType()), memref,
      /*restrict=*/true, /*writable=*/true);
}

Value kvcache::toI64(Emitter &e, Value index) {
  return arith::IndexCastOp::create(e, e.getI64Type(), index);
}

Value kvcache::pointerTo(Emitter &e, Value memref) {
  Value address = memref::ExtractAlignedPointerAsIndexOp::create(e, memref);
  return LLVM::IntToPtrOp::create(e, LLVM::LLVMPointerType::get(e.getContext()),
                                  toI64(e, address));
}

Value kvcache::packArguments(Emitter &e, ArrayRef<StringRef> names,
                             const AbiFields &fields) {
  Type ptr = LLVM::LLVMPointerType::get(e.getContext());
  auto count = e.getI64IntegerAttr(static_cast<int64_t>(names.size()));
  Value args = LLVM::AllocaOp::create(e, ptr, e.getI64Type(),
                                      arith::ConstantOp::create(e, count));
  for (auto [i, name] : llvm::enumerate(names)) {
    auto field = fields.find(name.str());
    Value value =
        field == fields.end() ? LLVM::ZeroOp::create(e, ptr) : field->second;
    Value slot = LLVM::GEPOp::create(e, ptr, e.getI64Type(), args,
                                     LLVM::GEPArg(static_cast<int32_t>(i)));
    LLVM::StoreOp::create(e, value, slot);
  }
  return args;
}
