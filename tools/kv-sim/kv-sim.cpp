//===- kv-sim.cpp - Run a PTX kernel without a GPU ------------------------===//
#include "Arguments.h"
#include <cstdio>

using namespace kvcache;
using namespace kvcache::simtool;

static int run(int argc, char **argv) {
  CommandLine cl = parseCommandLine(argc, argv);
  if (cl.help || cl.coverage) {
    std::string text = helpText;
    if (!cl.help && cl.formsFile.empty())
      text = sim::coverageTable();
    else if (!cl.help) {
      std::vector<uint8_t> forms = readFile(cl.formsFile);
      text = sim::coverageOf({forms.begin(), forms.end()});
    }
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  std::vector<uint8_t> text = readFile(cl.file);
  auto module = sim::Module::parse({text.begin(), text.end()}, cl.file);
  for (const std::string &n : module->notes())
    std::fprintf(stderr, "%s: note: %s\n", cl.file.c_str(), n.c_str());
  std::vector<sim::Buffer> buffers;
  for (FileBuffer &f : cl.files)
    buffers.push_back({f.bytes.data() + f.dataOffset,
                       f.bytes.size() - f.dataOffset, !f.uninit, false, f.path,
                       f.pointers});
  sim::Result r = sim::runKernel(*module, cl.launch, buffers, cl.args);
  for (const std::string &n : r.notes)
    std::fprintf(stderr, "%s: note: %s\n", cl.file.c_str(), n.c_str());
  if (!cl.countersFile.empty())
    writeFile(cl.countersFile, r.counters.data(), r.counters.size());
  else if (cl.launch.counters)
    std::fputs(r.counters.c_str(), stdout);
  if (r.violation) {
    std::fprintf(stderr, "%s:%d: violation: %s\n", cl.file.c_str(),
                 r.violation->line, r.violation->message.c_str());
    return 1;
  }
  for (FileBuffer &f : cl.files)
    if (f.out)
      writeFile(f.path, f.bytes.data(), f.bytes.size());
  return 0;
}

int main(int argc, char **argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "kv-sim: %s\n", e.what());
    return 1;
  }
}
