// RUN: kv-opt %s --kvtile-choose-schedule --kvtile-verify-schedule --kvtile-expand-attend | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --kvtile-choose-schedule="set=q_rows=40" --kvtile-expand-attend | FileCheck %s --check-prefix=ROWS
// RUN: kv-opt %s --kvtile-choose-schedule --kvtile-expand-attend --convert-kvtile-to-cpu | FileCheck %s --check-prefix=CPU
// RUN: kv-opt %s --kvtile-choose-schedule="cpu=v2" --kvtile-expand-attend --convert-kvtile-to-cpu | FileCheck %s --check-prefix=V2
// RUN: not kv-opt %s --kvtile-choose-schedule="target=sm_80" 2>&1 | FileCheck %s --check-prefix=GPU

// GPU: error: 'kvtile.array_kernel' op kernels on arrays have no schedule on sm_80; expected x86-64

// Two heads share a kv head: 32 rows of each are the 64 columns.
// CHECK-LABEL: kvtile.array_kernel @attend
// CHECK-SAME: schedule(<tile_tokens = 64, q_pack = 2, orientation = queries_a, vector_bits = 512, q_rows = 32>)
// CHECK: kvtile.load_query : tensor<64x24xf32, #kvtile.layout<query>>
// CHECK: kvtile.load_sinks
// CHECK: kvtile.page_loop external(
// CHECK: %[[SCORE:.*]] = kvtile.score f32
// CHECK: %[[X:.*]] = arith.mulf %[[SCORE]]
// A mask is added to natural scores, before the unit of exponents.
// CHECK: %[[MASK:.*]] = kvtile.load_mask
// CHECK: arith.addf %[[X]], %[[MASK]]
// CHECK: kvtile.reduce max
// CHECK: kvtile.accumulate f32
// CHECK: kvtile.store_result
// ROWS: kvtile.load_query : tensor<80x24xf32, #kvtile.layout<query>>

// CPU-NOT: kvtile.
// CPU: func.func private @attend_item(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i1) -> i1
// Six keys against four vectors of columns.
// CPU: scf.for
// CPU-COUNT-96: math.fma
// CPU: func.func @attend(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64) -> i32
// V2-NOT: math.fma
// V2: func.func @attend(
kvtile.array_kernel @attend spec(<group = 2, head_dim = 24, value_dim = 20, query = f32, key = f32, value = f32, out = f32, scale = 0.25 : f64, mask_operand = f32, sinks = true>)
