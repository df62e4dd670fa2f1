//===- IRNumbers.h - IR values that compute like numbers --------*- C++ -*-===//
//
// Thin wrappers that let the templates of Format/Codec.h and Format/Image.h
// emit IR: `ir::Int` is a signless integer or index (or a vector of them),
// always treated as unsigned; `ir::Float` is f32 or a vector of f32; `ir::Bool`
// is i1. Constants fold while they are built.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_CONVERSION_IRNUMBERS_H
#define KVCACHE_CONVERSION_IRNUMBERS_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"

#include <cstdint>

namespace kvcache::ir {

/// Where ops go, and what the target can do by itself.
struct Env {
  mlir::OpBuilder &builder;
  mlir::Location loc;
  /// f16 <-> f32 conversions exist (F16C, any GPU); else integer arithmetic.
  bool nativeF16 = true;
  /// An f32 fma exists; else it is computed exactly through f64.
  bool nativeFma = true;
  /// Integer sums and products do not overflow (geometry, not bit tricks): they
  /// are marked so, which lets LLVM fold constant parts into addresses.
  bool noWrap = false;
};

template <typename Tag>
struct Number {
  Env *env = nullptr;
  mlir::Value value;

  Number() = default;
  Number(Env &env, mlir::Value value) : env(&env), value(value) {}
  mlir::Type type() const { return value.getType(); }
  operator mlir::Value() const { return value; }
};
using Int = Number<struct IntTag>;
using Float = Number<struct FloatTag>;
using Bool = Number<struct BoolTag>;

/// `c` in the type (a splat for vectors); integers wrap to its width.
Int constant(Env &env, mlir::Type type, int64_t c);
Float constantF(Env &env, mlir::Type type, float c);
Int i32(Env &env, int64_t c);
Int i64(Env &env, int64_t c);

Int operator+(Int a, Int b);
Int operator-(Int a, Int b);
Int operator*(Int a, Int b);
Int operator/(Int a, Int b);
Int operator%(Int a, Int b);
Int operator&(Int a, Int b);
Int operator|(Int a, Int b);
Int operator<<(Int a, Int b);
Int operator>>(Int a, Int b);
Int operator+(Int a, int64_t b);
Int operator-(Int a, int64_t b);
Int operator*(Int a, int64_t b);
Int operator/(Int a, int64_t b);
Int operator%(Int a, int64_t b);
Int operator&(Int a, int64_t b);
Int operator|(Int a, int64_t b);
Int operator<<(Int a, int64_t b);
Int operator>>(Int a, int64_t b);
Float operator+(Float a, Float b);
Float operator-(Float a, Float b);
Float operator*(Float a, Float b);
Float operator/(Float a, Float b);
Bool operator&(Bool a, Bool b);
Bool operator|(Bool a, Bool b);

/// A vector of `lanes` times the scalar.
Int splat(Int scalar, int64_t lanes);
Float splat(Float scalar, int64_t lanes);
/// A constant vector of i32.
Int lanesOf(Env &env, mlir::ArrayRef<int32_t> values);

/// Zero-extends or truncates to the width of `element` (vectors: lane-wise).
Int toWidth(Int a, unsigned bits);

//===----------------------------------------------------------------------===//
// The vocabulary of Codec.h and Image.h
//===----------------------------------------------------------------------===//

Int toBits(Float x);
Float fromBits(Int bits);
Float like(Float x, float c);
Int like(Int x, uint32_t c);
Bool lessThan(Float a, Float b); // ordered
Bool lessThan(Int a, Int b);     // unsigned
Bool equals(Float a, Float b);   // ordered
Bool equals(Int a, Int b);
Int select(Bool c, Int a, Int b);
Float select(Bool c, Float a, Float b);
Int selectLess(Int a, int64_t bound, Int x, Int y);
/// fma, correctly rounded whatever the target.
Float multiplyAdd(Float a, Float b, Float c);
/// The same for products that f32 holds exactly: no fma needed.
Float multiplyAddExact(Float a, Float b, Float c);
Float roundEven(Float x);
Float absolute(Float x);
Int toInteger(Float x); // i32
Float toFloat(Int i);
Int f32ToF16Bits(Float x); // in the low half of an i32
Float f16BitsToF32(Int h);

} // namespace kvcache::ir

#endif // KVCACHE_CONVERSION_IRNUMBERS_H
