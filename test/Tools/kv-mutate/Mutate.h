//===- Mutate.h - Damaged texts from good ones ------------------*- C++ -*-===//
//
// Private to kv-mutate: what the texts are, apart from how they are run.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_TEST_TOOLS_KVMUTATE_MUTATE_H
#define KVCACHE_TEST_TOOLS_KVMUTATE_MUTATE_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

/// The parts of a test file between `// -----` lines.
std::vector<std::string> splitChunks(std::string_view text);

/// `text` after one to four random changes; the same seed, the same result.
/// Bytes are deleted, replaced and inserted; words of the text are deleted,
/// doubled and exchanged; numbers become extreme ones.
std::string mutate(std::string_view text, uint64_t seed);

} // namespace kvcache

#endif // KVCACHE_TEST_TOOLS_KVMUTATE_MUTATE_H
