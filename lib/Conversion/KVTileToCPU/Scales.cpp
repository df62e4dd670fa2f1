//===- Scales.cpp - Reading scales and zeros ------------------------------===//
//
// A vector of w lanes runs along the tokens or along the channels. Its scales
// are one load where the array runs alike, one repeated element where the lanes
// share a group, else lane by lane.
//
//===----------------------------------------------------------------------===//

#include "AttendLowering.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::tile;

/// Folding needs groups that a whole vector (keys: of tokens, values: of
/// channels) or a whole unit of codes lies in.
AttendLowering::ScaleMode AttendLowering::modeOf(const TensorImage &t) const {
  const Encoding &e = t.encoding;
  int64_t group = t.groupSize();
  if (e.scale == ScaleKind::None)
    return ScaleMode::None;
  bool whole = true;
  if (e.scale == ScaleKind::Channel)
    whole = t.isValue ? group >= valueUnit(false) : group >= keyLanes();
  if (e.scale == ScaleKind::Token)
    whole = t.isValue ? group % 8 == 0 : group % keyUnit() == 0;
  return whole ? ScaleMode::Fold : ScaleMode::Decode;
}

Value AttendLowering::scales(const TensorImage &t) {
  return b.at(tile.record,
              image.offset(t.isValue ? Section::VScales : Section::KScales));
}

Value AttendLowering::zeros(const TensorImage &t) {
  return b.at(tile.record,
              image.offset(t.isValue ? Section::VZeros : Section::KZeros));
}

Type AttendLowering::scaleElement(const TensorImage &t) {
  switch (t.encoding.scaleType) {
  case ScaleType::F16:
    return b.getF16Type();
  case ScaleType::BF16:
    return b.getBF16Type();
  case ScaleType::F32:
    break;
  }
  return b.getF32Type();
}

Value AttendLowering::loadSide(const TensorImage &t, Value section, Value tok,
                               Value ch, int64_t w, Lanes lanes) {
  ScaleKind kind = t.encoding.scale;
  Type element = scaleElement(t);
  auto address = [&](Value tok, Value ch) {
    Idx index = t.scaleIndex(Idx{&b, tok}, Idx{&b, ch});
    return b.at(section, b.mul(index.v, bytesOf(t.encoding.scaleType)));
  };
  bool channels = lanes == Lanes::Channels;
  if (kind == (channels ? ScaleKind::Channel : ScaleKind::Token))
    return b.loadFloats(element, address(tok, ch), w);
  // Callers keep vectors within groups that are large enough.
  bool shared = kind == ScaleKind::Head ||
                (channels ? t.groupChannels() % 8 == 0 : t.groupTokens() >= w);
  if (shared)
    return b.loadFloatSplat(element, address(tok, ch), w);
  Values parts;
  for (int64_t lane = 0; lane < w; ++lane) {
    Value at = channels ? address(tok, b.add(ch, lane))
                        : address(b.add(tok, lane), ch);
    parts.push_back(b.extract(b.loadFloats(element, at, 1), 0));
  }
  return vector::FromElementsOp::create(b, b.fvec(w), parts);
}

Value AttendLowering::loadScale(const TensorImage &t, Value tok, Value ch,
                                int64_t w, Lanes lanes) {
  if (t.encoding.scale == ScaleKind::Tensor) {
    Value base = fields[t.isValue ? "v_scale" : "k_scale"];
    return b.loadSplat(b.at(base, b.mul(kvHead, 4)), w);
  }
  return loadSide(t, scales(t), tok, ch, w, lanes);
}

/// The zero of unsigned codes: the stored one, or what undoes the bias.
Value AttendLowering::loadZero(const TensorImage &t, Value tok, Value ch,
                               int64_t w, Lanes lanes, Value scale) {
  if (t.encoding.asymmetric)
    return loadSide(t, zeros(t), tok, ch, w, lanes);
  return b.fmul(scale, b.fsplat(w, -double(t.codeBias())));
}
