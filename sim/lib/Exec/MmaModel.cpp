//===- MmaModel.cpp - How the chips accumulate matrix products ------------===//
//
// Elements are split into integer significands and exponents once; a step is
// then shifts and additions of 64-bit integers over the columns of a row,
// which vectorise.
//
//===----------------------------------------------------------------------===//
#include "MmaModel.h"
#include <algorithm>
#include <bit>
#include <vector>

namespace kvcache::sim::KVSIM_TIER {

AccModel accModel(MmaModel m, Elem a, Elem b, bool f16Acc, bool isWgmma) {
  AccModel r;
  if (m == MmaModel::Exact)
    return r;
  bool hopper = m == MmaModel::H100;
  r.exact = false;
  r.f16 = f16Acc;
  r.a = a;
  r.b = b;
  if (a == Elem::E4M3 || a == Elem::E5M2) {
    if (hopper && !isWgmma) {
      r.viaF16 = true;
      r.a = r.b = Elem::F16;
      r.chunk = 16;
      r.frac = 25;
      return r;
    }
    r.chunk = hopper ? 32 : 16;
    r.frac = r.outBits = 13;
    return r;
  }
  r.chunk = (a == Elem::TF32 ? 4 : 8) * (hopper ? 2 : 1);
  r.frac = hopper ? 25 : 24;
  return r;
}

namespace {
/// Fraction bits and least exponent of a format.
struct Format {
  int mant, emin;
};

/// A matrix as significands (scaled by 2^-mant) and exponents.
struct Parts {
  std::vector<int32_t> sig, exp;
  std::vector<uint8_t> special; ///< per row or column: an infinity or NaN
};

/// What a step needs beside its terms.
struct Step {
  int left; ///< products are shifted left by it before the alignment
  Format acc;
  const AccModel &model;
};
} // namespace

static Format formatOf(Elem e) {
  switch (e) {
  case Elem::F16:
    return {10, -14};
  case Elem::BF16:
    return {7, -126};
  case Elem::TF32:
    return {10, -126};
  case Elem::E4M3:
    return {3, -6};
  case Elem::E5M2:
    return {2, -14};
  default:
    return {23, -126};
  }
}

static inline void split(float f, Format t, int32_t &sig, int32_t &exp) {
  uint32_t u = bitcast<uint32_t>(f), field = u >> 23 & 255;
  int32_t mant = int32_t(u & 0x7fffff) | (field ? 0x800000 : 0);
  int32_t e = int32_t(field ? field : 1) - 127;
  if (mant == 0) {
    sig = 0;
    exp = -126;
    return;
  }
  int32_t down = e < t.emin ? t.emin - e : 0;
  mant >>= std::min(23 - t.mant + down, 31);
  sig = u >> 31 ? -mant : mant;
  exp = e + down;
}

/// sum * 2^scale to f32: truncated to `mant` fraction bits, or to odd.
static float normalise(int64_t sum, int scale, int mant, bool odd) {
  if (sum == 0)
    return 0.0f;
  uint32_t sign = sum < 0 ? 0x80000000u : 0;
  uint64_t mag = sum < 0 ? uint64_t(-sum) : uint64_t(sum);
  int e = 63 - std::countl_zero(mag) + scale;
  if (e > 127)
    return bitcast<float>(sign | 0x7f800000u);
  int lsb = std::max(e, -126) - mant, down = lsb - scale;
  if (down > 63)
    mag = odd ? 1 : 0;
  else if (down > 0)
    mag = mag >> down | uint64_t(odd && (mag & ((uint64_t(1) << down) - 1)));
  else
    mag <<= -down;
  uint32_t bits = uint32_t(mag) << (23 - mant);
  if (e >= -126)
    bits = uint32_t(e + 127) << 23 | (bits & 0x7fffff);
  return bitcast<float>(sign | bits);
}

static float result(const AccModel &m, int64_t sum, int scale) {
  if (m.f16)
    return f16ToF32(f32ToF16(normalise(sum, scale, 23, true)));
  return normalise(sum, scale, m.outBits, false);
}

/// A step with an infinity or a NaN among its terms; false if there is none.
static bool specialStep(const float *a, const float *b, int n, const int *at,
                        int count, float &acc) {
  double s = acc;
  for (int i = 0; i < count; ++i)
    s += double(a[i]) * double(b[at[i] * n]);
  if (std::isfinite(s))
    return false;
  acc = canonical(float(s));
  return true;
}

/// Aligned terms of `count` products for all columns, and the accumulators.
static void fusedRow(const Step &st, const int32_t *sa, const int32_t *ea,
                     const Parts &b, int n, const int *at, int count,
                     float *acc, const uint8_t *skip) {
  int32_t emax[256], accExp[256], accSig[256];
  int64_t sum[256];
  for (int j = 0; j < n; ++j)
    split(acc[j], st.acc, accSig[j], accExp[j]);
  std::copy(accExp, accExp + n, emax);
  for (int i = 0; i < count; ++i) {
    const int32_t *eb = &b.exp[size_t(at[i] * n)];
    for (int j = 0; j < n; ++j)
      emax[j] = std::max(emax[j], ea[i] + eb[j]);
  }
  auto aligned = [](int64_t v, int up, int64_t down) {
    int64_t neg = v >> 63, mag = (v ^ neg) - neg;
    mag = (mag << up) >> (down > 63 ? 63 : down);
    return (mag ^ neg) - neg;
  };
  int up = std::max(st.model.frac - st.acc.mant, 0);
  int down = std::max(st.acc.mant - st.model.frac, 0);
  for (int j = 0; j < n; ++j)
    sum[j] = aligned(accSig[j], up, emax[j] - accExp[j] + down);
  for (int i = 0; i < count; ++i) {
    const int32_t *sb = &b.sig[size_t(at[i] * n)],
                  *eb = &b.exp[size_t(at[i] * n)];
    for (int j = 0; j < n; ++j)
      sum[j] +=
          aligned(int64_t(sa[i] * sb[j]), st.left, emax[j] - (ea[i] + eb[j]));
  }
  for (int j = 0; j < n; ++j)
    if (!skip || !skip[j])
      acc[j] = result(st.model, sum[j], emax[j] - st.model.frac);
}

static Parts splitAll(const float *v, size_t rows, size_t cols, Format t,
                      bool byRow) {
  Parts p;
  p.sig.resize(rows * cols);
  p.exp.resize(rows * cols);
  p.special.assign(byRow ? rows : cols, 0);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < cols; ++c) {
      size_t i = r * cols + c;
      split(v[i], t, p.sig[i], p.exp[i]);
      p.special[byRow ? r : c] |= !std::isfinite(v[i]);
    }
  return p;
}

namespace {
/// One product by a chip's model.
struct Fused {
  const AccModel &model;
  const float *a, *b;
  int n, kA;
  const uint16_t *cols;
  Parts pa, pb;
  Step step;

  Fused(const AccModel &m, const float *a, const float *b, int rows, int n,
        int kA, int k, const uint16_t *cols)
      : model(m), a(a), b(b), n(n), kA(kA), cols(cols),
        pa(splitAll(a, size_t(rows), size_t(kA), formatOf(m.a), true)),
        pb(splitAll(b, size_t(k), size_t(n), formatOf(m.b), false)),
        step{m.frac - formatOf(m.a).mant - formatOf(m.b).mant,
             m.f16 ? Format{10, -14} : Format{23, -126}, m} {}

  /// The stored elements `which` of row r, one step.
  void chunk(int r, const int *which, int count, float *acc) const {
    int32_t sa[32], ea[32];
    float fa[32];
    int at[32];
    for (int i = 0; i < count; ++i) {
      size_t x = size_t(r * kA + which[i]);
      sa[i] = pa.sig[x];
      ea[i] = pa.exp[x];
      fa[i] = a[x];
      at[i] = cols ? cols[x] : which[i];
    }
    uint8_t skip[256];
    bool any = false;
    for (int j = 0; j < n; ++j) {
      skip[j] = pa.special[size_t(r)] | pb.special[size_t(j)] |
                !std::isfinite(acc[j]);
      skip[j] = skip[j] && specialStep(fa, b + j, n, at, count, acc[j]);
      any |= skip[j];
    }
    fusedRow(step, sa, ea, pb, n, at, count, acc, any ? skip : nullptr);
  }

  void row(int r, float *acc) const {
    int which[32];
    if (!model.viaF16) {
      for (int i = 0; i < kA; i += model.chunk) {
        int count = std::min(model.chunk, kA - i);
        for (int x = 0; x < count; ++x)
          which[x] = i + x;
        chunk(r, which, count, acc);
      }
      return;
    }
    std::vector<float> part(size_t(n), 0.0f);
    for (int half = 0; half < 2; ++half) {
      int count = 0;
      for (int i = 0; i < kA; ++i)
        if (i % 4 / 2 == half)
          which[count++] = i;
      chunk(r, which, count, part.data());
    }
    for (int j = 0; j < n; ++j) {
      double s = double(acc[j]) + double(part[size_t(j)]);
      acc[j] = !model.f16 ? canonical(acc[j] + part[size_t(j)])
                          : float(roundTo(s, 10, -14, Round::Nearest));
    }
  }
};
} // namespace

/// m8n8k4: f32 results add the finished sum to the accumulator, f16 results
/// the sums of two products each.
static float scalarDot(const AccModel &m, const float *a, const float *b, int n,
                       float acc) {
  float p[2] = {0, 0};
  for (int i = 0; i < 4; ++i) {
    float &s = p[m.f16 ? i / 2 : 0];
    s = __builtin_fmaf(a[i], b[i * n], s);
  }
  acc += p[0];
  return m.f16 ? acc + p[1] : acc;
}

void productF32(const AccModel &model, const float *a, const float *b, float *c,
                int m, int n, int kA, const uint16_t *cols) {
  if (model.scalar) {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j)
        c[i * n + j] = scalarDot(model, a + i * 4, b + j, n, c[i * n + j]);
    return;
  }
  if (!model.exact) {
    Fused f(model, a, b, m, n, kA, cols ? 2 * kA : kA, cols);
    for (int i = 0; i < m; ++i)
      f.row(i, c + i * n);
    return;
  }
  // Ascending k for each element, columns in vectors.
  for (int i = 0; i < m; ++i)
    for (int x = 0; x < kA; ++x) {
      float f = a[i * kA + x];
      float *row = c + i * n;
      const float *br = b + (cols ? cols[i * kA + x] : x) * n;
      for (int j = 0; j < n; ++j)
        row[j] = __builtin_fmaf(f, br[j], row[j]);
    }
}

} // namespace kvcache::sim::KVSIM_TIER
