//===- XlaCall.cpp - What XLA calls ---------------------------------------===//
//
// One handler for all kernels. XLA's buffers are read and written where they
// lie; they are row-major, as the custom call's layouts ask.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Compiler/XlaCompiler.h"

#include "XlaFfi.h"
#include "XlaKernels.h"

#include "llvm/ADT/StringMap.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

using namespace kvcache;

namespace {
struct Registry {
  std::mutex mutex;
  llvm::StringMap<std::shared_ptr<XlaKernel>> kernels;
};
} // namespace

static Registry &registry() {
  static auto *made = new Registry; // XLA may call until the process is gone
  return *made;
}

static std::shared_ptr<XlaKernel> findKernel(llvm::StringRef name) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().kernels.lookup(name);
}

bool kvcache::hasXlaKernel(llvm::StringRef name) {
  return findKernel(name) != nullptr;
}

void kvcache::addXlaKernel(llvm::StringRef name,
                           std::shared_ptr<XlaKernel> kernel) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().kernels.try_emplace(name, std::move(kernel));
}

static std::atomic<int> versionMajor{0}, versionMinor{3};

void kvcache::setXlaFfiVersion(int major, int minor) {
  versionMajor = major;
  versionMinor = minor;
}

static xla::Error *fail(const xla::CallFrame *frame, const std::string &message,
                        int32_t code = xla::kInvalidArgument) {
  xla::ErrorCreateArgs args{
      {sizeof(xla::ErrorCreateArgs), nullptr}, message.c_str(), code};
  return frame->api->createError(&args);
}

/// Appends the buffers of `values`; a message when they are not of `types`.
static std::string collect(const xla::Values &values,
                           llvm::ArrayRef<XlaBufferType> types,
                           const char *what,
                           llvm::ArrayRef<llvm::SmallVector<int64_t>> shapes,
                           std::vector<ArrayView> &views) {
  if (values.count != static_cast<int64_t>(types.size()))
    return std::string("kvcache kernel: ") + std::to_string(values.count) +
           " " + what + "s, expected " + std::to_string(types.size());
  for (int64_t i = 0; i < values.count; ++i) {
    const auto *buffer = static_cast<const xla::Buffer *>(values.values[i]);
    const XlaBufferType &type = types[i];
    bool fits = values.types[i] == xla::kBuffer &&
                buffer->dtype == type.dtype &&
                llvm::ArrayRef(buffer->dims, buffer->rank) ==
                    llvm::ArrayRef(type.shape);
    if (!fits)
      return std::string("kvcache kernel: ") + what + " " + std::to_string(i) +
             " has another shape or dtype than the kernel was compiled for";
    views.push_back({buffer->data, shapes.empty()
                                       ? llvm::ArrayRef<int64_t>(type.shape)
                                       : llvm::ArrayRef<int64_t>(shapes[i])});
  }
  return "";
}

static xla::Error *execute(const xla::CallFrame *frame) {
  llvm::StringRef name;
  const xla::Attributes &attributes = frame->attributes;
  for (int64_t i = 0; i < attributes.count; ++i) {
    const xla::Text &key = *attributes.names[i];
    if (llvm::StringRef(key.data, key.size) != "kernel" ||
        attributes.types[i] != xla::kText)
      continue;
    const auto &text = *static_cast<const xla::Text *>(attributes.values[i]);
    name = llvm::StringRef(text.data, text.size);
  }
  std::shared_ptr<XlaKernel> kernel = findKernel(name);
  if (!kernel)
    return fail(frame,
                "kvcache kernel '" + name.str() +
                    "' was not compiled in this process; call kv.from_jax "
                    "before the executable that needs it",
                xla::kNotFound);
  std::vector<ArrayView> views;
  std::string message =
      collect(frame->arguments, kernel->inputs, "argument", {}, views);
  if (message.empty())
    message = collect(frame->results, kernel->outputs, "result",
                      kernel->outputShapes, views);
  if (!message.empty())
    return fail(frame, message);
  auto results = kernel->code->call(views);
  if (!results)
    return fail(frame, llvm::toString(results.takeError()), xla::kInternal);
  return nullptr;
}

extern "C" {
static xla::Error *handler(xla::CallFrame *frame) {
  for (xla::Extension *e = frame->prefix.extensions; e; e = e->next) {
    if (e->type != xla::kMetadata)
      continue;
    xla::Metadata *metadata =
        reinterpret_cast<xla::MetadataExtension *>(e)->metadata;
    metadata->version.major = versionMajor;
    metadata->version.minor = versionMinor;
    metadata->traits = 0;
    return nullptr;
  }
  if (frame->prefix.size < sizeof(xla::CallFrame) || !frame->api ||
      frame->api->prefix.size < sizeof(xla::Api)) {
    // No way to report, and results must not be taken for computed.
    std::fprintf(stderr, "kvcache: XLA's FFI is older than any known\n");
    std::abort();
  }
  // Other stages have nothing to do.
  return frame->stage == xla::kExecute ? execute(frame) : nullptr;
}
}

void *kvcache::xlaHandler() { return reinterpret_cast<void *>(&handler); }
