// sm_90a: bulk copies with mbarriers, tensor maps, clusters, wgmma.
#include <cuda_fp16.h>
#include <stdint.h>
__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void bar_init(uint64_t *b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n));
}
__device__ __forceinline__ void bar_expect(uint64_t *b, int n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint64_t *b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void bar_wait(uint64_t *b, int parity) {
  asm volatile("{\n.reg .pred p;\nWAIT:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(shared_address(b)), "r"(parity) : "memory");
}
// Four stages of 1 KB through bulk copies; y = 2 x.
extern "C" __global__ void bulk_pipeline(const float *x, float *y, int chunks) {
  __shared__ __align__(128) float buf[4][256];
  __shared__ uint64_t full[4], empty[4];
  int t = threadIdx.x;
  if (t == 0) {
    for (int i = 0; i < 4; ++i) {
      bar_init(&full[i], 1);
      bar_init(&empty[i], 64);
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (t >= 64) { // producer warp
    if (t == 64)
      for (int i = 0; i < chunks; ++i) {
        int s = i % 4;
        if (i >= 4)
          bar_wait(&empty[s], (i / 4 - 1) & 1);
        bar_expect(&full[s], 1024);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(shared_address(buf[s])),
                     "l"(x + (size_t)i * 256), "r"(1024), "r"(shared_address(&full[s])) : "memory");
      }
    return;
  }
  for (int i = 0; i < chunks; ++i) {
    int s = i % 4;
    bar_wait(&full[s], (i / 4) & 1);
    for (int j = t; j < 256; j += 64)
      y[(size_t)i * 256 + j] = buf[s][j] * 2;
    bar_arrive(&empty[s]);
  }
}
// Tile through a tensor map with 128-byte swizzle, added 1, stored by another.
struct alignas(64) Map { char b[128]; };
extern "C" __global__ void tensor_tile(const __grid_constant__ Map in,
                                       const __grid_constant__ Map out) {
  __shared__ __align__(1024) __half tile[16 * 64];
  __shared__ uint64_t bar;
  int t = threadIdx.x;
  if (t == 0) {
    bar_init(&bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
    bar_expect(&bar, sizeof tile);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(tile)), "l"(&in),
                 "r"((int)blockIdx.x * 64), "r"((int)blockIdx.y * 16), "r"(shared_address(&bar)) : "memory");
  }
  __syncthreads();
  bar_wait(&bar, 0);
  for (int i = t; i < 16 * 64; i += blockDim.x)
    tile[i] = __hadd(tile[i], __float2half(1.0f));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out),
                 "r"((int)blockIdx.x * 64), "r"((int)blockIdx.y * 16), "r"(shared_address(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group.read 0;");
  }
}
// Each block of a cluster of 4 reads its neighbour's shared memory.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_ring(const int *x, int *y) {
  __shared__ int s[64];
  int t = threadIdx.x;
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  s[t] = x[blockIdx.x * 64 + t];
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  uint32_t remote, v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(&s[63 - t])), "r"((rank + 1) % 4));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote));
  y[blockIdx.x * 64 + t] = v;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// D[64][8] = A[64][K] B[8][K]^T, both K-major with 128-byte swizzle, K = 64 a step.
__device__ __forceinline__ uint64_t descriptor(const void *p) {
  return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
extern "C" __global__ void wgmma_f16(const __half *A, const __half *B, float *D, int K) {
  __shared__ __align__(1024) __half sA[64 * 64];
  __shared__ __align__(1024) __half sB[8 * 64];
  int t = threadIdx.x;
  float d[4] = {0, 0, 0, 0};
  for (int k0 = 0; k0 < K; k0 += 64) {
    for (int i = t; i < 64 * 64; i += 128) {
      int r = i / 64, c = i % 64;
      sA[r * 64 + ((c / 8) ^ (r & 7)) * 8 + c % 8] = A[(size_t)r * K + k0 + c];
    }
    for (int i = t; i < 8 * 64; i += 128) {
      int r = i / 64, c = i % 64;
      sB[r * 64 + ((c / 8) ^ (r & 7)) * 8 + c % 8] = B[(size_t)r * K + k0 + c];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int kk = 0; kk < 4; ++kk)
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                   "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;\n}"
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "l"(descriptor(sA) + 2 * kk), "l"(descriptor(sB) + 2 * kk), "r"(1));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();
  }
  int w = t / 32, g = t % 32 / 4, q = t % 4;
  float *o = D + (w * 16 + g) * 8 + 2 * q;
  o[0] = d[0];
  o[1] = d[1];
  o[64] = d[2];
  o[65] = d[3];
}
// mbarrier as a block barrier, state tokens.
extern "C" __global__ void mbarrier_tokens(const int *x, int *y) {
  __shared__ int s[64];
  __shared__ uint64_t bar;
  int t = threadIdx.x;
  if (t == 0)
    bar_init(&bar, 64);
  __syncthreads();
  s[t] = x[t];
  uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(&bar)) : "memory");
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.test_wait.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(shared_address(&bar)), "l"(state) : "memory");
  y[t] = s[63 - t];
}
// Bulk reduction into global memory.
extern "C" __global__ void bulk_reduce(const float *x, float *y) {
  __shared__ __align__(128) float s[64];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;" ::"l"(y), "r"(shared_address(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}
