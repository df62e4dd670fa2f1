//===- Emitter.h - Instructions of a GPU thread -----------------*- C++ -*-===//
//
// A thin builder of `llvm` and `nvvm` ops: scalar and packed arithmetic,
// memory, warp shuffles, tensor-core products and structured control flow
// written straight as blocks. Everything that touches the two dialects is
// behind it, so that the lowering itself reads like the kernel.
//
// Packed halves (f16x2, bf16x2) travel as i32, the register they occupy.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_KVTILETONVVM_EMITTER_H
#define KVCACHE_LIB_CONVERSION_KVTILETONVVM_EMITTER_H

#include "mlir/IR/Builders.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"

namespace kvcache::gpu {

using mlir::Type;
using mlir::Value;
using Values = llvm::SmallVector<Value>;

/// The 16-bit float of a tensor-core product.
enum class Half : uint8_t { F16, BF16 };

class Emitter {
public:
  Emitter(mlir::OpBuilder &builder, mlir::Location loc);

  mlir::OpBuilder &builder;
  mlir::Location loc;
  Type i1, i8, i16, i32, i64, f32, global, shared; // pointer types last two

  // Constants.
  Value i32c(int64_t value);
  Value i64c(int64_t value);
  Value f32c(double value);
  Value boolc(bool value);

  // Integers (two operands of one type).
  Value add(Value a, Value b);
  Value sub(Value a, Value b);
  Value mul(Value a, Value b);
  Value sdiv(Value a, Value b);
  Value srem(Value a, Value b);
  Value udiv(Value a, int64_t b); ///< a >= 0
  Value urem(Value a, int64_t b); ///< a >= 0
  Value bitAnd(Value a, Value b);
  Value bitOr(Value a, Value b);
  Value shl(Value a, int64_t bits);
  Value lshr(Value a, int64_t bits);
  Value smin(Value a, Value b);
  Value smax(Value a, Value b);
  Value addi(Value a, int64_t b); ///< folds b = 0
  Value muli(Value a, int64_t b); ///< folds b = 1
  Value sext64(Value a);
  Value trunc32(Value a);
  Value slt(Value a, Value b);
  Value sle(Value a, Value b);
  Value sge(Value a, Value b);
  Value eq(Value a, Value b);
  Value select(Value condition, Value a, Value b);

  // f32.
  Value fadd(Value a, Value b);
  Value fsub(Value a, Value b);
  Value fmul(Value a, Value b);
  Value fdiv(Value a, Value b);
  Value fma(Value a, Value b, Value c);
  Value fmax(Value a, Value b);
  Value fabs(Value a);
  Value feq(Value a, Value b);
  Value flt(Value a, Value b);
  Value exp2(Value a); ///< ex2.approx
  Value log2(Value a); ///< lg2.approx
  Value sitofp(Value a);
  Value toInt(Value a);   ///< bits of an f32
  Value toFloat(Value a); ///< f32 of these bits
  /// 2^e as f32, for an i32 e in [-126, 127].
  Value pow2(Value e);

  // Packed halves in i32.
  Value hmul(Value a, Value b);
  Value hsub(Value a, Value b);
  Value hfma(Value a, Value b, Value c);
  Value hneg(Value a);
  /// Rounds two f32 to a pair, `low` in the low half.
  Value pack(Half kind, Value low, Value high);
  /// The halves of a pair as f32 (exact).
  std::pair<Value, Value> unpack(Half kind, Value pair);
  /// One 16-bit float, held in an i16, as f32, and back.
  Value extend(Half kind, Value bits);
  Value round(Half kind, Value f);
  Value prmt(Value a, Value b, int64_t selector);

  // Memory; offsets in bytes.
  Value gep(Value pointer, Value offset64);
  Value gep(Value pointer, int64_t offset);
  Value load(Type type, Value pointer, int64_t align);
  void store(Value value, Value pointer, int64_t align);
  /// Loads `words` (1, 2 or 4) consecutive i32 with one instruction.
  Values loadWords(Value pointer, int64_t words);
  Value atomicAdd(Value pointer, Value value); ///< i32, whole GPU
  void fence();                                ///< whole GPU
  void barrier();
  /// bar.warp.sync: loads after it are not issued before it.
  void warpSync();

  // The warp.
  Value threadId();
  Value blockId();
  Value shflXor(Value v, int64_t mask);
  Value shflIdx(Value v, Value lane);
  /// Transposes an 8x8 matrix of 16-bit elements held one row per 4 lanes.
  Value movmatrix(Value v);
  /// c + A(16x16) B(16x8); a: 4, b: 2 registers, c: 4 f32.
  Values mma(Half kind, llvm::ArrayRef<Value> a, llvm::ArrayRef<Value> b,
             llvm::ArrayRef<Value> c);

  // Control flow; the builder stands after it.
  using Body = llvm::function_ref<Values(Value, Values)>;
  /// for (i = begin; i < end; i += step) carried = body(i, carried), signed.
  Values forLoop(Value begin, Value end, Value step, Values inits, Body body);
  /// condition ? then() : otherwise.
  Values ifThen(Value condition, Values otherwise,
                llvm::function_ref<Values()> then);
  /// Returns from the kernel if `condition`.
  void exitIf(Value condition);
  void ret();

private:
  Value bin(llvm::StringRef op, Value a, Value b);
  Value call(llvm::StringRef intrinsic, Type result, mlir::ValueRange operands);
  mlir::Block *splitHere();
};

} // namespace kvcache::gpu

#endif // KVCACHE_LIB_CONVERSION_KVTILETONVVM_EMITTER_H
