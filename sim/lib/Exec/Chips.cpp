//===- Chips.cpp - What the text of an instruction tells ------------------===//
//
// The target notes of the ISA, where they follow from modifiers alone, opcodes
// that are not decoded, and where parts of registers may stand.
//
//===----------------------------------------------------------------------===//
#include "Chips.h"
#include "Decoder.h"
#include <algorithm>

namespace kvcache::sim {

namespace {
struct Mods {
  const std::vector<std::string> &m;
  bool has(const char *s) const {
    return std::find(m.begin(), m.end(), s) != m.end();
  }
  bool any(std::initializer_list<const char *> list) const {
    return std::any_of(list.begin(), list.end(),
                       [&](const char *s) { return has(s); });
  }
};
} // namespace

static int memoryChip(const std::string &op, const Mods &m) {
  int chip = 0;
  if (m.any({"cluster", "shared::cluster"}))
    chip = 90;
  if (op == "atom" || op == "red") {
    bool half = m.any({"bf16", "bf16x2"});
    if (m.any({"v2", "v4", "v8"}) || half)
      chip = 90;
  } else if (m.has("v8") ||
             (m.has("v4") && m.any({"b64", "u64", "s64", "f64"}))) {
    chip = 100;
  }
  return chip;
}

static int mbarrierChip(const PtxInstr &in, const Mods &m) {
  if (m.any({"cluster", "shared::cluster", "relaxed", "expect_tx",
             "complete_tx", "try_wait"}))
    return 90;
  // A count without .noComplete: state, [address], count.
  bool arrive = m.any({"arrive", "arrive_drop"}) && !m.has("noComplete");
  return arrive && in.ops.size() == 3 ? 90 : 0;
}

static int arithmeticChip(const std::string &op, const Mods &m) {
  bool bf = m.any({"bf16", "bf16x2"});
  if (op == "setp" || op == "set")
    return bf ? 90 : 0;
  if (op == "add" || op == "sub" || op == "mul")
    return bf ? 90 : 0;
  if (op == "min" || op == "max") {
    if (m.has("relu"))
      return 90;
    bool half = bf || m.any({"f16", "f16x2"});
    return m.has("xorsign") ? 86 : half ? 80 : 0;
  }
  if (op == "fma")
    return m.has("oob") ? 90 : bf || m.has("relu") ? 80 : 0;
  return 0;
}

static int convertChip(const Mods &m) {
  if (m.has("tf32"))
    return m.has("satfinite") && !m.has("rna") ? 100 : 80;
  if (!m.has("bf16"))
    return 0;
  // To and from f32 sm_80 has them, from and to all others sm_90.
  return m.has("f32") ? 80 : 90;
}

int chipOf(const PtxInstr &in) {
  Mods m{in.mods};
  const std::string &op = in.op;
  if (op == "ld" || op == "st" || op == "atom" || op == "red" || op == "fence")
    return memoryChip(op, m);
  if (op == "mbarrier")
    return mbarrierChip(in, m);
  if (op == "cvt")
    return convertChip(m);
  if (op == "prefetch" && m.has("tensormap"))
    return 90;
  return arithmeticChip(op, m);
}

const char *unsupportedOpcode(const std::string &op) {
  static const struct {
    const char *op, *why;
  } known[] = {{"tex", "textures"},
               {"tld4", "textures"},
               {"txq", "textures"},
               {"istypep", "textures"},
               {"suld", "surfaces"},
               {"sust", "surfaces"},
               {"sured", "surfaces"},
               {"suq", "surfaces"},
               {"multimem", "multimem addresses"},
               {"clusterlaunchcontrol", "cluster launch requests"},
               {"tcgen05", "tensor memory instructions"}};
  for (const auto &k : known)
    if (op == k.op)
      return k.why;
  return nullptr;
}

/// Parts and signs of registers are for video instructions.
void Decoder::checkParts(const Operand &o, bool video) const {
  if (!video && !o.part.empty())
    error("component '." + o.part + "' of '" + fn.regs[o.reg].name +
          "': vector registers are not supported");
  if (!video && o.minus)
    error("'-' needs a literal");
  for (const Operand &e : o.elems)
    checkParts(e, false);
}

} // namespace kvcache::sim
