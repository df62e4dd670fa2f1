//===- Builder.h - What the storage kernels are written with ----*- C++ -*-===//
//
// `Kernel` is one entry point under construction: its arguments by name, loops
// shared among the threads of a block (or not), and typed access to the bytes
// of records. Offsets within a record are i32, everything that reaches a pool
// is i64.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_LIB_CONVERSION_STORAGEKERNELS_BUILDER_H
#define KVCACHE_LIB_CONVERSION_STORAGEKERNELS_BUILDER_H

#include "kvcache/Conversion/IRNumbers.h"
#include "kvcache/Conversion/StorageKernels.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "llvm/ADT/StringMap.h"

namespace kvcache::storage {

using ir::Bool;
using ir::Float;
using ir::Int;

/// What all four kernels share.
struct Context {
  const KernelSpec &spec;
  const StorageTarget &target;
  const PageImage &image;
  mutable mlir::ModuleOp module; // a handle; its accessors are not const

  bool blocks() const { return target.model == StorageTarget::Model::Blocks; }
  int64_t openBytes() const {
    return openRecordBytes(spec.dtype, spec.format.page, spec.headDim,
                           spec.valueDim);
  }
};

/// A field of an argument list of KernelABI.h.
struct Field {
  llvm::StringRef name;
  bool isPointer;
};

using Values = llvm::SmallVector<mlir::Value, 2>;

class Kernel {
public:
  Kernel(const Context &context, llvm::StringRef name,
         llvm::ArrayRef<Field> fields);

  const Context &context;
  mlir::OpBuilder builder;
  ir::Env env;
  /// For indices and offsets, which never overflow.
  ir::Env geometry;

  mlir::Value pointer(llvm::StringRef field) const {
    return args.lookup(field);
  }
  Int number(llvm::StringRef field) { return {env, args.lookup(field)}; }
  Int begin, end;

  /// Calls `body` for each work item (Serial), or once for the block's own.
  void forItems(llvm::function_ref<void(Int item)> body);
  /// Ends the kernel: returns `status` (Serial), or nothing.
  void finish(Int status);
  void finish() { finish(ir::i32(env, 0)); }

  /// for (i = from; i < to; i += step), carrying values.
  Values loop(Int from, Int to, int64_t step, mlir::ValueRange init,
              llvm::function_ref<Values(Int i, mlir::ValueRange)> body);
  void loop(Int from, Int to, int64_t step,
            llvm::function_ref<void(Int i)> body);
  /// The i32 numbers below `count`, shared among the threads of the block.
  Values share(int64_t count, mlir::ValueRange init,
               llvm::function_ref<Values(Int i, mlir::ValueRange)> body);
  void share(int64_t count, llvm::function_ref<void(Int i)> body);
  void when(Bool condition, llvm::function_ref<void()> body);
  /// The value of `body` if `condition`, else `otherwise`.
  mlir::Value choose(Bool condition, mlir::Value otherwise,
                     llvm::function_ref<mlir::Value()> body);
  /// By one thread of the block only.
  void once(llvm::function_ref<void()> body);
  /// Makes what any thread of the block stored visible to all of them.
  void barrier();
  Int threadId();
  Int blockId();

  mlir::Value at(mlir::Value base, Int bytes);
  /// Integers of `bits` bits, zero-extended to 32 unless wider; `lanes` > 1 is
  /// a vector.
  Int loadInt(mlir::Value p, unsigned bits, int64_t lanes = 1);
  void storeInt(mlir::Value p, Int value, unsigned bits);
  /// A float element (f32 f16 bf16) as f32, and back (rounding).
  Float loadFloat(mlir::Value p, Element e, int64_t lanes = 1);
  void storeFloat(mlir::Value p, Element e, Float x);

  /// The page number `pages[item / kvHeads]`, and the address of its record.
  mlir::Value record(mlir::Value pool, mlir::Value pages, Int item,
                     int64_t recordBytes);

private:
  llvm::StringMap<mlir::Value> args;
};

/// The keys, or the values, of one item.
struct Side {
  const TensorImage &image;
  Section codes, scales, zeros;
  llvm::StringRef staticScale; ///< argument
  int64_t openOffset;          ///< bytes in the open record
  unsigned exponent;           ///< word of the scales; + 2 for the zeros
};
llvm::SmallVector<Side, 2> sidesOf(const Context &context);

/// The scales of a record while codes are made or read.
class Scales {
public:
  Scales(Kernel &k, const Side &side, mlir::Value record, Int item);
  /// Scale and zero (any value if symmetric) of `lanes` elements in a row.
  std::pair<Float, Float> of(Int token, Int channel, int64_t lanes = 1);
  Float load(Section section, Int index, int64_t lanes = 1);
  void store(Section section, Int index, Float x);

private:
  Kernel &k;
  const Side &side;
  mlir::Value record;
  Float fixed; ///< the static scale
};

/// How the words of a record's codes are walked, so that each step handles
/// codes of neighbouring channels of one token, `count` at a time.
struct Lanes {
  enum Kind {
    None,  ///< one code at a time
    Slots, ///< the slots of a word are channels of one token (x86-64 keys)
    Words  ///< neighbouring words are channels (x86-64 values)
  };
  Kind kind = None;
  int64_t count = 1;

  static Lanes of(const Context &context, const TensorImage &image);
  /// Words handled by one step.
  int64_t words() const { return kind == Words ? count : 1; }
  /// Steps' slots: with `Slots` all of a word's at once.
  int64_t slots(const TensorImage &image) const {
    return kind == Slots ? 1 : image.slotsPerWord();
  }
  /// What shifts the code(s) of step slot `slot` to their place.
  Int shift(Kernel &k, const TensorImage &image, int64_t slot) const;
};

/// Calls `visit(token, channel, decoded, code)` for the elements of a record's
/// codes, words shared among the threads; `channel` is the first of as many as
/// the last two arguments have lanes. `code` serves elements that are copied as
/// they are.
void visitCodes(Kernel &k, const Side &side, mlir::Value record, Int item,
                llvm::function_ref<void(Int, Int, Float, Int)> visit);

void buildAppend(const Context &context);
void buildSeal(const Context &context);
void buildUnseal(const Context &context);
void buildRead(const Context &context);

} // namespace kvcache::storage

#endif // KVCACHE_LIB_CONVERSION_STORAGEKERNELS_BUILDER_H
