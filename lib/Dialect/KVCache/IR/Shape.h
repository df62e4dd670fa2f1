//===- Shape.h - Comparing sizes that may be dynamic ------------*- C++ -*-===//
//
// Private to the op verifiers: two sizes agree unless both are known and
// differ; a mismatch is one diagnostic that shows both.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_DIALECT_KVCACHE_IR_SHAPE_H
#define KVCACHE_LIB_DIALECT_KVCACHE_IR_SHAPE_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"

namespace kvcache {

inline bool sizesAgree(int64_t a, int64_t b) {
  return mlir::ShapedType::isDynamic(a) || mlir::ShapedType::isDynamic(b) ||
         a == b;
}

/// One of the sizes that is known, else dynamic.
inline int64_t knownSize(int64_t a, int64_t b) {
  return mlir::ShapedType::isDynamic(a) ? b : a;
}

/// Prints a shape as 4x?x8.
std::string shapeStr(llvm::ArrayRef<int64_t> shape);

/// "expected 'name' to have shape 4x8x?, got 4x9x3" unless they agree.
mlir::LogicalResult verifyShape(mlir::Operation *op, llvm::StringRef name,
                                mlir::RankedTensorType type,
                                llvm::ArrayRef<int64_t> expected);

/// Whether each result type agrees with what was inferred, up to dynamic dims.
bool typesAgree(mlir::TypeRange a, mlir::TypeRange b);

/// Whether the result types are those that the operands yield. The interface's
/// own check runs after the op's verifier, which wants to rely on it.
template <typename OpTy>
mlir::LogicalResult verifyInferredTypes(OpTy op) {
  mlir::SmallVector<mlir::Type> types;
  if (failed(OpTy::inferReturnTypes(op.getContext(), op.getLoc(),
                                    typename OpTy::Adaptor(op), types)))
    return mlir::failure();
  if (typesAgree(types, op->getResultTypes()))
    return mlir::success();
  return op.emitOpError("expected results ")
         << types << ", got " << op->getResultTypes();
}

inline mlir::RankedTensorType tensorType(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}

} // namespace kvcache

#endif // KVCACHE_LIB_DIALECT_KVCACHE_IR_SHAPE_H
