//===- SimKernels.cpp - Attention of kv-run in the simulator --------------===//
#include "SimKernels.h"
#include "kvcache/ABI/KernelABI.h"

#include <algorithm>

using namespace kvcache;

llvm::Error SimKernels::open(llvm::StringRef device) {
  llvm::StringRef rest = device;
  auto refuse = [&](const llvm::Twine &why) {
    return llvm::createStringError("device '" + device + "' cannot run here" +
                                   why +
                                   ": expected 'cpu' or 'sim:sm_80' (or "
                                   "another GPU target)");
  };
  if (!rest.consume_front("sim:"))
    return refuse("");
  auto [name, option] = rest.split(',');
  auto found = findTarget(name.str());
  if (auto *error = std::get_if<FormatError>(&found))
    return refuse(" (" + error->message + ")");
  info = std::get<const TargetInfo *>(found);
  if (!info->isGpu)
    return refuse(" (" + name + " is no GPU)");
  if (option.empty())
    return llvm::Error::success();
  auto model = option.consume_front("mma=") ? sim::parseMmaModel(option.str())
                                            : std::nullopt;
  if (!model)
    return refuse(" (after the target comes mma=exact, a100, ada or h100)");
  mmaModel = *model;
  return llvm::Error::success();
}

Expected<DeviceKernel> SimKernels::get(const KernelSpec &spec) {
  Expected<GpuKernel> made = compileForGpu(spec, *info);
  if (auto *error = std::get_if<FormatError>(&made))
    return *error;
  auto kernel = std::make_unique<Kernel>();
  kernel->owner = this;
  kernel->gpu = std::move(std::get<GpuKernel>(made));
  try {
    kernel->module =
        sim::Module::parse(kernel->gpu.ptx, std::string(info->name) + ".ptx");
  } catch (const std::exception &e) {
    return FormatError{e.what()};
  }
  kernels.push_back(std::move(kernel));
  const Kernel &k = *kernels.back();
  return DeviceKernel{k.gpu.qPack, k.gpu.splitTokens,
                      reinterpret_cast<int64_t>(&k)};
}

/// Bytes behind each pointer of the arguments; 0 for numbers.
static std::vector<size_t> fieldBytes(const KernelSpec &spec,
                                      const KvAttendArgs &a, int64_t seqs,
                                      int64_t sealedBytes, int64_t openBytes,
                                      size_t workspaceBytes) {
  auto rows = size_t(a.row_end), n = size_t(seqs);
  size_t element = spec.dtype == Element::F32 ? 4 : 2;
  auto heads = size_t(spec.qHeads), kv = size_t(spec.kvHeads);
  size_t table = n * size_t(a.table_seq_stride) * 4;
  return {rows * heads * size_t(spec.headDim) * element,
          rows * 4,
          (n + 1) * 4,
          table,
          table,
          0,
          0,
          n * 4,
          n * 4,
          size_t(sealedBytes),
          size_t(openBytes),
          kv * 4,
          kv * 4,
          0,
          heads * 4,
          rows * heads * size_t(spec.valueDim) * element,
          rows * heads * 4,
          workspaceBytes,
          0,
          0,
          0};
}

/// What the runtime asks of GPU kernels, too.
static std::string checkRows(const KvAttendArgs &a, int64_t seqs) {
  const auto *indptr = static_cast<const int32_t *>(a.q_indptr);
  for (int64_t s = 0; s < seqs; ++s)
    if (indptr[s + 1] - indptr[s] > 1)
      return "sequence " + std::to_string(s) + " has " +
             std::to_string(indptr[s + 1] - indptr[s]) +
             " queries, but kernels for GPUs take one per sequence";
  return "";
}

static std::string runAttend(const SimKernels::Kernel &k, KvAttendArgs a,
                             int64_t items, int64_t sealedBytes,
                             int64_t openBytes) {
  const KernelSpec &spec = k.gpu.spec;
  const auto *rowSeq = static_cast<const int32_t *>(a.row_seq);
  int64_t rows = a.row_end - a.row_begin, seqs = 0;
  if (rows <= 0 || items <= 0)
    return "";
  for (int64_t r = a.row_begin; r < a.row_end; ++r)
    seqs = std::max<int64_t>(seqs, rowSeq[r] + 1);
  if (std::string error = checkRows(a, seqs); !error.empty())
    return error;
  int64_t chunks = (spec.group() + k.gpu.qPack - 1) / k.gpu.qPack;
  std::vector<uint8_t> workspace(size_t(
      kvcache_workspace_bytes(rows, spec.qHeads, a.max_splits, spec.valueDim,
                              rows * spec.kvHeads * chunks)));
  a.workspace = workspace.data();
  std::vector<size_t> bytes =
      fieldBytes(spec, a, seqs, sealedBytes, openBytes, workspace.size());
  const Launch &launch =
      *std::find_if(k.gpu.launches.begin(), k.gpu.launches.end(),
                    [](const Launch &l) { return l.entry == "attend"; });
  const auto *fields = reinterpret_cast<const int64_t *>(&a);
  std::vector<sim::Buffer> buffers;
  std::vector<sim::Arg> args;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const LaunchArgument &argument = launch.arguments[i];
    if (!argument.isPointer || !fields[i]) {
      args.push_back(sim::Arg::value<int64_t>(fields[i]));
      continue;
    }
    args.push_back(sim::Arg::pointer(buffers.size()));
    sim::Buffer buffer;
    buffer.data = reinterpret_cast<void *>(fields[i]);
    buffer.bytes = bytes[i];
    buffer.name = argument.name;
    buffers.push_back(buffer);
  }
  args.push_back(sim::Arg::value<int64_t>(0));
  args.push_back(sim::Arg::value<int64_t>(items));
  sim::Launch run;
  run.entry = launch.entry;
  run.grid = {items, 1, 1};
  run.block = {launch.block, 1, 1};
  run.mmaModel = k.owner->mmaModel;
  sim::Result result = sim::runKernel(*k.module, run, buffers, args);
  if (!result.violation)
    return "";
  return std::string(k.gpu.target->name) +
         ".ptx:" + std::to_string(result.violation->line) +
         ": violation: " + result.violation->message;
}

static int32_t deviceAttend(const KvAttendArgs *args, int64_t items,
                            int64_t sealedBytes, int64_t openBytes,
                            int64_t handle) {
  const auto &k = *reinterpret_cast<const SimKernels::Kernel *>(handle);
  std::string message;
  try {
    message = runAttend(k, *args, items, sealedBytes, openBytes);
  } catch (const std::exception &e) {
    message = e.what();
  }
  if (k.owner->failure.empty())
    k.owner->failure = message;
  return message.empty() ? 0 : 1;
}

x86::JitSymbols SimKernels::symbols() {
  static const std::pair<llvm::StringRef, void *> all[] = {
      {kDeviceAttend, reinterpret_cast<void *>(&deviceAttend)}};
  return all;
}
