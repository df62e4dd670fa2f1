//===- ParserBody.cpp - PTX function bodies -------------------------------===//
//
// Statements: declarations in scopes, labels and instructions. Register names
// are resolved here (innermost scope first); labels are kept with their scope
// and resolved by the decoder, since they may be used before they are defined.
//
//===----------------------------------------------------------------------===//
#include "Parser.h"
#include <cctype>
#include <cstring>

namespace kvcache::sim {

static constexpr int kMaxRegisters = 1 << 20;
static constexpr size_t kMaxScopes = 1000;

void Parser::openScope() {
  if (scopes.size() >= kMaxScopes)
    fail("scopes are nested too deeply");
  int id = int(fn->scopeParent.size());
  fn->scopeParent.push_back(scopes.empty() ? -1 : scopes.back().id);
  scopes.push_back({id, {}});
}

void Parser::closeScope() { scopes.pop_back(); }

void Parser::body(Function &f) {
  fn = &f;
  curLoc = 0;
  scopes.clear();
  f.scopeParent.clear();
  expect('{');
  openScope();
  // Parameters may be registers in old-style functions; name them as variables.
  while (!scopes.empty()) {
    if (peek().kind == Token::End)
      fail("function '" + f.name + "' is not closed");
    if (accept('{'))
      openScope();
    else if (accept('}'))
      closeScope();
    else
      statement();
  }
  fn = nullptr;
}

void Parser::regDecl() {
  next();
  while (peek().dot("v2") || peek().dot("v4"))
    fail("vector registers are not supported: declare scalars");
  if (peek().kind != Token::Dot || typeSize(peek().text) < 0)
    fail("expected a register type, got '" + peek().text + "'");
  std::string type = next().text;
  do {
    std::string n = name();
    int count = 1;
    RegRange range{type, int(fn->regs.size()), -1};
    if (accept('<')) {
      int64_t c = integer();
      expect('>');
      if (c < 0 || c > kMaxRegisters)
        fail("register count is out of range: " + std::to_string(c));
      range.count = count = int(c);
    }
    if (fn->regs.size() + count > size_t(kMaxRegisters))
      fail("too many registers");
    auto &regs = scopes.back().regs;
    // `a` and `a<2>` may stand side by side: a, a0, a1.
    std::string key = range.count < 0 ? n : n + '<';
    if (regs.count(key))
      fail("register '" + n + "' is declared twice");
    for (int i = 0; i < count; ++i)
      fn->regs.push_back({range.count < 0 ? n : n + std::to_string(i), type});
    regs[key] = range;
  } while (accept(','));
  expect(';');
}

int Parser::findReg(const std::string &n, std::string &type) const {
  size_t digits = n.size();
  while (digits > 0 && n.size() - digits < 9 &&
         std::isdigit(uint8_t(n[digits - 1])))
    --digits;
  for (size_t i = scopes.size(); i-- > 0;) {
    const auto &regs = scopes[i].regs;
    if (auto it = regs.find(n); it != regs.end()) {
      type = it->second.type;
      return it->second.first;
    }
    // The prefix of a range may end in digits itself: %r1<4> holds %r12.
    for (size_t d = digits; d < n.size(); ++d) {
      if (n[d] == '0' && n.size() - d > 1)
        continue;
      auto it = regs.find(n.substr(0, d) + '<');
      int64_t index = it == regs.end() ? 0 : std::stoll(n.substr(d));
      if (it != regs.end() && index < it->second.count) {
        type = it->second.type;
        return it->second.first + int(index);
      }
    }
  }
  return -1;
}

void Parser::bodyVariable(Space space) {
  next();
  do {
    Variable v = variable(space, false);
    fn->varScopes.emplace(
        v.name, std::make_pair(scopes.back().id, int(fn->vars.size())));
    fn->vars.push_back(std::move(v));
  } while (accept(','));
  expect(';');
}

void Parser::labelled(const std::string &label) {
  int scope = scopes.back().id;
  if (peek().dot("branchtargets") || peek().dot("calltargets")) {
    next();
    LabelledList list{scope, false, {}, {}, {}};
    do
      list.labels.push_back(name());
    while (accept(','));
    expect(';');
    fn->lists.emplace(label, std::move(list));
    return;
  }
  if (peek().dot("callprototype")) {
    next();
    LabelledList list{scope, true, {}, {}, {}};
    if (peek().is('('))
      list.returns = parameterList();
    name(); // `_`
    if (peek().is('('))
      list.params = parameterList();
    while (peek().kind == Token::Dot) {
      next();
      if (peek().kind == Token::Int)
        next();
    }
    expect(';');
    fn->lists.emplace(label, std::move(list));
    return;
  }
  auto [b, e] = fn->labels.equal_range(label);
  for (; b != e; ++b)
    if (b->second.scope == scope)
      fail("label '" + label + "' is defined twice");
  fn->labels.emplace(label, Label{scope, int(fn->body.size())});
}

void Parser::statement() {
  if (accept(';'))
    return;
  const Token &t = peek();
  if (t.kind == Token::Dot) {
    const std::string &d = t.text;
    if (d == "reg")
      return regDecl();
    if (d == "local")
      return bodyVariable(Space::Local);
    if (d == "shared" || d == "shared::cta")
      return bodyVariable(Space::Shared);
    if (d == "param")
      return bodyVariable(Space::Param);
    if (d == "const")
      return bodyVariable(Space::Const);
    if (d == "global")
      return bodyVariable(Space::Global);
    if (d == "loc")
      return locDirective();
    if (d == "file")
      return fileDirective();
    if (d == "section")
      return sectionDirective();
    if (d == "pragma")
      return skipStatement();
    return unknownDirective();
  }
  if (t.kind == Token::Ident && peek(1).is(':')) {
    std::string label = next().text;
    next();
    return labelled(label);
  }
  if (t.kind == Token::Ident || t.is('@'))
    return instruction();
  fail("expected an instruction, got '" + t.text + "'");
}

void Parser::instruction() {
  PtxInstr in;
  in.line = peek().line;
  in.loc = curLoc;
  std::string type;
  if (accept('@')) {
    in.predNegated = accept('!');
    std::string p = name();
    in.pred = findReg(p, type);
    if (in.pred < 0 || type != "pred")
      fail("guard '" + p + "' is not a declared predicate");
  }
  in.line = peek().line;
  in.op = name();
  while (peek().kind == Token::Dot)
    in.mods.push_back(next().text);
  if (!peek().is(';')) {
    do {
      in.ops.push_back(operand());
      if (in.ops.size() > 64)
        fail("too many operands");
    } while (accept(','));
  }
  expect(';');
  fn->body.push_back(std::move(in));
}

Operand Parser::identifier(Token t) {
  Operand o;
  std::string type;
  o.scope = scopes.back().id;
  if (t.text == "_") {
    o.kind = Operand::Sink;
    return o;
  }
  if ((o.reg = findReg(t.text, type)) >= 0) {
    o.kind = Operand::Reg;
    if (peek().kind == Token::Dot)
      o.part = next().text;
    return o;
  }
  o.name = t.text;
  if (t.text[0] == '%') {
    o.kind = Operand::Special;
    if (peek().kind == Token::Dot)
      o.name += "." + next().text;
    return o;
  }
  if (t.text == "WARP_SZ") {
    o.kind = Operand::Imm;
    o.bits = 32;
    return o;
  }
  o.kind = Operand::Sym;
  return o;
}

Operand Parser::memory(int depth) {
  Operand o;
  o.kind = Operand::Mem;
  o.elems.push_back(primary(depth + 1));
  if (o.elems[0].kind == Operand::Sym) { // symbols swallow their offset
    o.offset = o.elems[0].offset;
    o.elems[0].offset = 0;
  }
  while (peek().is('+') || peek().is('-')) {
    bool neg = next().is('-');
    uint64_t v = uint64_t(constantTerm(0));
    o.offset = int64_t(uint64_t(o.offset) + (neg ? 0 - v : v));
  }
  while (accept(','))
    o.elems.push_back(operand(depth + 1));
  expect(']');
  return o;
}

Operand Parser::primary(int depth) {
  if (depth > 32)
    fail("operand is nested too deeply");
  Token t = next();
  Operand o;
  o.scope = scopes.back().id;
  switch (t.kind) {
  case Token::Ident: {
    o = identifier(t);
    if (o.kind == Operand::Sym && (peek().is('+') || peek().is('-'))) {
      bool neg = next().is('-');
      uint64_t v = uint64_t(constantTerm(0));
      o.offset = int64_t(neg ? 0 - v : v);
    }
    return o;
  }
  case Token::Int:
    o.kind = Operand::Imm;
    o.bits = t.bits;
    return o;
  case Token::Single:
  case Token::Float:
    o.kind = Operand::Float;
    o.single = t.kind == Token::Single;
    o.bits = t.bits;
    return o;
  default:
    break;
  }
  if (t.is('-')) {
    o = primary(depth + 1);
    if (o.kind == Operand::Imm)
      o.bits = 0 - o.bits;
    else if (o.kind == Operand::Float)
      o.bits ^= o.single ? 0x80000000ull : 1ull << 63;
    else if (o.kind == Operand::Reg)
      o.minus = !o.minus;
    else
      fail("'-' needs a literal");
    return o;
  }
  if (t.is('~')) {
    o = primary(depth + 1);
    if (o.kind != Operand::Imm)
      fail("'~' needs a literal");
    o.bits = ~o.bits;
    return o;
  }
  if (t.is('!')) {
    o = primary(depth + 1);
    if (o.kind != Operand::Reg)
      fail("'!' needs a predicate");
    o.negated = !o.negated;
    return o;
  }
  if (t.is('['))
    return memory(depth);
  if (t.is('{') || t.is('(')) {
    bool list = t.is('(');
    char close = list ? ')' : '}';
    o.kind = list ? Operand::List : Operand::Vec;
    if (accept(close))
      return o;
    do {
      o.elems.push_back(operand(depth + 1));
      if (o.elems.size() > 512)
        fail("too many elements in an operand");
    } while (accept(','));
    expect(close);
    return o;
  }
  --pos;
  fail("expected an operand, got '" +
       (t.kind == Token::End ? std::string("end of file") : t.text) + "'");
}

Operand Parser::operand(int depth) {
  Operand a = primary(depth);
  if (!accept('|'))
    return a;
  Operand o;
  o.kind = Operand::Pair;
  o.elems.push_back(std::move(a));
  o.elems.push_back(primary(depth));
  return o;
}

} // namespace kvcache::sim
