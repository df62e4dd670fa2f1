//===- CpuBuilder.h - Short spellings for vector code -----------*- C++ -*-===//
//
// Emits scalar i64 arithmetic, byte-addressed loads and stores, and vectors of
// f32 and i32 with the arithmetic of one tier:
//
//   vector_bits 512, 256   fma; f16 converted by hardware
//   vector_bits 128        multiply and add; f16 converted by integer
//   arithmetic
//
// bf16 is converted by integer arithmetic everywhere. Reductions are trees of a
// fixed shape, exp2 and log2 polynomials of our own: results are bitwise
// reproducible and the object needs no library.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETOCPU_CPUBUILDER_H
#define KVCACHE_LIB_CONVERSION_KVTILETOCPU_CPUBUILDER_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace kvcache {

class CpuBuilder : public mlir::ImplicitLocOpBuilder {
public:
  using Value = mlir::Value;
  using Values = llvm::SmallVector<mlir::Value>;
  using BodyFn = llvm::function_ref<Values(Value iv, mlir::ValueRange carried)>;

  CpuBuilder(mlir::Location loc, int64_t vectorBits)
      : ImplicitLocOpBuilder(loc, loc.getContext()), vectorBits(vectorBits) {}

  int64_t vectorBits;
  /// Lanes of f32 in a register.
  int64_t lanes() const { return vectorBits / 32; }
  /// Vector accumulators that fit beside operands.
  int64_t accumulators() const { return vectorBits == 512 ? 20 : 8; }

  // Types.
  mlir::Type ptrType();
  mlir::VectorType vec(int64_t n, mlir::Type element);
  mlir::VectorType fvec(int64_t n) { return vec(n, getF32Type()); }
  mlir::VectorType ivec(int64_t n) { return vec(n, getI32Type()); }

  // Scalars of i64 (also i32 and i1 where noted).
  Value i64(int64_t x);
  Value i32(int64_t x);
  Value add(Value a, Value b);
  Value add(Value a, int64_t b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value mul(Value a, int64_t b);
  Value div(Value a, int64_t b); ///< unsigned
  Value rem(Value a, int64_t b); ///< unsigned
  Value div(Value a, Value b);
  Value ceilDiv(Value a, Value b);
  Value min(Value a, Value b);
  Value max(Value a, Value b);
  Value less(Value a, Value b);      ///< i1, signed
  Value lessEqual(Value a, Value b); ///< i1, signed
  Value select(Value c, Value a, Value b);
  Value toI32(Value a);

  // Memory: addresses are bytes.
  Value at(Value ptr, Value bytes);
  Value at(Value ptr, int64_t bytes);
  Value load(mlir::Type type, Value ptr);
  void store(Value value, Value ptr);
  /// Loads i32 as i64.
  Value loadIndex(Value ptr, Value index);
  /// Stack memory of the function, 64-byte aligned, made once in its entry.
  Value scratch(int64_t bytes);
  void prefetch(Value ptr);

  // Loops over i64.
  Values loop(Value from, Value to, int64_t step, mlir::ValueRange inits,
              BodyFn body);
  void loop(Value from, Value to, int64_t step,
            llvm::function_ref<void(Value)> body);
  void when(Value condition, llvm::function_ref<void()> body);

  // f32 vectors and scalars.
  Value f32(double x);
  Value fsplat(int64_t n, double x);
  Value isplat(int64_t n, int64_t x);
  Value splat(Value scalar, int64_t n);
  /// Loads one f32 and repeats it.
  Value loadSplat(Value ptr, int64_t n);
  Value fadd(Value a, Value b);
  Value fsub(Value a, Value b);
  Value fmul(Value a, Value b);
  Value fdiv(Value a, Value b);
  Value fmax(Value a, Value b); ///< neither is NaN
  Value fma(Value a, Value b, Value c);
  Value exp2(Value x);
  Value log2(Value x); ///< normal positive numbers
  Value reduce(Value vector, bool isMax);
  /// The sums (maxima) of each of the vectors (all of n lanes, n a power of
  /// two, at most n of them) as the lanes of one vector of n lanes.
  Value reduceEach(llvm::ArrayRef<Value> vectors, bool isMax = false);
  Value extract(Value vector, int64_t lane);
  Value slice(Value vector, int64_t offset, int64_t count);
  /// Lengthens a vector with zeros.
  Value widen(Value vector, int64_t n);
  Value iota(int64_t n); ///< i32

  // Conversions, of vectors.
  Value extend(Value stored); ///< f32, f16 or bf16 to f32
  Value truncate(Value x, mlir::Type element);
  /// Loads n stored floats as f32.
  Value loadFloats(mlir::Type element, Value ptr, int64_t n);
  /// Loads one stored float as f32, repeated n times.
  Value loadFloatSplat(mlir::Type element, Value ptr, int64_t n);

  // Integer vectors.
  Value iand(Value a, int64_t mask);
  Value shr(Value a, int64_t bits);
  Value shl(Value a, int64_t bits);
  Value iadd(Value a, Value b);
  Value ior(Value a, Value b);
  Value toFloat(Value a); ///< signed i32
  Value bits(Value x, mlir::Type type);

private:
  Value compare(mlir::arith::CmpIPredicate predicate, Value a, Value b);
  Value halfToFloat(Value bits16);
  Value floatToHalf(Value x);
};

} // namespace kvcache

#endif // KVCACHE_LIB_CONVERSION_KVTILETOCPU_CPUBUILDER_H
