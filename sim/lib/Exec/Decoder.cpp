//===- Decoder.cpp - Modifiers, operands, symbols -------------------------===//
#include "Decoder.h"
#include "Chips.h"
#include <algorithm>
#include <cctype>
#include <cstring>

namespace kvcache::sim {

static constexpr int32_t kMaxFrame = 1 << 28;
static int32_t slotBytes(int size) {
  return size == 0 ? 64 : std::max(64, size * 32);
}

Decoder::Decoder(const ModuleImpl &m, ModuleImpl::Program &p, Code &c)
    : fn(*c.fn), code(c), module(m), program(p) {
  std::string t = m.ptx->target;
  smVersion = std::atoi(t.c_str() + 3);
}

void Decoder::error(const std::string &message) const {
  throw PtxError(in ? in->line : fn.line, message);
}

bool Decoder::take(const char *mod) {
  for (size_t i = 0; i < in->mods.size(); ++i)
    if (!used[i] && in->mods[i] == mod)
      return used[i] = 1, true;
  return false;
}

std::string Decoder::oneOf(std::initializer_list<const char *> mods,
                           const char *otherwise) {
  for (const char *m : mods)
    if (take(m))
      return m;
  return otherwise;
}

std::string Decoder::type() {
  std::string t = typeOr("");
  if (t.empty())
    error("'" + in->op + "' needs a type");
  return t;
}

std::string Decoder::typeOr(const char *otherwise) {
  for (size_t i = 0; i < in->mods.size(); ++i)
    if (!used[i] && typeSize(in->mods[i]) >= 0)
      return used[i] = 1, in->mods[i];
  return otherwise;
}

std::string Decoder::peekMod() const {
  for (size_t i = 0; i < in->mods.size(); ++i)
    if (!used[i])
      return in->mods[i];
  return "";
}

void Decoder::takeRest() { std::fill(used.begin(), used.end(), 1); }

/// Cache operators, eviction priorities and prefetch sizes change no result.
void Decoder::cacheHints() {
  for (size_t i = 0; i < in->mods.size(); ++i) {
    const std::string &m = in->mods[i];
    if (used[i])
      continue;
    if (m == "ca" || m == "cg" || m == "cs" || m == "lu" || m == "cv" ||
        m == "wb" || m == "wt" || m == "nc" || m == "unified" ||
        m.rfind("L1::", 0) == 0 || m.rfind("L2::", 0) == 0 ||
        m.rfind("level::", 0) == 0)
      used[i] = 1;
  }
}

void Decoder::done() {
  for (size_t i = 0; i < in->mods.size(); ++i)
    if (!used[i])
      error("unknown or unsupported modifier '." + in->mods[i] + "' of '" +
            in->op + "'");
}

const Operand &Decoder::op(size_t i) const {
  if (i >= in->ops.size())
    error("'" + in->op + "' expects more operands, got " +
          std::to_string(in->ops.size()));
  return in->ops[i];
}

void Decoder::needOps(size_t lo, size_t hi) const {
  if (count() < lo || count() > hi)
    error("'" + in->op + "' expects " + std::to_string(lo) +
          (hi > lo ? " to " + std::to_string(hi) : "") + " operands, got " +
          std::to_string(count()));
}

int Decoder::regBytes(const Operand &o) const {
  return o.kind == Operand::Reg ? typeSize(fn.regs[o.reg].type) : -1;
}

std::string Decoder::regType(const Operand &o) const {
  return o.kind == Operand::Reg ? fn.regs[o.reg].type : "";
}

Opnd Decoder::scratch(int bytes) {
  Opnd o;
  o.off = code.frameBytes;
  o.sz = uint8_t(bytes);
  code.frameBytes += slotBytes(bytes);
  return o;
}

Opnd Decoder::dst(const Operand &o, int bytes) {
  if (o.kind == Operand::Sink)
    return scratch(bytes);
  if (o.kind != Operand::Reg)
    error("expected a register as destination of '" + in->op + "'");
  int have = regBytes(o);
  if (have != bytes)
    error("destination '" + fn.regs[o.reg].name + "' of '" + in->op + "' has " +
          std::to_string(have) + " bytes, expected " + std::to_string(bytes));
  return {regOff[o.reg], uint8_t(bytes), false};
}

Opnd Decoder::dstAny(const Operand &o, int sinkBytes) {
  if (o.kind == Operand::Sink)
    return scratch(sinkBytes);
  if (o.kind != Operand::Reg)
    error("expected a register as destination of '" + in->op + "'");
  return {regOff[o.reg], uint8_t(regBytes(o)), false};
}

Opnd Decoder::constant(uint64_t bits, int bytes) {
  if (bytes < 8 && bytes > 0)
    bits &= (uint64_t(1) << (bytes * 8)) - 1;
  auto [it, isNew] = constIndex.emplace(std::make_pair(bits, bytes), 0);
  if (isNew) {
    it->second = int32_t(code.constants.size());
    code.constants.resize(code.constants.size() + slotBytes(bytes));
    uint8_t *p = code.constants.data() + it->second;
    if (bytes == 0) {
      uint32_t m = bits ? ~0u : 0u;
      std::memcpy(p, &m, 4);
    }
    for (int l = 0; bytes && l < 32; ++l)
      std::memcpy(p + l * bytes, &bits, std::min(bytes, 8));
  }
  return {~it->second, uint8_t(bytes), false};
}

static uint16_t halfBits(double d, bool bf16) {
  float f = float(d);
  uint32_t b;
  std::memcpy(&b, &f, 4);
  if (bf16)
    return uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16);
  _Float16 h = _Float16(d);
  uint16_t r;
  std::memcpy(&r, &h, 2);
  return r;
}

Opnd Decoder::literalOpnd(const Operand &o, const std::string &type,
                          int bytes) {
  if (o.kind == Operand::Imm) {
    if (type == "f32" || type == "f64") {
      if (type == "f32" && o.bits > 0xffffffffull)
        error("literal of f32 is too wide");
    }
    return constant(o.bits, bytes);
  }
  double d;
  float f;
  if (o.single) {
    uint32_t b = uint32_t(o.bits);
    std::memcpy(&f, &b, 4);
    d = f;
  } else {
    std::memcpy(&d, &o.bits, 8);
    f = float(d);
  }
  uint64_t bits = 0;
  if (type == "f16" || type == "bf16") {
    bits = halfBits(d, type == "bf16");
  } else if (bytes == 8) {
    std::memcpy(&bits, &d, 8);
    if (!o.single)
      bits = o.bits;
  } else {
    uint32_t b;
    std::memcpy(&b, &f, 4);
    bits = o.single ? o.bits : b;
  }
  return constant(bits, bytes);
}

/// Registers that read as something else each time need an instruction.
static Act execClock(Ctx &c, const Instr &I, uint32_t mask) {
  static const uint64_t perStep = 4;
  uint64_t t = c.stats->steps * perStep;
  if (I.a == 1)
    t >>= 32;
  for (int l = 0; l < 32; ++l) {
    if (!(mask >> l & 1))
      continue;
    if (I.o[0].sz == 8)
      c.reg<uint64_t>(I.o[0])[l] = t;
    else
      c.reg<uint32_t>(I.o[0])[l] = uint32_t(t);
  }
  return Act::Next;
}

template <class T>
static Act execLocalAddress(Ctx &c, const Instr &I, uint32_t mask) {
  uint64_t v = uint64_t(I.imm) + (I.a ? 0 : c.frame->localBase);
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1)
      c.reg<T>(I.o[0])[l] = T(v);
  return Act::Next;
}

void Decoder::prepend(Instr I) {
  I.line = in->line;
  I.loc = in->loc;
  I.id = program.instrCount++;
  code.instrs.push_back(I);
}

Opnd Decoder::special(const Operand &o, int bytes) {
  static const std::map<std::string, int> clocks = {
      {"%clock", 4},       {"%clock_hi", 4},       {"%clock64", 8},
      {"%globaltimer", 8}, {"%globaltimer_lo", 4}, {"%globaltimer_hi", 4}};
  auto ck = clocks.find(o.name);
  if (ck != clocks.end()) {
    Opnd t = scratch(bytes);
    Instr I;
    I.fn = execClock;
    I.shadow = shadowNone;
    I.a = o.name.find("_hi") != std::string::npos;
    finish(I, {t}, {});
    prepend(I);
    return t;
  }
  int axis = 0;
  int kind = specialKind(o.name, axis);
  if (kind < 0)
    error("unknown register '" + o.name + "'");
  std::string key = o.name + ":" + std::to_string(bytes);
  auto [it, isNew] = specialOff.emplace(key, 0);
  if (isNew) {
    Opnd s = scratch(bytes);
    it->second = s.off;
    code.specials.push_back({kind, axis, bytes, s.off});
  }
  return {it->second, uint8_t(bytes), false};
}

bool Decoder::symbol(const Operand &o, MemSpace &space, int64_t &value) const {
  // Variables of enclosing scopes first, innermost wins.
  auto [b, e] = fn.varScopes.equal_range(o.name);
  const Variable *best = nullptr;
  int bestDepth = -1;
  for (; b != e; ++b) {
    int depth = 0;
    for (int s = o.scope; s >= 0; s = fn.scopeParent[s], ++depth)
      if (s == b->second.first && (bestDepth < 0 || depth < bestDepth)) {
        best = &fn.vars[b->second.second];
        bestDepth = depth;
        break;
      }
  }
  if (best) {
    if (best->space == Space::Shared) {
      space = MemSpace::Shared;
      value = program.layout.sharedLocal.at(best);
    } else if (best->space == Space::Local || best->space == Space::Param) {
      space = best->space == Space::Local ? MemSpace::Local : MemSpace::FParam;
      value = varOff.at(best);
    } else {
      auto g = program.layout.globals.find(fn.name + "::" + best->name);
      if (g == program.layout.globals.end())
        return false;
      space = MemSpace::Global;
      value = int64_t(g->second);
    }
    return true;
  }
  auto p = paramOff.find(o.name);
  if (p != paramOff.end()) {
    space = fn.isEntry ? MemSpace::KParam : MemSpace::FParam;
    value = p->second;
    return true;
  }
  auto s = program.layout.shared.find(o.name);
  if (s != program.layout.shared.end()) {
    space = MemSpace::Shared;
    value = s->second;
    return true;
  }
  auto g = program.layout.globals.find(o.name);
  if (g != program.layout.globals.end()) {
    space = MemSpace::Global;
    value = int64_t(g->second);
    return true;
  }
  auto f = module.ptx->functionIndex.find(o.name);
  if (f != module.ptx->functionIndex.end()) {
    space = MemSpace::Const;
    value = int64_t(kCodeBase + uint64_t(f->second) * 16);
    return true;
  }
  return false;
}

Opnd Decoder::srcAny(const Operand &o, const std::string &type) {
  int bytes = typeSize(type);
  switch (o.kind) {
  case Operand::Reg: {
    Opnd r{regOff[o.reg], uint8_t(regBytes(o)), o.negated};
    return r;
  }
  case Operand::Special:
    return special(o, bytes);
  case Operand::Imm:
  case Operand::Float:
    return literalOpnd(o, type, bytes);
  case Operand::Sym: {
    MemSpace sp;
    int64_t v;
    if (!symbol(o, sp, v))
      error("unknown name '" + o.name + "'");
    v = int64_t(uint64_t(v) + uint64_t(o.offset));
    if (sp == MemSpace::Local || sp == MemSpace::FParam) {
      // Compilers with 32-bit local pointers take 32-bit addresses.
      bool narrow = sp == MemSpace::Local && bytes == 4;
      if (bytes != 8 && !narrow)
        error("address of '" + o.name + "' needs a 64-bit type");
      Opnd t = scratch(bytes);
      Instr I;
      I.fn = narrow ? execLocalAddress<uint32_t> : execLocalAddress<uint64_t>;
      I.shadow = shadowNone;
      I.imm = v;
      I.a = sp == MemSpace::FParam;
      if (sp == MemSpace::FParam)
        I.imm = int64_t(uint64_t(I.imm) + kFParamWindow);
      finish(I, {t}, {});
      prepend(I);
      return t;
    }
    return constant(uint64_t(v), bytes);
  }
  default:
    error("operand of '" + in->op + "' is not a register or literal");
  }
}

Opnd Decoder::src(const Operand &o, const std::string &type) {
  Opnd r = srcAny(o, type);
  if (r.sz != typeSize(type))
    error("operand " +
          (o.kind == Operand::Reg ? "'" + fn.regs[o.reg].name + "' " : "") +
          "of '" + in->op + "' has " + std::to_string(r.sz) +
          " bytes, expected " + std::to_string(typeSize(type)) + " for ." +
          type);
  return r;
}

Opnd Decoder::pred(const Operand &o) {
  if (o.kind == Operand::Imm)
    return constant(o.bits, 0);
  if (o.kind != Operand::Reg || regBytes(o) != 0)
    error("expected a predicate as operand of '" + in->op + "'");
  return {regOff[o.reg], 0, o.negated};
}

int64_t Decoder::literal(const Operand &o) const {
  if (o.kind != Operand::Imm)
    error("expected an integer literal as operand of '" + in->op + "'");
  return int64_t(o.bits);
}

Opnd Decoder::address(const Operand &o, MemSpace &space, int64_t &offset) {
  if (o.kind != Operand::Mem)
    error("expected an address in brackets as operand of '" + in->op + "'");
  const Operand &b = o.elems[0];
  offset = o.offset;
  if (b.kind == Operand::Reg) {
    Opnd r{regOff[b.reg], uint8_t(regBytes(b)), false};
    if (r.sz != 4 && r.sz != 8)
      error("an address needs a 32 or 64-bit register");
    return r;
  }
  if (b.kind == Operand::Imm) {
    offset = int64_t(uint64_t(offset) + b.bits);
    return constant(0, 8);
  }
  if (b.kind != Operand::Sym)
    error("unknown address form");
  MemSpace sp;
  int64_t v;
  if (!symbol(b, sp, v))
    error("unknown name '" + b.name + "'");
  offset = int64_t(uint64_t(offset) + uint64_t(v));
  if (sp == MemSpace::FParam || sp == MemSpace::KParam) {
    if (space != MemSpace::FParam && space != MemSpace::KParam)
      error("'" + b.name + "' is a parameter: expected '.param'");
    space = sp;
  } else if (sp == MemSpace::Shared && space == MemSpace::Generic) {
    offset = int64_t(uint64_t(offset) + kSharedWindow);
  } else if (sp == MemSpace::Local) {
    Instr I;
    Opnd t = scratch(8);
    I.fn = execLocalAddress<uint64_t>;
    I.shadow = shadowNone;
    I.imm = space == MemSpace::Generic ? int64_t(kLocalWindow) : 0;
    finish(I, {t}, {});
    prepend(I);
    return t;
  }
  return constant(0, 8);
}

void Decoder::finish(Instr &I, const std::vector<Opnd> &dsts,
                     const std::vector<Opnd> &srcs) {
  if (dsts.size() > 250 || srcs.size() > 250)
    error("too many operands");
  auto store = std::make_unique<Opnd[]>(dsts.size() + srcs.size() + 1);
  std::copy(dsts.begin(), dsts.end(), store.get());
  std::copy(srcs.begin(), srcs.end(), store.get() + dsts.size());
  I.o = store.get();
  I.nd = uint8_t(dsts.size());
  I.ns = uint8_t(srcs.size());
  code.operands.push_back(std::move(store));
}

void Decoder::finish(Instr &I, std::initializer_list<Opnd> dsts,
                     std::initializer_list<Opnd> srcs) {
  finish(I, std::vector<Opnd>(dsts), std::vector<Opnd>(srcs));
}

MemSpace Decoder::space() {
  if (take("global"))
    return MemSpace::Global;
  if (take("shared") || take("shared::cta"))
    return MemSpace::Shared;
  if (take("shared::cluster"))
    return MemSpace::Cluster;
  if (take("local"))
    return MemSpace::Local;
  if (take("const"))
    return MemSpace::Const;
  if (take("param") || take("param::entry"))
    return MemSpace::KParam;
  if (take("param::func"))
    return MemSpace::FParam;
  return MemSpace::Generic;
}

uint32_t Decoder::label(const std::string &name, int scope) const {
  for (int s = scope; s >= 0; s = fn.scopeParent[s]) {
    auto [b, e] = fn.labels.equal_range(name);
    for (; b != e; ++b)
      if (b->second.scope == s)
        return uint32_t(b->second.target);
  }
  // Labels of inner scopes are visible to a jump from outside in practice.
  auto it = fn.labels.find(name);
  if (it != fn.labels.end())
    return uint32_t(it->second.target);
  error("unknown label '" + name + "'");
}

uint32_t Decoder::label(const Operand &o) const {
  if (o.kind != Operand::Sym)
    error("expected a label as operand of '" + in->op + "'");
  return label(o.name, o.scope);
}

const LabelledList *Decoder::list(const Operand &o) const {
  for (int s = o.scope; s >= 0; s = fn.scopeParent[s]) {
    auto [b, e] = fn.lists.equal_range(o.name);
    for (; b != e; ++b)
      if (b->second.scope == s)
        return &b->second;
  }
  return nullptr;
}

void Decoder::needSm(Instr &I, int sm, bool arch) {
  I.d = uint32_t(std::max<int>(int(I.d & 0xffff), sm)) | (I.d & 0x10000) |
        (arch ? 0x10000 : 0);
}

void Decoder::layoutRegisters() {
  int64_t total = 64;
  for (const RegDecl &r : fn.regs) {
    regOff.push_back(int32_t(total));
    total += slotBytes(typeSize(r.type));
    if (total > kMaxFrame)
      throw PtxError(fn.line,
                     "function '" + fn.name + "' has too many registers");
  }
  code.frameBytes = int32_t(total);
  code.declaredRegs = int(fn.regs.size());
  auto place = [](int32_t &pos, const Variable &v) {
    int64_t p = (int64_t(pos) + v.align - 1) / v.align * v.align;
    if (p + v.bytes > (1 << 24))
      throw PtxError(v.line, "variable '" + v.name + "' is too large");
    pos = int32_t(p + v.bytes);
    return int32_t(p);
  };
  for (const Variable &v : fn.returns) {
    paramOff[v.name] = place(code.paramBytes, v);
    code.returns.push_back({paramOff[v.name], int32_t(v.bytes)});
  }
  for (const Variable &v : fn.params) {
    paramOff[v.name] = place(code.paramBytes, v);
    code.params.push_back({paramOff[v.name], int32_t(v.bytes)});
  }
  // Parameters of an entry lie in the launch's own buffer, from 0.
  for (const Variable &v : fn.vars) {
    if (v.space == Space::Local)
      varOff[&v] = place(code.localBytes, v);
    else if (v.space == Space::Param)
      varOff[&v] = place(code.paramBytes, v);
  }
  code.localBytes = (code.localBytes + 15) / 16 * 16;
}

void Decoder::decodeOne(const PtxInstr &p) {
  in = &p;
  bool video = p.op[0] == 'v' && p.op != "vote";
  for (const Operand &o : p.ops)
    checkParts(o, video);
  used.assign(p.mods.size(), 0);
  const Table &table = activeTable();
  auto it = table.byName.find(p.op);
  if (it == table.byName.end())
    error(unsupportedOpcode(p.op)
              ? "'" + p.op + "': " + unsupportedOpcode(p.op) +
                    " are not supported"
              : "unknown instruction '" + p.op + "'");
  Instr I;
  I.line = p.line;
  I.loc = p.loc;
  I.shadow = shadowAny;
  it->second(*this, I);
  done();
  if (int chip = chipOf(p))
    needSm(I, chip);
  if (!I.fn) // nothing to execute
    return;
  if (p.pred >= 0) {
    I.pred = regOff[p.pred];
    I.predNeg = p.predNegated;
  }
  I.id = program.instrCount++;
  code.instrs.push_back(I);
}

void Decoder::run() {
  layoutRegisters();
  for (const PtxInstr &p : fn.body) {
    startOf.push_back(uint32_t(code.instrs.size()));
    decodeOne(p);
  }
  startOf.push_back(uint32_t(code.instrs.size()));
  // Falling off the end returns.
  PtxInstr ret;
  ret.op = "ret";
  ret.line = fn.body.empty() ? fn.line : fn.body.back().line;
  decodeOne(ret);
  for (Instr &I : code.instrs)
    if (I.imm == INT64_MIN) { // a branch: target is a PTX index so far
      I.target = startOf[I.target];
      code.instrs[I.target].leader = true;
    }
  for (std::vector<uint32_t> *t : targetTables)
    for (uint32_t &x : *t)
      x = startOf[x];
  for (size_t i = 0; i + 1 < code.instrs.size(); ++i)
    if (code.instrs[i].always && code.instrs[i].cls == OpClass::Control)
      code.instrs[i + 1].leader = true;
  for (auto &[name, l] : fn.labels)
    code.instrs[startOf[l.target]].leader = true;
  code.constStorage =
      std::make_unique<uint8_t[]>(code.constants.size() + 64 + 512);
  auto raw = reinterpret_cast<uintptr_t>(code.constStorage.get());
  auto *aligned = reinterpret_cast<uint8_t *>((raw + 63) / 64 * 64);
  if (!code.constants.empty())
    std::memcpy(aligned, code.constants.data(), code.constants.size());
  code.consts = aligned;
}

} // namespace kvcache::sim
