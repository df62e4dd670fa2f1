// RUN: kv-opt %s --kvtile-choose-schedule --kvtile-verify-schedule | FileCheck %s

// CHECK: @pinned
// CHECK-SAME: schedule(<tile_tokens = 64, q_pack = 3, vector_bits = 256>)
kvtile.kernel @pinned spec(#kvtile.spec<q_heads = 6, kv_heads = 2, head_dim = 128, value_dim = 128, dtype = f16, format = "f16">)
    schedule(#kvtile.schedule<tile_tokens = 64, q_pack = 3, vector_bits = 256>)
