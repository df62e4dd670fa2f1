// Reductions, scans, FFMA matmul, divergence, calls, local arrays, wide integers.
#include <stdint.h>
extern "C" __global__ void saxpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = a * x[i] + y[i];
}
extern "C" __global__ void block_sum(const float *x, float *out, int n) {
  __shared__ float s[32];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    v += x[i];
  for (int o = 16; o; o >>= 1)
    v += __shfl_xor_sync(~0u, v, o);
  if ((threadIdx.x & 31) == 0)
    s[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0;
    for (int o = 16; o; o >>= 1)
      v += __shfl_down_sync(~0u, v, o);
    if (threadIdx.x == 0)
      *out = v;
  }
}
// Hillis-Steele inclusive scan of one block.
extern "C" __global__ void scan(const int *x, int *y) {
  __shared__ int s[2][256];
  int t = threadIdx.x, p = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int d = 1; d < 256; d <<= 1) {
    s[p ^ 1][t] = s[p][t] + (t >= d ? s[p][t - d] : 0);
    p ^= 1;
    __syncthreads();
  }
  y[t] = s[p][t];
}
extern "C" __global__ void matmul(const float *a, const float *b, float *c,
                                  int n, int k) {
  __shared__ float sa[16][17], sb[16][17];
  int tx = threadIdx.x, ty = threadIdx.y;
  int row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
  float acc = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    sa[ty][tx] = a[row * k + k0 + tx];
    sb[ty][tx] = b[(k0 + ty) * n + col];
    __syncthreads();
    for (int i = 0; i < 16; ++i)
      acc = fmaf(sa[ty][i], sb[i][tx], acc);
    __syncthreads();
  }
  c[row * n + col] = acc;
}
extern "C" __global__ void collatz(int *out) {
  int n = blockIdx.x * blockDim.x + threadIdx.x + 1, c = 0;
  while (n != 1) {
    if (n & 1)
      n = 3 * n + 1;
    else
      n >>= 1;
    ++c;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = c;
}
__device__ __noinline__ int fib(int n) {
  return n < 2 ? n : fib(n - 1) + fib(n - 2);
}
extern "C" __global__ void recursion(int *out) {
  out[threadIdx.x] = fib(threadIdx.x % 13);
}
__device__ __noinline__ float op_add(float a, float b) { return a + b; }
__device__ __noinline__ float op_mul(float a, float b) { return a * b; }
__device__ __noinline__ float op_max(float a, float b) { return fmaxf(a, b); }
typedef float (*Op)(float, float);
__device__ Op ops[3] = {op_add, op_mul, op_max};
extern "C" __global__ void indirect(const int *which, const float *a,
                                    const float *b, float *out) {
  int t = threadIdx.x;
  out[t] = ops[which[t]](a[t], b[t]);
}
extern "C" __global__ void local_array(const int *idx, int *out) {
  int a[16], t = threadIdx.x;
  for (int i = 0; i < 16; ++i)
    a[i] = i * t;
  int k = idx[t];
  a[k] = -7;
  int s = 0;
  for (int i = 0; i < 16; ++i)
    s += a[(i + k) & 15] * (i + 1);
  out[t] = s;
}
extern "C" __global__ void wide_int(const int64_t *a, const int64_t *b,
                                    int64_t *out, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n)
    return;
  int64_t x = a[t], y = b[t];
  int64_t *o = out + (int64_t)t * 8;
  o[0] = x * y;
  o[1] = y ? x / y : 0;
  o[2] = y ? x % y : 0;
  o[3] = __mul64hi(x, y);
  o[4] = (int64_t)((uint64_t)x >> (y & 63));
  o[5] = __popcll(x) + 1000 * __clzll(y);
  unsigned __int128 p = (unsigned __int128)(uint64_t)x * (uint64_t)y + (uint64_t)x;
  o[6] = (int64_t)(p >> 64);
  o[7] = (int64_t)__brevll(x);
}
extern "C" __global__ void bits(const uint32_t *a, const uint32_t *b,
                                uint32_t *out) {
  int t = threadIdx.x;
  uint32_t x = a[t], y = b[t];
  uint32_t *o = out + t * 8;
  o[0] = __byte_perm(x, y, 0x3175);
  o[1] = __funnelshift_l(x, y, 7);
  o[2] = __vabsdiffu4(x, y);
  o[3] = __dp4a((int)x, (int)y, 11);
  o[4] = (x >> 5) & 0x3ff;
  o[5] = __sad((int)x, (int)y, 3u);
  o[6] = __umulhi(x, y);
  o[7] = (uint32_t)__ffs(x) + 100 * (31 - __clz(y | 1));
}
__constant__ float coefficients[5] = {1.0f, -0.5f, 0.25f, -0.125f, 2.0f};
extern "C" __global__ void constant_poly(const float *x, float *y) {
  float v = x[threadIdx.x], r = 0;
  for (int i = 4; i >= 0; --i)
    r = fmaf(r, v, coefficients[i]);
  y[threadIdx.x] = r;
}
struct Params {
  const float *x;
  float *y;
  int n;
  float s[4];
};
extern "C" __global__ void by_value(Params p) {
  int t = threadIdx.x;
  if (t < p.n)
    p.y[t] = p.x[t] * p.s[t & 3];
}
extern "C" __global__ void switch_case(const int *op, const float *x, float *y) {
  int t = threadIdx.x;
  float v = x[t];
  switch (op[t]) {
  case 0: v = v + 1; break;
  case 1: v = v * v; break;
  case 2: v = -v; break;
  case 3: v = sqrtf(fabsf(v)); break;
  case 4: v = 1 / v; break;
  case 5: v = floorf(v); break;
  case 6: v = fminf(v, 0.f); break;
  default: v = 42;
  }
  y[t] = v;
}
