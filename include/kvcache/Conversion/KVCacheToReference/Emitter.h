//===- Emitter.h - Short names for plain loops ------------------*- C++ -*-===//
//
// The reference lowering is many small loops over tensors; this builder keeps
// them readable. Tensors that a loop changes are its carried values.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_KVCACHETOREFERENCE_EMITTER_H
#define KVCACHE_CONVERSION_KVCACHETOREFERENCE_EMITTER_H

#include "kvcache/Conversion/IRNumbers.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace kvcache {

using Values = llvm::SmallVector<mlir::Value>;

class Emitter : public mlir::ImplicitLocOpBuilder {
public:
  Emitter(mlir::Location loc, mlir::Operation *before)
      : ImplicitLocOpBuilder(loc, before), env{*this, loc},
        module(before->getParentOfType<mlir::ModuleOp>()) {}

  /// For the templates of Image.h (on index values) and Codec.h.
  ir::Env env;
  /// Where helper functions and globals go.
  mlir::ModuleOp module;

  mlir::Value index(int64_t v) {
    return mlir::arith::ConstantIndexOp::create(*this, v);
  }
  mlir::Value f32(float v) {
    return mlir::arith::ConstantOp::create(*this, getF32FloatAttr(v));
  }
  mlir::Value f64(double v) {
    return mlir::arith::ConstantOp::create(*this, getF64FloatAttr(v));
  }
  mlir::Value boolean(bool v) {
    return mlir::arith::ConstantOp::create(*this, getBoolAttr(v));
  }

  mlir::Value add(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::AddIOp>(a, b);
  }
  mlir::Value sub(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::SubIOp>(a, b);
  }
  mlir::Value mul(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::MulIOp>(a, b);
  }
  mlir::Value div(mlir::Value a, int64_t b) {
    return createOrFold<mlir::arith::DivUIOp>(a, index(b));
  }
  mlir::Value mod(mlir::Value a, int64_t b) {
    return createOrFold<mlir::arith::RemUIOp>(a, index(b));
  }
  mlir::Value minS(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::MinSIOp>(a, b);
  }
  mlir::Value maxS(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::MaxSIOp>(a, b);
  }
  mlir::Value both(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::AndIOp>(a, b);
  }
  mlir::Value either(mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::OrIOp>(a, b);
  }
  mlir::Value cmp(mlir::arith::CmpIPredicate p, mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::CmpIOp>(p, a, b);
  }
  mlir::Value lt(mlir::Value a, mlir::Value b) {
    return cmp(mlir::arith::CmpIPredicate::slt, a, b);
  }
  mlir::Value le(mlir::Value a, mlir::Value b) {
    return cmp(mlir::arith::CmpIPredicate::sle, a, b);
  }
  mlir::Value cmp(mlir::arith::CmpFPredicate p, mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::CmpFOp>(p, a, b);
  }
  mlir::Value select(mlir::Value c, mlir::Value a, mlir::Value b) {
    return createOrFold<mlir::arith::SelectOp>(c, a, b);
  }
  mlir::Value addF(mlir::Value a, mlir::Value b) {
    return mlir::arith::AddFOp::create(*this, a, b);
  }
  mlir::Value subF(mlir::Value a, mlir::Value b) {
    return mlir::arith::SubFOp::create(*this, a, b);
  }
  mlir::Value mulF(mlir::Value a, mlir::Value b) {
    return mlir::arith::MulFOp::create(*this, a, b);
  }
  mlir::Value divF(mlir::Value a, mlir::Value b) {
    return mlir::arith::DivFOp::create(*this, a, b);
  }

  /// An integer of any width as an index (signed).
  mlir::Value toIndex(mlir::Value v) {
    return v.getType().isIndex()
               ? v
               : createOrFold<mlir::arith::IndexCastOp>(getIndexType(), v);
  }
  /// Floats of any width to f32, f64 or another float type.
  mlir::Value toFloat(mlir::Value v, mlir::FloatType type);

  mlir::Value dim(mlir::Value tensor, int64_t i) {
    return createOrFold<mlir::tensor::DimOp>(tensor, i);
  }
  mlir::Value extract(mlir::Value tensor, mlir::ValueRange indices) {
    return mlir::tensor::ExtractOp::create(*this, tensor, indices);
  }
  mlir::Value insert(mlir::Value v, mlir::Value tensor,
                     mlir::ValueRange indices) {
    return mlir::tensor::InsertOp::create(*this, v, tensor, indices);
  }
  /// An uninitialised tensor of this type with the sizes of its dynamic dims
  /// taken from `sizes` (one per dim).
  mlir::Value empty(mlir::RankedTensorType type, mlir::ValueRange sizes);
  /// The sizes of a tensor, as constants where they are.
  Values sizesOf(mlir::Value tensor);

  /// for (i = lo; i < hi; ++i) carried = body(i, carried); returns the last.
  Values loop(mlir::Value lo, mlir::Value hi, mlir::ValueRange init,
              llvm::function_ref<Values(mlir::Value, mlir::ValueRange)> body);
  /// A nest of loops from 0 over `sizes`.
  Values
  loops(mlir::ValueRange sizes, mlir::ValueRange init,
        llvm::function_ref<Values(mlir::ValueRange, mlir::ValueRange)> body);
  /// c ? then() : otherwise(); both yield values of the same types.
  Values branch(mlir::Value c, llvm::function_ref<Values()> then,
                llvm::function_ref<Values()> otherwise);
  /// c ? then() : unchanged.
  Values when(mlir::Value c, mlir::ValueRange unchanged,
              llvm::function_ref<Values()> then) {
    return branch(c, then, [&] { return Values(unchanged); });
  }
};

} // namespace kvcache

#endif // KVCACHE_CONVERSION_KVCACHETOREFERENCE_EMITTER_H
