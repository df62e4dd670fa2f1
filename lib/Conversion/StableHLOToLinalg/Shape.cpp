// Constants, iota, broadcasts, reshapes and other movements of whole tensors.

#include "Lowering.h"

#include "llvm/ADT/TypeSwitch.h"

#include "mlir/Dialect/Shape/IR/Shape.h"
#include "mlir/Dialect/Utils/ReshapeOpsUtils.h"

using namespace mlir;
using namespace kvcache::stablehlo;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

Value kvcache::stablehlo::index(ImplicitLocOpBuilder &b, int64_t value) {
  return arith::ConstantIndexOp::create(b, value);
}

Value kvcache::stablehlo::scalarOf(ImplicitLocOpBuilder &b, Value tensor) {
  return tensor::ExtractOp::create(b, tensor, ValueRange());
}

Value kvcache::stablehlo::emptyLike(ImplicitLocOpBuilder &b,
                                    RankedTensorType type, Value like) {
  Values sizes;
  for (int64_t d = 0; d < type.getRank(); ++d)
    if (type.isDynamicDim(d))
      sizes.push_back(tensor::DimOp::create(b, like, d));
  return tensor::EmptyOp::create(b, type, sizes);
}

Value kvcache::stablehlo::filled(ImplicitLocOpBuilder &b, RankedTensorType type,
                                 Value value) {
  Value init = tensor::EmptyOp::create(b, type, ValueRange());
  return linalg::FillOp::create(b, value, init).getResult(0);
}

Value kvcache::stablehlo::elementwise(
    ImplicitLocOpBuilder &b, RankedTensorType type, Value init,
    ValueRange inputs, ArrayRef<AffineMap> inputMaps,
    function_ref<Value(ImplicitLocOpBuilder &, ValueRange)> body) {
  SmallVector<AffineMap> maps(inputMaps);
  maps.push_back(b.getMultiDimIdentityMap(type.getRank()));
  SmallVector<utils::IteratorType> loops(type.getRank(),
                                         utils::IteratorType::parallel);
  return linalg::GenericOp::create(
             b, TypeRange(type), inputs, ValueRange(init), maps, loops,
             [&](OpBuilder &nested, Location loc, ValueRange args) {
               ImplicitLocOpBuilder inner(loc, nested);
               linalg::YieldOp::create(inner, body(inner, args.drop_back()));
             })
      .getResult(0);
}

/// `shape[d]` of a 1-d shape tensor as index.
static Value shapeEntry(ImplicitLocOpBuilder &b, Value shape, int64_t d) {
  Value entry = tensor::ExtractOp::create(b, shape, index(b, d));
  if (entry.getType().isIndex())
    return entry;
  return arith::IndexCastOp::create(b, b.getIndexType(), entry);
}

static Value emptyOfShape(ImplicitLocOpBuilder &b, RankedTensorType type,
                          Value shape) {
  Values sizes;
  for (int64_t d = 0; d < type.getRank(); ++d)
    if (type.isDynamicDim(d))
      sizes.push_back(shapeEntry(b, shape, d));
  return tensor::EmptyOp::create(b, type, sizes);
}

static Value lowerIota(ImplicitLocOpBuilder &b, RankedTensorType type,
                       int64_t dim, Value init) {
  return elementwise(b, type, init, {}, {},
                     [&](ImplicitLocOpBuilder &in, ValueRange) -> Value {
                       Value i = linalg::IndexOp::create(in, dim);
                       Type element = type.getElementType();
                       if (element.isIndex())
                         return i;
                       if (!isa<FloatType>(element))
                         return arith::IndexCastOp::create(in, element, i);
                       i = arith::IndexCastOp::create(in, in.getI64Type(), i);
                       return arith::SIToFPOp::create(in, element, i);
                     });
}

/// A broadcast to `type`; an operand of size 1 is read at 0. With sizes known
/// only at run time the shapes must not need to expand there, except that
/// dimensions which are statically 1 do.
static Value lowerBroadcast(ImplicitLocOpBuilder &b, Value operand,
                            RankedTensorType type, ArrayRef<int64_t> dims,
                            Value init) {
  RankedTensorType in = typeOf(operand);
  SmallVector<AffineExpr> exprs;
  bool expandsAtRunTime = false;
  for (auto [d, dim] : llvm::enumerate(dims)) {
    bool one = in.getDimSize(d) == 1 && type.getDimSize(dim) != 1;
    expandsAtRunTime |= in.isDynamicDim(d);
    exprs.push_back(one ? b.getAffineConstantExpr(0) : b.getAffineDimExpr(dim));
  }
  if (!expandsAtRunTime) {
    auto map = AffineMap::get(type.getRank(), 0, exprs, b.getContext());
    return elementwise(
        b, type, init, operand, map,
        [](ImplicitLocOpBuilder &, ValueRange args) { return args[0]; });
  }
  return elementwise(
      b, type, init, {}, {}, [&](ImplicitLocOpBuilder &in2, ValueRange) {
        Values indices;
        for (auto [d, dim] : llvm::enumerate(dims)) {
          Value size = tensor::DimOp::create(in2, operand, d);
          Value i = linalg::IndexOp::create(in2, dim);
          Value one = arith::CmpIOp::create(in2, arith::CmpIPredicate::eq, size,
                                            index(in2, 1));
          indices.push_back(
              arith::SelectOp::create(in2, one, index(in2, 0), i));
        }
        return tensor::ExtractOp::create(in2, operand, indices).getResult();
      });
}

static Value lowerReshape(ImplicitLocOpBuilder &b, Value operand,
                          RankedTensorType type) {
  RankedTensorType in = typeOf(operand);
  if (in == type)
    return operand;
  if (in.hasStaticShape() && type.hasStaticShape()) {
    if (auto groups = getReassociationIndicesForReshape(in, type)) {
      if (in.getRank() > type.getRank())
        return tensor::CollapseShapeOp::create(b, type, operand, *groups);
      return tensor::ExpandShapeOp::create(b, type, operand, *groups);
    }
    auto flat =
        RankedTensorType::get({in.getNumElements()}, in.getElementType());
    ReassociationIndices all, to;
    for (int64_t d = 0; d < in.getRank(); ++d)
      all.push_back(d);
    for (int64_t d = 0; d < type.getRank(); ++d)
      to.push_back(d);
    if (in.getRank() != 1)
      operand = tensor::CollapseShapeOp::create(
          b, flat, operand, SmallVector<ReassociationIndices>{all});
    if (type.getRank() == 1)
      return operand;
    return tensor::ExpandShapeOp::create(b, type, operand,
                                         SmallVector<ReassociationIndices>{to});
  }
  Values sizes;
  for (int64_t d = 0; d < type.getRank(); ++d) {
    if (type.isDynamicDim(d))
      return {};
    sizes.push_back(index(b, type.getDimSize(d)));
  }
  Value shape = tensor::FromElementsOp::create(b, sizes);
  return tensor::ReshapeOp::create(b, type, operand, shape);
}

static Value lowerSlice(ImplicitLocOpBuilder &b, SliceOp op) {
  SmallVector<OpFoldResult> offsets, sizes, strides;
  for (auto [s, t, n] :
       llvm::zip(getInts(op.getStartIndices()), getInts(op.getStrides()),
                 typeOf(op.getResult()).getShape())) {
    offsets.push_back(b.getIndexAttr(s));
    strides.push_back(b.getIndexAttr(t));
    sizes.push_back(b.getIndexAttr(n));
  }
  return tensor::ExtractSliceOp::create(
      b, typeOf(op.getResult()), op.getOperand(), offsets, sizes, strides);
}

/// Writes the operand into a filled tensor; negative padding cuts afterwards.
static Value lowerPad(ImplicitLocOpBuilder &b, PadOp op) {
  RankedTensorType in = typeOf(op.getOperand()), out = typeOf(op.getResult());
  SmallVector<int64_t> low = getInts(op.getEdgePaddingLow()),
                       high = getInts(op.getEdgePaddingHigh()),
                       interior = getInts(op.getInteriorPadding());
  SmallVector<int64_t> shape;
  SmallVector<OpFoldResult> offsets, sizes, strides, cuts, outSizes, ones;
  for (int64_t d = 0; d < in.getRank(); ++d) {
    int64_t n = in.getDimSize(d);
    int64_t spread = n + std::max<int64_t>(n - 1, 0) * interior[d];
    shape.push_back(spread + std::max<int64_t>(low[d], 0) +
                    std::max<int64_t>(high[d], 0));
    offsets.push_back(b.getIndexAttr(std::max<int64_t>(low[d], 0)));
    sizes.push_back(b.getIndexAttr(n));
    strides.push_back(b.getIndexAttr(interior[d] + 1));
    cuts.push_back(b.getIndexAttr(std::max<int64_t>(-low[d], 0)));
    outSizes.push_back(b.getIndexAttr(out.getDimSize(d)));
    ones.push_back(b.getIndexAttr(1));
  }
  auto type = RankedTensorType::get(shape, in.getElementType());
  Value base = filled(b, type, scalarOf(b, op.getPaddingValue()));
  Value padded = tensor::InsertSliceOp::create(b, op.getOperand(), base,
                                               offsets, sizes, strides);
  if (type == out)
    return padded;
  return tensor::ExtractSliceOp::create(b, out, padded, cuts, outSizes, ones);
}

static Value lowerReverse(ImplicitLocOpBuilder &b, ReverseOp op) {
  RankedTensorType type = typeOf(op.getResult());
  SmallVector<int64_t> dims = getInts(op.getDimensions());
  Value operand = op.getOperand();
  return elementwise(
      b, type, emptyLike(b, type, operand), {}, {},
      [&](ImplicitLocOpBuilder &in, ValueRange) {
        Values at;
        for (int64_t d = 0; d < type.getRank(); ++d) {
          Value i = linalg::IndexOp::create(in, d);
          if (llvm::is_contained(dims, d)) {
            Value last = arith::SubIOp::create(
                in, tensor::DimOp::create(in, operand, d), index(in, 1));
            i = arith::SubIOp::create(in, last, i);
          }
          at.push_back(i);
        }
        return tensor::ExtractOp::create(in, operand, at).getResult();
      });
}

static Value lowerConstant(ImplicitLocOpBuilder &b, ConstantOp op) {
  auto value = dyn_cast<DenseElementsAttr>(op.getValue());
  if (!value) {
    // Weights kept apart, at the end of the file.
    if (auto blob = dyn_cast<DenseResourceElementsAttr>(op.getValue()))
      return arith::ConstantOp::create(b, cast<TypedAttr>(blob));
    return {};
  }
  Type element = typeOf(op.getOutput()).getElementType();
  if (value.getElementType() != element)
    value = value.bitcast(element);
  return arith::ConstantOp::create(b, cast<TypedAttr>(value));
}

static Value lowerTranspose(ImplicitLocOpBuilder &b, TransposeOp op) {
  RankedTensorType type = typeOf(op.getResult()), in = typeOf(op.getOperand());
  SmallVector<int64_t> perm = getInts(op.getPermutation());
  Values sizes;
  for (int64_t d = 0; d < type.getRank(); ++d)
    if (type.isDynamicDim(d))
      sizes.push_back(tensor::DimOp::create(b, op.getOperand(), perm[d]));
  (void)in;
  Value init = tensor::EmptyOp::create(b, type, sizes);
  return linalg::TransposeOp::create(b, op.getOperand(), init, perm)
      .getResult()[0];
}

static Value lowerDynamicShape(ImplicitLocOpBuilder &b, Operation *op) {
  RankedTensorType type = typeOf(op->getResult(0));
  if (auto iota = dyn_cast<DynamicIotaOp>(op))
    return lowerIota(b, type, iota.getIotaDimension(),
                     emptyOfShape(b, type, iota.getOutputShape()));
  if (auto broadcast = dyn_cast<DynamicBroadcastInDimOp>(op))
    return lowerBroadcast(
        b, broadcast.getOperand(), type,
        getInts(broadcast.getBroadcastDimensions()),
        emptyOfShape(b, type, broadcast.getOutputDimensions()));
  if (auto reshape = dyn_cast<DynamicReshapeOp>(op)) {
    if (typeOf(reshape.getOperand()).hasStaticShape() && type.hasStaticShape())
      return lowerReshape(b, reshape.getOperand(), type);
    Values sizes;
    for (int64_t d = 0; d < type.getRank(); ++d)
      sizes.push_back(shapeEntry(b, reshape.getOutputShape(), d));
    Value shape = tensor::FromElementsOp::create(
        b, RankedTensorType::get({type.getRank()}, b.getIndexType()), sizes);
    return tensor::ReshapeOp::create(b, type, reshape.getOperand(), shape);
  }
  auto size = cast<GetDimensionSizeOp>(op);
  Value dim = tensor::DimOp::create(b, size.getOperand(), size.getDimension());
  Value entry = arith::IndexCastOp::create(b, type.getElementType(), dim);
  return tensor::FromElementsOp::create(b, type, entry);
}

/// One generic; operands that are scalars beside tensors are read at ().
static Value lowerElementwise(ImplicitLocOpBuilder &b, Operation *op) {
  RankedTensorType type = typeOf(op->getResult(0));
  SmallVector<AffineMap> maps;
  Value like;
  for (Value operand : op->getOperands()) {
    bool scalar = typeOf(operand).getRank() == 0 && type.getRank() != 0;
    maps.push_back(scalar ? AffineMap::get(type.getRank(), 0, b.getContext())
                          : b.getMultiDimIdentityMap(type.getRank()));
    if (!scalar)
      like = operand;
  }
  bool failed = false;
  Value result =
      elementwise(b, type, emptyLike(b, type, like), op->getOperands(), maps,
                  [&](ImplicitLocOpBuilder &in, ValueRange args) {
                    Value scalar =
                        emitScalar(in, op, args, type.getElementType());
                    failed |= !scalar;
                    return scalar ? scalar : args[0];
                  });
  return failed ? Value() : result;
}

FailureOr<Values> kvcache::stablehlo::lowerShape(ImplicitLocOpBuilder &b,
                                                 Operation *op) {
  Value result;
  if (isElementwise(op))
    result = lowerElementwise(b, op);
  else
    result =
        TypeSwitch<Operation *, Value>(op)
            .Case([&](ConstantOp c) { return lowerConstant(b, c); })
            .Case([&](IotaOp iota) {
              RankedTensorType type = typeOf(iota.getOutput());
              return lowerIota(b, type, iota.getIotaDimension(),
                               tensor::EmptyOp::create(b, type, ValueRange()));
            })
            .Case([&](BroadcastInDimOp bc) {
              RankedTensorType type = typeOf(bc.getResult());
              return lowerBroadcast(
                  b, bc.getOperand(), type,
                  getInts(bc.getBroadcastDimensions()),
                  tensor::EmptyOp::create(b, type, ValueRange()));
            })
            .Case([&](ReshapeOp r) {
              return lowerReshape(b, r.getOperand(), typeOf(r.getResult()));
            })
            .Case([&](TransposeOp t) { return lowerTranspose(b, t); })
            .Case([&](SliceOp s) { return lowerSlice(b, s); })
            .Case([&](PadOp p) { return lowerPad(b, p); })
            .Case([&](ReverseOp r) { return lowerReverse(b, r); })
            .Case([&](ConcatenateOp c) -> Value {
              return tensor::ConcatOp::create(b, typeOf(c.getResult()),
                                              c.getDimension(), c.getInputs());
            })
            .Case<DynamicIotaOp, DynamicBroadcastInDimOp, DynamicReshapeOp,
                  GetDimensionSizeOp>(
                [&](Operation *o) { return lowerDynamicShape(b, o); })
            .Default(Value());
  if (!result)
    return failure();
  return Values{result};
}
