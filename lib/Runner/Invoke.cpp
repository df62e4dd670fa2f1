//===- Invoke.cpp - Calling a compiled function on arrays -----------------===//
#include "kvcache/Runner/Invoke.h"
#include "kvcache/Runner/Arrays.h"
#include "kvcache/Runner/Executable.h"

#include "mlir/IR/TypeUtilities.h"

#include <chrono>
#include <cstring>
#include <ctime>

using namespace kvcache;
using namespace mlir;

/// The clock and the processor time of this process.
static CallTime now() {
  std::chrono::duration<double> wall =
      std::chrono::steady_clock::now().time_since_epoch();
  return {wall.count(), double(std::clock()) / CLOCKS_PER_SEC};
}

/// Frees what results own.
static void freeResults(ArrayRef<RunResult> results) {
  for (const RunResult &result : results)
    freeRunBlock(result.owner);
}

llvm::Expected<std::vector<NpyArray>>
kvcache::invoke(ModuleOp module, StringRef entry, FunctionType type,
                std::vector<NpyArray> arrays, CpuTier tier,
                llvm::MutableArrayRef<CallTime> times,
                x86::JitSymbols symbols) {
  auto executable = Executable::create(module, entry, type, tier, symbols);
  if (!executable)
    return executable.takeError();
  // Arrays of files have no alignment; kernels are fastest with one.
  std::vector<AlignedBytes> storage;
  std::vector<ArrayView> views;
  for (const NpyArray &array : arrays) {
    storage.emplace_back(array.data.size());
    if (!array.data.empty())
      std::memcpy(storage.back().data(), array.data.data(), array.data.size());
    views.push_back({storage.back().data(), array.shape});
  }
  auto results = (*executable)->call(views);
  if (!results)
    return results.takeError();
  for (CallTime &taken : times) {
    freeResults(*results);
    CallTime start = now();
    results = (*executable)->call(views);
    CallTime end = now();
    if (!results)
      return results.takeError();
    taken = {end.wall - start.wall, end.processors - start.processors};
  }
  std::vector<NpyArray> outputs;
  for (auto [result, t] : llvm::zip(*results, type.getResults()))
    outputs.push_back(gatherResult(getElementTypeOrSelf(t), result.data,
                                   result.sizes, result.strides));
  // Results may look into one another's memory.
  freeResults(*results);
  return outputs;
}
