//===- SimDevice.cpp - GPU kernels run by the simulator -------------------===//

#include "kvcache/Compiler/SimDevice.h"
#include "kvcache/Compiler/CpuCompiler.h"
#include "kvcache/sim.h"

#include <cstdlib>

using namespace kvcache;

namespace {

/// What the launches of one kernel share.
struct Device {
  std::shared_ptr<const sim::Module> module;
  std::vector<Launch> launches;
  sim::MmaModel mmaModel;
  std::string message; ///< of the last failure
};

} // namespace

static constexpr const char *entryNames[] = {"attend", "append", "seal",
                                             "unseal", "read"};

static const Launch *findLaunch(const Device &device, KvEntry entry) {
  for (const Launch &l : device.launches)
    if (l.entry == entryNames[entry])
      return &l;
  return nullptr;
}

// Pointers become buffers, in place; numbers and null stay what they are. Then
// the range of work items.
static std::vector<sim::Arg> makeArguments(const KvLaunchRequest &request,
                                           const Launch &launch,
                                           std::vector<sim::Buffer> &buffers) {
  const auto *fields = static_cast<const int64_t *>(request.args);
  std::vector<sim::Arg> args;
  for (int64_t i = 0; i < request.fields; ++i) {
    if (request.field_bytes[i] == 0) {
      bool isPointer = launch.arguments[size_t(i)].isPointer;
      args.push_back(sim::Arg::value<int64_t>(isPointer ? 0 : fields[i]));
      continue;
    }
    sim::Buffer buffer;
    buffer.data = reinterpret_cast<void *>(fields[i]);
    buffer.bytes = size_t(request.field_bytes[i]);
    buffer.name = launch.arguments[size_t(i)].name;
    args.push_back(sim::Arg::pointer(buffers.size()));
    buffers.push_back(buffer);
  }
  args.push_back(sim::Arg::value<int64_t>(0));
  args.push_back(sim::Arg::value<int64_t>(request.items));
  return args;
}

static KvStatus run(void *context, const KvLaunchRequest *request,
                    const char **message) {
  auto &device = *static_cast<Device *>(context);
  auto fail = [&](KvStatus status, std::string text) {
    device.message = std::move(text);
    *message = device.message.c_str();
    return status;
  };
  const Launch *launch = findLaunch(device, request->entry);
  if (!launch || launch->arguments.size() != size_t(request->fields) + 2)
    return fail(KV_DEVICE_ERROR, std::string("the kernel has no entry '") +
                                     entryNames[request->entry] +
                                     "' with these arguments");
  try {
    std::vector<sim::Buffer> buffers;
    std::vector<sim::Arg> args = makeArguments(*request, *launch, buffers);
    sim::Launch simulated;
    simulated.entry = launch->entry;
    // One block per item; `append` has a thread per row.
    bool perThread = request->entry == KV_ENTRY_APPEND;
    int64_t blocks = perThread
                         ? (request->items + launch->block - 1) / launch->block
                         : request->items;
    simulated.grid = {blocks, 1, 1};
    simulated.block = {launch->block, 1, 1};
    simulated.mmaModel = device.mmaModel;
    sim::Result result =
        sim::runKernel(*device.module, simulated, buffers, args);
    if (!result.violation)
      return KV_OK;
    const sim::Violation &v = *result.violation;
    return fail(KV_DEVICE_ERROR, "simulator: " + launch->entry + ": line " +
                                     std::to_string(v.line) +
                                     ": violation: " + v.message);
  } catch (const std::exception &e) {
    return fail(KV_DEVICE_ERROR, std::string("simulator: ") + e.what());
  }
}

KvKernelInfo kvcache::kernelInfo(const GpuKernel &kernel) {
  // Heads, masks and pages are the spec's; the record is the GPU family's.
  auto shared = kernelInfo(kernel.spec, kernel.qPack, kernel.splitTokens);
  KvKernelInfo info{};
  if (auto *known = std::get_if<KvKernelInfo>(&shared))
    info = *known;
  info.sealed_record_bytes = kernel.recordBytes;
  info.open_record_bytes = kernel.openRecordBytes;
  info.image_hash = std::strtoull(kernel.imageHash.c_str(), nullptr, 16);
  return info;
}

Expected<KvKernel *> kvcache::loadOnSimulator(const GpuKernel &kernel,
                                              std::string_view mmaModel) {
  std::optional<sim::MmaModel> model = sim::parseMmaModel(mmaModel);
  if (!model)
    return FormatError{"unknown mma model '" + std::string(mmaModel) +
                       "', expected exact, a100, ada or h100"};
  auto device = std::make_unique<Device>();
  device->mmaModel = *model;
  device->launches = kernel.launches;
  try {
    device->module = sim::Module::parse(
        kernel.ptx, std::string(kernel.target->name) + ".ptx");
  } catch (const std::exception &e) {
    return FormatError{std::string("simulator: ") + e.what()};
  }
  KvKernelInfo info = kernelInfo(kernel);
  KvKernel *made = nullptr;
  auto release = [](void *context) { delete static_cast<Device *>(context); };
  if (kvcache_kernel_create_on_device(&info, run, release, device.get(), &made))
    return FormatError{kvcache_last_error()};
  device.release();
  return made;
}
