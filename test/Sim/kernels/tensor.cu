// Matrix instructions of sm_80: mma, sparse mma, wmma, cp.async pipelines.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>
__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}
// C[16 per block.y][8 per block.x] = A B^T, double-buffered cp.async.
extern "C" __global__ void gemm_f16(const __half *A, const __half *B, float *C,
                                    int N, int K) {
  __shared__ __align__(128) __half sA[2][16 * 32];
  __shared__ __align__(128) __half sB[2][8 * 32];
  int lane = threadIdx.x, m0 = blockIdx.y * 16, n0 = blockIdx.x * 8;
  float c[4] = {0, 0, 0, 0};
  auto issue = [&](int s, int k0) {
    for (int i = lane; i < 64; i += 32)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       shared_address(&sA[s][(i / 4) * 32 + (i % 4) * 8])),
                   "l"(A + (size_t)(m0 + i / 4) * K + k0 + (i % 4) * 8));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                     shared_address(&sB[s][(lane / 4) * 32 + (lane % 4) * 8])),
                 "l"(B + (size_t)(n0 + lane / 4) * K + k0 + (lane % 4) * 8));
    asm volatile("cp.async.commit_group;");
  };
  issue(0, 0);
  for (int k0 = 0, s = 0; k0 < K; k0 += 32, s ^= 1) {
    if (k0 + 32 < K)
      issue(s ^ 1, k0 + 32);
    else
      asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    for (int kk = 0; kk < 32; kk += 16) {
      uint32_t a[4], b[2];
      uint32_t pa =
          shared_address(&sA[s][(lane % 16) * 32 + kk + (lane / 16) * 8]);
      uint32_t pb =
          shared_address(&sB[s][(lane % 8) * 32 + kk + ((lane / 8) & 1) * 8]);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                   : "r"(pa));
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                   : "=r"(b[0]), "=r"(b[1])
                   : "r"(pb));
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                   "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                   : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                     "r"(b[1]));
    }
    __syncthreads();
  }
  int g = lane / 4, t = lane % 4;
  float *out = C + (size_t)(m0 + g) * N + n0 + 2 * t;
  out[0] = c[0];
  out[1] = c[1];
  out[8 * N] = c[2];
  out[8 * N + 1] = c[3];
}
// One warp: D[16][8] from row-major A[16][K] and B[8][K] words in memory.
#define FRAG(K4)                                                               \
  int lane = threadIdx.x, g = lane / 4, t = lane % 4;                          \
  uint32_t a[4] = {A[g * K4 + t], A[(g + 8) * K4 + t], A[g * K4 + t + 4],      \
                   A[(g + 8) * K4 + t + 4]},                                   \
           b[2] = {B[g * K4 + t], B[g * K4 + t + 4]};
extern "C" __global__ void mma_s8(const uint32_t *A, const uint32_t *B, int *C) {
  FRAG(8)
  int c[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
               "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  C[g * 8 + 2 * t] = c[0];
  C[g * 8 + 2 * t + 1] = c[1];
  C[(g + 8) * 8 + 2 * t] = c[2];
  C[(g + 8) * 8 + 2 * t + 1] = c[3];
}
extern "C" __global__ void mma_tf32(const uint32_t *A, const uint32_t *B, float *C) {
  FRAG(8)
  float c[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  C[g * 8 + 2 * t] = c[0];
  C[g * 8 + 2 * t + 1] = c[1];
  C[(g + 8) * 8 + 2 * t] = c[2];
  C[(g + 8) * 8 + 2 * t + 1] = c[3];
}
extern "C" __global__ void mma_f64(const double *A, const double *B, double *C) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  double c0 = 0, c1 = 0;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};"
               : "+d"(c0), "+d"(c1)
               : "d"(A[g * 4 + t]), "d"(B[g * 4 + t]));
  C[g * 8 + 2 * t] = c0;
  C[g * 8 + 2 * t + 1] = c1;
}
// 2:4 sparse A: values [16][16] f16, metadata 32 bits a row, B [8][32] f16.
extern "C" __global__ void mma_sparse(const uint32_t *A, const uint16_t *meta,
                                      const uint32_t *B, float *C) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t a[4] = {A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4],
                   A[(g + 8) * 8 + t + 4]};
  uint32_t b[4];
  for (int i = 0; i < 4; ++i)
    b[i] = B[g * 16 + t + 4 * i];
  // Thread t (0 or 1) of a quad: columns 16t.. of row g (low) and g+8 (high).
  uint32_t e = meta[g * 2 + (t & 1)] | (uint32_t)meta[(g + 8) * 2 + (t & 1)] << 16;
  float c[4] = {0, 0, 0, 0};
  asm volatile(
      "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9,%10,%11},{%0,%1,%2,%3},%12,0x0;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "r"(b[2]), "r"(b[3]), "r"(e));
  C[g * 8 + 2 * t] = c[0];
  C[g * 8 + 2 * t + 1] = c[1];
  C[(g + 8) * 8 + 2 * t] = c[2];
  C[(g + 8) * 8 + 2 * t + 1] = c[3];
}
extern "C" __global__ void wmma_f16(const __half *A, const __half *B, float *C,
                                    int N, int K) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::fill_fragment(c, 0.0f);
  for (int k = 0; k < K; k += 16) {
    wmma::load_matrix_sync(a, A + (size_t)blockIdx.y * 16 * K + k, K);
    wmma::load_matrix_sync(b, B + (size_t)blockIdx.x * 16 * K + k, K);
    wmma::mma_sync(c, a, b, c);
  }
  for (int i = 0; i < c.num_elements; ++i)
    c.x[i] *= 0.5f;
  wmma::store_matrix_sync(C + (size_t)blockIdx.y * 16 * N + blockIdx.x * 16, c, N,
                          wmma::mem_row_major);
}
extern "C" __global__ void transpose(const uint32_t *x, uint32_t *y) {
  uint32_t v = x[threadIdx.x], r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  y[threadIdx.x] = r;
}
