// RUN: kv-opt %s | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --mlir-print-op-generic | kv-opt | FileCheck %s --enable-var-scope

#spec = #kvtile.spec<q_heads = 4, kv_heads = 1, head_dim = 64, value_dim = 72, dtype = f16, format = "int8", mask = <left = 31>, softcap = 30.0 : f64, alibi = true>
#schedule = #kvtile.schedule<tile_tokens = 64, q_pack = 4, dot_kind = u8s8x2, prefetch_bytes = 4096, vector_bits = 512>
#acc = #kvtile.layout<acc>
#rows = #kvtile.layout<rows>
#out = #kvtile.layout<out>

// CHECK: kvtile.kernel @unscheduled spec(<q_heads = 4, kv_heads = 1, head_dim = 64, value_dim = 72, dtype = f16, format = "int8", mask = <left = 31>, softcap = 3.000000e+01 : f64, alibi = true>)
kvtile.kernel @unscheduled spec(#spec)

// CHECK-LABEL: kvtile.kernel @attend
// CHECK-SAME: schedule(<tile_tokens = 64, q_pack = 4, dot_kind = u8s8x2, prefetch_bytes = 4096, vector_bits = 512>)
kvtile.kernel @attend spec(#spec) schedule(#schedule) {
  // CHECK: kvtile.load_query : tensor<4x64xf32, #kvtile.layout<query>>
  %q = kvtile.load_query : tensor<4x64xf32, #kvtile.layout<query>>
  // CHECK: kvtile.load_slopes : tensor<4xf32, #kvtile.layout<rows>>
  %slopes = kvtile.load_slopes : tensor<4xf32, #rows>
  %l0 = arith.constant dense<0.0> : tensor<4xf32, #rows>
  %o0 = arith.constant dense<0.0> : tensor<72x4xf32, #out>
  // CHECK: %[[LOOP:.*]]:2 = kvtile.page_loop sealed(%{{.*}}, %{{.*}} : tensor<4xf32, #kvtile.layout<rows>>, tensor<72x4xf32, #kvtile.layout<out>>) {
  // CHECK-NEXT: ^bb0(%[[TILE:.*]]: !kvtile.tile,
  %l, %o = kvtile.page_loop sealed(%l0, %o0 : tensor<4xf32, #rows>, tensor<72x4xf32, #out>) {
  ^bb0(%tile: !kvtile.tile, %li: tensor<4xf32, #rows>, %oi: tensor<72x4xf32, #out>):
    // CHECK: kvtile.score u8s8x2 %[[TILE]], %{{.*}} : tensor<4x64xf32, #kvtile.layout<query>> -> tensor<64x4xf32, #kvtile.layout<acc>>
    %s = kvtile.score u8s8x2 %tile, %q : tensor<4x64xf32, #kvtile.layout<query>> -> tensor<64x4xf32, #acc>
    // CHECK: kvtile.visible %[[TILE]], <left = 31> : tensor<64x4xi1, #kvtile.layout<acc>>
    %v = kvtile.visible %tile, <left = 31> : tensor<64x4xi1, #acc>
    // CHECK: kvtile.distance %[[TILE]]
    %d = kvtile.distance %tile : tensor<64x4xf32, #acc>
    // CHECK: kvtile.broadcast
    %b = kvtile.broadcast %slopes : tensor<4xf32, #rows> -> tensor<64x4xf32, #acc>
    %bias = arith.mulf %d, %b : tensor<64x4xf32, #acc>
    %x = arith.select %v, %s, %bias : tensor<64x4xi1, #acc>, tensor<64x4xf32, #acc>
    // CHECK: kvtile.reduce max %{{.*}} : tensor<64x4xf32, #kvtile.layout<acc>> -> tensor<4xf32, #kvtile.layout<rows>>
    %m = kvtile.reduce max %x : tensor<64x4xf32, #acc> -> tensor<4xf32, #rows>
    // CHECK: kvtile.reduce add
    %sum = kvtile.reduce add %x : tensor<64x4xf32, #acc> -> tensor<4xf32, #rows>
    // CHECK: kvtile.accumulate f32 %[[TILE]], %{{.*}}, %{{.*}}, %{{.*}} : tensor<64x4xf32, #kvtile.layout<acc>>, tensor<72x4xf32, #kvtile.layout<out>>, tensor<4xf32, #kvtile.layout<rows>>
    %on = kvtile.accumulate f32 %tile, %x, %oi, %m : tensor<64x4xf32, #acc>, tensor<72x4xf32, #out>, tensor<4xf32, #rows>
    // CHECK: kvtile.yield
    kvtile.yield %sum, %on : tensor<4xf32, #rows>, tensor<72x4xf32, #out>
  }
  // CHECK: kvtile.page_loop open() {
  kvtile.page_loop open() {
  ^bb0(%tile: !kvtile.tile):
    kvtile.yield
  }
  // CHECK: kvtile.store_partial %[[LOOP]]#0, %[[LOOP]]#0, %[[LOOP]]#1 : tensor<4xf32, #kvtile.layout<rows>>, tensor<72x4xf32, #kvtile.layout<out>>
  kvtile.store_partial %l, %l, %o : tensor<4xf32, #rows>, tensor<72x4xf32, #out>
  // CHECK: kvtile.return
  kvtile.return
}

// CHECK-LABEL: kvtile.array_kernel @arrays
// CHECK-SAME: spec(<group = 4, head_dim = 24, value_dim = 20, query = f32, key = f16, value = bf16, out = f32, scale = 2.500000e-01 : f64, mask = <left = 31>, mask_operand = i1, sinks = true, empty_rows = nan>)
// CHECK-SAME: schedule(<tile_tokens = 64, q_pack = 4, orientation = queries_a, vector_bits = 256, q_rows = 8>)
kvtile.array_kernel @arrays spec(<group = 4, head_dim = 24, value_dim = 20, query = f32, key = f16, value = bf16, out = f32, scale = 0.25 : f64, mask = <left = 31>, mask_operand = i1, sinks = true, empty_rows = nan>)
    schedule(<tile_tokens = 64, q_pack = 4, orientation = queries_a, vector_bits = 256, q_rows = 8>) {
  // CHECK: kvtile.load_sinks : tensor<32xf32, #kvtile.layout<rows>>
  %m = kvtile.load_sinks : tensor<32xf32, #rows>
  %o = arith.constant dense<0.0> : tensor<20x32xf32, #out>
  // CHECK: kvtile.page_loop external()
  kvtile.page_loop external() {
  ^bb0(%tile: !kvtile.tile):
    // CHECK: kvtile.load_mask %{{.*}} : tensor<64x32xi1, #kvtile.layout<acc>>
    %v = kvtile.load_mask %tile : tensor<64x32xi1, #acc>
    kvtile.yield
  }
  // CHECK: kvtile.store_result %{{.*}}, %{{.*}}, %{{.*}} : tensor<32xf32, #kvtile.layout<rows>>, tensor<20x32xf32, #kvtile.layout<out>>
  kvtile.store_result %m, %m, %o : tensor<32xf32, #rows>, tensor<20x32xf32, #out>
  kvtile.return
}
