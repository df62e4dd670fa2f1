//===- Status.cpp - The last error of each thread -------------------------===//

#include "Status.h"

using namespace kvcache::rt;

static std::string &lastError() {
  static thread_local std::string message;
  return message;
}

KvStatus kvcache::rt::report(Error error) {
  if (error)
    lastError() = std::move(error.message);
  return error.code;
}

const char *kvcache_last_error(void) { return lastError().c_str(); }
