//===- CpuBuilder.cpp - Scalars, memory, loops, simple vector code --------===//
//
// See CpuBuilder.h; conversions and elementary functions are in CpuMath.cpp.
//
//===----------------------------------------------------------------------===//

#include "CpuBuilder.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;

//===----------------------------------------------------------------------===//
// Types and scalars
//===----------------------------------------------------------------------===//

Type CpuBuilder::ptrType() { return LLVM::LLVMPointerType::get(getContext()); }

VectorType CpuBuilder::vec(int64_t n, Type element) {
  return VectorType::get({n}, element);
}

Value CpuBuilder::i64(int64_t x) {
  return arith::ConstantOp::create(*this, getI64IntegerAttr(x));
}

Value CpuBuilder::i32(int64_t x) {
  return arith::ConstantOp::create(*this, getI32IntegerAttr(x));
}

Value CpuBuilder::add(Value a, Value b) {
  return createOrFold<arith::AddIOp>(a, b);
}
Value CpuBuilder::add(Value a, int64_t b) { return b ? add(a, i64(b)) : a; }
Value CpuBuilder::sub(Value a, Value b) {
  return createOrFold<arith::SubIOp>(a, b);
}
Value CpuBuilder::mul(Value a, Value b) {
  return createOrFold<arith::MulIOp>(a, b);
}
Value CpuBuilder::mul(Value a, int64_t b) {
  return b == 1 ? a : mul(a, i64(b));
}
Value CpuBuilder::div(Value a, int64_t b) {
  return b == 1 ? a : createOrFold<arith::DivUIOp>(a, i64(b));
}
Value CpuBuilder::rem(Value a, int64_t b) {
  return createOrFold<arith::RemUIOp>(a, i64(b));
}
Value CpuBuilder::div(Value a, Value b) {
  return createOrFold<arith::DivUIOp>(a, b);
}
Value CpuBuilder::ceilDiv(Value a, Value b) {
  return div(sub(add(a, b), i64(1)), b);
}
Value CpuBuilder::min(Value a, Value b) {
  return createOrFold<arith::MinSIOp>(a, b);
}
Value CpuBuilder::max(Value a, Value b) {
  return createOrFold<arith::MaxSIOp>(a, b);
}
Value CpuBuilder::compare(arith::CmpIPredicate predicate, Value a, Value b) {
  return arith::CmpIOp::create(*this, predicate, a, b);
}
Value CpuBuilder::less(Value a, Value b) {
  return compare(arith::CmpIPredicate::slt, a, b);
}
Value CpuBuilder::lessEqual(Value a, Value b) {
  return compare(arith::CmpIPredicate::sle, a, b);
}
Value CpuBuilder::select(Value c, Value a, Value b) {
  return arith::SelectOp::create(*this, c, a, b);
}
Value CpuBuilder::toI32(Value a) {
  return createOrFold<arith::TruncIOp>(getI32Type(), a);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value CpuBuilder::at(Value ptr, Value bytes) {
  return LLVM::GEPOp::create(*this, ptrType(), getI8Type(), ptr,
                             ArrayRef<LLVM::GEPArg>{bytes});
}

Value CpuBuilder::at(Value ptr, int64_t bytes) {
  return bytes ? at(ptr, i64(bytes)) : ptr;
}

/// Alignment that stored elements are known to have.
static unsigned alignmentOf(Type type) {
  Type element = getElementTypeOrSelf(type);
  if (isa<LLVM::LLVMPointerType>(element))
    return 8;
  return element.getIntOrFloatBitWidth() / 8;
}

Value CpuBuilder::load(Type type, Value ptr) {
  return LLVM::LoadOp::create(*this, type, ptr, alignmentOf(type));
}

void CpuBuilder::store(Value value, Value ptr) {
  LLVM::StoreOp::create(*this, value, ptr, alignmentOf(value.getType()));
}

Value CpuBuilder::loadIndex(Value ptr, Value index) {
  Value x = load(getI32Type(), at(ptr, mul(index, 4)));
  return arith::ExtSIOp::create(*this, getI64Type(), x);
}

Value CpuBuilder::scratch(int64_t bytes) {
  InsertionGuard guard(*this);
  auto function =
      getInsertionBlock()->getParentOp()->getParentOfType<func::FuncOp>();
  if (!function)
    function = cast<func::FuncOp>(getInsertionBlock()->getParentOp());
  setInsertionPointToStart(&function.getBody().front());
  return LLVM::AllocaOp::create(*this, ptrType(), getI8Type(),
                                i64(llvm::alignTo(bytes, 64)), 64);
}

// Into the second-level cache (prefetcht1): a page and the tables of the loop
// fill the first already, lines that come early would be gone when they are due
// (measured: f16 2.1 -> 1.5 times, int8 1.5 -> 0.95 times the plain read).
void CpuBuilder::prefetch(Value ptr) {
  LLVM::Prefetch::create(*this, ptr, /*rw=*/0, /*hint=*/2, /*cache=*/1);
}

//===----------------------------------------------------------------------===//
// Control
//===----------------------------------------------------------------------===//

CpuBuilder::Values CpuBuilder::loop(Value from, Value to, int64_t step,
                                    ValueRange inits, BodyFn body) {
  auto op = scf::ForOp::create(*this, from, to, i64(step), inits);
  InsertionGuard guard(*this);
  Block *block = op.getBody();
  if (!block->empty())
    block->back().erase();
  setInsertionPointToEnd(block);
  Values next = body(op.getInductionVar(), op.getRegionIterArgs());
  scf::YieldOp::create(*this, next);
  return llvm::to_vector_of<Value>(op.getResults());
}

void CpuBuilder::loop(Value from, Value to, int64_t step,
                      llvm::function_ref<void(Value)> body) {
  loop(from, to, step, {}, [&](Value iv, ValueRange) {
    body(iv);
    return Values();
  });
}

void CpuBuilder::when(Value condition, llvm::function_ref<void()> body) {
  auto op = scf::IfOp::create(*this, condition, /*withElseRegion=*/false);
  InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  body();
}

//===----------------------------------------------------------------------===//
// Vectors
//===----------------------------------------------------------------------===//

Value CpuBuilder::f32(double x) {
  return arith::ConstantOp::create(*this, getF32FloatAttr(x));
}

Value CpuBuilder::fsplat(int64_t n, double x) {
  return arith::ConstantOp::create(
      *this, DenseElementsAttr::get(fvec(n), getF32FloatAttr(x)));
}

Value CpuBuilder::isplat(int64_t n, int64_t x) {
  return arith::ConstantOp::create(
      *this, DenseElementsAttr::get(ivec(n), getI32IntegerAttr(x)));
}

Value CpuBuilder::splat(Value scalar, int64_t n) {
  return vector::BroadcastOp::create(*this, vec(n, scalar.getType()), scalar);
}

Value CpuBuilder::loadSplat(Value ptr, int64_t n) {
  return splat(load(getF32Type(), ptr), n);
}

Value CpuBuilder::fadd(Value a, Value b) {
  return arith::AddFOp::create(*this, a, b);
}
Value CpuBuilder::fsub(Value a, Value b) {
  return arith::SubFOp::create(*this, a, b);
}
Value CpuBuilder::fmul(Value a, Value b) {
  return arith::MulFOp::create(*this, a, b);
}
Value CpuBuilder::fdiv(Value a, Value b) {
  return arith::DivFOp::create(*this, a, b);
}

Value CpuBuilder::fmax(Value a, Value b) {
  // Compare and select is maxps itself; no NaN and no order of zeros to mind.
  Value greater = arith::CmpFOp::create(*this, arith::CmpFPredicate::OGT, a, b);
  return arith::SelectOp::create(*this, greater, a, b);
}

Value CpuBuilder::fma(Value a, Value b, Value c) {
  if (vectorBits == 128)
    return fadd(fmul(a, b), c);
  return math::FmaOp::create(*this, a, b, c);
}

static int64_t lengthOf(Value v) {
  return cast<VectorType>(v.getType()).getNumElements();
}

Value CpuBuilder::extract(Value vector, int64_t lane) {
  return vector::ExtractOp::create(*this, vector, lane);
}

Value CpuBuilder::slice(Value v, int64_t offset, int64_t count) {
  if (offset == 0 && count == lengthOf(v))
    return v;
  SmallVector<int64_t> mask =
      llvm::to_vector(llvm::seq<int64_t>(offset, offset + count));
  return vector::ShuffleOp::create(*this, v, v, mask);
}

Value CpuBuilder::widen(Value v, int64_t n) {
  int64_t have = lengthOf(v);
  if (have == n)
    return v;
  auto type = cast<VectorType>(v.getType());
  Value zero = arith::ConstantOp::create(*this, getZeroAttr(type));
  SmallVector<int64_t> mask(n, have);
  for (int64_t i = 0; i < have; ++i)
    mask[i] = i;
  return vector::ShuffleOp::create(*this, v, zero, mask);
}

Value CpuBuilder::iota(int64_t n) {
  SmallVector<int32_t> values =
      llvm::to_vector(llvm::seq<int32_t>(0, static_cast<int32_t>(n)));
  return arith::ConstantOp::create(
      *this, DenseElementsAttr::get(ivec(n), ArrayRef<int32_t>(values)));
}

Value CpuBuilder::reduce(Value v, bool isMax) {
  for (int64_t n = lengthOf(v); n > 1; n /= 2) {
    Value low = slice(v, 0, n / 2), high = slice(v, n / 2, n / 2);
    v = isMax ? fmax(low, high) : fadd(low, high);
  }
  return extract(v, 0);
}

Value CpuBuilder::reduceEach(ArrayRef<Value> vectors, bool isMax) {
  int64_t n = lengthOf(vectors.front());
  Values level(vectors);
  level.resize(n, fsplat(n, 0.0));
  // Each round halves the number of vectors and the addends per sum: a round
  // of width w adds, within every run of 2w lanes, the upper half to the lower
  // and keeps the first vector's result in lanes 0..w-1, the second's in the
  // others.
  for (int64_t w = n / 2; w >= 1; w /= 2) {
    Values next;
    for (size_t i = 0; i < level.size() / 2; ++i) {
      Value a = level[i], b = level[i + level.size() / 2];
      SmallVector<int64_t> low, high;
      for (int64_t lane = 0; lane < n; ++lane) {
        int64_t run = lane / (2 * w) * (2 * w), in = lane % (2 * w);
        int64_t base = in < w ? run + in : n + run + in - w;
        low.push_back(base);
        high.push_back(base + w);
      }
      Value x = vector::ShuffleOp::create(*this, a, b, low);
      Value y = vector::ShuffleOp::create(*this, a, b, high);
      next.push_back(isMax ? fmax(x, y) : fadd(x, y));
    }
    level = next;
  }
  return level.front();
}

Value CpuBuilder::iand(Value a, int64_t mask) {
  return arith::AndIOp::create(*this, a, isplat(lengthOf(a), mask));
}
Value CpuBuilder::shr(Value a, int64_t bits) {
  if (!bits)
    return a;
  return arith::ShRUIOp::create(*this, a, isplat(lengthOf(a), bits));
}
Value CpuBuilder::shl(Value a, int64_t bits) {
  return arith::ShLIOp::create(*this, a, isplat(lengthOf(a), bits));
}
Value CpuBuilder::iadd(Value a, Value b) {
  return arith::AddIOp::create(*this, a, b);
}
Value CpuBuilder::ior(Value a, Value b) {
  return arith::OrIOp::create(*this, a, b);
}
Value CpuBuilder::toFloat(Value a) {
  return arith::SIToFPOp::create(*this, fvec(lengthOf(a)), a);
}
Value CpuBuilder::bits(Value x, Type type) {
  return arith::BitcastOp::create(*this, type, x);
}
