//===- Common.cpp - What both halves of kv-compile need -------------------===//
#include "Drivers.h"

#include <filesystem>
#include <fstream>

using namespace kvcache;
using namespace kvcache::compile;

std::optional<FormatError> compile::writeFile(const std::string &path,
                                              const std::string &bytes) {
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
