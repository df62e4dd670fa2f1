//===- Module.cpp - kvcache._native ---------------------------------------===//
//
// The one native module of the package: storage formats, the runtime and the
// compiler. Arguments are checked in Python, where messages can name what the
// user wrote; this layer keeps memory safe.
//
//===----------------------------------------------------------------------===//

#include "Native.h"

#include <stdexcept>

namespace nb = nanobind;
using namespace kvcache;

namespace {

struct CacheFullError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct DeviceFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

} // namespace

void python::check(KvStatus status) {
  switch (status) {
  case KV_OK:
    return;
  case KV_CACHE_FULL:
    throw CacheFullError(kvcache_last_error());
  case KV_DEVICE_ERROR:
    throw DeviceFailure(kvcache_last_error());
  case KV_OUT_OF_MEMORY:
    throw std::bad_alloc();
  case KV_INVALID_ARGUMENT:
  case KV_PACKAGE_ERROR:
    throw nb::value_error(kvcache_last_error());
  case KV_INTERNAL_ERROR:
    break;
  }
  throw std::runtime_error(kvcache_last_error());
}

void python::checkBytes(size_t have, int64_t want, const char *name) {
  if (int64_t(have) == want)
    return;
  std::string message = std::string(name) + " has " + std::to_string(have) +
                        " bytes, expected " + std::to_string(want);
  throw nb::value_error(message.c_str());
}

void python::deviceError(const std::string &message) {
  throw DeviceFailure(message);
}

NB_MODULE(_native, m) {
  m.doc() = "Native part of kvcache; use the package's public names.";
  nb::exception<CacheFullError>(m, "CacheFull");
  nb::exception<DeviceFailure>(m, "DeviceError");
  m.def("set_num_threads",
        [](int64_t n) { python::check(kvcache_set_num_threads(n)); });
  m.def("num_threads", [] { return kvcache_num_threads(); });
  m.def("host_tier", [] { return std::string(kvcache_host_tier()); });
  python::bindArrays(m);
  python::bindFormats(m);
  python::bindImages(m);
  python::bindCompiler(m);
  python::bindGpuCompiler(m);
  python::bindGraphs(m);
  python::bindCache(m);
}
