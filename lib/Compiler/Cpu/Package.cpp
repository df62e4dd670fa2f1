//===- Package.cpp - Writing kernel packages ------------------------------===//
//
// A package is a folder: manifest.json (runtime/lib/Manifest.h describes it)
// and one shared object per CPU tier, linked when compiled so that loading
// needs no tool. It is written beside its final place and moved there whole.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Compiler/CpuCompiler.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

using namespace kvcache;
namespace fs = llvm::sys::fs;
namespace path = llvm::sys::path;

// Any linker of ELF does: the object needs nothing.
static std::optional<std::string> findLinker() {
  llvm::StringRef llvmFolder = "/usr/lib/llvm-22/bin";
  for (const char *name : {"ld.lld-22", "ld.lld", "ld.bfd", "ld"})
    for (llvm::ArrayRef<llvm::StringRef> folders :
         {llvm::ArrayRef<llvm::StringRef>(), llvm::ArrayRef(llvmFolder)})
      if (auto found = llvm::sys::findProgramByName(name, folders))
        return *found;
  return std::nullopt;
}

static std::optional<FormatError> writeFile(llvm::StringRef name,
                                            llvm::StringRef bytes) {
  std::error_code code;
  llvm::raw_fd_ostream out(name, code);
  if (!code) {
    out << bytes;
    out.close();
    code = out.error();
    out.clear_error();
  }
  if (code)
    return FormatError{"cannot write '" + name.str() + "': " + code.message()};
  return std::nullopt;
}

static Expected<std::string> linkSharedObject(const std::string &object) {
  auto linker = findLinker();
  if (!linker)
    return FormatError{"kernel packages need a linker: none of ld.lld-22, "
                       "ld.lld, ld.bfd, ld was found (Debian: lld-22)"};
  llvm::SmallString<128> folder;
  if (fs::createUniqueDirectory("kvcache-link", folder))
    return FormatError{"cannot make a temporary folder for linking"};
  llvm::scope_exit cleanUp([&] { fs::remove_directories(folder); });
  std::string in = (folder + "/kernel.o").str();
  std::string out = (folder + "/kernel.so").str();
  std::string log = (folder + "/log").str();
  if (auto error = writeFile(in, object))
    return *error;
  llvm::StringRef args[] = {*linker,
                            "-shared",
                            "-z",
                            "defs",
                            "-z",
                            "noexecstack",
                            "--strip-debug",
                            "-soname",
                            "kvcache-kernel.so",
                            "-o",
                            out,
                            in};
  std::optional<llvm::StringRef> redirects[] = {
      llvm::StringRef(""), llvm::StringRef(log), llvm::StringRef(log)};
  std::string message;
  int status = llvm::sys::ExecuteAndWait(*linker, args, std::nullopt, redirects,
                                         60, 0, &message);
  auto read = [](llvm::StringRef name) -> std::string {
    auto buffer = llvm::MemoryBuffer::getFile(name);
    return buffer ? (*buffer)->getBuffer().str() : "";
  };
  if (status != 0)
    return FormatError{*linker + " failed: " + message + read(log)};
  return read(out);
}

// FNV-1a, as the loader computes it.
static uint64_t hashBytes(llvm::StringRef bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : bytes)
    hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

static std::string hex(uint64_t x) {
  return llvm::utohexstr(x, /*LowerCase=*/true, /*Width=*/16);
}

static llvm::json::Object manifestOf(const KernelSpec &spec,
                                     const CpuKernel &kernel) {
  const KvKernelInfo &i = kernel.info;
  static const char *dtypes[] = {"f32", "f16", "bf16"};
  llvm::json::Object entries;
  const char *names[] = {"attend", "merge", "append", "seal", "unseal", "read"};
  for (int e = 0; e < 6; ++e)
    entries[names[e]] = kernel.entries[e];
  return llvm::json::Object{{"kvcache_package", 1},
                            {"abi", KVCACHE_ABI_VERSION},
                            {"target", "x86-64"},
                            {"spec", spec.str()},
                            {"format", spec.format.str()},
                            {"image_hash", hex(i.image_hash)},
                            {"dtype", dtypes[i.dtype]},
                            {"q_heads", i.q_heads},
                            {"kv_heads", i.kv_heads},
                            {"head_dim", i.head_dim},
                            {"value_dim", i.value_dim},
                            {"page_tokens", i.page_tokens},
                            {"sink_pages", i.sink_pages},
                            {"recent_tokens", i.recent_tokens},
                            {"sealed_record_bytes", i.sealed_record_bytes},
                            {"open_record_bytes", i.open_record_bytes},
                            {"q_pack", i.q_pack},
                            {"split_tokens", i.split_tokens},
                            {"causal", i.causal},
                            {"window_left", i.window_left},
                            {"window_right", i.window_right},
                            {"alibi", i.alibi},
                            {"static_k_scale", i.static_k_scale},
                            {"static_v_scale", i.static_v_scale},
                            {"entries", std::move(entries)}};
}

// Puts the finished folder in the place of an absent one or of an old package.
static std::optional<FormatError> moveInto(llvm::StringRef from,
                                           llvm::StringRef to) {
  if (fs::exists(to)) {
    std::error_code code;
    bool empty = fs::is_directory(to) &&
                 fs::directory_iterator(to, code) == fs::directory_iterator();
    if (!empty && !fs::exists(to + "/manifest.json"))
      return FormatError{"'" + to.str() +
                         "' exists and is no kernel package; choose another "
                         "folder or remove it"};
    fs::remove_directories(to);
  }
  if (std::error_code code = fs::rename(from, to))
    return FormatError{"cannot write '" + to.str() + "': " + code.message()};
  return std::nullopt;
}

Expected<std::vector<std::string>>
kvcache::writePackage(const KernelSpec &spec, const std::string &schedule,
                      const std::string &folder) {
  llvm::SmallString<128> target(folder), temporary;
  while (target.size() > 1 && target.back() == '/')
    target.pop_back();
  fs::make_absolute(target);
  fs::create_directories(path::parent_path(target));
  fs::createUniquePath(target + ".new-%%%%%%", temporary,
                       /*MakeAbsolute=*/false);
  llvm::scope_exit cleanUp([&] { fs::remove_directories(temporary); });
  if (std::error_code code = fs::create_directory(temporary))
    return FormatError{"cannot write to '" + folder + "': " + code.message()};

  llvm::json::Object manifest;
  llvm::json::Array code;
  std::vector<std::string> files{"manifest.json"};
  for (CpuTier tier : {CpuTier::AVX512, CpuTier::AVX2, CpuTier::V2}) {
    auto kernel = compileForCpu(spec, tier, schedule);
    if (const FormatError *error = errorOf(kernel))
      return *error;
    auto linked = linkSharedObject(std::get<CpuKernel>(kernel).object);
    if (const FormatError *error = errorOf(linked))
      return *error;
    const std::string &bytes = std::get<std::string>(linked);
    std::string name = "kernel-" + std::string(nameOf(tier)) + ".so";
    if (auto error = writeFile((temporary + "/" + name).str(), bytes))
      return *error;
    manifest = manifestOf(spec, std::get<CpuKernel>(kernel));
    code.push_back(llvm::json::Object{{"tier", std::string(nameOf(tier))},
                                      {"file", name},
                                      {"bytes", int64_t(bytes.size())},
                                      {"hash", hex(hashBytes(bytes))}});
    files.push_back(name);
  }
  manifest["code"] = std::move(code);
  std::string text;
  llvm::raw_string_ostream(text)
      << llvm::formatv("{0:2}\n", llvm::json::Value(std::move(manifest)));
  if (auto error = writeFile((temporary + "/manifest.json").str(), text))
    return *error;
  if (auto error = moveInto(temporary, target))
    return *error;
  return files;
}
