//===- IntegerProducts.cpp - Products with codes by vpdpbusd --------------===//
//
// dot_kind u8s8x2: the other operand y (queries or probabilities, times the
// scales where those fold into it) becomes integers in two signed bytes,
//
//   Q = rint(y / S),  S = max|y| / 32639,  Q = 256 * hi + lo
//
// with hi in [-127, 127], lo in [-128, 127], and vpdpbusd adds four products
// code * hi (code * lo) per lane exactly. sum y * code = S * sum Q * code up to
// rounding; the residuals y - S * Q are multiplied with the middle c of the
// codes' range, so that only (code - c) meets them: half the error, for one
// fma.
//
// Rows of y (one per head and group) are quantised up to 16 at once: maxima and
// sums of all of them come from one tree of shuffles, the divisions are one.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

/// Largest |Q|: 127 * 256 + 127.
static constexpr double kLargest = 32639.0;
/// Keys that share a zero over more channels than this lie far from the middle
/// of the codes where one channel is an outlier (real keys have such): the
/// residuals of a query would then miss the bound on the LSE (1.2e-3 of a score
/// on the shipped capture, 1e-3 allowed).
static constexpr int64_t kMostSharing = 16;
/// Rows below this are as good as zero, and their inverse would overflow.
static constexpr double kTiny = 1e-30;

static double middleOf(const TensorImage &t) {
  return static_cast<double>(1 << (t.bits() - 1));
}

bool AttendLowering::usesIntegers(const TensorImage &t) const {
  if (schedule.getDotKind() != DotKind::U8S8x2 ||
      !isInteger(t.encoding.element))
    return false;
  if (!t.isValue && t.encoding.asymmetric && t.groupChannels() > kMostSharing)
    return false;
  bool wide = tokens >= 16 && (!t.isValue || v <= 512) && d <= 512;
  bool units = t.encoding.scale != ScaleKind::Channel || !t.isValue ||
               t.groupSize() >= valueUnit(false);
  return wide && units && modeOf(t) == ScaleMode::Fold;
}

/// Scales that run along the sum fold into y; others rescale the result.
static bool foldsInto(const TensorImage &t) {
  return t.encoding.scale !=
         (t.isValue ? ScaleKind::Channel : ScaleKind::Token);
}

AttendLowering::IntegerRows
AttendLowering::makeIntegerRows(const TensorImage &t) {
  IntegerRows r;
  r.image = &t;
  r.folded = foldsInto(t);
  int64_t all = t.isValue ? tokens : d, group = t.groupSize();
  bool plain = t.encoding.scale == ScaleKind::Head ||
               t.encoding.scale == ScaleKind::Tensor;
  // Values per head or tensor fold like one token group; keys alike.
  if (r.folded) {
    r.length = all;
    r.groups = plain ? 1 : (t.isValue ? v : tokens) / group;
  } else {
    r.length = group;
    r.groups = all / group;
  }
  r.stride = llvm::alignTo(r.length, 16);
  int64_t rows = r.groups * n;
  r.hi = b.scratch(rows * r.stride + 64);
  r.lo = b.scratch(rows * r.stride + 64);
  r.factor = b.scratch(rows * 4 + 64);
  r.inverse = b.scratch(rows * 4 + 64);
  r.correction = b.scratch(rows * 4 + 64);
  r.sum = b.scratch(rows * 4 + 64);
  return r;
}

/// Vectors of 16 (and one shorter) over [0, length).
AttendLowering::Values AttendLowering::forVectors(
    int64_t length, ValueRange inits,
    llvm::function_ref<Values(Value i, int64_t width, ValueRange)> body) {
  int64_t whole = length / 16 * 16;
  Values carried = llvm::to_vector_of<Value>(inits);
  if (whole)
    carried = b.loop(b.i64(0), b.i64(whole), 16, carried,
                     [&](Value i, ValueRange c) { return body(i, 16, c); });
  if (whole < length)
    carried = body(b.i64(whole), length - whole, carried);
  return carried;
}

/// Scale and zero of group g along a row, from element i.
std::pair<Value, Value> AttendLowering::rowScales(const IntegerRows &r, Value g,
                                                  Value i, int64_t width) {
  const TensorImage &t = *r.image;
  Value first = b.mul(g, t.groupSize());
  if (t.encoding.scale == ScaleKind::Head ||
      t.encoding.scale == ScaleKind::Tensor)
    first = b.i64(0);
  Value tok = t.isValue ? i : first, ch = t.isValue ? first : i;
  Lanes lanes = t.isValue ? Lanes::Tokens : Lanes::Channels;
  Value s = loadScale(t, tok, ch, width, lanes);
  return {s, loadZero(t, tok, ch, width, lanes, s)};
}

/// Quantises the rows x [n][rowStride] (f32), one row per group and head.
void AttendLowering::quantizeRows(const IntegerRows &r, Value x,
                                  int64_t rowStride) {
  int64_t together = std::max<int64_t>(16 / n, 1);
  while (r.groups % together)
    --together;
  b.loop(b.i64(0), b.i64(r.groups), together, [&](Value first) {
    scaleRows(r, x, rowStride, first, together);
    splitRows(r, x, rowStride, first, together);
  });
}

Value AttendLowering::rowElement(const IntegerRows &r, Value x,
                                 int64_t rowStride, Value g, int64_t head,
                                 Value i, int64_t width) {
  Value at = b.add(i, head * rowStride);
  if (!r.folded)
    at = b.add(at, b.mul(g, r.length));
  return b.load(b.fvec(width), b.at(x, b.mul(at, 4)));
}

/// Factors and their inverses, from the maxima of the rows.
void AttendLowering::scaleRows(const IntegerRows &r, Value x, int64_t rowStride,
                               Value first, int64_t together) {
  Values maxima(together * n, b.fsplat(16, 0.0));
  maxima = forVectors(
      r.length, maxima, [&](Value i, int64_t width, ValueRange carried) {
        Values next;
        for (int64_t k = 0; k < together; ++k) {
          Value g = b.add(first, k), s;
          if (r.folded)
            s = rowScales(r, g, i, width).first;
          for (int64_t head = 0; head < n; ++head) {
            Value y = rowElement(r, x, rowStride, g, head, i, width);
            if (s)
              y = b.fmul(y, s);
            y = b.widen(math::AbsFOp::create(b, y), 16);
            next.push_back(b.fmax(carried[next.size()], y));
          }
        }
        return next;
      });
  Value max = b.reduceEach(maxima, /*isMax=*/true);
  Value some = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, max,
                                     b.fsplat(16, kTiny));
  Value zero = b.fsplat(16, 0.0);
  Value inverse = b.fdiv(b.fsplat(16, kLargest), max);
  Value factor = b.fmul(max, b.fsplat(16, 1.0 / kLargest));
  Value place = b.mul(first, n * 4);
  b.store(b.select(some, inverse, zero), b.at(r.inverse, place));
  b.store(b.select(some, factor, zero), b.at(r.factor, place));
}

/// The bytes, and what the results still need: corrections and sums.
void AttendLowering::splitRows(const IntegerRows &r, Value x, int64_t rowStride,
                               Value first, int64_t together) {
  int64_t rows = together * n;
  // Adding 1.5 * 2^23 + 128 rounds to an integer and leaves Q + 128 in the low
  // bits: bits 8.. are hi, the low eight lo + 128.
  double magic = 12582912.0 + 128.0;
  Values sums(rows * 2, b.fsplat(16, 0.0));
  sums = forVectors(
      r.length, sums, [&](Value i, int64_t width, ValueRange carried) {
        Values next = llvm::to_vector_of<Value>(carried);
        for (int64_t k = 0; k < together; ++k) {
          Value g = b.add(first, k), s, z;
          if (r.folded)
            std::tie(s, z) = rowScales(r, g, i, width);
          for (int64_t head = 0; head < n; ++head) {
            int64_t row = k * n + head;
            Value pair = b.add(b.mul(g, n), head);
            Value e = rowElement(r, x, rowStride, g, head, i, width);
            Value y = s ? b.fmul(e, s) : e;
            Value f = b.mul(pair, 4);
            Value inverse = b.loadSplat(b.at(r.inverse, f), width);
            Value factor = b.loadSplat(b.at(r.factor, f), width);
            Value shifted = b.fma(y, inverse, b.fsplat(width, magic));
            Value rounded = b.fsub(shifted, b.fsplat(width, magic));
            Value residual = b.fsub(y, b.fmul(rounded, factor));
            Value &correction = next[row], &sum = next[rows + row];
            correction = b.fma(b.widen(residual, 16),
                               b.fsplat(16, middleOf(*r.image)), correction);
            if (z)
              correction = b.fma(b.widen(e, 16), b.widen(z, 16), correction);
            else
              sum = b.fadd(sum, b.widen(e, 16));
            Value place = b.add(b.mul(pair, r.stride), i);
            storeBytes(r, b.bits(shifted, b.ivec(width)), place);
          }
        }
        return next;
      });
  Value place = b.mul(first, n * 4);
  b.store(b.reduceEach(ArrayRef(sums).take_front(rows)),
          b.at(r.correction, place));
  if (!r.folded)
    b.store(b.reduceEach(ArrayRef(sums).drop_front(rows)), b.at(r.sum, place));
}

void AttendLowering::storeBytes(const IntegerRows &r, Value shifted,
                                Value place) {
  int64_t width = cast<VectorType>(shifted.getType()).getNumElements();
  auto truncate = [&](Value x) -> Value {
    return arith::TruncIOp::create(b, b.vec(width, b.getI8Type()), x);
  };
  b.store(truncate(b.shr(shifted, 8)), b.at(r.hi, place));
  Value low = b.iadd(b.iand(shifted, 255), b.isplat(width, -128));
  b.store(truncate(low), b.at(r.lo, place));
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// acc + the sums of four products of unsigned bytes (codes) and signed ones.
static Value dot4(CpuBuilder &b, Value acc, Value codes, Value bytes) {
  VectorType type = b.vec(64, b.getI8Type());
  auto name = b.getStringAttr("llvm.x86.avx512.vpdpbusd.512");
  return LLVM::CallIntrinsicOp::create(
             b, acc.getType(), name,
             ValueRange{acc, LLVM::BitcastOp::create(b, type, codes),
                        LLVM::BitcastOp::create(b, type, bytes)})
      .getResult(0);
}

/// The words of codes at `place` (`width` of 16 lanes) as unsigned bytes: one
/// vector, or two for two codes a byte.
static SmallVector<Value> unpack(CpuBuilder &b, const TensorImage &t,
                                 Value place, int64_t width) {
  Value word = b.widen(b.load(b.ivec(width), place), 16);
  if (t.bits() == 8)
    return {word};
  return {b.iand(word, 0x0f0f0f0f), b.iand(b.shr(word, 4), 0x0f0f0f0f)};
}

/// acc[block][head][hi, lo] += codes * row bytes for one unit of codes; `at` is
/// the row's element that the unit starts at, `group` its row group.
void AttendLowering::dotUnit(const IntegerRows &r,
                             ArrayRef<SmallVector<Value>> codes, Value group,
                             Value at, Values &acc) {
  for (size_t part = 0; part < codes.front().size(); ++part)
    for (int64_t head = 0; head < n; ++head) {
      Value row = b.mul(b.add(b.mul(group, n), head), r.stride);
      Value place = b.add(b.add(row, at), part * 4);
      for (int64_t side = 0; side < 2; ++side) {
        Value bytes = b.splat(
            b.load(b.getI32Type(), b.at(side ? r.lo : r.hi, place)), 16);
        for (size_t block = 0; block < codes.size(); ++block) {
          Value &x = acc[(block * n + head) * 2 + side];
          x = dot4(b, x, codes[block][part], bytes);
        }
      }
    }
}

/// S * (256 hi + lo) + correction. The sums of up to 512 products are exact in
/// f32; 256 times one may not fit an integer.
Value AttendLowering::combine(const IntegerRows &r, Value group, int64_t head,
                              Value hi, Value lo) {
  Value f = b.mul(b.add(b.mul(group, n), head), 4);
  Value sum = b.fma(b.toFloat(hi), b.fsplat(16, 256.0), b.toFloat(lo));
  return b.fma(sum, b.loadSplat(b.at(r.factor, f), 16),
               b.loadSplat(b.at(r.correction, f), 16));
}

/// acc[j][head][hi, lo]: products of row group `group` with the channels from
/// `first`, for `u` vectors of tokens from `tok`.
AttendLowering::Values
AttendLowering::dotKeysInteger(Value tok, int64_t u, Value group, Value first) {
  const TensorImage &key = image.key;
  const IntegerRows &r = integerKeys;
  Value codes = b.at(tile.record, image.offset(Section::KCodes));
  int64_t unit = keyUnit(), steps = d / unit;
  Values acc(u * n * 2, b.isplat(16, 0));
  return b.loop(
      b.i64(0), b.i64(r.length), unit, acc, [&](Value at, ValueRange carried) {
        Values next = llvm::to_vector_of<Value>(carried);
        Value ch = b.add(first, at);
        SmallVector<SmallVector<Value>> blocks;
        for (int64_t j = 0; j < u; ++j) {
          Idx t{&b, b.add(tok, j * 16)};
          Value place = key.code(t, Idx{&b, ch}).byte.v;
          blocks.push_back(unpack(b, key, b.at(codes, place), 16));
        }
        dotUnit(r, blocks, group, at, next);
        Value done = b.add(b.mul(b.div(tok, 16 * u), steps), b.div(ch, unit));
        prefetchAhead(done, tokens / (16 * u) * steps, false);
        return next;
      });
}

void AttendLowering::emitScoreInteger() {
  const TensorImage &key = image.key;
  const IntegerRows &r = integerKeys;
  bool perChannel = key.encoding.scale == ScaleKind::Channel;
  // Rows that no scale of the page folds into are made once per item.
  if (r.folded)
    quantizeRows(r, query, dpad);
  int64_t span = perChannel ? key.groupSize() : tokens;
  int64_t u = n <= 4 && span >= 32 ? 2 : 1;
  auto scaled = [&](Value tok, Value group, ValueRange carried) {
    Value ch = b.mul(group, r.length);
    Values acc = dotKeysInteger(tok, u, group, ch), next;
    for (int64_t k = 0; k < u * n; ++k) {
      Value t = b.add(tok, k / n * 16);
      Value s = loadScale(key, t, ch, 16, Lanes::Tokens);
      Value z = loadZero(key, t, ch, 16, Lanes::Tokens, s);
      Value f = b.mul(b.add(b.mul(group, n), k % n), 4);
      Value x = combine(r, group, k % n, acc[2 * k], acc[2 * k + 1]);
      x = b.fma(x, s, carried[k]);
      next.push_back(b.fma(b.loadSplat(b.at(r.sum, f), 16), z, x));
    }
    return next;
  };
  b.loop(b.i64(0), b.i64(tokens), 16 * u, [&](Value tok) {
    Values total(u * n, b.fsplat(16, 0.0));
    if (r.folded) {
      Value group = perChannel ? b.div(tok, span) : b.i64(0);
      Values acc = dotKeysInteger(tok, u, group, b.i64(0));
      for (int64_t k = 0; k < u * n; ++k)
        total[k] = combine(r, group, k % n, acc[2 * k], acc[2 * k + 1]);
    } else {
      total = b.loop(b.i64(0), b.i64(r.groups), 1, total,
                     [&](Value group, ValueRange carried) {
                       return scaled(tok, group, carried);
                     });
    }
    for (int64_t k = 0; k < u * n; ++k) {
      Value place = b.add(tok, k / n * 16 + k % n * tokens);
      b.store(total[k], b.at(scores, b.mul(place, 4)));
    }
  });
}

void AttendLowering::emitAccumulateInteger(Value p) {
  const IntegerRows &r = integerValues;
  quantizeRows(r, p, tokens);
  // Folded: a row group is a range of channels; else a range of tokens.
  int64_t channels = r.folded ? v / r.groups : v;
  b.loop(b.i64(0), b.i64(r.groups), 1, [&](Value group) {
    Value tok = r.folded ? b.i64(0) : b.mul(group, r.length);
    Value first = r.folded ? b.mul(group, channels) : b.i64(0);
    int64_t together = n <= 4 ? 2 : 1, stride = 16 * together;
    int64_t whole = channels / stride * stride;
    SmallVector<int64_t> widths(together, 16);
    b.loop(first, b.add(first, whole), stride,
           [&](Value ch) { addIntegerBlocks(r, group, tok, ch, widths); });
    widths.clear();
    for (int64_t left = channels - whole; left > 0; left -= widths.back())
      widths.push_back(std::min<int64_t>(left, 16));
    if (!widths.empty())
      addIntegerBlocks(r, group, tok, b.add(first, whole), widths);
  });
}

/// out += the products of one row group with the blocks of channels at `ch`.
void AttendLowering::addIntegerBlocks(const IntegerRows &r, Value group,
                                      Value tok, Value ch,
                                      ArrayRef<int64_t> widths) {
  const TensorImage &value = image.value;
  Value codes = b.at(tile.record, image.offset(Section::VCodes));
  int64_t unit = valueUnit(false);
  Values acc(widths.size() * n * 2, b.isplat(16, 0));
  acc = b.loop(
      b.i64(0), b.i64(r.length), unit, acc, [&](Value at, ValueRange carried) {
        Values next = llvm::to_vector_of<Value>(carried);
        SmallVector<SmallVector<Value>> blocks;
        for (size_t k = 0; k < widths.size(); ++k) {
          Idx c{&b, b.add(ch, k * 16)};
          Value place = value.code(Idx{&b, b.add(tok, at)}, c).byte.v;
          blocks.push_back(unpack(b, value, b.at(codes, place), widths[k]));
        }
        dotUnit(r, blocks, group, at, next);
        int64_t steps = tokens / unit, stride = widths.size() * 16;
        prefetchAhead(
            b.add(b.mul(b.div(ch, stride), steps), b.div(b.add(tok, at), unit)),
            llvm::divideCeil(v, stride) * steps, true);
        return next;
      });
  for (size_t k = 0; k < widths.size(); ++k) {
    Value c = b.add(ch, k * 16), s, z;
    if (!r.folded) {
      s = loadScale(value, tok, c, widths[k], Lanes::Channels);
      z = loadZero(value, tok, c, widths[k], Lanes::Channels, s);
    }
    for (int64_t head = 0; head < n; ++head) {
      size_t at = (k * n + head) * 2;
      Value x = combine(r, group, head, acc[at], acc[at + 1]);
      x = b.slice(x, 0, widths[k]);
      Value place = b.at(out, b.mul(b.add(c, head * vpad), 4));
      Value old = b.load(b.fvec(widths[k]), place);
      if (s) {
        Value f = b.mul(b.add(b.mul(group, n), head), 4);
        Value sum = b.loadSplat(b.at(r.sum, f), widths[k]);
        x = b.fma(x, s, b.fma(sum, z, old));
      } else {
        x = b.fadd(x, old);
      }
      b.store(x, place);
    }
  }
}
