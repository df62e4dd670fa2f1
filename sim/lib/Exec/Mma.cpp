//===- Mma.cpp - Fragment layouts, element formats, accumulation ----------===//
#include "Mma.h"
#include <algorithm>

namespace kvcache::sim::KVSIM_TIER {

Elem elemOf(const std::string &t) {
  static const std::map<std::string, Elem> m = {
      {"f16", Elem::F16},   {"bf16", Elem::BF16}, {"tf32", Elem::TF32},
      {"e4m3", Elem::E4M3}, {"e5m2", Elem::E5M2}, {"f64", Elem::F64},
      {"s8", Elem::S8},     {"u8", Elem::U8},     {"s4", Elem::S4},
      {"u4", Elem::U4},     {"b1", Elem::B1},     {"f32", Elem::F32},
      {"s32", Elem::S32}};
  auto it = m.find(t);
  return it == m.end() ? Elem::None : it->second;
}

int elemBits(Elem e) {
  switch (e) {
  case Elem::F64:
    return 64;
  case Elem::TF32:
  case Elem::F32:
  case Elem::S32:
    return 32;
  case Elem::F16:
  case Elem::BF16:
    return 16;
  case Elem::S4:
  case Elem::U4:
    return 4;
  case Elem::B1:
    return 1;
  default:
    return 8;
  }
}

AccModel accModel(MmaModel m, Elem a, bool isWgmma) {
  if (m == MmaModel::Exact || isIntElem(a) || a == Elem::F64)
    return {};
  bool fp8 = a == Elem::E4M3 || a == Elem::E5M2;
  AccModel r;
  r.exact = false;
  bool hopper = m == MmaModel::H100;
  if (fp8) {
    // H100's mma.sync on FP8 converts to f16; only wgmma is native there.
    if (hopper && !isWgmma)
      return {false, 16, 25, false};
    return {false, hopper ? 32 : 16, 13, true};
  }
  r.chunk = (a == Elem::TF32 ? 4 : 8) * (hopper ? 2 : 1);
  r.frac = hopper ? 25 : 24;
  return r;
}

float decodeElem(Elem e, uint32_t raw, bool flushSub) {
  float f;
  switch (e) {
  case Elem::F16:
    f = f16ToF32(uint16_t(raw));
    if (flushSub && !(raw & 0x7c00))
      f = std::copysign(0.0f, f);
    return f;
  case Elem::BF16:
    f = bf16ToF32(uint16_t(raw));
    break;
  case Elem::TF32:
    f = tf32(raw);
    break;
  case Elem::E4M3:
    return e4m3ToF32(uint8_t(raw));
  case Elem::E5M2:
    return e5m2ToF32(uint8_t(raw));
  default:
    f = bitcast<float>(raw);
  }
  return flushSub ? flush(f) : f;
}

int32_t decodeInt(Elem e, uint32_t raw) {
  switch (e) {
  case Elem::S8:
    return int8_t(raw);
  case Elem::U8:
    return uint8_t(raw);
  case Elem::S4:
    return int32_t(raw << 28) >> 28;
  case Elem::U4:
    return raw & 15;
  default:
    return raw & 1;
  }
}

static int exponent(float f) { return std::ilogb(f); }

/// One chunk: truncated alignment, exact sum, truncation.
static float fusedChunk(const AccModel &m, float acc, const float *a, int sa,
                        const float *b, int sb, int k) {
  int emax = INT32_MIN;
  bool special = !std::isfinite(acc);
  for (int i = 0; i < k; ++i) {
    float x = a[i * sa], y = b[i * sb];
    if (!std::isfinite(x) || !std::isfinite(y))
      special = true;
    else if (x != 0 && y != 0)
      emax = std::max(emax, exponent(x) + exponent(y));
  }
  if (special) {
    float s = acc;
    for (int i = 0; i < k; ++i)
      s += a[i * sa] * b[i * sb];
    return s;
  }
  if (acc != 0)
    emax = std::max(emax, exponent(acc));
  if (emax == INT32_MIN)
    return acc;
  double sum = std::trunc(std::ldexp(double(acc), m.frac - emax));
  for (int i = 0; i < k; ++i)
    sum += std::trunc(std::ldexp(double(a[i * sa]) * b[i * sb], m.frac - emax));
  double r = std::ldexp(sum, emax - m.frac);
  if (m.keep13)
    return float(roundTo(r, 13, -126, Round::Zero));
  return toF32(r, Round::Zero);
}

float dotModel(const AccModel &m, float acc, const float *a, int sa,
               const float *b, int sb, int k) {
  if (m.exact) {
    for (int i = 0; i < k; ++i)
      acc = __builtin_fmaf(a[i * sa], b[i * sb], acc);
    return acc;
  }
  for (int i = 0; i < k; i += m.chunk)
    acc = fusedChunk(m, acc, a + i * sa, sa, b + i * sb, sb,
                     std::min(m.chunk, k - i));
  return acc;
}

void productF32(const AccModel &model, const float *a, const float *b, float *c,
                int m, int n, int k) {
  if (!model.exact) {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j)
        c[i * n + j] = dotModel(model, c[i * n + j], a + i * k, 1, b + j, n, k);
    return;
  }
  // Ascending k for each element, columns in vectors.
  for (int i = 0; i < m; ++i)
    for (int x = 0; x < k; ++x) {
      float f = a[i * k + x];
      float *row = c + i * n;
      const float *br = b + x * n;
      for (int j = 0; j < n; ++j)
        row[j] = __builtin_fmaf(f, br[j], row[j]);
    }
}

// Rows g and g+8 alternate, then the next 4 * (32 / bits) columns of k.
std::vector<Slot> fragmentA(int m, int k, int bits) {
  std::vector<Slot> out(size_t(m) * k);
  int e = bits >= 32 ? 1 : 32 / bits, rows = m == 16 ? 2 : 1;
  for (int r = 0; r < m; ++r)
    for (int x = 0; x < k; ++x) {
      int g = r % 8, block = x / (4 * e), t = x % (4 * e) / e, j = x % e;
      out[r * k + x] = {uint8_t(block * rows + r / 8), uint8_t(g * 4 + t),
                        uint8_t(j * bits)};
    }
  return out;
}

std::vector<Slot> fragmentB(int k, int n, int bits) {
  std::vector<Slot> out(size_t(k) * n);
  int e = bits >= 32 ? 1 : 32 / bits;
  for (int x = 0; x < k; ++x)
    for (int col = 0; col < n; ++col) {
      int block = x / (4 * e), t = x % (4 * e) / e, j = x % e;
      out[x * n + col] = {uint8_t(block), uint8_t(col * 4 + t),
                          uint8_t(j * bits)};
    }
  return out;
}

std::vector<Slot> fragmentC(int m, int n, int bits) {
  std::vector<Slot> out(size_t(m) * n);
  for (int r = 0; r < m; ++r)
    for (int col = 0; col < n; ++col) {
      int lane = r % 8 * 4 + col / 2, j = col % 2;
      if (bits == 16)
        out[r * n + col] = {uint8_t(r / 8), uint8_t(lane), uint8_t(16 * j)};
      else
        out[r * n + col] = {uint8_t(r / 8 * 2 + j), uint8_t(lane), 0};
    }
  return out;
}

/// Expands stored A to its dense columns by the metadata.
/// Which stored pair comes from where: index i of row r, group of 4 (2 for
/// 32-bit types): 2 bits each.
void denseColumns(Ctx &c, const Instr &I, int m, int kA, int bits, int selector,
                  const uint32_t *e, std::vector<uint16_t> &col) {
  col.resize(size_t(m) * kA);
  for (int r = 0; r < m; ++r)
    for (int i = 0; i < kA; ++i) {
      // 4 metadata bits describe 2 stored elements (4 columns), or for tf32 one
      // stored element (2 columns), or for 4-bit types 2 pairs (8 columns).
      int unit = bits == 32 ? i : bits == 4 ? i / 4 : i / 2;
      int rowBits = (bits == 32 ? kA : bits == 4 ? kA / 4 : kA / 2) * 4;
      int bit = unit * 4;
      int lane, shift;
      if (rowBits <= 16) { // one thread of the quad, rows g low and g+8 high
        lane = r % 8 * 4 + selector;
        shift = (r / 8) * 16 + bit;
      } else if (bits >= 16) { // two threads, 16 bits of each row
        lane = r % 8 * 4 + (selector & 1) * 2 + bit / 16;
        shift = (r / 8) * 16 + bit % 16;
      } else if (rowBits == 32) { // two threads, one per row
        lane = r % 8 * 4 + (selector & 1) * 2 + r / 8;
        shift = bit;
      } else { // all four: row g and g+8 in turn
        lane = r % 8 * 4 + bit / 32 * 2 + r / 8;
        shift = bit % 32;
      }
      uint32_t nib = e[lane] >> shift & 15;
      if (bits == 32) {
        if (nib != 0xe && nib != 0x4)
          c.violation(
              "bounds", I, lane, 0,
              "sparse metadata of 32-bit types must be 0b0100 or 0b1110");
        col[r * kA + i] = uint16_t(i * 2 + (nib == 0xe));
      } else {
        int which = bits == 4 ? i / 2 % 2 : i % 2;
        uint32_t i0 = nib & 3, i1 = nib >> 2;
        if (i0 >= i1)
          c.violation("bounds", I, lane, 0,
                      "sparse metadata indices must ascend, got " +
                          std::to_string(i0) + " and " + std::to_string(i1));
        uint32_t idx = which ? i1 : i0;
        col[r * kA + i] = uint16_t(bits == 4 ? unit * 8 + int(idx) * 2 + i % 2
                                             : unit * 4 + int(idx));
      }
    }
}

} // namespace kvcache::sim::KVSIM_TIER
