//===- Npy.h - Strict reading and writing of .npy files ---------*- C++ -*-===//
//
// NumPy's array file, versions 1 to 3, for plain numeric dtypes. The header (a
// Python dict literal) is read by a parser of our own that accepts exactly what
// NumPy writes; anything else is an error that says what was found and where.
// No LLVM, no exceptions.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SUPPORT_NPY_H
#define KVCACHE_SUPPORT_NPY_H

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvcache {

/// The element of an array, as NumPy names it. `Void` is opaque bytes of some
/// size: what NumPy writes for ml_dtypes' bfloat16 and fp8 ("<V2", "|V1").
struct NpyType {
  enum Kind : uint8_t { Bool, Int, UInt, Float, Void } kind = Float;
  unsigned bytes = 4;

  bool operator==(const NpyType &) const = default;
  /// NumPy's own name: "float32", "uint8", "bool", "void2".
  std::string str() const;
};

/// An array in memory, C order.
struct NpyArray {
  NpyType type;
  std::vector<int64_t> shape; ///< empty: rank 0, one element
  std::vector<std::byte> data;

  int64_t elements() const;
  /// "float32 [2, 3]".
  std::string str() const;
};

struct NpyError {
  std::string message;
};

/// Parses the bytes of a whole .npy file. Fortran order is transposed to C
/// order; big-endian, structured, object and string dtypes are refused.
std::variant<NpyArray, NpyError> parseNpy(std::span<const std::byte> file);

/// Reads a file; the message starts with the path.
std::variant<NpyArray, NpyError> readNpy(const std::string &path);

/// The bytes of a version 1.0 file.
std::vector<std::byte> formatNpy(const NpyArray &array);

/// Writes a file; returns a message on failure, else an empty string. Nothing
/// half-written is left behind.
std::string writeNpy(const std::string &path, const NpyArray &array);

} // namespace kvcache

#endif // KVCACHE_SUPPORT_NPY_H
