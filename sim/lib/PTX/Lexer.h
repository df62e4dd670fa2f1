//===- Lexer.h - PTX tokens -------------------------------------*- C++ -*-===//
#ifndef KVCACHE_SIM_PTX_LEXER_H
#define KVCACHE_SIM_PTX_LEXER_H

#include "Ast.h"

namespace kvcache::sim {

struct Token {
  enum Kind : uint8_t {
    End,
    Ident,  ///< name, %reg
    Dot,    ///< .directive or .modifier; text without the dot
    Int,    ///< bits
    Float,  ///< f64 bits
    Single, ///< 0f literal, f32 bits
    String,
    Punct, ///< one character in text
  };
  Kind kind = End;
  int line = 0;
  uint64_t bits = 0;
  std::string text;
  bool is(char c) const { return kind == Punct && text[0] == c; }
  bool dot(const char *s) const { return kind == Dot && text == s; }
};

/// Splits the whole text; throws PtxError on what is no token.
std::vector<Token> lexPtx(const std::string &text);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_PTX_LEXER_H
