// RUN: kv-opt %s --kvcache-fuse --dump-pass-pipeline 2>&1 | FileCheck %s

// The passes of the pipeline, in order.
// CHECK: builtin.module(
// CHECK-NEXT: cse,
// CHECK-NEXT: kvcache-fuse-attention{only-missed=false},
// CHECK-NEXT: kvcache-flatten-queries,
// CHECK-NEXT: canonicalize
func.func private @nothing()
