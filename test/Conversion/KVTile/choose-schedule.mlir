// RUN: kv-opt %s --kvtile-choose-schedule --kvtile-verify-schedule | FileCheck %s --check-prefix=AVX512
// RUN: kv-opt %s --kvtile-choose-schedule="cpu=avx2" | FileCheck %s --check-prefix=AVX2
// RUN: kv-opt %s --kvtile-choose-schedule="target=sm_80" --kvtile-verify-schedule="target=sm_80" | FileCheck %s --check-prefix=SM80
// RUN: kv-opt %s --kvtile-choose-schedule="set=q_pack=2;prefetch_bytes=64" | FileCheck %s --check-prefix=SET

// AVX512-LABEL: @int8
// AVX512-SAME: q_pack = 4, dot_kind = u8s8x2, {{.*}}vector_bits = 512
// AVX2-LABEL: @int8
// AVX2-NOT: u8s8x2
// AVX2-SAME: vector_bits = 256
// SM80-LABEL: @int8
// SM80-SAME: warps = 4, {{.*}}dot_kind = f16
// SET-LABEL: @int8
// SET-SAME: q_pack = 2, {{.*}}prefetch_bytes = 64
kvtile.kernel @int8 spec(#kvtile.spec<q_heads = 32, kv_heads = 8, head_dim = 128, value_dim = 128, dtype = f16, format = "int8">)

// 34 heads a group: three chunks of 12.
// AVX512-LABEL: @f16
// AVX512-SAME: q_pack = 12
// AVX512-NOT: u8s8x2
kvtile.kernel @f16 spec(#kvtile.spec<q_heads = 34, kv_heads = 1, head_dim = 128, value_dim = 128, dtype = f16, format = "f16">)
