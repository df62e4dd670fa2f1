// Faults planted in CUDA C++: bad_X has the fault on the line marked FAULT X,
// good_X is its correct twin. Compiled with -lineinfo.
#include <stdint.h>
template <bool Good>
__device__ __forceinline__ void no_syncthreads(const int *x, int *y) {
  __shared__ int s[64];
  s[threadIdx.x] = x[threadIdx.x];
  if (Good)
    __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x]; // FAULT no_syncthreads
}
template <bool Good>
__device__ __forceinline__ void no_syncwarp(const int *x, int *y) {
  __shared__ int s[64];
  volatile int sink = 0;
  s[threadIdx.x] = x[threadIdx.x];
  if (Good)
    __syncwarp();
  else
    asm volatile("" ::: "memory");
  y[threadIdx.x] = s[threadIdx.x ^ 1] + sink; // FAULT no_syncwarp
}
template <bool Good>
__device__ __forceinline__ void off_by_one(const int *x, int *y) {
  int n = Good ? 63 : 64;
  if (threadIdx.x < n)
    y[threadIdx.x] = x[threadIdx.x + 1]; // FAULT off_by_one
}
template <bool Good>
__device__ __forceinline__ void not_filled(const int *x, int *y) {
  __shared__ int s[64];
  if (Good || threadIdx.x != 5)
    s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x] * 3; // FAULT not_filled
}
template <bool Good>
__device__ __forceinline__ void no_wait(const int *x, int *y) {
  __shared__ __align__(16) int s[64];
  uint32_t a = (uint32_t)__cvta_generic_to_shared(&s[threadIdx.x]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\ncp.async.commit_group;" ::"r"(a), "l"(x + threadIdx.x) : "memory");
  if (Good)
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x]; // FAULT no_wait
}
template <bool Good>
__device__ __forceinline__ void conditional_barrier(const int *x, int *y) {
  if (Good || threadIdx.x < 40)
    __syncthreads(); // FAULT conditional_barrier
  y[threadIdx.x] = x[threadIdx.x];
}
template <bool Good>
__device__ __forceinline__ void wraps(const int *x, int *y) {
  int a = x[1] * 46341; // x[1] is 1: a * a is just above 2^31
  int i = Good ? (int)threadIdx.x : a * a + (int)threadIdx.x;
  y[i] = x[threadIdx.x]; // FAULT wraps
}
#define PAIR(NAME)                                                             \
  extern "C" __global__ void bad_##NAME(const int *x, int *y) { NAME<false>(x, y); } \
  extern "C" __global__ void good_##NAME(const int *x, int *y) { NAME<true>(x, y); }
PAIR(no_syncthreads)
PAIR(no_syncwarp)
PAIR(off_by_one)
PAIR(not_filled)
PAIR(no_wait)
PAIR(conditional_barrier)
PAIR(wraps)
