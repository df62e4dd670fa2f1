//===- Partial.cpp - The end of a work item -------------------------------===//
//
// The warps' states meet in shared memory and are combined in warp order; the
// block writes the item's partial to the workspace. The last block of a (row,
// kv head, chunk) to arrive, found by a counter, combines the partials in index
// order, writes the result and leaves the counter at zero for the next launch.
//
//===----------------------------------------------------------------------===//
#include "Kernel.h"

#include "kvcache/ABI/KernelABI.h"

#include <cmath>
#include <numbers>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::gpu;

/// Floats between two heads' O of one warp: shifts banks by 4 per head, so that
/// the lanes of a C tile store without conflicts.
static int64_t rowFloats(const Plan &plan) { return plan.spec.valueDim + 4; }
/// Floats of one warp's O; m and l of all heads follow after all warps' O.
static int64_t warpFloats(const Plan &plan) {
  return plan.heads * rowFloats(plan);
}

Value Kernel::isEmpty(Value max) { return e.feq(max, e.f32c(-INFINITY)); }

/// 2^(max - top), 0 for an empty part.
static Value weight(Emitter &e, Value max, Value top, Value empty) {
  return e.select(empty, e.f32c(0), e.exp2(e.fsub(max, top)));
}

void Kernel::addZeroRows(Values &out) {
  if (!plan.hasZeroRows())
    return;
  int64_t group = plan.image.value.groupSize();
  int64_t at = 4 * plan.valueTiles();
  Value zeros[2];
  for (int64_t tile = 0; tile < plan.valueTiles(); ++tile) {
    int64_t index = tile * kTile / group;
    if (tile * kTile % group == 0)
      for (int64_t c : {0, 1})
        zeros[c] =
            e.shflIdx(out[at + index / 8 * 2 + c], e.addi(t, index % 8 * 4));
    for (int64_t r = 0; r < 4; ++r)
      out[4 * tile + r] = e.fadd(out[4 * tile + r], zeros[r % 2]);
  }
}

void Kernel::storePartial(Values max, Values sum, Values out) {
  addZeroRows(out);
  int64_t states = plan.warps * warpFloats(plan);
  for (int64_t c : {0, 1}) {
    Value column = e.addi(e.shl(t, 1), c);
    e.ifThen(e.slt(column, e.i32c(plan.heads)), {}, [&]() -> Values {
      Value first = e.add(e.muli(warp, warpFloats(plan)),
                          e.add(e.muli(column, rowFloats(plan)), g));
      Value base = e.gep(sharedState, e.sext64(e.shl(first, 2)));
      for (int64_t tile = 0; tile < plan.valueTiles(); ++tile)
        for (int64_t half : {0, 1})
          e.store(out[4 * tile + 2 * half + c],
                  e.gep(base, (tile * kTile + 8 * half) * 4), 4);
      e.ifThen(e.eq(g, e.i32c(0)), {}, [&]() -> Values {
        Value index = e.add(e.muli(warp, plan.heads), column);
        Value state =
            e.gep(e.gep(sharedState, e.sext64(e.shl(index, 3))), states * 4);
        e.store(max[c], state, 4);
        e.store(sum[c], e.gep(state, 4), 4);
        return {};
      });
      return {};
    });
  }
  e.barrier();
  mergeWarps();
  e.barrier();
  mergeSplits();
}

/// Address of the partial of a head of the chunk for a split (both i32).
Value Kernel::partialRow(Value head, Value which) {
  Value local = e.add(e.muli(localRow, plan.spec.qHeads),
                      e.add(firstHead(), e.sext64(head)));
  Value index = e.add(e.mul(local, argument("max_splits")), e.sext64(which));
  int64_t bytes = kvcache_partial_floats(plan.spec.valueDim) * 4;
  return e.gep(argument("workspace"), e.muli(index, bytes));
}

void Kernel::mergeWarps() {
  int64_t states = plan.warps * warpFloats(plan);
  int64_t dv = plan.spec.valueDim;
  // Warp w combines heads w, w + warps, ...
  e.forLoop(warp, validHeads, e.i32c(plan.warps), {}, [&](Value head, Values) {
    Values max, sum;
    Value top = e.f32c(-INFINITY), total = e.f32c(0);
    Value base = e.gep(sharedState, e.sext64(e.shl(head, 3)));
    for (int64_t w = 0; w < plan.warps; ++w) {
      Value state = e.gep(base, (states + w * plan.heads * 2) * 4);
      max.push_back(e.load(e.f32, state, 4));
      sum.push_back(e.load(e.f32, e.gep(state, 4), 4));
      top = e.fmax(top, max.back());
    }
    Values weights;
    for (int64_t w = 0; w < plan.warps; ++w) {
      weights.push_back(weight(e, max[w], top, isEmpty(max[w])));
      total = e.fma(sum[w], weights[w], total);
    }
    Value target = partialRow(head, split);
    Value row =
        e.gep(sharedState, e.sext64(e.shl(e.muli(head, rowFloats(plan)), 2)));
    e.forLoop(lane, e.i32c(dv), e.i32c(32), {}, [&](Value channel, Values) {
      Value offset = e.sext64(e.shl(channel, 2));
      Value o = e.f32c(0);
      for (int64_t w = 0; w < plan.warps; ++w)
        o = e.fma(e.load(e.f32,
                         e.gep(e.gep(row, offset), w * warpFloats(plan) * 4),
                         4),
                  weights[w], o);
      e.store(o, e.gep(target, offset), 4);
      return Values();
    });
    e.ifThen(e.eq(lane, e.i32c(0)), {}, [&]() -> Values {
      e.store(top, e.gep(target, dv * 4), 4);
      e.store(total, e.gep(target, dv * 4 + 4), 4);
      return {};
    });
    return Values();
  });
}

/// Index of a head of the chunk (i32) in [row, q_heads].
Value Kernel::queryRow(Value head) {
  return e.add(e.muli(row, plan.spec.qHeads),
               e.add(firstHead(), e.sext64(head)));
}

/// True for the last block of this (row, kv head, chunk) to arrive.
Value Kernel::arriveLast() {
  Value rows = e.sub(argument("row_end"), argument("row_begin"));
  int64_t partialBytes = kvcache_partial_floats(plan.spec.valueDim) * 4;
  Value partials = e.muli(e.mul(rows, argument("max_splits")),
                          plan.spec.qHeads * partialBytes);
  Value item = e.add(
      e.muli(e.add(e.muli(localRow, plan.spec.kvHeads), kvHead), plan.chunks()),
      chunk);
  Value counter = e.gep(argument("workspace"), e.add(partials, e.shl(item, 2)));
  e.ifThen(e.eq(e.threadId(), e.i32c(0)), {}, [&]() -> Values {
    // The barrier before ordered all threads' writes before this fence, so that
    // they are visible wherever the count is; the second fence, and the barrier
    // below, do the same for what other blocks wrote before they counted.
    e.fence();
    Value before = e.atomicAdd(counter, e.i32c(1));
    e.fence();
    e.store(before, sharedFlag, 4);
    // Nobody else counts any more: ready for the next launch.
    e.ifThen(e.eq(before, e.addi(splits, -1)), {}, [&]() -> Values {
      e.store(e.i32c(0), counter, 4);
      return {};
    });
    return {};
  });
  e.barrier();
  return e.eq(e.load(e.i32, sharedFlag, 4), e.addi(splits, -1));
}

/// Combines all partials of one head in index order and writes its row.
void Kernel::mergeHead(Value head) {
  int64_t dv = plan.spec.valueDim;
  int64_t partialBytes = kvcache_partial_floats(dv) * 4;
  Value base = partialRow(head, e.i32c(0));
  auto part = [&](Value which) {
    return e.gep(base, e.muli(e.sext64(which), partialBytes));
  };
  // The maximum does not depend on the order: lanes take splits in turn.
  Value top = e.forLoop(lane, splits, e.i32c(32), {e.f32c(-INFINITY)},
                        [&](Value which, Values carried) -> Values {
                          Value max =
                              e.load(e.f32, e.gep(part(which), dv * 4), 4);
                          return {e.fmax(carried[0], max)};
                        })[0];
  for (int64_t mask : {1, 2, 4, 8, 16})
    top = e.fmax(top, e.shflXor(top, mask));
  // The sum over splits of what lies at `offset` in a partial, weighted.
  auto sumOf = [&](Value offset) {
    return e.forLoop(
        e.i32c(0), splits, e.i32c(1), {e.f32c(0)},
        [&](Value which, Values carried) -> Values {
          Value address = part(which);
          Value max = e.load(e.f32, e.gep(address, dv * 4), 4);
          Value x = e.load(e.f32, e.gep(address, offset), 4);
          return {e.fma(x, weight(e, max, top, isEmpty(max)), carried[0])};
        })[0];
  };
  Value total = sumOf(e.i64c(dv * 4 + 4)), empty = isEmpty(top);
  Value safe = e.select(empty, e.f32c(1), total);
  Value inverse = e.select(empty, e.f32c(0), e.fdiv(e.f32c(1), safe));
  Value target = e.gep(argument("out"), e.muli(queryRow(head), dv * 2));
  e.forLoop(lane, e.i32c(dv), e.i32c(32), {}, [&](Value channel, Values) {
    Value wide = e.sext64(channel);
    Value o = e.fmul(sumOf(e.shl(wide, 2)), inverse);
    e.store(e.round(plan.model, o), e.gep(target, e.shl(wide, 1)), 2);
    return Values();
  });
  e.ifThen(e.eq(lane, e.i32c(0)), {}, [&]() -> Values {
    Value log = e.fmul(e.fadd(top, e.log2(total)), e.f32c(std::numbers::ln2));
    e.store(e.select(empty, e.f32c(-INFINITY), log),
            e.gep(argument("lse"), e.shl(queryRow(head), 2)), 4);
    return {};
  });
}

void Kernel::mergeSplits() {
  Value last = arriveLast();
  e.exitIf(e.eq(last, e.boolc(false)));
  e.forLoop(warp, validHeads, e.i32c(plan.warps), {}, [&](Value head, Values) {
    mergeHead(head);
    return Values();
  });
}
