//===- Ptxas.cpp - Finding and running ptxas ------------------------------===//
//
// ptxas belongs to the CUDA toolkit, which may be absent: callers ask findPtxas
// first and say what they leave out. Files go to a temporary directory and are
// removed in every case.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Target/PTX/PTX.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

using namespace kvcache;

std::optional<std::string> ptx::findPtxas() {
  llvm::SmallVector<std::string> candidates;
  for (const char *variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char *home = std::getenv(variable))
      candidates.push_back(std::string(home) + "/bin/ptxas");
  if (auto found = llvm::sys::findProgramByName("ptxas"))
    candidates.push_back(*found);
  candidates.push_back("/usr/local/cuda/bin/ptxas");
  for (const std::string &path : candidates)
    if (llvm::sys::fs::can_execute(path))
      return path;
  return std::nullopt;
}

/// The number that stands before `unit` in `text`, 0 if there is none.
static int64_t numberBefore(llvm::StringRef text, llvm::StringRef unit) {
  size_t at = text.find(unit);
  if (at == llvm::StringRef::npos)
    return 0;
  llvm::StringRef before = text.take_front(at).rtrim();
  llvm::StringRef digits = before.take_back(
      before.size() - (before.find_last_not_of("0123456789") + 1));
  int64_t value = 0;
  digits.getAsInteger(10, value);
  return value;
}

std::vector<ptx::KernelUsage> ptx::parseUsage(llvm::StringRef report) {
  std::vector<KernelUsage> kernels;
  llvm::SmallVector<llvm::StringRef> lines;
  report.split(lines, '\n');
  for (llvm::StringRef line : lines) {
    if (line.contains("Compiling entry function '")) {
      KernelUsage usage;
      usage.entry = line.split('\'').second.split('\'').first.str();
      kernels.push_back(usage);
    }
    if (kernels.empty())
      continue;
    KernelUsage &usage = kernels.back();
    if (line.contains("bytes stack frame")) {
      usage.stackBytes = numberBefore(line, "bytes stack frame");
      usage.spillStoreBytes = numberBefore(line, "bytes spill stores");
      usage.spillLoadBytes = numberBefore(line, "bytes spill loads");
    }
    if (line.contains("Used ") && line.contains("registers")) {
      usage.registers = int(numberBefore(line, "registers"));
      usage.sharedBytes = numberBefore(line, "bytes smem");
    }
  }
  return kernels;
}

namespace {
/// A temporary file that is removed with its owner.
struct TemporaryFile {
  llvm::SmallString<128> path;
  std::error_code error;
  explicit TemporaryFile(llvm::StringRef suffix) {
    error = llvm::sys::fs::createTemporaryFile("kvcache", suffix, path);
  }
  ~TemporaryFile() {
    if (!error)
      llvm::sys::fs::remove(path);
  }
};
} // namespace

static std::string readFile(llvm::StringRef path) {
  auto buffer = llvm::MemoryBuffer::getFile(path);
  return buffer ? (*buffer)->getBuffer().str() : std::string();
}

Expected<ptx::Assembly> ptx::assemble(llvm::StringRef text,
                                      const TargetInfo &target) {
  std::optional<std::string> ptxas = findPtxas();
  if (!ptxas)
    return FormatError{"ptxas not found in CUDA_HOME, CUDA_PATH, PATH or "
                       "/usr/local/cuda; install the CUDA toolkit"};
  TemporaryFile input("ptx"), output("cubin"), log("log");
  if (input.error || output.error || log.error)
    return FormatError{"cannot create temporary files for ptxas"};
  std::error_code error;
  llvm::raw_fd_ostream os(input.path, error);
  if (error)
    return FormatError{"cannot write " + input.path.str().str() + ": " +
                       error.message()};
  os << text;
  os.close();
  std::string arch = "-arch=" + std::string(target.name);
  llvm::StringRef args[] = {*ptxas,           "-v", arch,
                            input.path.str(), "-o", output.path.str()};
  std::optional<llvm::StringRef> redirects[] = {std::nullopt, log.path.str(),
                                                log.path.str()};
  std::string message;
  int code = llvm::sys::ExecuteAndWait(*ptxas, args, std::nullopt, redirects,
                                       /*SecondsToWait=*/0, /*MemoryLimit=*/0,
                                       &message);
  std::string report = readFile(log.path);
  // The first lines say it; a kernel can give hundreds.
  constexpr size_t kMostMessage = 600;
  if (code != 0)
    return FormatError{
        "ptxas failed for " + std::string(target.name) + ": " +
        (report.empty() ? message : report.substr(0, kMostMessage))};
  return Assembly{readFile(output.path), parseUsage(report)};
}
