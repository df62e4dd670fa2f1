//===- Status.h - Status and message of a call ------------------*- C++ -*-===//
#ifndef KVCACHE_RUNTIME_LIB_STATUS_H
#define KVCACHE_RUNTIME_LIB_STATUS_H

#include "kvcache/runtime.h"

#include <sstream>
#include <string>
#include <utility>

namespace kvcache::rt {

/// A status code with its message; converts to true when something failed.
struct [[nodiscard]] Error {
  KvStatus code = KV_OK;
  std::string message;
  explicit operator bool() const { return code != KV_OK; }
};

/// An error whose message is the arguments printed one after the other.
template <typename... Args>
Error makeError(KvStatus code, const Args &...args) {
  std::ostringstream os;
  (os << ... << args);
  return {code, os.str()};
}

template <typename... Args>
Error invalid(const Args &...args) {
  return makeError(KV_INVALID_ARGUMENT, args...);
}

/// Stores the message for kvcache_last_error() and returns the code.
KvStatus report(Error error);

/// Runs `fn() -> Error` and turns anything thrown (memory) into a status.
template <typename Fn>
KvStatus guarded(Fn &&fn) {
  try {
    return report(std::forward<Fn>(fn)());
  } catch (const std::bad_alloc &) {
    return report({KV_OUT_OF_MEMORY, "out of memory"});
  } catch (const std::exception &e) {
    return report({KV_INTERNAL_ERROR, e.what()});
  }
}

} // namespace kvcache::rt

#endif // KVCACHE_RUNTIME_LIB_STATUS_H
