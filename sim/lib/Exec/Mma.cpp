//===- Mma.cpp - Fragment layouts, element formats ------------------------===//
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

// Product p: lanes 4p..4p+3 hold rows (columns) 0-3, lanes + 16 rows 4-7.
std::vector<Slot> fragment884(bool rowMajor, bool isA) {
  std::vector<Slot> out(4 * 32);
  for (int p = 0; p < 4; ++p)
    for (int lane = 0; lane < 8; ++lane)
      for (int i = 0; i < 4; ++i) {
        int t = lane % 4, high = lane / 4 * 4;
        // Elements of a lane run along k where the matrix is stored along k.
        bool alongK = rowMajor == isA;
        int k = alongK ? i : t, other = (alongK ? t : i) + high;
        out[size_t(p * 32 + (isA ? other * 4 + k : k * 8 + other))] = {
            uint8_t(i / 2), uint8_t(4 * p + t + high * 4), uint8_t(i % 2 * 16)};
      }
  return out;
}

std::vector<Slot> accumulator884(int bits) {
  std::vector<Slot> out(4 * 64);
  for (int p = 0; p < 4; ++p)
    for (int lane = 0; lane < 8; ++lane)
      for (int i = 0; i < 8; ++i) {
        int t = lane % 4, high = lane / 4 * 4, at = 4 * p + t + high * 4;
        bool half = bits == 16;
        int row = half ? t + high : (t & 1) + (i & 2) + high;
        int col = half ? i : (i & 4) + (t & 2) + (i & 1);
        out[size_t(p * 64 + row * 8 + col)] =
            half ? Slot{uint8_t(i / 2), uint8_t(at), uint8_t(i % 2 * 16)}
                 : Slot{uint8_t(i), uint8_t(at), 0};
      }
  return out;
}

int sparseSelectors(int kA, int bits) {
  int rowBits = (bits == 32 ? kA : bits == 4 ? kA / 4 : kA / 2) * 4;
  return rowBits <= 16                                  ? 4
         : rowBits >= 64 || (bits == 8 && rowBits > 32) ? 1
                                                        : 2;
}

/// Expands stored A to its dense columns by the metadata.
/// Which stored pair comes from where: index i of row r, group of 4 (2 for
/// 32-bit types): 2 bits each.
void denseColumns(Ctx &c, const Instr &I, int m, int kA, int bits, int selector,
                  bool ordered, const uint32_t *e, std::vector<uint16_t> &col) {
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
        if (ordered ? i0 >= i1 : i0 == i1)
          c.violation("bounds", I, lane, 0,
                      std::string("sparse metadata indices must ") +
                          (ordered ? "ascend, got " : "differ, got ") +
                          std::to_string(i0) + " and " + std::to_string(i1));
        uint32_t idx = which ? i1 : i0;
        col[r * kA + i] = uint16_t(bits == 4 ? unit * 8 + int(idx) * 2 + i % 2
                                             : unit * 4 + int(idx));
      }
    }
}

} // namespace kvcache::sim::KVSIM_TIER
