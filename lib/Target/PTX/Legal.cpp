//===- Legal.cpp - Which ops may reach the NVPTX backend ------------------===//
//
// LLVM aborts the process when asked for an instruction that a chip lacks, so
// the set of accepted ops is closed: an op or intrinsic that is not in the
// tables below is refused by name, whatever the chip. The numbers are the least
// compute capability (PTX ISA, "Target ISA notes" of each instruction).
//
//===----------------------------------------------------------------------===//
#include "kvcache/Target/PTX/PTX.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace kvcache;

/// Least compute capability of the nvvm ops that our lowerings make.
static const llvm::StringMap<int> &nvvmOps() {
  static const llvm::StringMap<int> table = {
      {"nvvm.read.ptx.sreg.tid.x", 20},
      {"nvvm.read.ptx.sreg.ntid.x", 20},
      {"nvvm.read.ptx.sreg.ctaid.x", 20},
      {"nvvm.read.ptx.sreg.nctaid.x", 20},
      {"nvvm.read.ptx.sreg.laneid", 20},
      {"nvvm.barrier0", 20},
      {"nvvm.barrier", 20},
      {"nvvm.bar.warp.sync", 30},
      {"nvvm.memory.barrier", 20},
      {"nvvm.shfl.sync", 30},
      {"nvvm.prmt", 20},
      {"nvvm.ldmatrix", 75},
      {"nvvm.mma.sync", 80},
      {"nvvm.cp.async.shared.global", 80},
      {"nvvm.cp.async.commit.group", 80},
      {"nvvm.cp.async.wait.group", 80},
      {"nvvm.inline_ptx", 20},
      {"nvvm.rcp.approx.ftz.f", 20},
      {"nvvm.prefetch", 20}};
  return table;
}

/// Least compute capability of intrinsics called by name.
static const llvm::StringMap<int> &intrinsics() {
  static const llvm::StringMap<int> table = {
      {"llvm.nvvm.ex2.approx.f32", 20}, {"llvm.nvvm.lg2.approx.f", 20},
      {"llvm.nvvm.membar.gl", 20},      {"llvm.nvvm.ff2f16x2.rn", 80},
      {"llvm.nvvm.ff2bf16x2.rn", 80},   {"llvm.nvvm.tanh.approx.f32", 75}};
  return table;
}

static LogicalResult checkLevel(Operation *op, llvm::StringRef what,
                                const llvm::StringMap<int> &table,
                                const TargetInfo &target) {
  auto it = table.find(what);
  if (it == table.end())
    return op->emitOpError()
           << "'" << what << "' cannot be emitted for PTX targets";
  if (target.smVersion < it->second)
    return op->emitOpError() << "'" << what << "' needs sm_" << it->second
                             << " or newer, got target '" << target.name << "'";
  return success();
}

/// 8-bit and smaller floats have no LLVM type; bf16 arithmetic needs sm_90.
static bool isIllegalType(Type type) {
  if (auto vector = dyn_cast<VectorType>(type))
    type = vector.getElementType();
  return isa<FloatType>(type) && type.getIntOrFloatBitWidth() < 16;
}

static LogicalResult checkOp(Operation *op, const TargetInfo &target) {
  for (Type type : op->getResultTypes())
    if (isIllegalType(type))
      return op->emitOpError()
             << "type " << type << " has no representation on PTX targets";
  if (isa<ModuleOp>(op))
    return success();
  llvm::StringRef dialect = op->getName().getDialectNamespace();
  if (dialect == "nvvm")
    return checkLevel(op, op->getName().getStringRef(), nvvmOps(), target);
  if (auto call = dyn_cast<LLVM::CallIntrinsicOp>(op))
    return checkLevel(op, call.getIntrin(), intrinsics(), target);
  if (dialect == "llvm")
    return success();
  return op->emitOpError() << "is left over after lowering; only 'llvm' and "
                              "'nvvm' ops become PTX";
}

LogicalResult ptx::verifyLegal(ModuleOp module, const TargetInfo &target) {
  if (!target.isGpu)
    return module.emitError()
           << "target '" << target.name << "' is not a PTX target";
  WalkResult result = module.walk<WalkOrder::PreOrder>([&](Operation *op) {
    return failed(checkOp(op, target)) ? WalkResult::interrupt()
                                       : WalkResult::advance();
  });
  return failure(result.wasInterrupted());
}
