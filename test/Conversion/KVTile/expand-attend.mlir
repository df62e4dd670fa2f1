// RUN: kv-opt %s --kvtile-choose-schedule --kvtile-expand-attend | FileCheck %s --enable-var-scope

// Masks act through the exponent alone: no finite stand-in for -inf.
// CHECK-NOT: -3.4028{{.*}}E+38
// CHECK-LABEL: kvtile.kernel @attend
// CHECK: kvtile.load_query
// CHECK: kvtile.page_loop sealed(
// CHECK: kvtile.score u8s8x2
// CHECK: kvtile.visible %{{.*}}, <left = 127>
// CHECK: arith.select
// CHECK: kvtile.reduce max
// CHECK: arith.maximumf
// The guard: differences to a maximum of -inf are taken to 0 instead.
// CHECK: arith.cmpf oeq
// CHECK: arith.select
// CHECK-COUNT-2: math.exp2
// CHECK: kvtile.reduce add
// CHECK: kvtile.accumulate f32
// CHECK: kvtile.page_loop open(
// CHECK: kvtile.score f32
// CHECK: kvtile.store_partial
kvtile.kernel @attend spec(#kvtile.spec<q_heads = 32, kv_heads = 8, head_dim = 128, value_dim = 128, dtype = f16, format = "key=i4:channel:g32,value=f16", mask = <left = 127>>)
