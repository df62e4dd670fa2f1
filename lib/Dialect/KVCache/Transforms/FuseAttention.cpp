//===- FuseAttention.cpp - Attend to the cache, not to its contents -------===//
//
// For each attention on tensors k and v:
//   1. both are results of one `read`: attend to its cache;
//   2. both are decoded and gathered arrays: describe each array by an affine
//      map, `view` them as a cache with an external layout, attend to that.
// An intermediate with another user stops it, since it would have to exist
// anyway. `page_gather(dequantize)` is first turned around by the op's own
// canonicalisation, so that one order is left to recognise.
//
//===----------------------------------------------------------------------===//
#include "ArraySource.h"
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "mlir/IR/Remarks.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

using namespace mlir;

namespace kvcache {

#define GEN_PASS_DEF_FUSEATTENTIONPASS
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

namespace {
/// The keys, or the values, of an attention as arrays of somebody else.
struct Side {
  StringRef name; ///< "key" or "value"
  Encoding encoding;
  PackingAttr packing;
  int64_t page = 0, heads = 0, channels = 0;
  int64_t tokens = 0; ///< of a page, or of a sequence when there is no table
  Value table;        ///< null: no gather
  TableRule rule = TableRule::None;
  ArraySource codes;
  SmallVector<ArraySource, 2> params; ///< scales, zeros
  SmallVector<Operation *> fused;     ///< users before producers
};
} // namespace

static RankedTensorType tensorType(Value value) {
  return cast<RankedTensorType>(value.getType());
}

/// An index map over the four dims of a plain tensor in `layout`; `expr` gives
/// the coordinate of dim 0, and of head, token, channel.
static AffineMap plainMap(Layout layout, AffineExpr page, AffineExpr token,
                          AffineExpr head, AffineExpr channel) {
  LayoutDims dims = layoutDims(layout, 4);
  SmallVector<AffineExpr> exprs(4);
  exprs[0] = page;
  exprs[dims.token] = token;
  exprs[dims.head] = head;
  exprs[dims.channel] = channel;
  return AffineMap::get(4, 0, exprs, page.getContext());
}

//===----------------------------------------------------------------------===//
// Recognising one side
//===----------------------------------------------------------------------===//

/// Sets table, page and rule from the gather of the codes, and the codes' map.
static bool analyseCodes(Side &side, Value codes, Layout layout,
                         std::string &reason) {
  Value pool = codes;
  if (auto gather = codes.getDefiningOp<PageGatherOp>()) {
    if (gather.getLayout() != layout) {
      reason = "the page_gather's layout is not the attention's";
      return false;
    }
    if (gather.getPool().getDefiningOp<DequantizeOp>()) {
      reason =
          "its page_gather cannot move before its dequantize (another use, "
          "or scales that do not follow the pages)";
      return false;
    }
    side.table = gather.getTable();
    side.rule = gather.getTableRule();
    side.fused.push_back(gather);
    pool = gather.getPool();
  }
  auto type = tensorType(pool);
  LayoutDims dims = layoutDims(layout, 4);
  for (int64_t d : {dims.head, dims.channel})
    if (type.isDynamicDim(d) || type.getDimSize(d) == 0) {
      reason = "its number of heads and channels must be static and positive";
      return false;
    }
  int64_t per = codesPerContainer(type.getElementType(), side.encoding.element,
                                  side.packing);
  bool overTokens = side.packing && side.packing.getAxis() == PackAxis::Token;
  side.heads = type.getDimSize(dims.head);
  side.channels = type.getDimSize(dims.channel) * (overTokens ? 1 : per);
  // Without a table a "page" is a whole sequence and the format's page means
  // nothing; the default stands there.
  side.page = Format().page;
  side.tokens = type.getDimSize(dims.token);
  if (overTokens && !type.isDynamicDim(dims.token))
    side.tokens *= per;
  if (side.table) {
    if (type.isDynamicDim(dims.token)) {
      reason = "its tokens per page must be static";
      return false;
    }
    side.page = side.tokens;
  }
  AffineExpr p, t, h, c;
  bindDims(type.getContext(), p, t, h, c);
  side.codes = throughViews({pool, plainMap(layout, p, t, h, c)});
  return true;
}

/// The scale kind whose groups are blocks of `tokens` x `channels`, or one with
/// finer groups: the maps say where each scale is, the format only how fine
/// they are at most.
static void nameGroups(Side &side, int64_t tokens, int64_t channels) {
  Encoding &e = side.encoding;
  auto whole = [](int64_t group, int64_t size) {
    return group == size ? int64_t(0) : group;
  };
  bool one = tokens == side.tokens && channels == side.channels;
  if (one && (e.scale == ScaleKind::Head || e.scale == ScaleKind::Tensor)) {
    e.group = 0;
  } else if (channels == 1 && e.scale == ScaleKind::Channel &&
             (side.page % tokens == 0 || tokens == side.tokens)) {
    e.group = whole(tokens, side.tokens);
  } else {
    e.scale = ScaleKind::Token;
    e.group = whole(channels, side.channels);
  }
}

/// The map of scales or zeros: gathered with the codes' table, or shared by all
/// pages.
static bool analyseParam(Side &side, Value param, Layout layout,
                         std::string &reason) {
  Value pool = param;
  auto gather = param.getDefiningOp<PageGatherOp>();
  if (gather) {
    if (gather.getTable() != side.table || gather.getLayout() != layout ||
        gather.getTableRule() != side.rule) {
      reason = "its scales are gathered otherwise than its codes";
      return false;
    }
    if (!llvm::is_contained(side.fused, gather.getOperation()))
      side.fused.push_back(gather);
    pool = gather.getPool();
  }
  auto type = tensorType(pool);
  LayoutDims dims = layoutDims(layout, 4);
  bool shared = type.getDimSize(0) == 1 && !gather;
  if (!gather && side.table && !shared) {
    reason = "its scales are not gathered with the table of its codes";
    return false;
  }
  int64_t rows = type.getDimSize(dims.token);
  int64_t cols = type.getDimSize(dims.channel);
  int64_t heads = type.getDimSize(dims.head);
  if (ShapedType::isDynamic(rows) || ShapedType::isDynamic(cols) ||
      ShapedType::isDynamic(heads) || rows == 0 || cols == 0) {
    reason = "the sizes of its scales must be static";
    return false;
  }
  bool rowsFit =
      rows == 1 || (!ShapedType::isDynamic(side.tokens) &&
                    side.tokens % rows == 0 && !(side.table && shared));
  if (!rowsFit || side.channels % cols != 0) {
    reason = "its scales do not divide its pages";
    return false;
  }
  int64_t tokens = rows == 1 ? side.tokens : side.tokens / rows;
  AffineExpr p, t, h, c;
  bindDims(type.getContext(), p, t, h, c);
  AffineExpr zero = getAffineConstantExpr(0, type.getContext());
  AffineMap map =
      plainMap(layout, shared ? zero : p, rows == 1 ? zero : t.floorDiv(tokens),
               heads == 1 ? zero : h,
               cols == 1 ? zero : c.floorDiv(side.channels / cols));
  nameGroups(side, tokens, side.channels / cols);
  side.params.push_back(throughViews({pool, map}));
  return true;
}

static bool analyseSide(Side &side, Value x, Layout layout,
                        std::string &reason) {
  auto dequantize = x.getDefiningOp<DequantizeOp>();
  Value codes = x;
  if (dequantize) {
    if (dequantize.getLayout() != layout) {
      reason = "the dequantize's layout is not the attention's";
      return false;
    }
    side.fused.push_back(dequantize);
    side.encoding = dequantize.getEncoding().getEncoding();
    side.packing = dequantize.getPackingAttr();
    codes = dequantize.getCodes();
  } else if (std::optional<Element> e =
                 elementOf(tensorType(x).getElementType())) {
    side.encoding.element = *e;
    side.encoding.scale = ScaleKind::None;
  } else if (!x.getDefiningOp<PageGatherOp>()) {
    reason = "it is not read, gathered or decoded";
    return false;
  }
  if (!analyseCodes(side, codes, layout, reason))
    return false;
  if (dequantize)
    for (Value param : dequantize.getParams())
      if (!analyseParam(side, param, layout, reason))
        return false;
  return true;
}

//===----------------------------------------------------------------------===//
// Building the view
//===----------------------------------------------------------------------===//

namespace {
/// Gives each distinct tensor its array number: codes first, then scales.
struct ArrayNumbers {
  SmallVector<Value> pools, scales;

  static void add(SmallVectorImpl<Value> &to, Value value) {
    if (!llvm::is_contained(to, value))
      to.push_back(value);
  }
  ExternalArrayAttr attr(const ArraySource &source) const {
    const auto *pool = llvm::find(pools, source.array);
    int64_t number =
        pool != pools.end()
            ? pool - pools.begin()
            : static_cast<int64_t>(pools.size()) +
                  (llvm::find(scales, source.array) - scales.begin());
    return ExternalArrayAttr::get(source.array.getContext(), number,
                                  AffineMapAttr::get(source.map));
  }
};
} // namespace

static ExternalTensorAttr tensorAttr(const Side &side,
                                     const ArrayNumbers &numbers) {
  ExternalArrayAttr params[2];
  for (auto [i, param] : llvm::enumerate(side.params))
    params[i] = numbers.attr(param);
  return ExternalTensorAttr::get(
      side.codes.array.getContext(), side.encoding.element, side.packing,
      numbers.attr(side.codes), params[0], params[1]);
}

/// The lengths of the attention, or a constant when it has none.
static Value lengthsOf(AttentionOp op, OpBuilder &builder) {
  if (op.getLengths())
    return op.getLengths();
  auto k = tensorType(op.getK());
  int64_t seqs = k.getDimSize(0);
  int64_t tokens = k.getDimSize(layoutDims(op.getLayout(), 4).token);
  if (ShapedType::isDynamic(seqs) || ShapedType::isDynamic(tokens))
    return {};
  auto type = RankedTensorType::get(seqs, builder.getI64Type());
  return arith::ConstantOp::create(
      builder, op.getLoc(), DenseElementsAttr::get(type, APInt(64, tokens)));
}

/// Whether each value between the arrays and `op` is used within the fusion.
static bool onlyFusedUsers(AttentionOp op, ArrayRef<Operation *> fused,
                           std::string &reason) {
  for (Operation *producer : fused)
    for (Operation *user : producer->getUsers())
      if (user != op && !llvm::is_contained(fused, user)) {
        reason = "the result of '" + producer->getName().getStringRef().str() +
                 "' has other users";
        return false;
      }
  return true;
}

/// The cache type of the two sides; null with a reason if no format says it.
static CacheType viewType(AttentionOp op, const Side &key, const Side &value,
                          const ArrayNumbers &numbers, std::string &reason) {
  Format format;
  format.key = key.encoding;
  format.value = value.encoding;
  format.page = key.page;
  Expected<Format> parsed = Format::parse(format.str());
  if (const FormatError *error = errorOf(parsed)) {
    reason = "no format describes it: " + error->message;
    return {};
  }
  MLIRContext *context = op.getContext();
  auto external = ExternalAttr::get(context, tensorAttr(key, numbers),
                                    tensorAttr(value, numbers), key.rule);
  return CacheType::get(
      context, key.heads, key.channels, value.channels,
      /*latent=*/false, tensorType(op.getQ()).getElementType(),
      FormatAttr::get(context, std::get<Format>(parsed)), external);
}

static void attendTo(AttentionOp op, Value cache) {
  op.getKvMutable().assign(cache);
  op.getLengthsMutable().clear();
  // The layout was k's and v's; queries of rank 3 have none.
  if (tensorType(op.getQ()).getRank() == 3)
    op.setLayout(Layout::HND);
}

/// Whether the attention means the same on a cache, where queries are the
/// newest tokens and rows before token 0 see nothing.
static bool keepsRows(AttentionOp op, const Side &key, std::string &reason) {
  if (op.getEmptyRows() == EmptyRows::MeanAll) {
    // The mean runs over what the arrays hold, which must be plain to see.
    if (key.rule == TableRule::Raw)
      reason = "empty_rows mean_all is not possible with table rule raw";
    for (AffineExpr expr : key.codes.map.getResults())
      if (!key.table && expr.isFunctionOfDim(0) && expr.isFunctionOfDim(1))
        reason = "empty_rows mean_all needs tokens in a dimension of their own";
    if (!reason.empty())
      return false;
  }
  if (op.getCausal())
    return true;
  auto q = tensorType(op.getQ());
  if (q.getRank() == 3 && !op.getQIndptr())
    return true;
  auto k = tensorType(op.getK());
  LayoutDims dims = layoutDims(op.getLayout(), 4);
  int64_t tokens = k.getDimSize(dims.token);
  if (q.getRank() == 4) {
    int64_t rows = q.getDimSize(dims.token);
    if (rows == 1 || (!op.getLengths() && !ShapedType::isDynamic(rows) &&
                      !ShapedType::isDynamic(tokens) && rows <= tokens))
      return true;
  }
  reason = "there may be more queries than keys, and without causal they see "
           "keys that a cache hides";
  return false;
}

static bool fuseExternal(AttentionOp op, std::string &reason) {
  Side sides[2];
  sides[0].name = "key";
  sides[1].name = "value";
  for (auto [side, x] : llvm::zip(sides, op.getKv())) {
    std::string why;
    if (!analyseSide(side, x, op.getLayout(), why)) {
      reason = side.name.str() + "s: " + why;
      return false;
    }
  }
  Side &key = sides[0], &value = sides[1];
  // One side may be an array as it is, if the other is not.
  if (key.fused.empty() && value.fused.empty()) {
    reason = "keys: it is not read, gathered or decoded";
    return false;
  }
  if (key.table != value.table || key.rule != value.rule ||
      key.page != value.page) {
    reason = "keys and values are not gathered with the same table and pages";
    return false;
  }
  if (!keepsRows(op, key, reason))
    return false;
  SmallVector<Operation *> fused(key.fused);
  for (Operation *producer : value.fused)
    if (!llvm::is_contained(fused, producer))
      fused.push_back(producer);
  if (!onlyFusedUsers(op, fused, reason))
    return false;
  ArrayNumbers numbers;
  for (const Side &side : sides)
    ArrayNumbers::add(numbers.pools, side.codes.array);
  for (const Side &side : sides)
    for (const ArraySource &param : side.params)
      if (!llvm::is_contained(numbers.pools, param.array))
        ArrayNumbers::add(numbers.scales, param.array);
  CacheType type = viewType(op, key, value, numbers, reason);
  if (!type)
    return false;
  OpBuilder builder(op);
  Value lengths = lengthsOf(op, builder);
  if (!lengths) {
    reason = "without lengths, sequences and tokens must be static";
    return false;
  }
  SmallVector<Value> tables;
  if (key.table)
    tables.push_back(key.table);
  auto view = ViewOp::create(builder, op.getLoc(), type, numbers.pools, tables,
                             /*sealed_pages=*/Value(), lengths, numbers.scales,
                             /*means=*/Value());
  attendTo(op, view);
  SmallVector<Operation *> gathers;
  // Users before producers.
  for (Operation *producer : fused)
    if (isa<DequantizeOp>(producer))
      producer->erase();
    else
      gathers.push_back(producer);
  for (Operation *gather : gathers)
    gather->erase();
  return true;
}

//===----------------------------------------------------------------------===//
// read + attention
//===----------------------------------------------------------------------===//

/// Whether `cache` may have been replaced when `op` runs: a user that could do
/// so (append, seal, a branch, a call) is not plainly behind it.
static bool mayBeReplacedBefore(Value cache, AttentionOp op) {
  return llvm::any_of(cache.getUsers(), [&](Operation *user) {
    if (isa<ReadOp, AttentionOp>(user))
      return false;
    Operation *here = op->getBlock()->findAncestorOpInBlock(*user);
    return !here || !op->isBeforeInBlock(here);
  });
}

static bool fuseRead(AttentionOp op, ReadOp read, std::string &reason) {
  if (op.getEmptyRows() != EmptyRows::Zero) {
    reason = "empty_rows " + stringifyEmptyRows(op.getEmptyRows()).str() +
             " is not possible on what a cache reads";
    return false;
  }
  if (op.getK() != read.getK() || op.getV() != read.getV()) {
    reason = "keys and values are not k and v of one read";
    return false;
  }
  if (op.getLayout() != read.getLayout()) {
    reason = "the read's layout is not the attention's";
    return false;
  }
  if (op.getLengths() != read.getLengths()) {
    reason = "its lengths are not those of the read";
    return false;
  }
  CacheType cache = read.getCache().getType();
  if (!cache.getExternal() &&
      tensorType(op.getQ()).getElementType() != cache.getOpen()) {
    reason = "the queries do not have the cache's open dtype";
    return false;
  }
  if (!onlyFusedUsers(op, {read.getOperation()}, reason))
    return false;
  if (mayBeReplacedBefore(read.getCache(), op)) {
    reason = "the cache is replaced between its read and the attention";
    return false;
  }
  attendTo(op, read.getCache());
  read->erase();
  return true;
}

bool fuseAttention(AttentionOp op, std::string &reason) {
  if (op.hasCache())
    return false;
  for (Value x : op.getKv())
    if (auto read = x.getDefiningOp<ReadOp>())
      return fuseRead(op, read, reason);
  return fuseExternal(op, reason);
}

/// Whether keys and values are just tensors.
static bool isPlain(AttentionOp op) {
  return llvm::none_of(op.getKv(), [](Value x) {
    return isa_and_nonnull<ReadOp, PageGatherOp, DequantizeOp>(
        x.getDefiningOp());
  });
}

namespace {
struct FuseAttentionPass : impl::FuseAttentionPassBase<FuseAttentionPass> {
  using FuseAttentionPassBase::FuseAttentionPassBase;

  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    PageGatherOp::getCanonicalizationPatterns(patterns, &getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      return signalPassFailure();
    SmallVector<AttentionOp> attentions;
    getOperation()->walk([&](AttentionOp op) {
      if (!op.hasCache())
        attentions.push_back(op);
    });
    for (AttentionOp op : attentions) {
      std::string reason;
      if (fuseAttention(op, reason)) {
        ++numFused;
        continue;
      }
      ++numKept;
      if (onlyMissed && isPlain(op))
        continue;
      op.emitRemark("not fused: ") << reason;
      remark::missed(
          op.getLoc(),
          remark::RemarkOpts::name("FuseAttention").category("kvcache-fuse"))
          << remark::reason("{0}", reason);
    }
  }
};
} // namespace

} // namespace kvcache
