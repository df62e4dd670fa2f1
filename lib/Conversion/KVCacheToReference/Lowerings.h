//===- Lowerings.h - One function per op ------------------------*- C++ -*-===//
//
// Each emits loops at the emitter's insertion point and gives the values of the
// op's results; the pass replaces the op.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVCACHETOREFERENCE_LOWERINGS_H
#define KVCACHE_LIB_CONVERSION_KVCACHETOREFERENCE_LOWERINGS_H

#include "kvcache/Conversion/KVCacheToReference/Source.h"

namespace kvcache {

Values lowerMergeStates(Emitter &e, MergeStatesOp op);
Values lowerQuantize(Emitter &e, QuantizeOp op);
Values lowerDequantize(Emitter &e, DequantizeOp op);
Values lowerPageGather(Emitter &e, PageGatherOp op);
/// k, v, lengths.
Values lowerRead(Emitter &e, ReadOp op, Source &source);

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_KVCACHETOREFERENCE_LOWERINGS_H
