//===- Parser.h - Recursive descent over PTX tokens -------------*- C++ -*-===//
#ifndef KVCACHE_SIM_PTX_PARSER_H
#define KVCACHE_SIM_PTX_PARSER_H

#include "Lexer.h"
#include <unordered_map>

namespace kvcache::sim {

/// One pass over the tokens. Parser.cpp: declarations; ParserBody.cpp: bodies.
class Parser {
public:
  Parser(const std::string &text, const std::string &fileName);
  std::unique_ptr<PtxModule> run();

private:
  // Declarations.
  void topLevel();
  void function(bool entry);
  void performanceDirectives(Function &f);
  std::vector<Variable> parameterList();
  Variable variable(Space space, bool isParameter);
  void initialiser(Variable &v);
  void initValue(Variable &v, int64_t &pos, int elem, int depth);
  void fileDirective();
  void locDirective();
  void sectionDirective();
  void unknownDirective();
  void threeInts(int (&out)[3]);
  void addVariable(Variable v);

  // Bodies.
  void body(Function &f);
  void statement();
  void regDecl();
  void bodyVariable(Space space);
  void labelled(const std::string &name);
  void instruction();
  Operand operand(int depth = 0);
  Operand primary(int depth);
  Operand memory(int depth);
  Operand identifier(Token t);
  int findReg(const std::string &name, std::string &type) const;
  void openScope();
  void closeScope();

  // Tokens.
  const Token &peek(size_t n = 0) const {
    return toks[pos + n < toks.size() ? pos + n : toks.size() - 1];
  }
  Token next() {
    Token t = peek();
    if (pos < toks.size() - 1)
      ++pos;
    return t;
  }
  bool accept(char c) {
    if (!peek().is(c))
      return false;
    next();
    return true;
  }
  void expect(char c);
  int64_t integer();
  int64_t constantExpr(int depth = 0);
  int64_t constantTerm(int depth);
  std::string name();
  [[noreturn]] void fail(const std::string &message) const;
  void skipStatement();
  void skipLine(int line);

  struct RegRange {
    std::string type;
    int first, count; ///< count -1: a single name
  };
  struct Scope {
    int id;
    std::unordered_map<std::string, RegRange> regs;
  };
  std::vector<Token> toks;
  size_t pos = 0;
  std::unique_ptr<PtxModule> m;
  Function *fn = nullptr;
  std::vector<Scope> scopes;
  int curLoc = 0;
};

} // namespace kvcache::sim

#endif // KVCACHE_SIM_PTX_PARSER_H
