// More faults planted in CUDA C++, between blocks and of single threads: bad_X has
// the fault on the line marked FAULT X, good_X is its correct twin. x and y hold
// 64 integers, x[i] = 1, y[i] = 0.
#include <cooperative_groups.h>
#include <stdint.h>
namespace cg = cooperative_groups;

template <bool Good> __device__ __forceinline__ void last_block(const int *x, int *y) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    y[blockIdx.x] = x[blockIdx.x];
    if (Good)
      __threadfence();
    last = atomicAdd(&y[32], 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < gridDim.x; ++i)
      sum += y[i]; // FAULT last_block
    y[33] = sum;
  }
}
template <bool Good> __device__ __forceinline__ void spin_lock(const int *x, int *y) {
  if (threadIdx.x)
    return;
  while (atomicCAS(&y[32], 0, 1))
    ;
  __threadfence();
  y[0] += x[0]; // FAULT spin_lock
  if (Good)
    __threadfence();
  atomicExch(&y[32], 0);
}
template <bool Good> __device__ __forceinline__ void grid_sync(const int *x, int *y) {
  if (threadIdx.x == 0)
    y[blockIdx.x] = x[blockIdx.x] + blockIdx.x;
  if (Good)
    cg::this_grid().sync();
  else
    __syncthreads();
  if (threadIdx.x == 0)
    y[16 + blockIdx.x] = y[(blockIdx.x + 1) % gridDim.x]; // FAULT grid_sync
}
template <bool Good> __device__ __forceinline__ void flag(const int *x, int *y) {
  volatile int *f = y + 32;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    y[0] = x[0];
    if (Good)
      __threadfence();
    *f = 1;
  }
  if (blockIdx.x == 1 && threadIdx.x == 0) {
    while (*f == 0)
      ;
    __threadfence();
    y[1] = y[0]; // FAULT flag
  }
}
template <bool Good> __device__ __forceinline__ void never_set(const int *x, int *y) {
  volatile int *f = y + 32;
  if (Good && threadIdx.x == 0)
    *f = 1;
  __syncthreads();
  while (*f == 0) // FAULT never_set
    ;
}
template <bool Good> __device__ __forceinline__ void histogram(const int *x, int *y) {
  if (Good)
    atomicAdd(&y[x[threadIdx.x]], 1);
  else
    y[x[threadIdx.x]] += threadIdx.x; // FAULT histogram
}
template <bool Good> __device__ __forceinline__ void tree(const int *x, int *y) {
  __shared__ int s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int d = 32; d; d /= 2) {
    if (threadIdx.x < d)
      s[threadIdx.x] += s[threadIdx.x + d]; // FAULT tree
    if (Good || d > 32)
      __syncthreads();
  }
  if (threadIdx.x == 0)
    y[0] = s[0];
}
template <bool Good> __device__ __forceinline__ void local_array(const int *x, int *y) {
  int a[8];
  for (int i = 0; i < (Good ? 8 : 7); ++i)
    a[(i + x[0]) % 8] = i;
  y[threadIdx.x] = a[(threadIdx.x * x[1]) % 8]; // FAULT local_array
}
template <bool Good> __device__ __forceinline__ void undefined_choice(const int *x, int *y) {
  __shared__ int s[64];
  if (Good || threadIdx.x < 60)
    s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (s[threadIdx.x] > 0) // FAULT undefined_choice
    atomicAdd(&y[0], 1);
}
template <bool Good> __device__ __forceinline__ void undefined_index(const int *x, int *y) {
  __shared__ int s[64];
  if (Good || threadIdx.x != 33)
    s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = x[s[threadIdx.x]]; // FAULT undefined_index
}
template <bool Good> __device__ __forceinline__ void vector_cast(const int *x, int *y) {
  const int *p = x + (Good ? 4 : 1) * (threadIdx.x % 4);
  int4 v = *reinterpret_cast<const int4 *>(p); // FAULT vector_cast
  y[threadIdx.x] = v.x + v.w;
}
template <bool Good> __device__ __forceinline__ void before_the_start(const int *x, int *y) {
  int i = int(threadIdx.x) - (Good ? 0 : x[0]);
  y[i] = 1; // FAULT before_the_start
}
template <bool Good> __device__ __forceinline__ void shared_end(const int *x, int *y) {
  __shared__ int s[64];
  s[threadIdx.x + (Good ? 0 : x[0])] = 1; // FAULT shared_end
  __syncthreads();
  y[threadIdx.x] = s[0];
}
template <bool Good> __device__ __forceinline__ void null_pointer(const int *x, int *y) {
  int *p = Good ? y : reinterpret_cast<int *>(intptr_t(x[0] - 1));
  p[threadIdx.x] = 1; // FAULT null_pointer
}
template <bool Good> __device__ __forceinline__ void shuffle_in_branch(const int *x, int *y) {
  int v = x[threadIdx.x];
  if (Good)
    v += __shfl_xor_sync(0xffffffffu, v, 1);
  else if (threadIdx.x % 32 < 20)
    v += __shfl_xor_sync(0xffffffffu, v, 1); // FAULT shuffle_in_branch
  __syncthreads();
  y[threadIdx.x] = v;
}
template <bool Good> __device__ __forceinline__ void barrier_in_loop(const int *x, int *y) {
  int n = Good ? 2 : x[0] + int(threadIdx.x / 32);
  for (int i = 0; i < n; ++i) {
    y[threadIdx.x] += i;
    asm volatile("barrier.sync 1, 64;" ::: "memory"); // FAULT barrier_in_loop
  }
}
template <bool Good> __device__ __forceinline__ void wraps_unsigned(const int *x, int *y) {
  unsigned big = unsigned(x[0]) << 31;
  unsigned i = Good ? threadIdx.x : big * 2u * unsigned(x[1]) + threadIdx.x + big + big;
  y[i] = 1; // FAULT wraps_unsigned
}
#define PAIR(NAME)                                                                       \
  extern "C" __global__ void bad_##NAME(const int *x, int *y) { NAME<false>(x, y); }     \
  extern "C" __global__ void good_##NAME(const int *x, int *y) { NAME<true>(x, y); }
PAIR(last_block)
PAIR(spin_lock)
PAIR(grid_sync)
PAIR(flag)
PAIR(never_set)
PAIR(histogram)
PAIR(tree)
PAIR(local_array)
PAIR(undefined_choice)
PAIR(undefined_index)
PAIR(vector_cast)
PAIR(before_the_start)
PAIR(shared_end)
PAIR(null_pointer)
PAIR(shuffle_in_branch)
PAIR(barrier_in_loop)
PAIR(wraps_unsigned)
