//===- Seal.cpp - Open pages to page images -------------------------------===//
//
// One item is one page of one head. Phase 1 finds the scale and zero of every
// group and stores them; phase 2 codes with the *stored* scales, each thread
// writing whole words of codes, so nothing is read, modified and written back.
//
//===----------------------------------------------------------------------===//
#include "Builder.h"
#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include <cmath>

using namespace mlir;
using namespace kvcache;
using namespace kvcache::storage;

namespace {
/// The sealing of one side of one item.
class Sealer {
public:
  Sealer(Kernel &k, const Side &side, Value open, Value record, Int item)
      : k(k), side(side), image(side.image), e(side.image.encoding),
        dtype(k.context.spec.dtype), record(record),
        scales(k, side, record, item) {
    rows = k.at(open, ir::i64(k.env, side.openOffset));
    codes = k.at(record, ir::i64(k.env, k.context.image.offset(side.codes)));
  }
  void findScales();
  void writeCodes();

private:
  Value address(Int token, Int channel) {
    Int index = token * image.channels + channel;
    return k.at(rows, index * (bitsOf(dtype) / 8));
  }
  Float load(Int token, Int channel, int64_t lanes = 1) {
    return k.loadFloat(address(token, channel), dtype, lanes);
  }
  /// Least and largest (asymmetric), or no value and largest magnitude.
  std::pair<Float, Float> range(Int group, int64_t lanes);
  std::pair<Float, Float> collapse(std::pair<Float, Float> lanes);
  Float extreme(Float a, Float b, bool least) {
    return least ? codec::smaller(a, b) : codec::larger(a, b);
  }
  Int code(Int token, Int channel, int64_t lanes);
  void keepExponents(ValueRange bits);

  Kernel &k;
  const Side &side;
  const TensorImage &image;
  const Encoding &e;
  Element dtype;
  Value record, rows, codes;
  Scales scales;
};
} // namespace

std::pair<Float, Float> Sealer::range(Int group, int64_t lanes) {
  auto origin = image.groupOrigin(group);
  // Independent groups in the lanes (channel scales), or one group's channels.
  bool across = e.scale == ScaleKind::Channel;
  int64_t width = image.groupChannels();
  int64_t count = image.groupTokens() * width / (across ? 1 : lanes);
  int64_t step = across ? 1 : lanes;
  Type type = k.builder.getF32Type();
  if (lanes > 1)
    type = VectorType::get({lanes}, type);
  Float low = ir::constantF(k.env, type, e.asymmetric ? HUGE_VALF : 0.0f);
  Float high = ir::constantF(k.env, type, e.asymmetric ? -HUGE_VALF : 0.0f);
  Values ends =
      k.loop(ir::i32(k.env, 0), ir::i32(k.env, count), 1,
             ValueRange{low.value, high.value}, [&](Int i, ValueRange carried) {
               Int at = i * step;
               Float x = load(origin.token + at / width,
                              origin.channel + at % width, lanes);
               Float l(k.env, carried[0]), h(k.env, carried[1]);
               if (e.asymmetric)
                 l = codec::smaller(x, l);
               else
                 x = ir::absolute(x);
               return Values{l, codec::larger(x, h)};
             });
  return {Float(k.env, ends[0]), Float(k.env, ends[1])};
}

std::pair<Float, Float> Sealer::collapse(std::pair<Float, Float> v) {
  auto reduce = [&](Float x, bool least) {
    int64_t lanes = cast<VectorType>(x.type()).getNumElements();
    Float best;
    for (int64_t i = 0; i < lanes; ++i) {
      Float lane(k.env,
                 LLVM::ExtractElementOp::create(k.builder, k.env.loc, x.value,
                                                ir::i32(k.env, i).value));
      best = i ? extreme(best, lane, least) : lane;
    }
    return best;
  };
  return {e.asymmetric ? reduce(v.first, true) : v.first,
          reduce(v.second, false)};
}

/// Largest exponents so far, as the bits of the largest magnitudes: words
/// shared by all threads, turned into exponents at the end.
void Sealer::keepExponents(ValueRange bits) {
  Int base = ir::i64(k.env, k.context.image.offset(Section::Exponents));
  for (auto [i, v] : llvm::enumerate(bits)) {
    Value word = k.at(record, base + 4 * (side.exponent + 2 * i));
    if (k.context.blocks()) {
      LLVM::AtomicRMWOp::create(k.builder, k.env.loc, LLVM::AtomicBinOp::umax,
                                word, v, LLVM::AtomicOrdering::monotonic);
      continue;
    }
    Int old = k.loadInt(word, 32), now(k.env, v);
    k.storeInt(word, ir::select(ir::lessThan(old, now), now, old), 32);
  }
}

void Sealer::findScales() {
  if (image.scaleCount() == 0)
    return;
  bool across = e.scale == ScaleKind::Channel;
  int64_t lanes = 1;
  if (!k.context.blocks() && (across || image.groupChannels() % 8 == 0))
    lanes = 8;
  int64_t perStep = across ? lanes : 1;
  bool exponents = k.context.image.size(Section::Exponents) > 0;
  Value none = ir::i32(k.env, 0);
  Values init;
  if (exponents)
    init.assign(e.asymmetric ? 2 : 1, none);
  auto raise = [&](Value so, Float x) -> Value {
    // Only the block model and its tests keep exponents: lanes one by one.
    Float m = x;
    if (isa<VectorType>(x.type())) {
      auto bits = ir::toBits(ir::absolute(x));
      Int top(k.env, LLVM::vector_reduce_umax::create(
                         k.builder, k.env.loc, k.builder.getI32Type(), bits));
      m = ir::fromBits(top);
    }
    return arith::MaxUIOp::create(k.builder, k.env.loc, so,
                                  ir::toBits(ir::absolute(m)).value);
  };
  Values tops = k.share(
      image.scaleCount() / perStep, init, [&](Int i, ValueRange carried) {
        Int group = i * perStep;
        auto ends = range(group, lanes);
        if (lanes > 1 && !across)
          ends = collapse(ends);
        Float scale, zero;
        if (e.asymmetric) {
          auto sz = codec::fromRange(e, ends.first, ends.second);
          scale = sz.scale, zero = sz.zero;
          scales.store(side.zeros, group, zero);
        } else {
          scale = codec::fromAbsMax(e, ends.second);
        }
        scales.store(side.scales, group, scale);
        Values next;
        if (exponents) {
          next.push_back(raise(carried[0], scale));
          if (e.asymmetric)
            next.push_back(raise(carried[1], zero));
        }
        return next;
      });
  keepExponents(tops);
}

Int Sealer::code(Int token, Int channel, int64_t lanes) {
  if (e.element == dtype)
    return k.loadInt(address(token, channel), bitsOf(dtype), lanes);
  Float x = load(token, channel, lanes);
  if (isFloat(e.element))
    return codec::toElementBits(e.element, x);
  auto [scale, zero] = scales.of(token, channel, lanes);
  return codec::encode(e, x, scale, zero);
}

void Sealer::writeCodes() {
  Lanes lanes = Lanes::of(k.context, image);
  k.share(image.codeWords() / lanes.words(), [&](Int step) {
    Int w = step * lanes.words(), word;
    for (int64_t slot = 0; slot < lanes.slots(image); ++slot) {
      auto el = image.element(w, slot);
      Int c = code(el.token, el.channel, lanes.count)
              << lanes.shift(k, image, slot);
      word = slot ? word | c : c;
    }
    if (lanes.kind == Lanes::Slots)
      word =
          Int(k.env, LLVM::vector_reduce_or::create(
                         k.builder, k.env.loc, k.builder.getI32Type(), word));
    k.storeInt(k.at(codes, w * 4), word, 32);
  });
}

/// floor(log2) of the magnitude whose bits are in each word; see Image.h.
static void finishExponents(Kernel &k, Value record) {
  Value base =
      k.at(record, ir::i64(k.env, k.context.image.offset(Section::Exponents)));
  k.share(4, [&](Int i) {
    Value word = k.at(base, i * 4);
    Int bits = k.loadInt(word, 32);
    Int biased = bits >> 23;
    biased = ir::selectLess(biased, 1, ir::i32(k.env, 1), biased);
    biased = ir::selectLess(biased, 254, biased, ir::i32(k.env, 253));
    Int exponent = biased - 127;
    k.storeInt(word, ir::selectLess(bits, 1, bits, exponent), 32);
  });
}

#define KV_FIELD(kind, name) {#name, StringRef(#kind) == "PTR"},
static const Field sealFields[] = {KVCACHE_SEAL_ARGS(KV_FIELD)};

void storage::buildSeal(const Context &context) {
  Kernel k(context, "seal", sealFields);
  const PageImage &image = context.image;
  k.forItems([&](Int item) {
    Value open = k.record(k.pointer("open_pool"), k.pointer("src"), item,
                          context.openBytes());
    Value record = k.record(k.pointer("sealed_pool"), k.pointer("dst"), item,
                            image.recordBytes());
    bool exponents = image.size(Section::Exponents) > 0;
    if (exponents) {
      k.share(4, [&](Int i) {
        Int at = i * 4 + image.offset(Section::Exponents);
        k.storeInt(k.at(record, at), ir::i32(k.env, 0), 32);
      });
      k.barrier();
    }
    auto sides = sidesOf(context);
    SmallVector<std::unique_ptr<Sealer>> sealers;
    for (const Side &side : sides) {
      sealers.push_back(std::make_unique<Sealer>(k, side, open, record, item));
      sealers.back()->findScales();
    }
    k.barrier();
    if (exponents)
      finishExponents(k, record);
    for (auto &s : sealers)
      s->writeCodes();
  });
  k.finish();
}

//===----------------------------------------------------------------------===//
// Unsealing
//===----------------------------------------------------------------------===//

/// The largest finite number of a float element.
static float largestFinite(Element e) {
  return e == Element::F16    ? 65504.0f
         : e == Element::BF16 ? codec::bf16BitsToF32(0x7f7fu)
                              : codec::fromBits(0x7f7fffffu);
}

void storage::buildUnseal(const Context &context) {
  Kernel k(context, "unseal", sealFields);
  Element dtype = context.spec.dtype;
  k.forItems([&](Int item) {
    Value record = k.record(k.pointer("sealed_pool"), k.pointer("src"), item,
                            context.image.recordBytes());
    Value open = k.record(k.pointer("open_pool"), k.pointer("dst"), item,
                          context.openBytes());
    for (const Side &side : sidesOf(context)) {
      Value rows = k.at(open, ir::i64(k.env, side.openOffset));
      auto place = [&](Int token, Int channel) {
        Int index = token * side.image.channels + channel;
        return k.at(rows, index * (bitsOf(dtype) / 8));
      };
      visitCodes(k, side, record, item, [&](Int t, Int c, Float x, Int bits) {
        if (side.image.encoding.element == dtype)
          return k.storeInt(place(t, c), bits, bitsOf(dtype));
        // A scale that was rounded up may decode past the dtype's range.
        Float most = ir::like(x, largestFinite(dtype));
        x = codec::smaller(x, most);
        x = codec::larger(x, ir::like(x, -largestFinite(dtype)));
        k.storeFloat(place(t, c), dtype, x);
      });
    }
  });
  k.finish();
}
