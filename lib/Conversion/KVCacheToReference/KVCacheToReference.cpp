//===- KVCacheToReference.cpp - The reference meaning ---------------------===//
//
// Ops are lowered in program order. Caches are followed from `view` through
// `append` and `seal` as sets of tensors; ops are erased at the end, users
// first.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Conversion/KVCacheToReference/KVCacheToReference.h"
#include "Lowerings.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/ADT/TypeSwitch.h"

namespace kvcache {
#define GEN_PASS_DEF_KVCACHELOWERTOREFERENCEPASS
#include "kvcache/Conversion/KVCacheToReference/Passes.h.inc"
} // namespace kvcache

using namespace kvcache;
using namespace mlir;

namespace {
/// Lowers the ops of one module.
class Lowering {
public:
  explicit Lowering(const LoweringOptions &options) : options(options) {}
  LogicalResult run(ModuleOp module);

private:
  LogicalResult lower(Operation *op);
  FailureOr<CacheParts> partsOf(Operation *op, Value cache);
  /// Plain tensor ops, whose results replace the op's.
  LogicalResult replace(Operation *op, Emitter &e, const Values &results);
  LogicalResult lowerAttentionOp(Emitter &e, AttentionOp op);
  LogicalResult lowerView(Emitter &e, ViewOp op);
  template <typename OpTy>
  using Update =
      std::function<FailureOr<CacheParts>(Emitter &, OpTy, PagedSource &)>;
  template <typename OpTy>
  LogicalResult update(Emitter &e, OpTy op, const Update<OpTy> &lower);

  const LoweringOptions &options;
  DenseMap<Value, CacheParts> caches;
  SmallVector<Operation *> erased;
};
} // namespace

FailureOr<CacheParts> Lowering::partsOf(Operation *op, Value cache) {
  auto it = caches.find(cache);
  if (it != caches.end())
    return it->second;
  return op->emitOpError("uses a cache that is not made by 'kvcache.view' in "
                         "this function: caches cannot cross functions, loops "
                         "or branches in the reference");
}

LogicalResult Lowering::replace(Operation *op, Emitter &e,
                                const Values &results) {
  for (auto [old, lowered] : llvm::zip(op->getResults(), results)) {
    Value value = lowered;
    if (old.getType() != value.getType())
      value = tensor::CastOp::create(e, old.getType(), value);
    old.replaceAllUsesWith(value);
  }
  erased.push_back(op);
  return success();
}

LogicalResult Lowering::lowerView(Emitter &e, ViewOp op) {
  CacheParts parts;
  parts.type = op.getCache().getType();
  llvm::append_range(parts.pools, op.getPools());
  llvm::append_range(parts.tables, op.getTables());
  llvm::append_range(parts.scales, op.getScales());
  parts.sealedPages = op.getSealedPages();
  parts.lengths = op.getLengths();
  parts.means = op.getMeans();
  Value ok = e.boolean(true), count = e.dim(parts.lengths, 0);
  for (Value table : parts.tables)
    ok = checkSizes(e, ok, e.dim(table, 0), count);
  if (parts.sealedPages)
    ok = checkSizes(e, ok, e.dim(parts.sealedPages, 0), count);
  parts.sequences = e.select(ok, count, e.index(0));
  caches[op.getCache()] = parts;
  erased.push_back(op);
  return success();
}

LogicalResult Lowering::lowerAttentionOp(Emitter &e, AttentionOp op) {
  for (int64_t size :
       {op.getQHeads(), op.getKvHeads(), op.getHeadDim(), op.getValueDim()})
    if (ShapedType::isDynamic(size))
      return op.emitOpError("expected static numbers of heads and channels");
  std::unique_ptr<Source> source;
  if (Value cache = op.getCache()) {
    auto parts = partsOf(op, cache);
    if (failed(parts))
      return failure();
    auto made = makeSource(op.getLoc(), *parts);
    if (failed(made))
      return failure();
    source = std::move(*made);
    if (options.attention) {
      auto results = options.attention(e, op, *source);
      return failed(results) ? failure() : replace(op, e, *results);
    }
  } else {
    source =
        makeDenseSource(op.getK(), op.getV(), op.getLengths(), op.getLayout());
    if (options.arrays) {
      auto results = options.arrays(e, op, *source);
      if (failed(results))
        return failure();
      if (!results->empty())
        return replace(op, e, *results);
    }
  }
  return replace(op, e, lowerAttention(e, op, *source));
}

template <typename OpTy>
LogicalResult Lowering::update(Emitter &e, OpTy op, const Update<OpTy> &lower) {
  auto parts = partsOf(op, op.getCache());
  if (failed(parts))
    return failure();
  auto source = PagedSource::create(op.getLoc(), *parts);
  if (failed(source))
    return failure();
  auto changed = lower(e, op, **source);
  if (failed(changed))
    return failure();
  caches[op.getResult()] = *changed;
  erased.push_back(op);
  return success();
}

LogicalResult Lowering::lower(Operation *op) {
  Emitter e(op->getLoc(), op);
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](ViewOp o) { return lowerView(e, o); })
      .Case([&](AttentionOp o) { return lowerAttentionOp(e, o); })
      .Case([&](MergeStatesOp o) {
        return replace(o, e, lowerMergeStates(e, o));
      })
      .Case([&](QuantizeOp o) { return replace(o, e, lowerQuantize(e, o)); })
      .Case(
          [&](DequantizeOp o) { return replace(o, e, lowerDequantize(e, o)); })
      .Case(
          [&](PageGatherOp o) { return replace(o, e, lowerPageGather(e, o)); })
      .Case([&](ReadOp o) -> LogicalResult {
        auto parts = partsOf(o, o.getCache());
        if (failed(parts))
          return failure();
        auto source = makeSource(o.getLoc(), *parts);
        if (failed(source))
          return failure();
        return replace(o, e, lowerRead(e, o, **source));
      })
      .Case([&](AppendOp o) {
        return update<AppendOp>(e, o,
                                options.append ? options.append
                                               : Update<AppendOp>(lowerAppend));
      })
      .Case([&](SealOp o) {
        return update<SealOp>(
            e, o, options.seal ? options.seal : Update<SealOp>(lowerSeal));
      })
      .Default([](Operation *o) {
        return o->emitOpError("has no reference lowering");
      });
}

LogicalResult Lowering::run(ModuleOp module) {
  SmallVector<Operation *> ops;
  module.walk([&](Operation *op) {
    if (!isa_and_nonnull<KVCacheDialect>(op->getDialect()))
      return;
    bool hasCache =
        llvm::any_of(op->getOperandTypes(), llvm::IsaPred<CacheType>);
    bool onArrays = isa<AttentionOp>(op) && options.arrays;
    if (hasCache || isa<ViewOp>(op) || onArrays || !options.onlyCaches)
      ops.push_back(op);
  });
  for (Operation *op : ops)
    if (failed(lower(op)))
      return failure();
  for (Operation *op : llvm::reverse(erased)) {
    for (Operation *user : op->getUsers())
      return user->emitOpError("uses a cache in a way that has no reference "
                               "lowering: caches cannot cross functions, "
                               "loops or branches");
    op->erase();
  }
  return success();
}

LogicalResult kvcache::lowerKVCacheOps(ModuleOp module,
                                       const LoweringOptions &options) {
  return Lowering(options).run(module);
}

namespace {
struct LowerToReference
    : kvcache::impl::KVCacheLowerToReferencePassBase<LowerToReference> {
  void runOnOperation() override {
    if (failed(lowerKVCacheOps(getOperation(), LoweringOptions())))
      signalPassFailure();
  }
};
} // namespace
