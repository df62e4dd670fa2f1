//===- TestKernel.h - A kernel written by hand, for runtime tests ---------===//
//
// Model dtype f32, one fixed shape. A sealed page holds each value rounded to a
// multiple of 1/4, so that tests see which tokens were coded.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TEST_TESTKERNEL_H
#define KVCACHE_TEST_TESTKERNEL_H

#include "kvcache/runtime.h"

#include <memory>
#include <vector>

namespace kvcache::test {

constexpr int64_t qHeads = 4, kvHeads = 2, headDim = 8, valueDim = 8, page = 4;
constexpr int64_t recordBytes = page * (headDim + valueDim) * 4;

/// What a value becomes when it is coded.
float coded(float x);

/// sinks in pages, recent in tokens; window_left -1: none.
KvKernelInfo testInfo(int64_t sinkPages = 0, int64_t recent = 0,
                      int64_t windowLeft = -1);
/// Entry points for testInfo() of these sinks and window (at most a few
/// different ones per process).
KvKernelEntries testEntries();
/// Sets what the entry points compile in: the numbers of `info`.
void configure(const KvKernelInfo &info);

} // namespace kvcache::test

#endif // KVCACHE_TEST_TESTKERNEL_H
