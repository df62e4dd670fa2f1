//===- Append.cpp - New tokens into open pages ----------------------------===//
//
// Open pages hold the model's own dtype, so appending is a checked copy. The
// check compares the magnitude bits of all elements of a row with one constant,
// the largest value that sealing can code (codec::largestAccepted): for
// non-negative floats the order of bits is the order of values, with infinity
// and NaN on top.
//
//===----------------------------------------------------------------------===//
#include "Builder.h"
#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::storage;

static constexpr int64_t kLanes = 8; // head dims are multiples of 8

namespace {
struct Rows {
  StringRef array;
  int64_t dim, openOffset;
  uint32_t limit; ///< largest accepted magnitude, as bits of the dtype
};
} // namespace

/// The bits of the largest dtype number that is at most `limit`.
static uint32_t limitBits(Element dtype, float limit) {
  if (dtype == Element::F32)
    return codec::toBits(limit);
  uint32_t bits = codec::toElementBits(dtype, limit);
  return codec::fromElementBits(dtype, bits) > limit ? bits - 1 : bits;
}

static SmallVector<Rows, 2> rowsOf(const Context &c) {
  Element dtype = c.spec.dtype;
  int64_t bytes = bitsOf(dtype) / 8;
  return {{"k", c.spec.headDim, 0,
           limitBits(dtype, codec::largestAccepted(c.spec.format.key))},
          {"v", c.spec.valueDim, c.spec.format.page * c.spec.headDim * bytes,
           limitBits(dtype, codec::largestAccepted(c.spec.format.value))}};
}

static VectorType vectorType(Kernel &k) {
  return VectorType::get(
      {kLanes}, k.builder.getIntegerType(bitsOf(k.context.spec.dtype)));
}

static Value loadLanes(Kernel &k, Value p) {
  unsigned bytes = bitsOf(k.context.spec.dtype) / 8;
  return LLVM::LoadOp::create(k.builder, k.env.loc, vectorType(k), p, bytes);
}

/// Whether every element of the row can be stored.
static Bool rowIsGood(Kernel &k, Int row) {
  int64_t heads = k.context.spec.kvHeads, bits = bitsOf(k.context.spec.dtype);
  Bool good;
  for (const Rows &r : rowsOf(k.context)) {
    int64_t rowBytes = heads * r.dim * bits / 8;
    Value base = k.at(k.pointer(r.array), row * rowBytes);
    Int mask =
        ir::constant(k.env, vectorType(k), (int64_t(1) << (bits - 1)) - 1);
    Value none = ir::constant(k.env, vectorType(k), int64_t(0));
    Values top =
        k.loop(ir::i64(k.env, 0), ir::i64(k.env, rowBytes), kLanes * bits / 8,
               none, [&](Int at, ValueRange carried) {
                 Int x = Int(k.env, loadLanes(k, k.at(base, at))) & mask;
                 return Values{arith::MaxUIOp::create(k.builder, k.env.loc,
                                                      carried[0], x.value)};
               });
    Int most(k.env,
             LLVM::vector_reduce_umax::create(
                 k.builder, k.env.loc, k.builder.getIntegerType(bits), top[0]));
    Bool fits = ir::lessThan(
        most, ir::constant(k.env, most.type(), int64_t(r.limit) + 1));
    good = good.value ? good & fits : fits;
  }
  return good;
}

static void copyRow(Kernel &k, Int row, Int slot) {
  const KernelSpec &spec = k.context.spec;
  int64_t bytes = bitsOf(spec.dtype) / 8, open = k.context.openBytes();
  Int page = slot / spec.format.page, offset = slot % spec.format.page;
  k.loop(ir::i64(k.env, 0), ir::i64(k.env, spec.kvHeads), 1, [&](Int head) {
    Value record =
        k.at(k.pointer("open_pool"), (page * spec.kvHeads + head) * open);
    for (const Rows &r : rowsOf(k.context)) {
      Value from = k.at(k.pointer(r.array),
                        (row * spec.kvHeads + head) * (r.dim * bytes));
      Value to = k.at(record, offset * (r.dim * bytes) + r.openOffset);
      k.loop(ir::i64(k.env, 0), ir::i64(k.env, r.dim * bytes), kLanes * bytes,
             [&](Int at) {
               LLVM::StoreOp::create(k.builder, k.env.loc,
                                     loadLanes(k, k.at(from, at)), k.at(to, at),
                                     bytes);
             });
    }
  });
}

/// Leaves the smallest refused row in `status`, whichever thread finds it.
static void refuse(Kernel &k, Int row) {
  LLVM::AtomicRMWOp::create(k.builder, k.env.loc, LLVM::AtomicBinOp::min,
                            k.pointer("status"), row,
                            LLVM::AtomicOrdering::monotonic);
}

static Int slotOf(Kernel &k, Int row) {
  return k.loadInt(k.at(k.pointer("slots"), row * 8), 64);
}

/// Negative as signed: padding.
static Bool isReal(Kernel &k, Int slot) {
  return ir::lessThan(slot, ir::i64(k.env, INT64_MIN));
}

/// `row` if its data cannot be stored, else INT64_MAX. Padding is never read.
static Int checkRow(Kernel &k, Int row) {
  Int none = ir::i64(k.env, INT64_MAX);
  Value bad = k.choose(isReal(k, slotOf(k, row)), none, [&] {
    return ir::select(rowIsGood(k, row), none, row).value;
  });
  return {k.env, bad};
}

static void copyIfReal(Kernel &k, Int row) {
  Int slot = slotOf(k, row);
  k.when(isReal(k, slot), [&] { copyRow(k, row, slot); });
}

/// All rows are checked before any is written.
static void buildSerial(Kernel &k) {
  Int none = ir::i64(k.env, INT64_MAX);
  Values first =
      k.loop(k.begin, k.end, 1, none.value, [&](Int row, ValueRange carried) {
        Int bad = checkRow(k, row), best(k.env, carried[0]);
        return Values{ir::select(ir::lessThan(bad, best), bad, best)};
      });
  Int bad(k.env, first[0]);
  Bool good = ir::equals(bad, none);
  k.when(ir::lessThan(bad, none), [&] { refuse(k, bad); });
  k.when(good, [&] {
    k.loop(k.begin, k.end, 1, [&](Int row) { copyIfReal(k, row); });
  });
  k.finish(ir::select(good, ir::i32(k.env, KVCACHE_OK),
                      ir::i32(k.env, KVCACHE_REFUSED)));
}

/// Each thread has a row of its own.
static void buildBlocks(Kernel &k) {
  Int thread = ir::toWidth(k.threadId(), 64);
  Int row = k.begin + k.blockId() * k.context.target.threads + thread;
  k.when(ir::lessThan(row, k.end), [&] {
    Int bad = checkRow(k, row);
    Bool good = ir::equals(bad, ir::i64(k.env, INT64_MAX));
    k.when(good, [&] { copyIfReal(k, row); });
    k.when(ir::equals(bad, row), [&] { refuse(k, row); });
  });
  k.finish();
}

#define KV_FIELD(kind, name) {#name, StringRef(#kind) == "PTR"},

void storage::buildAppend(const Context &context) {
  static const Field fields[] = {KVCACHE_APPEND_ARGS(KV_FIELD)};
  Kernel k(context, "append", fields);
  if (context.blocks())
    buildBlocks(k);
  else
    buildSerial(k);
}
