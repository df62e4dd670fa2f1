// sm_90a: warpgroup products by hand-written descriptors: both majors, FP8 from registers, sparse, f16
// accumulators.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes.
__device__ __forceinline__ uint64_t descriptor(const void *p, uint32_t lead, uint32_t stride, uint64_t swizzle) {
  return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
         swizzle << 62;
}
__device__ __forceinline__ uint32_t swizzle128(uint32_t bytes) { return bytes ^ (bytes >> 7 & 7) << 4; }
__device__ __forceinline__ uint32_t swizzle64(uint32_t bytes) { return bytes ^ (bytes >> 7 & 3) << 4; }

// Registers of a product are ready before its fence, wherever the compiler would like to set them.
__device__ __forceinline__ void pin(float &r) { asm volatile("" : "+f"(r)::"memory"); }
__device__ __forceinline__ void pin(uint32_t &r) { asm volatile("" : "+r"(r)::"memory"); }
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void finish() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
// Accumulators of m64n8: rows g and g + 8 of each warp's 16, columns 2t and 2t + 1.
__device__ __forceinline__ void store(float *D, int ld, const float *d) {
  int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i)
    D[(16 * w + g + (i / 2) * 8) * ld + 2 * t + i % 2] = d[i];
}

// D[64][64] = A^T B with A[K][64], B[K][64] (both MN-major, 128-byte swizzle), K a multiple of 16; A negated.
extern "C" __global__ void wgmma_mn(const __nv_bfloat16 *A, const __nv_bfloat16 *B, float *D, int K) {
  __shared__ __align__(1024) unsigned char sa[2048], sb[2048];
  float d[32];
  for (int i = 0; i < 32; ++i)
    d[i] = 0;
  for (int k0 = 0; k0 < K; k0 += 16) {
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * 64; i += 128) { // 64 elements of a k are one swizzled row
      uint32_t at = swizzle128(i * 2);
      *(__nv_bfloat16 *)(sa + at) = A[(size_t)k0 * 64 + i];
      *(__nv_bfloat16 *)(sb + at) = B[(size_t)k0 * 64 + i];
    }
    publish();
    for (int i = 0; i < 32; ++i)
      pin(d[i]);
    begin();
    uint64_t da = descriptor(sa, 2048, 1024, 1), db = descriptor(sb, 2048, 1024, 1);
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31}, %32, %33, 1, -1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(da), "l"(db));
    finish();
  }
  for (int j = 0; j < 8; ++j)
    store(D + 8 * j, 64, d + 4 * j);
}

// D[64][8] = A B^T, A[64][64] of e4m3 from registers, B[8][64] of e5m2 with a 64-byte swizzle.
extern "C" __global__ void wgmma_fp8(const uint32_t *A, const unsigned char *B, float *D) {
  __shared__ __align__(512) unsigned char sb[512];
  for (int i = threadIdx.x; i < 512; i += 128)
    sb[swizzle64(i)] = B[i];
  publish();
  int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float d[4] = {0, 0, 0, 0};
  for (int k = 0; k < 2; ++k) {
    uint32_t a[4];
    for (int i = 0; i < 4; ++i) // 16 words a row
      a[i] = A[(16 * w + g + i % 2 * 8) * 16 + k * 8 + t + i / 2 * 4];
    for (int i = 0; i < 4; ++i) {
      pin(a[i]);
      pin(d[i]);
    }
    begin();
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(sb + k * 32, 16, 512, 2)));
    finish();
  }
  store(D, 8, d);
}

// D[64][8] (f16) = sparse A[64][32] B^T; A holds the kept 16 of each row, E the metadata of each lane.
extern "C" __global__ void wgmma_sparse(const uint32_t *A, const __half *B, const uint32_t *E, uint32_t *D) {
  __shared__ __align__(256) unsigned char sb[512]; // no swizzle: 16-byte columns of 8 rows
  for (int i = threadIdx.x; i < 8 * 32; i += 128) {
    int n = i / 32, k = i % 32;
    *(__half *)(sb + k / 8 * 128 + n * 16 + k % 8 * 2) = B[i];
  }
  publish();
  int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t a[4], d[2] = {0, 0}, e = E[threadIdx.x];
  for (int i = 0; i < 4; ++i) // 8 words a row
    a[i] = A[(16 * w + g + i % 2 * 8) * 8 + t + i / 2 * 4];
  for (int i = 0; i < 4; ++i)
    pin(a[i]);
  for (int i = 0; i < 2; ++i)
    pin(d[i]);
  pin(e);
  begin();
  asm volatile("wgmma.mma_async.sp.sync.aligned.m64n8k32.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, %6, %7, 0, 1, 1, 1, 0;"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(sb, 128, 256, 0)), "r"(e));
  finish();
  for (int i = 0; i < 2; ++i)
    D[(16 * w + g + i * 8) * 4 + t] = d[i];
}

// C[16][16] = A B: fragments loaded by wmma, used by mma.sync, stored by wmma.
#include <mma.h>
extern "C" __global__ void wmma_and_mma(const __half *A, const __half *B, float *C) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::load_matrix_sync(a, A, 16);
  wmma::load_matrix_sync(b, B, 16);
  wmma::fill_fragment(c, 0.0f);
  const uint32_t *ra = (const uint32_t *)a.x, *rb = (const uint32_t *)b.x;
  for (int j = 0; j < 2; ++j)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c.x[4 * j]), "+f"(c.x[4 * j + 1]), "+f"(c.x[4 * j + 2]), "+f"(c.x[4 * j + 3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[2 * j]), "r"(rb[2 * j + 1]));
  // A softmax-like step by the known place of each element: row g is halved, row g + 8 doubled.
  for (int i = 0; i < 8; ++i)
    c.x[i] *= i / 2 % 2 ? 2.0f : 0.5f;
  wmma::store_matrix_sync(C, c, 16, wmma::mem_row_major);
}
