//===- Invoke.cpp - Calling a compiled function on arrays -----------------===//
//
// A memref argument arrives as its descriptor's fields (two pointers, offset,
// sizes, strides), one parameter each; results come back in one struct. A
// wrapper in LLVM IR loads every parameter from an 8-byte slot, so that one C
// signature serves all functions.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Runner/Invoke.h"
#include "kvcache/Conversion/KVCacheToReference/Check.h"
#include "kvcache/Runner/Arrays.h"

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

/// Appends the slots of one argument; the data stays in `storage`.
static void pushArgument(const NpyArray &array, Type type,
                         std::vector<AlignedBytes> &storage,
                         std::vector<uint64_t> &slots) {
  if (!isa<ShapedType>(type)) {
    uint64_t slot = 0;
    std::memcpy(&slot, array.data.data(), array.data.size());
    slots.push_back(slot);
    return;
  }
  storage.emplace_back(array.data.size());
  std::byte *data = storage.back().data();
  if (!array.data.empty())
    std::memcpy(data, array.data.data(), array.data.size());
  slots.push_back(reinterpret_cast<uint64_t>(data));
  slots.push_back(reinterpret_cast<uint64_t>(data));
  slots.push_back(0);
  for (int64_t d : array.shape)
    slots.push_back(d);
  std::vector<uint64_t> strides(array.shape.size(), 1);
  for (size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = strides[i] * array.shape[i];
  slots.insert(slots.end(), strides.begin(), strides.end());
}

static NpyArray readResult(const std::byte *at, Type type) {
  Type element = getElementTypeOrSelf(type);
  auto shaped = dyn_cast<ShapedType>(type);
  if (!shaped)
    return gatherResult(element, at, {}, {});
  struct Header {
    std::byte *allocated, *aligned;
    int64_t offset;
  } header;
  std::memcpy(&header, at, sizeof(header));
  std::vector<int64_t> dims(2 * shaped.getRank());
  if (!dims.empty())
    std::memcpy(dims.data(), at + sizeof(header), dims.size() * 8);
  ArrayRef<int64_t> all(dims);
  return gatherResult(
      element, header.aligned + header.offset * elementBytes(element),
      all.take_front(shaped.getRank()), all.take_back(shaped.getRank()));
}

llvm::Expected<std::vector<NpyArray>>
kvcache::invoke(ModuleOp module, StringRef entry, FunctionType type,
                std::vector<NpyArray> arrays, CpuTier tier) {
  registerBuiltinDialectTranslation(*module.getContext());
  registerLLVMDialectTranslation(*module.getContext());
  auto context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> llvmModule =
      translateModuleToLLVMIR(module, *context);
  if (!llvmModule)
    return llvm::createStringError("translation to LLVM IR failed");
  if (llvm::Error error = addWrapper(*llvmModule, entry))
    return error;
  auto machine = x86::createTargetMachine(tier);
  if (!machine)
    return machine.takeError();
  llvmModule->setDataLayout((*machine)->createDataLayout());
  size_t size = 0;
  std::vector<size_t> offsets =
      resultOffsets(*llvmModule, entry, type.getNumResults(), size);

  auto jit =
      x86::Jit::create(std::move(context), std::move(llvmModule), tier, 2);
  if (!jit)
    return jit.takeError();
  auto run = (*jit)->lookup(kWrapper);
  if (!run)
    return run.takeError();
  std::vector<AlignedBytes> storage;
  std::vector<uint64_t> slots;
  for (auto [array, argument] : llvm::zip(arrays, type.getInputs()))
    pushArgument(array, argument, storage, slots);
  AlignedBytes results(size);
  reinterpret_cast<void (*)(uint64_t *, std::byte *)>(*run)(slots.data(),
                                                            results.data());
  // A failed check has left its record; results mean nothing then.
  if (auto record = (*jit)->lookup(kCheckRecord)) {
    if (std::string message =
            describeCheck(static_cast<const int64_t *>(*record));
        !message.empty())
      return llvm::createStringError(message);
  } else {
    llvm::consumeError(record.takeError());
  }
  std::vector<NpyArray> outputs;
  for (auto [offset, result] : llvm::zip(offsets, type.getResults()))
    outputs.push_back(readResult(results.data() + offset, result));
  return outputs;
}
