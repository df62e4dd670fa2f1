//===- Module.cpp - A parsed module, its layout and its programs ----------===//
//
// Module-level variables get their addresses when the module is parsed, so that
// decoded code is shared by all launches. Shared variables are laid out per
// entry, over the functions it can reach, as the driver does.
//
//===----------------------------------------------------------------------===//
#include "../Exec/Decoder.h"
#include <algorithm>
#include <set>

namespace kvcache::sim {

static void assignGlobals(ModuleImpl &m) {
  uint64_t at = kGlobalBase;
  auto place = [&](const std::string &name, const Variable &v) {
    uint64_t align = std::max<uint64_t>(256, uint64_t(v.align));
    at = (at + align - 1) / align * align;
    m.globalAddress[name] = at;
    at += uint64_t(std::max<int64_t>(v.bytes, 1)) + 4096;
  };
  for (const Variable &v : m.ptx->vars)
    if (v.space == Space::Global || v.space == Space::Const)
      place(v.name, v);
  for (auto &f : m.ptx->functions)
    for (const Variable &v : f->vars)
      if (v.space == Space::Global || v.space == Space::Const)
        place(f->name + "::" + v.name, v);
  m.globalEnd = at;
}

std::shared_ptr<const Module> Module::parse(const std::string &text,
                                            const std::string &fileName) {
  try {
    auto m = std::make_shared<ModuleImpl>();
    m->ptx = parsePtx(text, fileName);
    assignGlobals(*m);
    return m;
  } catch (const PtxError &e) {
    throw Error(fileName + ":" + std::to_string(e.line) +
                ": error: " + e.what());
  }
}

std::vector<std::string> ModuleImpl::entries() const {
  std::vector<std::string> out;
  for (auto &f : ptx->functions)
    if (f->isEntry)
      out.push_back(f->name);
  return out;
}

static void symbolsOf(const Operand &o, std::set<std::string> &out) {
  if (o.kind == Operand::Sym)
    out.insert(o.name);
  for (const Operand &e : o.elems)
    symbolsOf(e, out);
}

namespace {
/// Collects the functions and shared variables that an entry reaches.
struct Reach {
  const ModuleImpl &m;
  std::set<std::string> symbols;
  std::vector<const Function *> functions;
  std::set<std::string> seen;
  bool indirect = false;

  void visit(const std::string &name) {
    std::vector<std::string> work{name};
    while (!work.empty()) {
      std::string n = work.back();
      work.pop_back();
      auto it = m.ptx->functionIndex.find(n);
      if (it == m.ptx->functionIndex.end() || !seen.insert(n).second)
        continue;
      const Function *f = m.ptx->functions[it->second].get();
      if (!f->isDefined)
        continue;
      functions.push_back(f);
      std::set<std::string> mine;
      for (const PtxInstr &i : f->body) {
        for (const Operand &o : i.ops)
          symbolsOf(o, mine);
        indirect |= i.op == "call";
      }
      for (const std::string &s : mine) {
        symbols.insert(s);
        if (m.ptx->functionIndex.count(s))
          work.push_back(s);
      }
    }
  }
};
} // namespace

static void layoutShared(const ModuleImpl &m, const Reach &r, Layout &l) {
  int64_t at = 0;
  auto place = [&](const Variable &v) {
    int64_t a = std::max<int64_t>(v.align, 1);
    at = (at + a - 1) / a * a;
    int64_t p = at;
    at += v.bytes;
    return p;
  };
  std::vector<const Variable *> externs;
  for (const Variable &v : m.ptx->vars)
    if (v.space == Space::Shared && r.symbols.count(v.name)) {
      if (v.bytes == 0 || v.isExtern)
        externs.push_back(&v);
      else
        l.shared[v.name] = place(v);
    }
  for (const Function *f : r.functions)
    for (const Variable &v : f->vars)
      if (v.space == Space::Shared)
        l.sharedLocal[&v] = place(v);
  int64_t align = 16;
  for (const Variable *v : externs)
    align = std::max(align, v->align);
  if (!externs.empty())
    at = (at + align - 1) / align * align;
  for (const Variable *v : externs) // all start where dynamic memory does
    l.shared[v->name] = at;
  l.sharedBytes = at;
}

std::shared_ptr<ModuleImpl::Program>
ModuleImpl::program(const std::string &entry) const {
  std::lock_guard<std::mutex> lock(mutex);
  auto &slot = programs[entry];
  if (slot)
    return slot;
  auto p = std::make_shared<Program>();
  Reach r{*this, {}, {}, {}};
  r.visit(entry);
  // A function whose address lies in initialised data may be called too.
  for (const Variable &v : ptx->vars)
    for (const Relocation &x : v.relocs)
      if (r.indirect)
        r.visit(x.symbol);
  layoutShared(*this, r, p->layout);
  p->layout.globals = globalAddress;
  for (const Function *f : r.functions) {
    auto code = std::make_unique<Code>();
    code->fn = f;
    code->name = f->name;
    p->byName[f->name] = code.get();
    p->codes.push_back(std::move(code));
  }
  for (auto &code : p->codes) {
    Decoder d(*this, *p, *code);
    d.run();
  }
  // Call chains are short in practice; recursion gets a fixed budget.
  bool calls = p->codes.size() > 1;
  for (auto &code : p->codes)
    p->localBytes += code->localBytes;
  if (calls && p->localBytes)
    p->localBytes = std::max<int64_t>(p->localBytes * 16, 16384);
  if (p->dynamicStack)
    p->localBytes += 65536;
  p->localBytes = std::min<int64_t>(p->localBytes, 512 * 1024);
  slot = p;
  return slot;
}

} // namespace kvcache::sim
