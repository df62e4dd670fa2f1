// RUN: not kv-opt %s --kvtile-choose-schedule="target=sm_42" 2>&1 | FileCheck %s --check-prefix=TARGET
// RUN: not kv-opt %s --kvtile-choose-schedule="cpu=mmx" 2>&1 | FileCheck %s --check-prefix=CPU
// RUN: not kv-opt %s --kvtile-choose-schedule="set=warp=2" 2>&1 | FileCheck %s --check-prefix=FIELD
// RUN: not kv-opt %s --kvtile-choose-schedule="set=dot_kind=f8" 2>&1 | FileCheck %s --check-prefix=VALUE

// TARGET: unknown target 'sm_42', expected one of: x86-64, sm_80
// CPU: unknown cpu 'mmx', expected v2, avx2 or avx512
// FIELD: unknown schedule field 'warp'; expected one of tile_tokens q_pack warps
// VALUE: bad value 'f8' of schedule field 'dot_kind'

kvtile.kernel @attend spec(#kvtile.spec<q_heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, dtype = f16, format = "f16">)
