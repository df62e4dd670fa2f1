//===- Emitter.cpp - Instructions of a GPU thread -------------------------===//
#include "Emitter.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace kvcache::gpu;

/// Address spaces of PTX as LLVM numbers them.
static constexpr unsigned kGlobalSpace = 1, kSharedSpace = 3;
static constexpr int64_t kWholeWarp = 0xffffffff;

Emitter::Emitter(OpBuilder &builder, Location loc)
    : builder(builder), loc(loc), i1(builder.getI1Type()),
      i8(builder.getI8Type()), i16(builder.getI16Type()),
      i32(builder.getI32Type()), i64(builder.getI64Type()),
      f32(builder.getF32Type()),
      global(LLVM::LLVMPointerType::get(builder.getContext(), kGlobalSpace)),
      shared(LLVM::LLVMPointerType::get(builder.getContext(), kSharedSpace)) {}

//===----------------------------------------------------------------------===//
// Constants and integers
//===----------------------------------------------------------------------===//

Value Emitter::i32c(int64_t value) {
  return LLVM::ConstantOp::create(
      builder, loc, i32, builder.getI32IntegerAttr(int32_t(uint32_t(value))));
}
Value Emitter::i64c(int64_t value) {
  return LLVM::ConstantOp::create(builder, loc, i64,
                                  builder.getI64IntegerAttr(value));
}
Value Emitter::f32c(double value) {
  return LLVM::ConstantOp::create(builder, loc, f32,
                                  builder.getF32FloatAttr(float(value)));
}
Value Emitter::boolc(bool value) {
  return LLVM::ConstantOp::create(builder, loc, i1, builder.getBoolAttr(value));
}

#define KVCACHE_BINARY(NAME, OP)                                               \
  Value Emitter::NAME(Value a, Value b) {                                      \
    return LLVM::OP::create(builder, loc, a, b);                               \
  }
KVCACHE_BINARY(add, AddOp)
KVCACHE_BINARY(sub, SubOp)
KVCACHE_BINARY(mul, MulOp)
KVCACHE_BINARY(sdiv, SDivOp)
KVCACHE_BINARY(srem, SRemOp)
KVCACHE_BINARY(bitAnd, AndOp)
KVCACHE_BINARY(bitOr, OrOp)
KVCACHE_BINARY(smin, SMinOp)
KVCACHE_BINARY(smax, SMaxOp)
KVCACHE_BINARY(fadd, FAddOp)
KVCACHE_BINARY(fsub, FSubOp)
KVCACHE_BINARY(fmul, FMulOp)
KVCACHE_BINARY(fdiv, FDivOp)
KVCACHE_BINARY(fmax, MaxNumOp)
#undef KVCACHE_BINARY

#define KVCACHE_COMPARE(NAME, OP, PREDICATE)                                   \
  Value Emitter::NAME(Value a, Value b) {                                      \
    return LLVM::OP::create(builder, loc, LLVM::PREDICATE, a, b);              \
  }
KVCACHE_COMPARE(slt, ICmpOp, ICmpPredicate::slt)
KVCACHE_COMPARE(sle, ICmpOp, ICmpPredicate::sle)
KVCACHE_COMPARE(sge, ICmpOp, ICmpPredicate::sge)
KVCACHE_COMPARE(eq, ICmpOp, ICmpPredicate::eq)
KVCACHE_COMPARE(feq, FCmpOp, FCmpPredicate::oeq)
KVCACHE_COMPARE(flt, FCmpOp, FCmpPredicate::olt)
#undef KVCACHE_COMPARE

static Value constantLike(Emitter &e, Value like, int64_t value) {
  return like.getType() == e.i64 ? e.i64c(value) : e.i32c(value);
}

Value Emitter::udiv(Value a, int64_t b) {
  return b == 1 ? a
                : Value(LLVM::UDivOp::create(builder, loc, a,
                                             constantLike(*this, a, b)));
}
Value Emitter::urem(Value a, int64_t b) {
  return LLVM::URemOp::create(builder, loc, a, constantLike(*this, a, b));
}
Value Emitter::shl(Value a, int64_t bits) {
  return LLVM::ShlOp::create(builder, loc, a, constantLike(*this, a, bits));
}
Value Emitter::lshr(Value a, int64_t bits) {
  return LLVM::LShrOp::create(builder, loc, a, constantLike(*this, a, bits));
}
Value Emitter::addi(Value a, int64_t b) {
  return b == 0 ? a : add(a, constantLike(*this, a, b));
}
Value Emitter::muli(Value a, int64_t b) {
  return b == 1 ? a : mul(a, constantLike(*this, a, b));
}
Value Emitter::sext64(Value a) {
  return LLVM::SExtOp::create(builder, loc, i64, a);
}
Value Emitter::trunc32(Value a) {
  return LLVM::TruncOp::create(builder, loc, i32, a);
}
Value Emitter::select(Value condition, Value a, Value b) {
  return LLVM::SelectOp::create(builder, loc, condition, a, b);
}

//===----------------------------------------------------------------------===//
// Floats
//===----------------------------------------------------------------------===//

Value Emitter::call(llvm::StringRef intrinsic, Type result,
                    ValueRange operands) {
  auto op = LLVM::CallIntrinsicOp::create(
      builder, loc, result, builder.getStringAttr(intrinsic), operands);
  return op.getResult(0);
}

Value Emitter::fma(Value a, Value b, Value c) {
  return LLVM::FMAOp::create(builder, loc, a, b, c);
}
Value Emitter::fabs(Value a) { return LLVM::FAbsOp::create(builder, loc, a); }
Value Emitter::exp2(Value a) {
  return call("llvm.nvvm.ex2.approx.f32", f32, a);
}
Value Emitter::log2(Value a) { return call("llvm.nvvm.lg2.approx.f", f32, a); }
Value Emitter::sitofp(Value a) {
  return LLVM::SIToFPOp::create(builder, loc, f32, a);
}
Value Emitter::toInt(Value a) {
  return LLVM::BitcastOp::create(builder, loc, i32, a);
}
Value Emitter::toFloat(Value a) {
  return LLVM::BitcastOp::create(builder, loc, f32, a);
}
Value Emitter::pow2(Value e) { return toFloat(shl(addi(e, 127), 23)); }

static Type pairType(Emitter &e, Half kind) {
  Type half = kind == Half::F16 ? Type(e.builder.getF16Type())
                                : Type(e.builder.getBF16Type());
  return VectorType::get(2, half);
}
static Value toPair(Emitter &e, Value v, Half kind = Half::F16) {
  return LLVM::BitcastOp::create(e.builder, e.loc, pairType(e, kind), v);
}
static Value fromPair(Emitter &e, Value v) {
  return LLVM::BitcastOp::create(e.builder, e.loc, e.i32, v);
}

Value Emitter::hmul(Value a, Value b) {
  return fromPair(*this, fmul(toPair(*this, a), toPair(*this, b)));
}
Value Emitter::hsub(Value a, Value b) {
  return fromPair(*this, fsub(toPair(*this, a), toPair(*this, b)));
}
Value Emitter::hfma(Value a, Value b, Value c) {
  return fromPair(*this,
                  fma(toPair(*this, a), toPair(*this, b), toPair(*this, c)));
}
Value Emitter::hneg(Value a) {
  return LLVM::XOrOp::create(builder, loc, a, i32c(0x80008000));
}

Value Emitter::pack(Half kind, Value low, Value high) {
  // The first operand of cvt.rn.f16x2.f32 is the high half.
  return fromPair(*this, call(kind == Half::F16 ? "llvm.nvvm.ff2f16x2.rn"
                                                : "llvm.nvvm.ff2bf16x2.rn",
                              pairType(*this, kind), {high, low}));
}

std::pair<Value, Value> Emitter::unpack(Half kind, Value pair) {
  if (kind == Half::BF16)
    return {toFloat(shl(pair, 16)), toFloat(bitAnd(pair, i32c(0xffff0000)))};
  Value vector = toPair(*this, pair);
  auto part = [&](int64_t i) -> Value {
    Value half = LLVM::ExtractElementOp::create(builder, loc, vector, i32c(i));
    return LLVM::FPExtOp::create(builder, loc, f32, half);
  };
  return {part(0), part(1)};
}

Value Emitter::extend(Half kind, Value bits) {
  if (kind == Half::BF16) {
    Value wide = LLVM::ZExtOp::create(builder, loc, i32, bits);
    return toFloat(shl(wide, 16));
  }
  Value half =
      LLVM::BitcastOp::create(builder, loc, builder.getF16Type(), bits);
  return LLVM::FPExtOp::create(builder, loc, f32, half);
}

Value Emitter::round(Half kind, Value f) {
  return LLVM::TruncOp::create(builder, loc, i16, pack(kind, f, f32c(0)));
}

Value Emitter::prmt(Value a, Value b, int64_t selector) {
  return NVVM::PermuteOp::create(builder, loc, i32, a, b, i32c(selector),
                                 NVVM::PermuteMode::DEFAULT);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value Emitter::gep(Value pointer, Value offset) {
  return LLVM::GEPOp::create(builder, loc, pointer.getType(), i8, pointer,
                             ValueRange{offset});
}
Value Emitter::gep(Value pointer, int64_t offset) {
  if (offset == 0)
    return pointer;
  return LLVM::GEPOp::create(builder, loc, pointer.getType(), i8, pointer,
                             ArrayRef<LLVM::GEPArg>{int32_t(offset)});
}
Value Emitter::load(Type type, Value pointer, int64_t align) {
  return LLVM::LoadOp::create(builder, loc, type, pointer, unsigned(align));
}
void Emitter::store(Value value, Value pointer, int64_t align) {
  LLVM::StoreOp::create(builder, loc, value, pointer, unsigned(align));
}

Values Emitter::loadWords(Value pointer, int64_t words) {
  if (words == 1)
    return {load(i32, pointer, 4)};
  Value vector = load(VectorType::get(words, i32), pointer, words * 4);
  Values result;
  for (int64_t i = 0; i < words; ++i)
    result.push_back(
        LLVM::ExtractElementOp::create(builder, loc, vector, i32c(i)));
  return result;
}

Value Emitter::atomicAdd(Value pointer, Value value) {
  return LLVM::AtomicRMWOp::create(builder, loc, LLVM::AtomicBinOp::add,
                                   pointer, value,
                                   LLVM::AtomicOrdering::monotonic, "device");
}
void Emitter::fence() {
  NVVM::MembarOp::create(builder, loc, NVVM::MemScopeKind::GPU);
}
void Emitter::warpSync() {
  NVVM::SyncWarpOp::create(builder, loc, i32c(kWholeWarp));
}
void Emitter::barrier() { NVVM::Barrier0Op::create(builder, loc); }

//===----------------------------------------------------------------------===//
// The warp
//===----------------------------------------------------------------------===//

Value Emitter::threadId() {
  return NVVM::ThreadIdXOp::create(builder, loc, i32);
}
Value Emitter::blockId() { return NVVM::BlockIdXOp::create(builder, loc, i32); }

Value Emitter::shflXor(Value v, int64_t mask) {
  return NVVM::ShflOp::create(builder, loc, v.getType(), i32c(kWholeWarp), v,
                              i32c(mask), i32c(31), NVVM::ShflKind::bfly,
                              UnitAttr());
}
Value Emitter::shflIdx(Value v, Value lane) {
  return NVVM::ShflOp::create(builder, loc, v.getType(), i32c(kWholeWarp), v,
                              lane, i32c(31), NVVM::ShflKind::idx, UnitAttr());
}

Value Emitter::movmatrix(Value v) {
  // No intrinsic has this instruction (PTX ISA, "movmatrix").
  auto op = LLVM::InlineAsmOp::create(
      builder, loc, i32, ValueRange{v},
      "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r",
      /*has_side_effects=*/true, /*is_align_stack=*/false,
      LLVM::TailCallKind::None,
      LLVM::AsmDialectAttr::get(builder.getContext(), LLVM::AsmDialect::AD_ATT),
      ArrayAttr());
  return op.getResult(0);
}

Values Emitter::mma(Half kind, ArrayRef<Value> a, ArrayRef<Value> b,
                    ArrayRef<Value> c) {
  auto result = LLVM::LLVMStructType::getLiteral(builder.getContext(),
                                                 {f32, f32, f32, f32});
  Values av, bv;
  for (Value v : a)
    av.push_back(kind == Half::F16 ? toPair(*this, v) : v);
  for (Value v : b)
    bv.push_back(kind == Half::F16 ? toPair(*this, v) : v);
  NVVM::MMATypes type =
      kind == Half::F16 ? NVVM::MMATypes::f16 : NVVM::MMATypes::bf16;
  auto op = NVVM::MmaOp::create(
      builder, loc, result, av, bv, c, ArrayRef<int64_t>{16, 8, 16},
      std::nullopt, std::nullopt, std::array<NVVM::MMATypes, 2>{type, type},
      std::array<NVVM::MMALayout, 2>{NVVM::MMALayout::row,
                                     NVVM::MMALayout::col});
  Values parts;
  for (int64_t i = 0; i < 4; ++i)
    parts.push_back(LLVM::ExtractValueOp::create(builder, loc, op, i));
  return parts;
}

//===----------------------------------------------------------------------===//
// Control flow
//===----------------------------------------------------------------------===//

/// Ends the current block here; what follows goes to the returned block, to
/// which nothing branches yet. The builder stays at the end of the current one.
Block *Emitter::splitHere() {
  Block *current = builder.getInsertionBlock();
  Block *next = current->splitBlock(builder.getInsertionPoint());
  builder.setInsertionPointToEnd(current);
  return next;
}

static Values addArguments(Block *block, Location loc, ArrayRef<Value> like) {
  Values arguments;
  for (Value v : like)
    arguments.push_back(block->addArgument(v.getType(), loc));
  return arguments;
}

Values Emitter::forLoop(Value begin, Value end, Value step, Values inits,
                        Body body) {
  Block *after = splitHere();
  Block *head = builder.createBlock(after);
  Block *inside = builder.createBlock(after);
  Values first = inits;
  first.insert(first.begin(), begin);

  Block *before = head->getPrevNode();
  builder.setInsertionPointToEnd(before);
  LLVM::BrOp::create(builder, loc, first, head);

  Values carried = addArguments(head, loc, first);
  builder.setInsertionPointToEnd(head);
  Values rest(llvm::drop_begin(carried));
  Values results = addArguments(after, loc, rest);
  LLVM::CondBrOp::create(builder, loc, slt(carried[0], end), inside,
                         ValueRange{}, after, rest);

  builder.setInsertionPointToEnd(inside);
  Values next = body(carried[0], rest);
  next.insert(next.begin(), add(carried[0], step));
  LLVM::BrOp::create(builder, loc, next, head);
  builder.setInsertionPointToStart(after);
  return results;
}

Values Emitter::ifThen(Value condition, Values otherwise,
                       llvm::function_ref<Values()> then) {
  Block *after = splitHere();
  Block *before = builder.getInsertionBlock();
  Block *inside = builder.createBlock(after);
  Values results = addArguments(after, loc, otherwise);
  builder.setInsertionPointToEnd(before);
  LLVM::CondBrOp::create(builder, loc, condition, inside, ValueRange{}, after,
                         otherwise);
  builder.setInsertionPointToEnd(inside);
  LLVM::BrOp::create(builder, loc, then(), after);
  builder.setInsertionPointToStart(after);
  return results;
}

void Emitter::exitIf(Value condition) {
  Block *after = splitHere();
  Block *before = builder.getInsertionBlock();
  Block *leave = builder.createBlock(after);
  builder.setInsertionPointToEnd(before);
  LLVM::CondBrOp::create(builder, loc, condition, leave, after);
  builder.setInsertionPointToEnd(leave);
  ret();
  builder.setInsertionPointToStart(after);
}

void Emitter::ret() { LLVM::ReturnOp::create(builder, loc, ValueRange{}); }
