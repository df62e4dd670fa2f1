#!/usr/bin/env bash
# configure.sh BUILD_DIR: configures the whole project (compiler, runtime,
# simulator, Python module, tests) with clang 22, lld and ccache.
set -euo pipefail
build=$1
root=$(cd "$(dirname "$0")/.." && pwd)
llvm=/usr/lib/llvm-22 # Debian puts clang-22 on PATH; plain names keep ccache hits across trees
cmake -G Ninja -S "$root" -B "$build" \
  -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_COMPILER=clang-22 -DCMAKE_CXX_COMPILER=clang++-22 \
  -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
  -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld \
  -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld \
  -DCMAKE_MODULE_LINKER_FLAGS=-fuse-ld=lld \
  -DMLIR_DIR=$llvm/lib/cmake/mlir \
  -DPython_EXECUTABLE="$(cd "$build" && pwd)/venv/bin/python" \
  -DKVCACHE_BUILD_PYTHON=ON -DKVCACHE_BUILD_TESTS=ON -DKVCACHE_BUILD_FUZZERS=ON \
  -DKVCACHE_BUILD_BENCHMARKS=ON ${KVCACHE_CMAKE_ARGS:-}
