//===- KVTileToCPU.cpp - Kernels as serial vector code --------------------===//
//
// The pass, and the pipeline from its dialects to LLVM's.
//
//===----------------------------------------------------------------------===//

#include "kvcache/Conversion/KVTileToCPU.h"
#include "ArrayLowering.h"
#include "AttendLowering.h"
#include "kvcache/Conversion/KVCacheToKVTile.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Transforms/Passes.h"

namespace kvcache {
#define GEN_PASS_DEF_CONVERTKVTILETOCPUPASS
#include "kvcache/Conversion/KVTilePasses.h.inc"
} // namespace kvcache

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

LogicalResult kvcache::lowerKernelToCpu(KernelOp kernel) {
  if (!kernel.getSchedule() || kernel.getBody().empty())
    return kernel.emitOpError("expected a scheduled kernel with a body; run "
                              "kvtile-choose-schedule and "
                              "kvtile-expand-attend first");
  ScheduleAttr schedule = *kernel.getSchedule();
  KernelSpec spec = kernel.getSpec().getKernelSpec();
  if (!schedule.getVectorBits())
    return kernel.emitOpError("the schedule is for a GPU (vector_bits = 0)");
  if (schedule.getTileTokens() != spec.format.page)
    return kernel.emitOpError("expected tile_tokens to be the page (")
           << spec.format.page << ") on CPUs, got " << schedule.getTileTokens();
  Expected<PageImage> image = PageImage::create(
      spec.format, spec.headDim, spec.valueDim, ImageFamily::X86_64);
  if (auto *error = std::get_if<FormatError>(&image))
    return kernel.emitOpError() << error->message;
  if (failed(AttendLowering(kernel, std::get<PageImage>(image)).run()))
    return failure();
  emitMerge(kernel);
  kernel.erase();
  return success();
}

LogicalResult kvcache::lowerArrayKernelToCpu(ArrayKernelOp kernel) {
  if (!kernel.getSchedule() || kernel.getBody().empty())
    return kernel.emitOpError("expected a scheduled kernel with a body; run "
                              "kvtile-choose-schedule and "
                              "kvtile-expand-attend first");
  if (!kernel.getSchedule()->getVectorBits())
    return kernel.emitOpError("the schedule is for a GPU (vector_bits = 0)");
  bool few = kernel.getSchedule()->getOrientation() == Orientation::KeysA;
  auto lowering = few ? createChannelLanes(kernel) : createQueryLanes(kernel);
  if (failed(lowering->run()))
    return failure();
  kernel.erase();
  return success();
}

void kvcache::buildCpuToLLVMPipeline(OpPassManager &passes) {
  passes.addPass(createCanonicalizerPass());
  passes.addPass(createCSEPass());
  passes.addPass(createSCFToControlFlowPass());
  passes.addPass(createConvertVectorToLLVMPass());
  passes.addPass(createConvertMathToLLVMPass());
  passes.addPass(createArithToLLVMConversionPass());
  passes.addPass(createConvertControlFlowToLLVMPass());
  passes.addPass(createConvertFuncToLLVMPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
}

namespace {
struct ConvertKVTileToCPU
    : public kvcache::impl::ConvertKVTileToCPUPassBase<ConvertKVTileToCPU> {
  void runOnOperation() override {
    for (auto kernel :
         llvm::make_early_inc_range(getOperation().getOps<KernelOp>()))
      if (failed(lowerKernelToCpu(kernel)))
        return signalPassFailure();
    for (auto kernel :
         llvm::make_early_inc_range(getOperation().getOps<ArrayKernelOp>()))
      if (failed(lowerArrayKernelToCpu(kernel)))
        return signalPassFailure();
  }
};
} // namespace
