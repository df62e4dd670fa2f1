//===- XlaCompile.cpp - Kernels for slices of a graph ---------------------===//
//
// A slice becomes a function of its own whose results are arguments: XLA's
// result buffers, which the code fills where they lie.
//
//===----------------------------------------------------------------------===//
#include "XlaFfi.h"
#include "XlaSlice.h"

#include "kvcache/Pipelines/CpuPipelines.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/Support/SHA256.h"

using namespace kvcache;
using namespace mlir;

static constexpr llvm::StringLiteral kEntry = "kvcache_slice";

/// XLA's number of an element type, -1 for what it has no buffers of.
static int32_t xlaType(Type element) {
  if (isa<Float16Type>(element))
    return xla::F16;
  if (isa<BFloat16Type>(element))
    return xla::BF16;
  if (isa<Float32Type>(element))
    return xla::F32;
  if (isa<Float64Type>(element))
    return xla::F64;
  if (isa<Float8E5M2Type>(element))
    return xla::F8E5M2;
  if (isa<Float8E4M3FNType>(element))
    return xla::F8E4M3FN;
  bool isUnsigned = element.isUnsignedInteger();
  switch (element.isIntOrFloat() ? element.getIntOrFloatBitWidth() : 0) {
  case 1:
    return xla::PRED;
  case 8:
    return isUnsigned ? xla::U8 : xla::S8;
  case 16:
    return isUnsigned ? xla::U16 : xla::S16;
  case 32:
    return isUnsigned ? xla::U32 : xla::S32;
  case 64:
    return isUnsigned ? xla::U64 : xla::S64;
  default:
    return -1;
  }
}

static XlaBufferType bufferType(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  return {xlaType(type.getElementType()), llvm::to_vector(type.getShape())};
}

/// The value that a result only gives another shape.
static Value beforeReshapes(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp>(op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

/// func.func @kvcache_slice(leaves) -> (results).
static OwningOpRef<ModuleOp> buildModule(const Slice &slice,
                                         MLIRContext &context) {
  auto loc = UnknownLoc::get(&context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  SmallVector<Value> results(llvm::map_range(slice.results, beforeReshapes));
  auto type = FunctionType::get(
      &context, llvm::to_vector(ValueRange(slice.leafCopies).getTypes()),
      llvm::to_vector(ValueRange(results).getTypes()));
  auto function = func::FuncOp::create(b, loc, kEntry, type);
  Block *body = function.addEntryBlock();
  b.setInsertionPointToEnd(body);
  IRMapping map;
  map.map(slice.leafCopies, body->getArguments());
  for (Operation *op : slice.ops)
    b.clone(*op, map)->removeAttr(import::kSourceAttr);
  SmallVector<Value> returned;
  for (Value result : results)
    returned.push_back(map.lookup(result));
  func::ReturnOp::create(b, loc, returned);
  for (unsigned i = 0; i < type.getNumInputs(); ++i)
    function.setArgAttr(i,
                        bufferization::BufferizationDialect::kWritableAttrName,
                        b.getBoolAttr(false));
  return module;
}

/// A name that only code of the same text and tier has.
static std::string hashOf(ModuleOp module, CpuTier tier) {
  std::string text = std::string(nameOf(tier)) + "\n";
  llvm::raw_string_ostream(text) << module;
  std::array<uint8_t, 32> hash = llvm::SHA256::hash(llvm::ArrayRef(
      reinterpret_cast<const uint8_t *>(text.data()), text.size()));
  return llvm::toHex(llvm::ArrayRef(hash).take_front(16), /*LowerCase=*/true);
}

static llvm::Expected<std::unique_ptr<Executable>>
compile(ModuleOp module, GraphModule &graph, CpuTier tier) {
  auto function = module.lookupSymbol<func::FuncOp>(kEntry);
  FunctionType type = function.getFunctionType();
  SmallVector<Type> all(type.getInputs());
  llvm::append_range(all, type.getResults());
  auto run = [&](import::PipelineBuilder build) {
    return graph.run(module, build);
  };
  if (failed(import::finish(module, run)) || failed(run([](OpPassManager &pm) {
        buildToCpuPipeline(pm, /*resultsAsArguments=*/true);
      })))
    return llvm::createStringError(graph.error("not compiled").message);
  return Executable::create(module, kEntry,
                            FunctionType::get(&graph.context, all, {}), tier);
}

FailureOr<std::string> kvcache::compileSlice(const Slice &slice,
                                             GraphModule &graph, CpuTier tier,
                                             std::string &why) {
  auto kernel = std::make_shared<XlaKernel>();
  for (Value leaf : slice.leaves)
    kernel->inputs.push_back(bufferType(leaf));
  for (auto [result, originals] : llvm::zip(slice.results, slice.replaced)) {
    kernel->outputs.push_back(bufferType(originals.front()));
    auto type = cast<RankedTensorType>(beforeReshapes(result).getType());
    kernel->outputShapes.push_back(llvm::to_vector(type.getShape()));
  }
  for (const auto *list : {&kernel->inputs, &kernel->outputs})
    for (const XlaBufferType &type : *list)
      if (type.dtype < 0) {
        why = "it needs a tensor of a type that XLA's custom calls do not take";
        return failure();
      }
  OwningOpRef<ModuleOp> module = buildModule(slice, graph.context);
  std::string name = hashOf(*module, tier);
  if (hasXlaKernel(name))
    return name;
  auto code = compile(*module, graph, tier);
  if (!code) {
    why = "its kernel was not compiled: " + llvm::toString(code.takeError());
    return failure();
  }
  kernel->code = std::move(*code);
  addXlaKernel(name, std::move(kernel));
  return name;
}
