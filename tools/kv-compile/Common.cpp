//===- Common.cpp - What both halves of kv-compile need -------------------===//
#include "Drivers.h"

#include <filesystem>
#include <fstream>
#include <iostream>

using namespace kvcache;
using namespace kvcache::compile;

// Devices, pipes and the like are written to, not replaced.
static std::optional<FormatError> writeThrough(const std::string &path,
                                               const std::string &bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), std::streamsize(bytes.size()));
  if (file.flush())
    return std::nullopt;
  return FormatError{"cannot write '" + path + "'"};
}

std::optional<FormatError> compile::writeFile(const std::string &path,
                                              const std::string &bytes) {
  if (path == "-") {
    std::cout.write(bytes.data(), std::streamsize(bytes.size()));
    if (std::cout.flush())
      return std::nullopt;
    return FormatError{"cannot write to the standard output"};
  }
  std::error_code unknown;
  std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_other(status))
    return writeThrough(path, bytes);
  std::string temporary = path + ".partial";
  std::error_code error;
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(bytes.data(), std::streamsize(bytes.size()));
    if (!file.flush()) {
      std::filesystem::remove(temporary, error);
      return FormatError{"cannot write '" + path + "'"};
    }
  }
  std::filesystem::rename(temporary, path, error);
  if (!error)
    return std::nullopt;
  FormatError bad{"cannot write '" + path + "': " + error.message()};
  std::filesystem::remove(temporary, error);
  return bad;
}
