// RUN: kv-opt %s --kvtile-choose-schedule=target=sm_80 --kvtile-expand-attend --kvtile-to-nvvm | FileCheck %s
// RUN: kv-opt %s --kvcache-to-ptx=target=sm_90 | FileCheck %s

// CHECK-LABEL: llvm.func @attend(
// CHECK-SAME: nvvm.kernel
// CHECK-SAME: nvvm.reqntid = array<i32: 128>
// The item: begin + block, split into parts.
// CHECK: nvvm.read.ptx.sreg.ctaid.x
// CHECK: llvm.srem
// Sealed tiles: zeros have a product of their own rows.
// CHECK: nvvm.mma.sync
// CHECK-SAME: shape = #nvvm.shape<m = 16, n = 8, k = 16>
// CHECK: nvvm.shfl.sync bfly
// CHECK: llvm.call_intrinsic "llvm.nvvm.ex2.approx.f32"
// CHECK: llvm.inline_asm has_side_effects {{.*}}movmatrix
// CHECK: nvvm.barrier0
// CHECK: nvvm.memory.barrier
// CHECK: llvm.atomicrmw add
// CHECK-NOT: kvtile.
// CHECK: llvm.mlir.global internal @attend_shared()
// CHECK-SAME: addr_space = 3
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 1,
    head_dim = 64, value_dim = 64, dtype = f16, format = "kivi4">) {}
