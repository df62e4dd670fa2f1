//===- XlaSlice.cpp - The part of a graph that one kernel computes --------===//
//
// From the attention forwards to the first values that the graph has, and from
// there backwards until everything is a value of the graph or a constant.
//
//===----------------------------------------------------------------------===//
#include "XlaSlice.h"

#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Dominance.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"

using namespace kvcache;
using namespace mlir;

/// Constants up to this size are part of the kernel; larger ones stay XLA's.
static constexpr int64_t kMaxConstant = 1 << 16;

namespace {
class Cutter {
public:
  Cutter(AttentionOp attention, const SourceValues &source)
      : attention(attention), source(source) {}

  bool run();
  Slice slice;
  std::string why;

private:
  bool refuse(const Twine &reason) {
    why = reason.str();
    return false;
  }
  bool findResults();
  bool placeCall();
  bool need(Value value);
  bool needOp(Operation *op);
  bool addLeaf(Value value, Value original);

  AttentionOp attention;
  const SourceValues &source;
  DominanceInfo dominance;
};
} // namespace

/// Buffers of XLA and of our code hold these elements alike.
static bool isBuffer(Value original, Value copy) {
  auto a = dyn_cast<RankedTensorType>(original.getType());
  auto b = dyn_cast<RankedTensorType>(copy.getType());
  if (!a || !b || a.getShape() != b.getShape() || !a.hasStaticShape())
    return false;
  Type x = a.getElementType(), y = b.getElementType();
  return x.isIntOrFloat() && y.isIntOrFloat() &&
         x.getIntOrFloatBitWidth() == y.getIntOrFloatBitWidth() &&
         (x.isInteger(1) || x.getIntOrFloatBitWidth() >= 8);
}

/// Only computes: may be repeated elsewhere.
static bool isMovable(Operation *op) {
  if (isa<linalg::LinalgOp, tensor::GenerateOp>(op))
    return isMemoryEffectFree(op) || isa<linalg::LinalgOp>(op);
  return op->getNumRegions() == 0 && isMemoryEffectFree(op);
}

bool Cutter::findResults() {
  SmallVector<Operation *> work{attention};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!work.empty()) {
    Operation *op = work.pop_back_val();
    for (Value result : op->getResults()) {
      SmallVector<Value> originals = source.of(result);
      llvm::erase_if(originals, [&](Value o) { return !isBuffer(o, result); });
      if (!originals.empty() && op != attention) {
        slice.results.push_back(result);
        slice.replaced.push_back(originals);
        continue;
      }
      for (Operation *user : result.getUsers()) {
        // A use inside a body counts for the op that has the body.
        if (auto generic = user->getParentOfType<linalg::LinalgOp>())
          user = generic;
        if (user->getBlock() != attention->getBlock() || !isMovable(user))
          return refuse("its result is used before it is a value of the graph");
        if (seen.insert(user).second)
          work.push_back(user);
      }
    }
  }
  if (slice.results.empty())
    return refuse("its result is no value of the graph");
  return true;
}

/// Before the first of the values that are replaced.
bool Cutter::placeCall() {
  for (ArrayRef<Value> originals : slice.replaced) {
    Operation *op = originals.front().getDefiningOp();
    if (!op)
      return refuse("its result is an argument of the graph");
    Operation *&at = slice.insertBefore;
    if (at && at->getBlock() != op->getBlock())
      return refuse("its results lie in different regions of the graph");
    if (!at || op->isBeforeInBlock(at))
      at = op;
  }
  return true;
}

bool Cutter::addLeaf(Value value, Value original) {
  if (!llvm::is_contained(slice.leafCopies, value)) {
    slice.leaves.push_back(original);
    slice.leafCopies.push_back(value);
  }
  return true;
}

bool Cutter::need(Value value) {
  Operation *op = value.getDefiningOp();
  bool isConstant = op && op->hasTrait<OpTrait::ConstantLike>();
  auto type = dyn_cast<ShapedType>(value.getType());
  DenseElementsAttr elements;
  if (isConstant &&
      (!type || type.getNumElements() <= kMaxConstant ||
       (matchPattern(value, m_Constant(&elements)) && elements.isSplat())))
    return needOp(op);
  if (!llvm::is_contained(slice.results, value))
    for (Value original : source.of(value))
      if (isBuffer(original, value) &&
          dominance.properlyDominates(original, slice.insertBefore))
        return addLeaf(value, original);
  if (!op)
    return refuse("it needs a value that the graph does not have");
  return needOp(op);
}

bool Cutter::needOp(Operation *op) {
  if (slice.ops.contains(op))
    return true;
  if (op != attention && !isMovable(op))
    return refuse("it needs the result of '" + op->getName().getStringRef() +
                  "', which cannot become part of a kernel");
  llvm::SetVector<Value> captured;
  getUsedValuesDefinedAbove(op->getRegions(), captured);
  for (Value operand : op->getOperands())
    if (!need(operand))
      return false;
  for (Value operand : captured)
    if (!need(operand))
      return false;
  slice.ops.insert(op);
  return true;
}

bool Cutter::run() {
  if (!findResults() || !placeCall())
    return false;
  for (Value result : slice.results)
    if (!needOp(result.getDefiningOp()))
      return false;
  if (!slice.ops.contains(attention))
    return refuse("its result is no value of the graph");
  return true;
}

FailureOr<Slice> kvcache::cutSlice(AttentionOp attention,
                                   const SourceValues &source,
                                   std::string &why) {
  Cutter cutter(attention, source);
  if (cutter.run())
    return std::move(cutter.slice);
  why = cutter.why;
  return failure();
}
