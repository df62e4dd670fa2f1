//===- Package.cpp - Kernel packages of GPU targets -----------------------===//
//
// A package is a folder: TARGET.ptx with all entry points and manifest.json,
// which says how to launch them and how large pages are. Page images are opaque
// bytes to whoever loads it; their hash names the layout.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Compiler/GpuCompiler.h"

#include "kvcache/ABI/KernelABI.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"

using namespace kvcache;
namespace json = llvm::json;

static std::optional<FormatError> write(const std::string &path,
                                        llvm::StringRef bytes) {
  std::error_code error;
  llvm::raw_fd_ostream os(path, error);
  if (!error) {
    os << bytes;
    os.close();
    error = os.error();
  }
  if (!error)
    return std::nullopt;
  os.clear_error();
  return FormatError{"cannot write '" + path + "': " + error.message()};
}

static std::string manifest(const GpuKernel &kernel) {
  const KernelSpec &spec = kernel.spec;
  std::string target(kernel.target->name);
  auto side = [](const std::optional<int64_t> &neighbours) {
    return neighbours.value_or(-1);
  };
  // The keys of CPU packages (runtime/lib/Manifest.h), and how to launch.
  json::Object object{{"kvcache_package", 1},
                      {"abi", KVCACHE_ABI_VERSION},
                      {"target", target},
                      {"spec", spec.str()},
                      {"schedule", kernel.schedule},
                      {"image_family", "sm_8x"},
                      {"image_hash", kernel.imageHash},
                      {"format", spec.format.str()},
                      {"dtype", std::string(nameOf(spec.dtype))},
                      {"q_heads", spec.qHeads},
                      {"kv_heads", spec.kvHeads},
                      {"head_dim", spec.headDim},
                      {"value_dim", spec.valueDim},
                      {"causal", spec.causal ? 1 : 0},
                      {"alibi", spec.alibi ? 1 : 0},
                      {"window_left", side(spec.windowLeft)},
                      {"window_right", side(spec.windowRight)},
                      {"page_tokens", spec.format.page},
                      {"sink_pages", spec.format.sinkPages()},
                      {"recent_tokens", spec.format.recent},
                      {"sealed_record_bytes", kernel.recordBytes},
                      {"open_record_bytes", kernel.openRecordBytes},
                      {"q_pack", kernel.qPack},
                      {"split_tokens", kernel.splitTokens},
                      {"code", json::Array{json::Object{
                                   {"file", target + ".ptx"},
                                   {"bytes", int64_t(kernel.ptx.size())}}}}};
  auto launches = json::parse(launchesJSON(kernel));
  if (launches)
    object["launches"] = std::move(*launches);
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::formatv("{0:2}", json::Value(std::move(object))) << '\n';
  return text;
}

std::optional<FormatError> kvcache::writeGpuPackage(const GpuKernel &kernel,
                                                    const std::string &folder) {
  namespace fs = llvm::sys::fs;
  bool existed = fs::exists(folder);
  if (existed && !fs::is_directory(folder))
    return FormatError{"'" + folder + "' is a file, expected a folder"};
  std::error_code error;
  bool isEmpty = existed && fs::directory_iterator(folder, error) ==
                                fs::directory_iterator();
  if (existed && !isEmpty && !fs::exists(folder + "/manifest.json"))
    return FormatError{"'" + folder +
                       "' exists and is no kernel package (no manifest.json)"};
  if (std::error_code bad = fs::create_directories(folder))
    return FormatError{"cannot make '" + folder + "': " + bad.message()};
  std::string code = folder + "/" + std::string(kernel.target->name) + ".ptx";
  if (auto bad = write(code, kernel.ptx))
    return bad;
  return write(folder + "/manifest.json", manifest(kernel));
}
