//===- Lexer.cpp - PTX tokens ---------------------------------------------===//
//
// Modifiers keep their `::` parts in one token (".shared::cta"); a dot followed
// by a digit (".2d", ".16x64b") is a modifier too, since PTX has no literal
// that starts with a dot.
//
//===----------------------------------------------------------------------===//
#include "Lexer.h"
#include <cstdlib>
#include <cstring>

namespace kvcache::sim {

static bool isIdStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '$' || c == '%';
}
static bool isDigit(char c) { return c >= '0' && c <= '9'; }
static bool isIdChar(char c) { return isIdStart(c) || isDigit(c); }

namespace {
class Lexer {
public:
  explicit Lexer(const std::string &text) : s(text) {}
  std::vector<Token> run();

private:
  void skipBlank();
  void number(Token &t);
  void hexFloat(Token &t, int digits);
  void stringLiteral(Token &t);
  char at(size_t i) const { return i < s.size() ? s[i] : '\0'; }

  const std::string &s;
  size_t p = 0;
  int line = 1;
};
} // namespace

void Lexer::skipBlank() {
  while (p < s.size()) {
    char c = s[p];
    if (c == '\n') {
      ++line, ++p;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++p;
    } else if (c == '/' && at(p + 1) == '/') {
      while (p < s.size() && s[p] != '\n')
        ++p;
    } else if (c == '/' && at(p + 1) == '*') {
      int start = line;
      for (p += 2; !(at(p) == '*' && at(p + 1) == '/'); ++p) {
        if (p >= s.size())
          throw PtxError(start, "comment is not closed");
        if (s[p] == '\n')
          ++line;
      }
      p += 2;
    } else if (c == '#' && (p == 0 || s[p - 1] == '\n')) {
      while (p < s.size() && s[p] != '\n') // preprocessor line marks
        ++p;
    } else {
      return;
    }
  }
}

void Lexer::hexFloat(Token &t, int digits) {
  uint64_t v = 0;
  size_t start = p + 2, i = start;
  for (; i < start + digits; ++i) {
    char c = at(i);
    int d = isDigit(c)               ? c - '0'
            : (c >= 'a' && c <= 'f') ? c - 'a' + 10
            : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                     : -1;
    if (d < 0)
      throw PtxError(line, "expected " + std::to_string(digits) +
                               " hexadecimal digits in floating literal");
    v = v << 4 | unsigned(d);
  }
  t.bits = v;
  t.kind = digits == 8 ? Token::Single : Token::Float;
  p = i;
}

void Lexer::number(Token &t) {
  char n = at(p + 1);
  if (s[p] == '0' && (n == 'f' || n == 'F'))
    return hexFloat(t, 8);
  if (s[p] == '0' && (n == 'd' || n == 'D'))
    return hexFloat(t, 16);
  size_t e = p;
  bool isFloat = false;
  bool hex = s[p] == '0' && (n == 'x' || n == 'X');
  if (!hex) {
    while (isDigit(at(e)))
      ++e;
    if (at(e) == '.' && (isDigit(at(e + 1)) || !isIdChar(at(e + 1)))) {
      isFloat = true; // "1.5", and "0." as template libraries write it
      for (++e; isDigit(at(e));)
        ++e;
    }
    if (at(e) == 'e' || at(e) == 'E') {
      size_t x = e + 1;
      if (at(x) == '+' || at(x) == '-')
        ++x;
      if (isDigit(at(x))) {
        isFloat = true;
        for (e = x; isDigit(at(e));)
          ++e;
      }
    }
  }
  if (isFloat) {
    double d = std::strtod(s.substr(p, e - p).c_str(), nullptr);
    std::memcpy(&t.bits, &d, 8);
    t.kind = Token::Float;
    p = e;
    return;
  }
  t.kind = Token::Int;
  const char *start = s.c_str() + p;
  char *end = nullptr;
  if (s[p] == '0' && (n == 'b' || n == 'B'))
    t.bits = std::strtoull(start + 2, &end, 2);
  else
    t.bits = std::strtoull(start, &end, 0);
  p = end - s.c_str();
  if (at(p) == 'U' || at(p) == 'u')
    ++p;
}

void Lexer::stringLiteral(Token &t) {
  t.kind = Token::String;
  for (++p; at(p) != '"'; ++p) {
    if (p >= s.size() || s[p] == '\n')
      throw PtxError(line, "string is not closed");
    t.text += s[p];
  }
  ++p;
}

std::vector<Token> Lexer::run() {
  std::vector<Token> out;
  for (;;) {
    skipBlank();
    Token t;
    t.line = line;
    if (p >= s.size() || s[p] == '\0') {
      out.push_back(t);
      return out;
    }
    char c = s[p];
    if (isIdStart(c)) {
      size_t b = p;
      while (isIdChar(at(p)))
        ++p;
      t.kind = Token::Ident;
      t.text = s.substr(b, p - b);
    } else if (c == '.' && isIdChar(at(p + 1))) {
      size_t b = ++p;
      for (;;) {
        while (isIdChar(at(p)))
          ++p;
        if (at(p) == ':' && at(p + 1) == ':' && isIdChar(at(p + 2)))
          p += 2;
        else
          break;
      }
      t.kind = Token::Dot;
      t.text = s.substr(b, p - b);
    } else if (isDigit(c)) {
      number(t);
    } else if (c == '"') {
      stringLiteral(t);
    } else {
      if (!std::strchr("{}[]()<>,;:=+-*!|@~&/.", c))
        throw PtxError(line, "unexpected character with code " +
                                 std::to_string(unsigned(uint8_t(c))));
      t.kind = Token::Punct;
      t.text = std::string(1, c);
      ++p;
    }
    out.push_back(std::move(t));
  }
}

std::vector<Token> lexPtx(const std::string &text) { return Lexer(text).run(); }

} // namespace kvcache::sim
