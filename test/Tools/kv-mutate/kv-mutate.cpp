//===- kv-mutate.cpp - Damaged files must give errors, not crashes --------===//
//
// Usage: kv-mutate [--mutations=N] [--seed=N] [--step=N] --known=FILE PATHS...
//
// PATHS are .mlir files, or folders of them.
//
// Parses every chunk of every file cut off after each byte (each STEP-th), and
// N seeded mutations per file, in process, with everything that kv-opt
// registers. A text that parses and verifies must print and parse back the
// same, and goes through our own passes. The work is done in a child; when it
// dies or takes more than 10 s of processor time on one text, the parent notes
// that text and starts another child behind it. A crash is named by its three
// innermost functions; one that is upstream's fault is listed in FILE as `a < b
// < c` and reported, any other fails, with a note if a frame of ours is on the
// stack.
//
//===----------------------------------------------------------------------===//
#include "Mutate.h"
#include "kvcache/InitAll.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/Demangle/Demangle.h"
#include "llvm/Support/MemoryBuffer.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <filesystem>
#include <map>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace mlir;

namespace {

/// What the child tells the parent, in shared memory.
struct Shared {
  size_t next;         ///< text being run
  size_t parsed;       ///< texts that parsed and verified
  int ours;            ///< a frame of ours was on the stack
  char where[512];     ///< innermost named functions
  char complaint[256]; ///< a text that did not print and parse back
};
Shared *shared;

struct Text {
  std::string name, text;
};

/// All crashes with the same innermost functions.
struct Crash {
  int count = 0, ours = 0;
  bool listed = false;
  std::string first;
};

const char *executable;

/// Names the crash: our own frames are those between the signal and the last
/// library frame; what is further out is the driver.
void onSignal(int signal) {
  void *frames[128];
  int count = backtrace(frames, 128);
  int lastForeign = 0;
  auto isOurs = [](void *frame) {
    Dl_info info;
    return dladdr(frame, &info) && info.dli_fname &&
           std::strcmp(info.dli_fname, executable) == 0;
  };
  for (int i = 0; i < count; ++i)
    if (!isOurs(frames[i]))
      lastForeign = i;
  // The outermost library frames are libc's start-up code.
  while (lastForeign > 0 && !isOurs(frames[lastForeign - 1]))
    --lastForeign;
  for (--lastForeign; lastForeign > 0 && isOurs(frames[lastForeign]);)
    --lastForeign;
  shared->ours = 0;
  size_t used = 0;
  int named = 0;
  // Frame 0 is this function, 1 the signal trampoline.
  for (int i = 2; i <= lastForeign; ++i) {
    shared->ours |= isOurs(frames[i]);
    Dl_info info;
    if (named == 3 || !dladdr(frames[i], &info) || !info.dli_sname ||
        std::strncmp(info.dli_sname, "_ZN", 3) != 0)
      continue;
    std::string name = llvm::demangle(info.dli_sname);
    used += std::snprintf(shared->where + used, sizeof shared->where - used,
                          "%s%s", used ? " < " : "",
                          name.substr(0, name.find('(')).c_str());
    used = std::min(used, sizeof shared->where - 1);
    ++named;
  }
  if (used == 0)
    std::snprintf(shared->where, sizeof shared->where, "unnamed, signal %d",
                  signal);
  _exit(100);
}

/// Our own passes and the reference lowering, each on a copy of its own.
void runPasses(ModuleOp module) {
  for (const char *pipeline :
       {"kvcache-verify-linear", "verify-target-legal{target=sm_80}",
        "kvcache-fuse,kvcache-assign-layout{target=x86-64}",
        "kvcache-to-reference"}) {
    OwningOpRef<ModuleOp> copy = module.clone();
    PassManager pm(module.getContext());
    if (failed(parsePassPipeline(pipeline, pm, llvm::nulls())))
      std::abort();
    (void)pm.run(*copy);
  }
}

std::unique_ptr<MLIRContext> makeContext(const DialectRegistry &registry) {
  auto context =
      std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  context->getDiagEngine().registerHandler(
      [](Diagnostic &) { return success(); });
  return context;
}

void runText(MLIRContext &context, const DialectRegistry &registry,
             const Text &text) {
  ParserConfig config(&context);
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text.text, config);
  if (!module)
    return;
  ++shared->parsed;
  std::string once, twice;
  llvm::raw_string_ostream(once) << *module;
  // A context renames resources whose name it knows, so these want another.
  std::unique_ptr<MLIRContext> other;
  if (StringRef(once).contains("dense_resource<"))
    other = makeContext(registry);
  ParserConfig second(other ? other.get() : &context);
  if (OwningOpRef<ModuleOp> again = parseSourceString<ModuleOp>(once, second))
    llvm::raw_string_ostream(twice) << *again;
  if (once != twice && !shared->complaint[0])
    std::snprintf(shared->complaint, sizeof shared->complaint,
                  "%s does not print and parse back the same",
                  text.name.c_str());
  runPasses(*module);
}

/// SIGPROF after so much processor time; 0: never.
void limitTime(int seconds) {
  struct itimerval timer = {};
  timer.it_value.tv_sec = seconds;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

[[noreturn]] void child(const std::vector<Text> &texts, size_t begin,
                        const DialectRegistry &registry) {
  struct rlimit memory = {6ull << 30, 6ull << 30};
  setrlimit(RLIMIT_AS, &memory);
  void *warm[4];
  backtrace(warm, 4); // loads libgcc now, not in the handler
  stack_t alternate = {std::malloc(1 << 18), 0, 1 << 18};
  sigaltstack(&alternate, nullptr);
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS, SIGPROF}) {
    struct sigaction action = {};
    action.sa_handler = onSignal;
    action.sa_flags = SA_ONSTACK;
    sigaction(signal, &action, nullptr);
  }
  std::freopen("/dev/null", "w", stderr);
  std::unique_ptr<MLIRContext> context;
  for (size_t i = begin; i < texts.size(); ++i) {
    shared->next = i;
    if (!context || i % 1000 == 0)
      context = makeContext(registry);
    limitTime(10);
    runText(*context, registry, texts[i]);
    limitTime(0);
  }
  shared->next = texts.size();
  _exit(0);
}

void addTexts(std::vector<Text> &texts, const std::string &file, size_t step,
              uint64_t mutations, uint64_t seed) {
  auto buffer = llvm::MemoryBuffer::getFile(file);
  if (!buffer) {
    std::fprintf(stderr, "cannot read %s\n", file.c_str());
    std::exit(1);
  }
  std::vector<std::string> chunks = kvcache::splitChunks(std::string_view(
      (*buffer)->getBufferStart(), (*buffer)->getBufferSize()));
  for (size_t c = 0; c < chunks.size(); ++c) {
    std::string where = file + " chunk " + std::to_string(c);
    for (size_t cut = 0; cut <= chunks[c].size(); cut += step)
      texts.push_back(
          {where + " cut at " + std::to_string(cut), chunks[c].substr(0, cut)});
    for (uint64_t m = c; m < mutations; m += chunks.size())
      texts.push_back({where + " seed " + std::to_string(seed + m),
                       kvcache::mutate(chunks[c], seed + m)});
  }
}

/// The .mlir files of a folder, sorted, or the file itself.
void addFiles(std::vector<std::string> &files, const std::string &path) {
  if (!std::filesystem::is_directory(path)) {
    files.push_back(path);
    return;
  }
  size_t begin = files.size();
  // Recorded graphs are long and many, and say nothing that tests do not.
  for (std::filesystem::recursive_directory_iterator it(path), end; it != end;
       ++it)
    if (it->is_directory() && it->path().filename() == "data")
      it.disable_recursion_pending();
    else if (it->path().extension() == ".mlir")
      files.push_back(it->path().string());
  std::sort(files.begin() + begin, files.end());
}

} // namespace

int main(int argc, char **argv) {
  size_t step = 1;
  uint64_t mutations = 1000, seed = 1;
  std::string known;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    auto value = [&](const char *name) {
      return arg.compare(0, std::strlen(name), name) == 0
                 ? arg.c_str() + std::strlen(name)
                 : nullptr;
    };
    if (const char *v = value("--step="))
      step = std::strtoull(v, nullptr, 10);
    else if (const char *v = value("--mutations="))
      mutations = std::strtoull(v, nullptr, 10);
    else if (const char *v = value("--seed="))
      seed = std::strtoull(v, nullptr, 10);
    else if (const char *v = value("--known=")) {
      if (auto buffer = llvm::MemoryBuffer::getFile(v))
        known = (*buffer)->getBuffer().str();
    } else
      addFiles(files, arg);
  }
  Dl_info self;
  dladdr(reinterpret_cast<void *>(&onSignal), &self);
  executable = self.dli_fname;
  shared = static_cast<Shared *>(mmap(nullptr, sizeof(Shared),
                                      PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<Text> texts;
  for (const std::string &file : files)
    addTexts(texts, file, std::max<size_t>(step, 1), mutations, seed);
  DialectRegistry registry;
  kvcache::registerAll(registry);
  int bad = 0, upstream = 0, total = 0;
  std::map<std::string, Crash> crashes;
  for (size_t begin = 0; begin < texts.size(); begin = shared->next + 1) {
    pid_t pid = fork();
    if (pid == 0)
      child(texts, begin, registry);
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      break;
    std::string where = shared->where;
    bool listed = known.find("`" + where + "`") != std::string::npos;
    Crash &crash = crashes[where];
    if (crash.count++ == 0)
      crash.first = texts[shared->next].name;
    crash.listed = listed;
    crash.ours |= shared->ours;
    // A crash on every text says nothing more.
    if (++total >= 2000)
      break;
  }
  for (const auto &[where, crash] : crashes) {
    std::printf("%s in %s: %d texts, the first is %s\n",
                crash.listed ? "upstream, listed"
                : crash.ours ? "CRASH below our code"
                             : "CRASH upstream, not listed",
                where.c_str(), crash.count, crash.first.c_str());
    (crash.listed ? upstream : bad) += crash.count;
  }
  if (shared->complaint[0]) {
    std::printf("%s\n", shared->complaint);
    ++bad;
  }
  std::printf("%zu texts, %zu valid, %d known upstream crashes, %d failures\n",
              texts.size(), shared->parsed, upstream, bad);
  return bad != 0;
}
