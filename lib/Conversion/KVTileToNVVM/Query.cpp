//===- Query.cpp - Queries as B fragments ---------------------------------===//
//
// Register 2j of a lane holds channels 2t, 2t+1 of the tile of 16 channels j
// for the head of column g, register 2j+1 channels 2t+8, 2t+9. Open pages are
// read token-major by 16 bytes a lane, which permutes the channels of each pair
// of tiles (lane t takes 8t..8t+7); their queries are loaded in the same order.
//
// Products with codes, and with f16 pages under a bf16 model, use f16 queries
// normalised by a power of two per head, given back in f32.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

Values Kernel::rawQuery(tile::PageClass pageClass) {
  int64_t d = plan.spec.headDim;
  Value head = headOfColumn(g);
  Value first = firstHead();
  Value index =
      e.add(e.add(e.muli(row, plan.spec.qHeads), first), e.sext64(head));
  Value base = e.gep(argument("q"), e.muli(index, d * 2));
  Values registers;
  if (pageClass == tile::PageClass::Sealed) {
    Value lanes = e.gep(base, e.sext64(e.shl(t, 2)));
    for (int64_t j = 0; j < 2 * plan.keyTiles(); ++j)
      registers.push_back(e.load(e.i32, e.gep(lanes, 16 * j), 4));
    return registers;
  }
  // Words of lane t: k 2t, 2t+1 then 2t+8, 2t+9 of one tile, then of the next.
  Value lanes = e.gep(base, e.sext64(e.shl(t, 4)));
  for (int64_t j = 0; j < d / 32; ++j)
    llvm::append_range(registers, e.loadWords(e.gep(lanes, 64 * j), 4));
  if (d % 32) {
    Value tail = e.gep(base, e.sext64(e.shl(t, 3)));
    llvm::append_range(registers, e.loadWords(e.gep(tail, d / 32 * 64), 2));
  }
  return registers;
}

Query Kernel::normalised(Values raw) {
  Value most = e.f32c(0);
  for (Value pair : raw) {
    auto [low, high] = e.unpack(plan.model, pair);
    most = e.fmax(most, e.fmax(e.fabs(low), e.fabs(high)));
  }
  for (int64_t mask : {1, 2})
    most = e.fmax(most, e.shflXor(most, mask));
  // The exponent field alone: 2^floor(log2(most)), and its inverse.
  Value bits = e.bitAnd(e.toInt(most), e.i32c(0x7f800000));
  Value inverse = e.toFloat(e.sub(e.i32c(254 << 23), bits));
  Value factor = e.toFloat(bits);
  Query result;
  for (Value pair : raw) {
    auto [low, high] = e.unpack(plan.model, pair);
    result.registers.push_back(
        e.pack(Half::F16, e.fmul(low, inverse), e.fmul(high, inverse)));
  }
  // From lanes by column g to registers by columns 2t, 2t+1.
  Value source = e.shl(t, 3);
  result.column0 = e.shflIdx(factor, source);
  result.column1 = e.shflIdx(factor, e.addi(source, 4));
  return result;
}

Query Kernel::splitBF16(Values raw) {
  Query result;
  result.half = Half::BF16;
  for (Value pair : raw) {
    auto [low, high] = e.unpack(plan.model, pair);
    Value rounded = e.pack(Half::BF16, low, high);
    auto [lowR, highR] = e.unpack(Half::BF16, rounded);
    result.registers.push_back(rounded);
    result.low.push_back(
        e.pack(Half::BF16, e.fsub(low, lowR), e.fsub(high, highR)));
  }
  return result;
}

Query Kernel::loadQuery(tile::PageClass pageClass) {
  Values raw = rawQuery(pageClass);
  bool open = pageClass == tile::PageClass::Open;
  Half stored = open ? plan.model : plan.sealedHalf(plan.image.key);
  if (open || (plan.key == Product::Plain && stored == plan.model)) {
    Query result;
    result.half = stored;
    result.registers = std::move(raw);
    return result;
  }
  return stored == Half::F16 ? normalised(std::move(raw))
                             : splitBF16(std::move(raw));
}

Values Kernel::loadSlopes() {
  Values result;
  Value first = firstHead();
  for (int64_t c : {0, 1}) {
    Value head = headOfColumn(e.addi(e.shl(t, 1), c));
    Value index = e.add(first, e.sext64(head));
    result.push_back(
        e.load(e.f32, e.gep(argument("slopes"), e.shl(index, 2)), 4));
  }
  return result;
}
