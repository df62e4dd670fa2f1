//===- kv-run.cpp - Runs one function of a file on arrays -----------------===//
#include "kvcache/InitAll.h"
#include "kvcache/Runner/Runner.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"

namespace cl = llvm::cl;

/// "a.npy,b.npy" -> two paths; "" -> none.
static std::vector<std::string> split(llvm::StringRef text) {
  llvm::SmallVector<llvm::StringRef> parts;
  text.split(parts, ',', -1, /*KeepEmpty=*/false);
  std::vector<std::string> paths;
  for (llvm::StringRef part : parts)
    paths.push_back(part.str());
  return paths;
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cl::OptionCategory category("kv-run options");
  cl::opt<std::string> file(cl::Positional, cl::Required, cl::cat(category),
                            cl::desc("FILE.mlir"));
  cl::opt<std::string> entry("entry", cl::Required, cl::cat(category),
                             cl::value_desc("name"),
                             cl::desc("the function to run"));
  cl::opt<std::string> args("args", cl::cat(category),
                            cl::value_desc("a.npy,b.npy"),
                            cl::desc("one array per argument (\"\": none)"));
  cl::opt<std::string> out("out", cl::cat(category),
                           cl::value_desc("out.npy,lse.npy"),
                           cl::desc("one file per result"));
  cl::opt<std::string> device("device", cl::init("cpu"), cl::cat(category),
                              cl::value_desc("cpu|sim:sm_80"),
                              cl::desc("where attention runs: this machine "
                                       "(default), or as PTX in the "
                                       "simulator"));
  cl::opt<bool> noFuse("no-fuse", cl::cat(category),
                       cl::desc("run the reference, op by op"));
  cl::opt<unsigned> repeat(
      "repeat", cl::init(0), cl::cat(category), cl::value_desc("N"),
      cl::desc("call N times and print the median time (compiling apart)"));
  cl::HideUnrelatedOptions(category);
  cl::ParseCommandLineOptions(argc, argv,
                              "runs one function of an MLIR file on arrays\n");
  kvcache::RunOptions options{file,       entry,   device, split(args),
                              split(out), !noFuse, repeat};
  mlir::DialectRegistry registry;
  kvcache::registerAllDialects(registry);
  if (llvm::Error error = kvcache::run(options, registry)) {
    llvm::errs() << "kv-run: " << llvm::toString(std::move(error)) << '\n';
    return 1;
  }
  return 0;
}
