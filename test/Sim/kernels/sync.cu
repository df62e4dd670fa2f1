// Atomics, warp operations, barriers, grid-wide progress.
#include <cooperative_groups.h>
#include <stdint.h>
extern "C" __global__ void histogram(const int *x, int *h, int n) {
  __shared__ int s[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x)
    s[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
       i += gridDim.x * blockDim.x)
    atomicAdd(&s[x[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 64; i += blockDim.x)
    atomicAdd(&h[i], s[i]);
}
extern "C" __global__ void atomics(int *o, unsigned long long *w, float *f,
                                   double *d) {
  int t = threadIdx.x + blockIdx.x * blockDim.x;
  atomicMin(o, -t);
  atomicMax(o + 1, t);
  atomicOr(o + 2, 1 << (t & 15));
  atomicXor(o + 3, t);
  atomicInc((unsigned *)o + 4, 9);
  atomicSub(o + 5, 3);
  atomicAdd(w, (unsigned long long)t << 20);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
}
__device__ int arrived;
extern "C" __global__ void last_block(const float *x, float *part, float *out,
                                      int n) {
  __shared__ bool last;
  float v = 0;
  for (int i = blockIdx.x * 32 + threadIdx.x; i < n; i += gridDim.x * 32)
    v += x[i];
  for (int o = 16; o; o >>= 1)
    v += __shfl_down_sync(~0u, v, o);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(&arrived, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < gridDim.x; ++i)
      s += ((volatile float *)part)[i];
    *out = s;
    arrived = 0;
  }
}
extern "C" __global__ void grid_barrier(int *flag, int *data, int *out) {
  data[blockIdx.x] = blockIdx.x * 3;
  __threadfence();
  if (threadIdx.x == 0) {
    atomicAdd(flag, 1);
    while (*(volatile int *)flag < gridDim.x)
      ;
    __threadfence();
  }
  __syncthreads();
  out[blockIdx.x] = data[(blockIdx.x + 1) % gridDim.x];
}
// Lanes of one warp take a lock in turn.
extern "C" __global__ void lane_lock(int *lock, int *count) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *count += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}
extern "C" __global__ void votes(const int *x, uint32_t *o) {
  int t = threadIdx.x, v = x[t];
  o += t * 6;
  o[0] = __ballot_sync(~0u, v > 3);
  o[1] = __any_sync(~0u, v == 5) + 2 * __all_sync(~0u, v >= 0);
  o[2] = __match_any_sync(~0u, v);
  o[3] = __reduce_add_sync(~0u, (unsigned)v);
  o[4] = __reduce_max_sync(~0u, (unsigned)v);
  o[5] = __shfl_up_sync(~0u, v, 3) + 100 * __shfl_sync(~0u, v, v, 16);
}
extern "C" __global__ void barrier_red(const int *x, int *o) {
  int v = x[threadIdx.x];
  int a = __syncthreads_count(v > 4), b = __syncthreads_and(v >= 0),
      c = __syncthreads_or(v == 7);
  o[threadIdx.x] = a + 1000 * b + 10000 * c;
}
// Producer and consumer warps with named barriers.
extern "C" __global__ void named_barriers(const int *x, int *y, int n) {
  __shared__ int buf[2][32];
  int lane = threadIdx.x & 31;
  if (threadIdx.x < 32) {
    for (int i = 0; i < n; ++i) {
      if (i >= 2)
        asm volatile("bar.sync %0, 64;" ::"r"(3 + i % 2) : "memory");
      buf[i % 2][lane] = x[i * 32 + lane] * 2;
      asm volatile("bar.arrive %0, 64;" ::"r"(1 + i % 2) : "memory");
    }
  } else {
    for (int i = 0; i < n; ++i) {
      asm volatile("bar.sync %0, 64;" ::"r"(1 + i % 2) : "memory");
      y[i * 32 + lane] = buf[i % 2][31 - lane];
      if (i + 2 < n)
        asm volatile("bar.arrive %0, 64;" ::"r"(3 + i % 2) : "memory");
    }
  }
}
// Several blocks write the same values: a note, no fault.
extern "C" __global__ void same_values(int *o) { o[0] = 5; }
// Tiles of 8 lanes: one instruction with four member masks.
extern "C" __global__ void tiles(const int *x, int *o) {
  unsigned mask = 0xffu << (threadIdx.x & 24);
  int v = x[threadIdx.x];
  o[threadIdx.x] = (int)__reduce_add_sync(mask, v) + 1000 * __shfl_xor_sync(mask, v, 3);
  __syncwarp(mask);
}
// A cooperative launch's grid-wide barrier.
extern "C" __global__ void cooperative(int *a, int *b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = i * 5;
  cooperative_groups::this_grid().sync();
  b[i] = a[gridDim.x * blockDim.x - 1 - i];
}
