// RUN: kv-opt %s --kvtile-choose-schedule --kvtile-expand-attend --convert-kvtile-to-cpu | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --kvtile-choose-schedule="cpu=v2" --kvtile-expand-attend --convert-kvtile-to-cpu | FileCheck %s --check-prefix=V2

// CHECK-NOT: kvtile.
// CHECK: func.func @attend(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64) -> i32
// CHECK: llvm.intr.prefetch
// Codes of keys, then of values, in two signed parts for each of two heads.
// CHECK-COUNT-8: llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.512"
// Open pages: f16 as it is, f32 products.
// CHECK: arith.extf %{{.*}} : vector<16xf16> to vector<16xf32>
// CHECK: math.fma
// CHECK: func.func @merge(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64) -> i32

// x86-64-v2 has neither fma nor f16 conversions.
// V2: func.func @attend
// V2-NOT: math.fma
// V2-NOT: arith.extf
// V2-NOT: llvm.call_intrinsic
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "int8">)
