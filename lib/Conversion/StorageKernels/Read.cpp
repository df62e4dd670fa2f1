//===- Read.cpp - Decoded contents of pages -------------------------------===//
//
// For inspection: pages of either class as f32 rows [page * n, kv_heads, dim].
//
//===----------------------------------------------------------------------===//
#include "Builder.h"
#include "kvcache/ABI/KernelABI.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::storage;

namespace {
/// Where the elements of one side of one item go.
class Output {
public:
  Output(Kernel &k, const Side &side, Value array, Int item)
      : k(k), heads(k.context.spec.kvHeads), dim(side.image.channels) {
    Int first = item / heads * k.context.spec.format.page;
    base = k.at(array, (first * heads + item % heads) * (dim * 4));
  }
  void store(Int token, Int channel, Float x) {
    Int row = ir::toWidth(token, 64) * (heads * dim);
    k.storeFloat(k.at(base, (row + ir::toWidth(channel, 64)) * 4), Element::F32,
                 x);
  }

private:
  Kernel &k;
  int64_t heads, dim;
  Value base;
};
} // namespace

static void readSealed(Kernel &k, Int item) {
  Value record = k.record(k.pointer("sealed_pool"), k.pointer("pages"), item,
                          k.context.image.recordBytes());
  for (const Side &side : sidesOf(k.context)) {
    Output out(k, side, k.pointer(side.image.isValue ? "v" : "k"), item);
    visitCodes(k, side, record, item,
               [&](Int t, Int c, Float x, Int) { out.store(t, c, x); });
  }
}

static void readOpen(Kernel &k, Int item) {
  Element dtype = k.context.spec.dtype;
  Value record = k.record(k.pointer("open_pool"), k.pointer("pages"), item,
                          k.context.openBytes());
  for (const Side &side : sidesOf(k.context)) {
    Output out(k, side, k.pointer(side.image.isValue ? "v" : "k"), item);
    Value rows = k.at(record, ir::i64(k.env, side.openOffset));
    int64_t dim = side.image.channels;
    k.share(side.image.page * dim, [&](Int i) {
      Value p = k.at(rows, i * (bitsOf(dtype) / 8));
      out.store(i / dim, i % dim, k.loadFloat(p, dtype));
    });
  }
}

#define KV_FIELD(kind, name) {#name, StringRef(#kind) == "PTR"},

void storage::buildRead(const Context &context) {
  static const Field fields[] = {KVCACHE_READ_ARGS(KV_FIELD)};
  Kernel k(context, "read", fields);
  Int zero = ir::i64(k.env, 0);
  Int isSealed = k.number("is_sealed");
  k.forItems([&](Int item) {
    k.when(ir::lessThan(zero, isSealed), [&] { readSealed(k, item); });
    k.when(ir::equals(isSealed, zero), [&] { readOpen(k, item); });
  });
  k.finish();
}
