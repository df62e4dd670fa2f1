#!/bin/sh
# Compiles the CUDA C++ of this folder to the PTX beside it; needs nvcc.
set -e
cd "$(dirname "$0")"
for f in basic math sync tensor; do
  nvcc -arch=sm_80 -ptx $f.cu -o $f.sm_80.ptx
done
for f in basic math sync hopper wgmma; do
  nvcc -arch=sm_90a -ptx $f.cu -o $f.sm_90a.ptx
done
for f in faults faults_grid; do
  nvcc -arch=sm_80 -lineinfo -ptx $f.cu -o $f.sm_80.ptx
  # Paths of this machine are none either.
  sed -i "s#\"/.*/\([^/]*\)\"#\"\1\"#" $f.sm_80.ptx
done
# The builder's temporary names are no part of the test data.
sed -i '/^\/\/ Compiler Build ID/d' ./*.ptx
