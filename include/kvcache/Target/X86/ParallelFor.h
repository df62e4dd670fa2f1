//===- ParallelFor.h - Threads for generated code ---------------*- C++ -*-===//
//
// Generated code leaves its threads to whoever runs it: it calls the symbol
// below with an entry point of the kernel ABI and a number of work items. In
// this process that is the runtime's pool (KVCACHE_NUM_THREADS).
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TARGET_X86_PARALLELFOR_H
#define KVCACHE_TARGET_X86_PARALLELFOR_H

#include <cstdint>
#include <string>

namespace kvcache::x86 {

/// The symbol that the JIT defines for generated code.
inline constexpr char kParallelFor[] = "kvcache_parallel_for";

/// Calls entry(args, begin, end) until [0, items) is covered, from several
/// threads at once.
void parallelFor(int32_t (*entry)(void *, int64_t, int64_t), void *args,
                 int64_t items);

/// What is wrong with KVCACHE_NUM_THREADS, or "".
std::string threadsError();

} // namespace kvcache::x86

#endif // KVCACHE_TARGET_X86_PARALLELFOR_H
