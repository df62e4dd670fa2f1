//===- ArgsFuzz.cpp - libFuzzer target: kv-sim's command line -------------===//
//
// One argument per line. Files named in them are one small array, so that
// structs, tensor maps and .npy headers are read and a copy kernel is run.
//
//===----------------------------------------------------------------------===//
#include "Arguments.h"
#include <cstdio>
#include <unistd.h>

using namespace kvcache;

static const char *const kernel = R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .align 64 .b8 m[128])
{
  .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .b32 s;
  .shared .align 128 .b8 t[1024]; .shared .align 8 .b64 bar;
  ld.param.u64 %rd1, [a];
  mbarrier.init.shared.b64 [bar], 1;
  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 64;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [t], [m, {0, 0}], [bar];
  ld.global.u32 %r1, [%rd1];
  ret;
}
)";

/// The first line is the array file's contents up to a tab.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const std::string path = "/tmp/kvsim-fuzz-" + std::to_string(getpid());
  std::string text(data, data + size), contents;
  if (size_t tab = text.find('\t'); tab != std::string::npos) {
    contents = text.substr(0, tab);
    text = text.substr(tab + 1);
  }
  if (std::FILE *f = std::fopen(path.c_str(), "wb")) {
    std::fwrite(contents.data(), 1, contents.size(), f);
    std::fclose(f);
  }
  std::vector<std::string> words{"kv-sim"};
  for (size_t b = 0; b <= text.size();) {
    size_t e = std::min(text.find('\n', b), text.size());
    std::string w = text.substr(b, e - b);
    for (size_t at; (at = w.find('@')) != std::string::npos;)
      w.replace(at, 1, path);
    if (w.find('\0') == std::string::npos)
      words.push_back(w);
    b = e + 1;
  }
  std::vector<char *> argv;
  for (std::string &w : words)
    argv.push_back(w.data());
  try {
    simtool::CommandLine cl =
        simtool::parseCommandLine(int(argv.size()), argv.data());
    auto m = sim::Module::parse(kernel, "k.ptx");
    std::vector<sim::Buffer> buffers;
    for (simtool::FileBuffer &f : cl.files)
      buffers.push_back({f.bytes.data() + f.dataOffset,
                         f.bytes.size() - f.dataOffset, !f.uninit, false,
                         f.path});
    cl.launch.maxSteps = std::min<uint64_t>(cl.launch.maxSteps, 2000);
    cl.launch.entry = "k";
    cl.launch.threads = 1;
    sim::runKernel(*m, cl.launch, buffers, cl.args);
  } catch (const sim::Error &) {
  }
  return 0;
}
