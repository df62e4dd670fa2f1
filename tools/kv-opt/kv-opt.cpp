//===- kv-opt.cpp - mlir-opt with the passes of this project --------------===//
//
// Usage: kv-opt FILE.mlir --PASS..., or kv-opt --list-targets.
//
//===----------------------------------------------------------------------===//
#include "kvcache/InitAll.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i)
    if (llvm::StringRef(argv[i]) == "--list-targets") {
      kvcache::printTargets(llvm::outs());
      return 0;
    }
  mlir::DialectRegistry registry;
  kvcache::registerAll(registry);
  return mlir::asMainReturnCode(mlir::MlirOptMain(
      argc, argv, "compiler of attention over key/value caches\n", registry));
}
