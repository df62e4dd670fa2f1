//===- Native.h - Shared by the parts of kvcache._native --------*- C++ -*-===//
#ifndef KVCACHE_PYTHON_NATIVE_H
#define KVCACHE_PYTHON_NATIVE_H

#include "kvcache/Format/Format.h"
#include "kvcache/runtime.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <utility>
#include <variant>

namespace kvcache::python {

/// Raises kvcache.CacheFull, kvcache.DeviceError, MemoryError or ValueError for
/// a runtime status.
void check(KvStatus status);

/// The value, or ValueError with the message.
template <typename T>
T unwrap(Expected<T> &&e) {
  if (const FormatError *error = errorOf(e))
    throw nanobind::value_error(error->message.c_str());
  return std::get<T>(std::move(e));
}

/// Bytes of any contiguous array in host memory; dtypes are checked in Python.
using Bytes =
    nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
using MutableBytes =
    nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;

/// Refuses an array of the wrong number of bytes (our own Python checks shapes
/// first; this keeps memory safe whatever calls the module).
void checkBytes(size_t have, int64_t want, const char *name);

void bindArrays(nanobind::module_ &m);
void bindFormats(nanobind::module_ &m);
void bindImages(nanobind::module_ &m);
void bindCache(nanobind::module_ &m);
void bindCompiler(nanobind::module_ &m);
void bindGpuCompiler(nanobind::module_ &m);
void bindGraphs(nanobind::module_ &m);

/// Raises kvcache.DeviceError.
[[noreturn]] void deviceError(const std::string &message);

} // namespace kvcache::python

#endif // KVCACHE_PYTHON_NATIVE_H
