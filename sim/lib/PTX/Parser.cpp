//===- Parser.cpp - PTX declarations --------------------------------------===//
//
// Module level: variables with initialisers, functions, debug directives. What
// is unknown is noted by name and skipped to its end, so that newer compilers'
// directives do not matter.
//
//===----------------------------------------------------------------------===//
#include "Parser.h"
#include <cstring>

namespace kvcache::sim {

int typeSize(const std::string &t) {
  static const std::unordered_map<std::string, int> sizes = {
      {"pred", 0},   {"b8", 1},     {"u8", 1},     {"s8", 1},     {"e4m3", 1},
      {"e5m2", 1},   {"b16", 2},    {"u16", 2},    {"s16", 2},    {"f16", 2},
      {"bf16", 2},   {"b32", 4},    {"u32", 4},    {"s32", 4},    {"f32", 4},
      {"f16x2", 4},  {"bf16x2", 4}, {"tf32", 4},   {"b64", 8},    {"u64", 8},
      {"s64", 8},    {"f64", 8},    {"b128", 16},  {"e4m3x2", 2}, {"e5m2x2", 2},
      {"u16x2", 4},  {"s16x2", 4},  {"f32x2", 8},  {"e2m1x2", 1}, {"e2m1x4", 2},
      {"e4m3x4", 4}, {"e5m2x4", 4}, {"e2m3x2", 2}, {"e3m2x2", 2}, {"e2m3x4", 4},
      {"e3m2x4", 4}, {"ue8m0x2", 2}};
  auto it = sizes.find(t);
  return it == sizes.end() ? -1 : it->second;
}

/// Limits that keep hostile text from exhausting memory.
static constexpr int64_t kMaxVariableBytes = int64_t(1) << 30;
static constexpr int64_t kMaxParamBytes = 32768;

Parser::Parser(const std::string &text, const std::string &fileName)
    : toks(lexPtx(text)), m(std::make_unique<PtxModule>()) {
  m->fileName = fileName;
  size_t b = 0;
  while (b <= text.size()) {
    size_t e = text.find('\n', b);
    if (e == std::string::npos)
      e = text.size();
    m->lines.push_back(text.substr(b, e - b));
    b = e + 1;
  }
}

void Parser::fail(const std::string &message) const {
  throw PtxError(peek().line, message);
}

void Parser::expect(char c) {
  if (!accept(c)) {
    const Token &t = peek();
    fail(std::string("expected '") + c + "', got " +
         (t.kind == Token::End ? "end of file" : "'" + t.text + "'"));
  }
}

std::string Parser::name() {
  if (peek().kind != Token::Ident)
    fail("expected a name, got '" + peek().text + "'");
  return next().text;
}

int64_t Parser::integer() {
  bool neg = accept('-');
  if (peek().kind != Token::Int)
    fail("expected an integer, got '" + peek().text + "'");
  uint64_t v = next().bits;
  return int64_t(neg ? 0 - v : v);
}

int64_t Parser::constantTerm(int depth) {
  if (depth > 64)
    fail("expression is nested too deeply");
  if (accept('(')) {
    int64_t v = constantExpr(depth + 1);
    expect(')');
    return v;
  }
  if (accept('-'))
    return int64_t(0 - uint64_t(constantTerm(depth + 1)));
  if (accept('~'))
    return ~constantTerm(depth + 1);
  return integer();
}

/// Constant expressions: + - * of integers; enough for what compilers write.
int64_t Parser::constantExpr(int depth) {
  uint64_t v = uint64_t(constantTerm(depth));
  for (;;) {
    if (accept('+'))
      v += uint64_t(constantTerm(depth));
    else if (peek().is('-'))
      next(), v -= uint64_t(constantTerm(depth));
    else if (accept('*'))
      v *= uint64_t(constantTerm(depth));
    else
      return int64_t(v);
  }
}

void Parser::skipLine(int line) {
  while (peek().kind != Token::End && peek().line == line)
    next();
}

void Parser::skipStatement() {
  int depth = 0, line = peek().line;
  while (peek().kind != Token::End) {
    if (peek().is('{') || peek().is('('))
      ++depth;
    if (peek().is('}') || peek().is(')'))
      --depth;
    Token t = next();
    if (depth <= 0 && (t.is(';') || t.is('}')))
      return;
    if (depth <= 0 && peek().line != line && peek().kind == Token::Dot)
      return;
  }
}

void Parser::unknownDirective() {
  m->notes.push_back("line " + std::to_string(peek().line) +
                     ": unknown directive '." + peek().text + "' ignored");
  skipStatement();
}

void Parser::fileDirective() {
  int line = next().line;
  if (peek().kind == Token::Int && peek().line == line) {
    int index = int(next().bits);
    if (peek().kind == Token::String)
      m->files[index] = peek().text;
  }
  skipLine(line);
}

void Parser::locDirective() {
  int line = next().line;
  if (peek().kind == Token::Int && peek(1).kind == Token::Int &&
      peek(1).line == line) {
    m->locs.push_back({int(peek().bits), int(peek(1).bits)});
    curLoc = int(m->locs.size()) - 1;
  }
  skipLine(line);
}

void Parser::sectionDirective() {
  while (peek().kind != Token::End && !peek().is('{'))
    next();
  int depth = 0;
  do {
    if (peek().kind == Token::End)
      fail("section is not closed");
    Token t = next();
    depth += t.is('{') ? 1 : t.is('}') ? -1 : 0;
  } while (depth > 0);
}

static bool spaceOf(const std::string &d, Space &space) {
  if (d == "global")
    space = Space::Global;
  else if (d == "shared" || d == "shared::cta")
    space = Space::Shared;
  else if (d == "local")
    space = Space::Local;
  else if (d == "const")
    space = Space::Const;
  else if (d == "param")
    space = Space::Param;
  else
    return false;
  return true;
}

/// After the space: [.align n] [.ptr ...] [.v4] .type name [dims] [= init].
Variable Parser::variable(Space space, bool isParameter) {
  Variable v;
  v.space = space;
  v.line = peek().line;
  int vec = 1, size = -1;
  bool aligned = false;
  while (peek().kind == Token::Dot) {
    std::string d = next().text;
    if (d == "align") {
      int64_t a = integer();
      if (a <= 0 || (a & (a - 1)) || a > 65536)
        fail("alignment must be a power of two of at most 65536, got " +
             std::to_string(a));
      if (size < 0 || !isParameter)
        v.align = a, aligned = true;
    } else if (d == "ptr" || d == "global" || d == "shared" || d == "local" ||
               d == "const" || d == "managed") {
      // Of `.param .u64 .ptr .global .align 16 p`: hints about the pointee.
    } else if (d == "attribute") {
      expect('(');
      while (!accept(')')) {
        if (peek().kind == Token::End)
          fail("attribute is not closed");
        next();
      }
    } else if (d == "v2" || d == "v4" || d == "v8") {
      vec = d[1] - '0';
    } else if ((size = typeSize(d)) >= 0) {
      v.type = d;
    } else if (d == "texref" || d == "samplerref" || d == "surfref") {
      v.type = "b64", size = 8;
    } else {
      fail("unknown type '." + d + "' of a variable");
    }
  }
  if (size <= 0)
    fail("expected a type of at least one byte for a variable");
  if (!aligned)
    v.align = int64_t(size) * vec;
  if (peek().kind != Token::Ident && isParameter)
    v.name = "_"; // prototypes may leave names out
  else
    v.name = name();
  int64_t count = 1;
  bool unsized = false;
  if (accept('<')) { // x<4> declares x0..x3; only registers are used so
    fail("parameterised names are only supported for registers");
  }
  while (accept('[')) {
    v.isArray = true;
    if (!peek().is(']')) {
      int64_t n = constantExpr();
      if (n < 0 || n > kMaxVariableBytes)
        fail("array size is out of range: " + std::to_string(n));
      count *= n;
      if (count > kMaxVariableBytes)
        fail("variable '" + v.name + "' is too large");
    } else {
      unsized = true;
    }
    expect(']');
  }
  v.bytes = unsized ? 0 : count * size * vec;
  if (v.bytes > kMaxVariableBytes ||
      (space == Space::Param && v.bytes > kMaxParamBytes))
    fail("variable '" + v.name + "' is too large: " + std::to_string(v.bytes) +
         " bytes");
  if (accept('='))
    initialiser(v);
  return v;
}

void Parser::initialiser(Variable &v) {
  int64_t p = 0;
  int size = typeSize(v.type);
  initValue(v, p, size, 0);
  if (v.bytes == 0) // int a[] = {...}
    v.bytes = int64_t(v.init.size());
}

void Parser::initValue(Variable &v, int64_t &p, int size, int depth) {
  if (depth > 16)
    fail("initialiser is nested too deeply");
  if (accept('{')) {
    if (accept('}'))
      return;
    do
      initValue(v, p, size, depth + 1);
    while (accept(','));
    expect('}');
    return;
  }
  if (v.bytes ? p + size > v.bytes : p + size > kMaxVariableBytes)
    fail("too many initialisers for variable '" + v.name + "'");
  v.init.resize(size_t(p + size)); // the rest is zero
  uint64_t bits = 0;
  bool neg = accept('-');
  const Token &t = peek();
  if (t.kind == Token::Ident) {
    bool generic = t.text == "generic";
    Token id = next();
    if (generic) {
      expect('(');
      id.text = name();
      expect(')');
    }
    int64_t addend = 0;
    if (peek().is('+') || peek().is('-'))
      addend = next().is('-') ? int64_t(0 - uint64_t(integer())) : integer();
    v.relocs.push_back({p, size, id.text, addend, generic});
  } else if (t.kind == Token::Single) {
    float f;
    uint32_t b = uint32_t(next().bits);
    std::memcpy(&f, &b, 4);
    double d = f;
    if (size == 8)
      std::memcpy(&bits, &d, 8);
    else
      bits = b;
    if (neg)
      bits ^= uint64_t(1) << (size * 8 - 1);
  } else if (t.kind == Token::Float) {
    double d;
    uint64_t b = next().bits;
    std::memcpy(&d, &b, 8);
    if (neg)
      d = -d;
    float f = float(d);
    uint32_t fb;
    std::memcpy(&fb, &f, 4);
    std::memcpy(&bits, &d, 8);
    if (size == 4)
      bits = fb;
  } else {
    bits = uint64_t(constantExpr());
    if (neg)
      bits = 0 - bits;
  }
  std::memcpy(v.init.data() + p, &bits, size < 8 ? size : 8);
  p += size;
}

std::vector<Variable> Parser::parameterList() {
  std::vector<Variable> out;
  expect('(');
  if (accept(')'))
    return out;
  do {
    if (peek().dot("param"))
      next();
    else if (peek().dot("reg"))
      next();
    else
      fail("expected '.param' in a parameter list, got '" + peek().text + "'");
    out.push_back(variable(Space::Param, true));
  } while (accept(','));
  expect(')');
  return out;
}

void Parser::threeInts(int (&out)[3]) {
  for (int &v : out)
    v = 1;
  for (int i = 0; i < 3; ++i) {
    int64_t n = integer();
    if (n < 0 || n > (1 << 30))
      fail("dimension is out of range: " + std::to_string(n));
    out[i] = int(n);
    if (!accept(','))
      break;
  }
}

void Parser::performanceDirectives(Function &f) {
  while (peek().kind == Token::Dot) {
    const std::string d = peek().text;
    if (d == "maxntid") {
      next();
      threeInts(f.maxntid);
    } else if (d == "reqntid") {
      next();
      threeInts(f.reqntid);
    } else if (d == "reqnctapercluster") {
      next();
      threeInts(f.reqCluster);
    } else if (d == "maxnreg") {
      next();
      f.maxRegs = integer();
      if (f.maxRegs < 1 || f.maxRegs > 256)
        fail(".maxnreg must be 1 to 256, got " + std::to_string(f.maxRegs));
    } else if (d == "minnctapersm" || d == "maxclusterrank" ||
               d == "maxnctapersm" || d == "abi_preserve" ||
               d == "abi_preserve_control") {
      next();
      integer();
    } else if (d == "noreturn" || d == "explicitcluster" ||
               d == "blocksareclusters") {
      next();
    } else if (d == "pragma") {
      skipStatement();
    } else if (d == "attribute") {
      next();
      expect('(');
      while (!accept(')')) {
        if (peek().kind == Token::End)
          fail("attribute is not closed");
        next();
      }
    } else {
      m->notes.push_back("line " + std::to_string(peek().line) +
                         ": unknown directive '." + d + "' ignored");
      next();
      while (peek().kind != Token::End && peek().kind != Token::Dot &&
             !peek().is('{') && !peek().is(';'))
        next();
    }
  }
}

void Parser::function(bool entry) {
  auto f = std::make_unique<Function>();
  f->isEntry = entry;
  f->line = peek().line;
  if (!entry && peek().dot("attribute")) {
    next();
    skipStatement();
  }
  if (!entry && peek().is('('))
    f->returns = parameterList();
  f->name = name();
  if (peek().is('('))
    f->params = parameterList();
  performanceDirectives(*f);
  if (accept(';')) {
    if (!m->functionIndex.count(f->name)) {
      m->functionIndex[f->name] = int(m->functions.size());
      m->functions.push_back(std::move(f));
    }
    return;
  }
  f->isDefined = true;
  auto [it, isNew] =
      m->functionIndex.emplace(f->name, int(m->functions.size()));
  if (isNew)
    m->functions.push_back(nullptr);
  else if (m->functions[it->second]->isDefined)
    fail("function '" + f->name + "' is defined twice");
  m->functions[it->second] = std::move(f);
  body(*m->functions[it->second]);
}

void Parser::addVariable(Variable v) {
  auto [it, isNew] = m->varIndex.emplace(v.name, int(m->vars.size()));
  if (isNew)
    m->vars.push_back(std::move(v));
  else if (m->vars[it->second].isExtern)
    m->vars[it->second] = std::move(v);
  else if (!v.isExtern)
    throw PtxError(v.line, "variable '" + v.name + "' is defined twice");
}

void Parser::topLevel() {
  const Token &t = peek();
  if (t.kind != Token::Dot) {
    if (accept(';'))
      return;
    fail("expected a directive, got '" + t.text + "'");
  }
  bool isExtern = false;
  while (peek().dot("visible") || peek().dot("extern") || peek().dot("weak") ||
         peek().dot("common"))
    isExtern |= next().text == "extern";
  const std::string d = peek().text;
  Space space;
  if (peek().kind != Token::Dot)
    fail("expected a directive, got '" + peek().text + "'");
  if (d == "version") {
    next();
    Token v = next();
    double x = 0;
    if (v.kind == Token::Float)
      std::memcpy(&x, &v.bits, 8);
    else if (v.kind == Token::Int)
      x = double(v.bits);
    else
      fail("expected a version number");
    if (!(x >= 0 && x < 1000))
      fail("version number is out of range");
    m->versionMajor = int(x);
    m->versionMinor = int(x * 10 + 0.5) - m->versionMajor * 10;
  } else if (d == "target") {
    next();
    do {
      std::string n = name();
      if (n.rfind("sm_", 0) == 0)
        m->target = n;
    } while (accept(','));
  } else if (d == "address_size") {
    next();
    if (integer() != 64)
      fail("only '.address_size 64' is supported");
  } else if (d == "entry" || d == "func") {
    next();
    function(d == "entry");
  } else if (d == "file") {
    fileDirective();
  } else if (d == "loc") {
    locDirective();
  } else if (d == "section") {
    sectionDirective();
  } else if (spaceOf(d, space)) {
    next();
    do {
      Variable v = variable(space, false);
      v.isExtern = isExtern;
      addVariable(std::move(v));
    } while (accept(','));
    expect(';');
  } else if (d == "pragma" || d == "alias") {
    skipStatement();
  } else {
    unknownDirective();
  }
}

std::unique_ptr<PtxModule> Parser::run() {
  while (peek().kind != Token::End)
    topLevel();
  if (m->target.empty())
    throw PtxError(0, "expected a '.target sm_XX' directive");
  return std::move(m);
}

std::unique_ptr<PtxModule> parsePtx(const std::string &text,
                                    const std::string &fileName) {
  return Parser(text, fileName).run();
}

} // namespace kvcache::sim
