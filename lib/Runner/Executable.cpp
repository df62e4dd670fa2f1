//===- Executable.cpp - A compiled function that is called often ----------===//
//
// A memref argument arrives as its descriptor's fields (two pointers, offset,
// sizes, strides), one parameter each; results come back in one struct. A
// wrapper in LLVM IR loads every parameter from an 8-byte slot, so that one C
// signature serves all functions.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Runner/Executable.h"
#include "kvcache/Conversion/KVCacheToReference/Check.h"
#include "kvcache/Runner/Arrays.h"

#include "RunMemory.h"

#include "mlir/IR/TypeUtilities.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"

#include <cstring>

using namespace kvcache;
using namespace mlir;

static constexpr llvm::StringLiteral kWrapper = "__kvcache_run";

/// Adds `void __kvcache_run(ptr slots, ptr results)` that calls `entry`.
static llvm::Error addWrapper(llvm::Module &module, StringRef entry) {
  llvm::Function *callee = module.getFunction(entry);
  if (!callee || callee->isDeclaration())
    return llvm::createStringError("'" + entry + "' has no body");
  llvm::LLVMContext &context = module.getContext();
  llvm::IRBuilder<> b(context);
  llvm::Type *ptr = b.getPtrTy();
  auto *wrapper = llvm::Function::Create(
      llvm::FunctionType::get(b.getVoidTy(), {ptr, ptr}, false),
      llvm::Function::ExternalLinkage, kWrapper, module);
  b.SetInsertPoint(llvm::BasicBlock::Create(context, "", wrapper));
  SmallVector<llvm::Value *> args;
  for (llvm::Argument &param : callee->args()) {
    llvm::Value *slot = b.CreateConstInBoundsGEP1_64(
        b.getInt64Ty(), wrapper->getArg(0), args.size());
    args.push_back(b.CreateLoad(param.getType(), slot));
  }
  llvm::Value *result = b.CreateCall(callee, args);
  if (!result->getType()->isVoidTy())
    b.CreateStore(result, wrapper->getArg(1));
  b.CreateRetVoid();
  return llvm::Error::success();
}

/// Byte offset of each of `count` results in what the wrapper stores.
static std::vector<size_t> resultOffsets(llvm::Module &module, StringRef entry,
                                         size_t count, size_t &size) {
  llvm::Type *type = module.getFunction(entry)->getReturnType();
  size = type->isVoidTy() ? 0 : module.getDataLayout().getTypeAllocSize(type);
  std::vector<size_t> offsets(count, 0);
  if (count > 1) {
    const llvm::StructLayout *layout = module.getDataLayout().getStructLayout(
        llvm::cast<llvm::StructType>(type));
    for (size_t i = 0; i < count; ++i)
      offsets[i] = layout->getElementOffset(i);
  }
  return offsets;
}

llvm::Expected<std::unique_ptr<Executable>>
Executable::create(ModuleOp module, StringRef entry, FunctionType type,
                   CpuTier tier, x86::JitSymbols symbols) {
  registerBuiltinDialectTranslation(*module.getContext());
  registerLLVMDialectTranslation(*module.getContext());
  auto context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> llvmModule =
      translateModuleToLLVMIR(module, *context);
  if (!llvmModule)
    return llvm::createStringError("translation to LLVM IR failed");
  for (llvm::Function &function : *llvmModule)
    if (StringRef ours = RunMemory::replacementOf(function.getName());
        !ours.empty() && function.isDeclaration())
      function.setName(ours);
  if (llvm::Error error = addWrapper(*llvmModule, entry))
    return error;
  auto machine = x86::createTargetMachine(tier);
  if (!machine)
    return machine.takeError();
  llvmModule->setDataLayout((*machine)->createDataLayout());

  auto made = std::make_unique<Executable>();
  made->offsets = resultOffsets(*llvmModule, entry, type.getNumResults(),
                                made->resultBytes);
  auto slot = [](Type t) {
    auto shaped = dyn_cast<ShapedType>(t);
    return Slot{shaped ? shaped.getRank() : -1,
                elementBytes(getElementTypeOrSelf(t))};
  };
  for (Type t : type.getInputs())
    made->inputs.push_back(slot(t));
  for (Type t : type.getResults())
    made->outputs.push_back(slot(t));
  SmallVector<std::pair<StringRef, void *>> all(RunMemory::symbols());
  llvm::append_range(all, symbols);
  auto jit = x86::Jit::create(std::move(context), std::move(llvmModule), tier,
                              2, false, all);
  if (!jit)
    return jit.takeError();
  made->jit = std::move(*jit);
  auto run = made->jit->lookup(kWrapper);
  if (!run)
    return run.takeError();
  made->run = reinterpret_cast<decltype(made->run)>(*run);
  if (auto record = made->jit->lookup(kCheckRecord))
    made->checkRecord = static_cast<int64_t *>(*record);
  else
    llvm::consumeError(record.takeError());
  return made;
}

/// Appends the slots of one argument.
static void pushArgument(const ArrayView &array, bool isScalar, unsigned bytes,
                         std::vector<uint64_t> &slots) {
  if (isScalar) {
    uint64_t slot = 0;
    std::memcpy(&slot, array.data, bytes);
    slots.push_back(slot);
    return;
  }
  slots.push_back(reinterpret_cast<uint64_t>(array.data));
  slots.push_back(reinterpret_cast<uint64_t>(array.data));
  slots.push_back(0);
  for (int64_t d : array.shape)
    slots.push_back(d);
  size_t first = slots.size();
  slots.resize(first + array.shape.size());
  uint64_t stride = 1;
  for (size_t i = array.shape.size(); i-- > 0;) {
    slots[first + i] = stride;
    stride *= array.shape[i];
  }
}

/// A scalar as an array of its own.
static RunResult scalarResult(const std::byte *at, unsigned bytes,
                              RunMemory &memory) {
  RunResult result;
  auto *take =
      reinterpret_cast<void *(*)(size_t)>(RunMemory::symbols().front().second);
  result.data = result.owner = static_cast<std::byte *>(take(bytes));
  std::memcpy(result.data, at, bytes);
  memory.release(result.owner);
  return result;
}

static RunResult tensorResult(const std::byte *at, int64_t rank, unsigned bytes,
                              RunMemory &memory) {
  struct Header {
    std::byte *allocated, *aligned;
    int64_t offset;
  } header;
  std::memcpy(&header, at, sizeof(header));
  RunResult result;
  result.sizes.resize(rank);
  result.strides.resize(rank);
  if (rank > 0) {
    at += sizeof(header);
    std::memcpy(result.sizes.data(), at, rank * 8);
    std::memcpy(result.strides.data(), at + rank * 8, rank * 8);
  }
  result.data = header.aligned + header.offset * bytes;
  // Of two results in one block the second must be copied by its reader.
  if (memory.release(header.allocated))
    result.owner = header.allocated;
  return result;
}

llvm::Expected<std::vector<RunResult>>
Executable::call(ArrayRef<ArrayView> args) {
  std::vector<uint64_t> slots;
  for (auto [array, slot] : llvm::zip_equal(args, inputs))
    pushArgument(array, slot.rank < 0, slot.bytes, slots);
  std::vector<std::byte> raw(resultBytes + 1);
  std::unique_lock<std::mutex> lock(checked, std::defer_lock);
  if (checkRecord) {
    lock.lock();
    checkRecord[0] = 0;
  }
  RunMemory memory;
  run(slots.data(), raw.data());
  // A failed check has left its record; results mean nothing then.
  if (checkRecord)
    if (std::string message = describeCheck(checkRecord); !message.empty())
      return llvm::createStringError(message);
  std::vector<RunResult> results;
  for (auto [offset, slot] : llvm::zip_equal(offsets, outputs))
    results.push_back(
        slot.rank < 0
            ? scalarResult(raw.data() + offset, slot.bytes, memory)
            : tensorResult(raw.data() + offset, slot.rank, slot.bytes, memory));
  return results;
}
