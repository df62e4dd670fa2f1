//===- Arguments.h - kv-sim's command line ----------------------*- C++ -*-===//
#ifndef KVCACHE_TOOLS_KVSIM_ARGUMENTS_H
#define KVCACHE_TOOLS_KVSIM_ARGUMENTS_H

#include "kvcache/sim.h"
#include <map>

namespace kvcache::simtool {

/// A file used as device memory: read before, perhaps written after the run.
struct FileBuffer {
  std::string path;
  std::vector<uint8_t> bytes; ///< the whole file
  size_t dataOffset = 0;      ///< of the array's bytes (behind a .npy header)
  bool out = false, uninit = false;
  std::vector<sim::BufferPointer> pointers; ///< of other files, inside
};

struct CommandLine {
  std::string file, countersFile;
  sim::Launch launch;
  std::vector<sim::Arg> args;
  std::vector<FileBuffer> files;
  bool help = false, coverage = false;
  std::string formsFile; ///< of --coverage=FILE
  std::map<std::string, size_t> fileIndex;
};

extern const char *const helpText;

/// Throws sim::Error with what was wrong and what is accepted.
CommandLine parseCommandLine(int argc, char **argv);
std::vector<uint8_t> readFile(const std::string &path);
void writeFile(const std::string &path, const void *data, size_t bytes);

} // namespace kvcache::simtool

#endif // KVCACHE_TOOLS_KVSIM_ARGUMENTS_H
