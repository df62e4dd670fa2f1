// Double precision, half, bf16 and fp8 conversions, approximate functions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
extern "C" __global__ void doubles(const double *a, const double *b, double *o) {
  int t = threadIdx.x;
  double x = a[t], y = b[t];
  o += t * 8;
  o[0] = x / y;
  o[1] = sqrt(fabs(x));
  o[2] = fma(x, y, x);
  o[3] = exp(x);
  o[4] = floor(x) + ceil(y);
  o[5] = sin(y);
  o[6] = __dadd_ru(x, y) - __dadd_rd(x, y);
  o[7] = (double)(long long)x;
}
extern "C" __global__ void floats(const float *a, const float *b, float *o) {
  int t = threadIdx.x;
  float x = a[t], y = b[t];
  o += t * 8;
  o[0] = x / y;
  o[1] = __fadd_ru(x, y);
  o[2] = __fmaf_rd(x, y, x);
  o[3] = __fmul_rz(x, y);
  o[4] = __fsqrt_rn(fabsf(x));
  o[5] = __frcp_rn(y);
  o[6] = rintf(x * 7);
  o[7] = __saturatef(x);
}
extern "C" __global__ void approx(const float *a, float *o) {
  int t = threadIdx.x;
  float x = a[t];
  o += t * 6;
  o[0] = exp2f(x);
  o[1] = __log2f(fabsf(x) + 1);
  o[2] = __sinf(x);
  o[3] = __cosf(x);
  o[4] = rsqrtf(fabsf(x) + 1);
  o[5] = __fdividef(x, 3.0f);
}
extern "C" __global__ void halves(const __half2 *a, const __half2 *b, __half2 *o) {
  int t = threadIdx.x;
  __half2 x = a[t], y = b[t];
  o += t * 6;
  o[0] = __hadd2(x, y);
  o[1] = __hmul2(x, y);
  o[2] = __hfma2(x, y, x);
  o[3] = __hmax2(x, y);
  o[4] = __hneg2(__habs2(x));
  o[5] = __hsub2_sat(x, y);
}
extern "C" __global__ void bfloats(const __nv_bfloat162 *a,
                                   const __nv_bfloat162 *b, __nv_bfloat162 *o) {
  int t = threadIdx.x;
  __nv_bfloat162 x = a[t], y = b[t];
  o += t * 3;
  o[0] = __hfma2(x, y, x);
  o[1] = __hmin2(x, y);
  o[2] = __floats2bfloat162_rn(__low2float(x) * 3, __high2float(y));
}
extern "C" __global__ void conversions(const float *a, int *o, __half *h) {
  int t = threadIdx.x;
  float x = a[t];
  o += t * 6;
  o[0] = __float2int_rn(x);
  o[1] = __float2int_rz(x);
  o[2] = (int)__float2uint_ru(x);
  o[3] = __float2int_rd(x);
  o[4] = (int)(signed char)(int)x;
  o[5] = (int)__double2float_rn((double)x * x);
  h[t] = __float2half_rz(x);
}
#if __CUDA_ARCH__ >= 890
extern "C" __global__ void fp8(const float2 *a, uint16_t *e4, uint16_t *e5,
                               __half2 *back) {
  int t = threadIdx.x;
  float2 x = a[t];
  e4[t] = __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E4M3);
  e5[t] = __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E5M2);
  __half2_raw r = __nv_cvt_fp8x2_to_halfraw2(e4[t], __NV_E4M3);
  back[t] = __half2(r);
}
#endif
