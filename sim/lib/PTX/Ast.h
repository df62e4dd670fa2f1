//===- Ast.h - PTX as parsed ------------------------------------*- C++ -*-===//
//
// The tree the parser builds: a module of variables and functions, functions
// of instructions with textual opcodes and modifiers. Registers are already
// resolved to indices (PTX scopes are flattened), labels to instruction
// numbers; types and opcodes are interpreted by the decoders in Exec/.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_PTX_AST_H
#define KVCACHE_SIM_PTX_AST_H

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvcache::sim {

/// A fault of the text or of the launch: a line (0: none) and a message.
struct PtxError : std::runtime_error {
  PtxError(int line, const std::string &message)
      : std::runtime_error(message), line(line) {}
  int line;
};

/// State spaces of variables and of memory instructions.
enum class Space : uint8_t {
  Generic,
  Reg,
  Global,
  Shared,
  Local,
  Const,
  Param,
};

/// The size in bytes of a fundamental type written without its dot ("b32");
/// 0 for `pred`, -1 if there is no such type.
int typeSize(const std::string &type);

struct Operand {
  enum Kind : uint8_t {
    None,
    Reg,     ///< index; `component` for %tid.x style specials is in `name`
    Special, ///< %tid.x and so on, by name
    Imm,     ///< bits, integer literal
    Float,   ///< bits hold an f64 literal, or f32 bits if `single`
    Sym,     ///< variable, function or label, plus offset
    Mem,     ///< [base + offset] or [base, {coords}]; elems[0] is the base
    Vec,     ///< {a, b, ...}
    Pair,    ///< a|b
    List,    ///< (a, b, ...), of call
    Sink,    ///< _
  };
  Kind kind = None;
  bool negated = false; ///< !%p
  bool single = false;
  bool minus = false; ///< -%r, of video instructions
  std::string part;   ///< %r.b0, of video instructions
  int reg = -1;
  int scope = 0;
  int64_t offset = 0;
  uint64_t bits = 0;
  std::string name;
  std::vector<Operand> elems;
};

struct PtxInstr {
  std::string op;                ///< "ld"
  std::vector<std::string> mods; ///< "global", "v4", "f32"
  std::vector<Operand> ops;
  int pred = -1; ///< guard register
  bool predNegated = false;
  int line = 0;
  int loc = 0; ///< index into Module::locs, 0: none
};

struct Relocation {
  int64_t offset; ///< byte in the initialiser
  int size;
  std::string symbol;
  int64_t addend;
  bool generic;
};

struct Variable {
  std::string name;
  Space space = Space::Global;
  std::string type;
  int64_t align = 1;
  int64_t bytes = 0; ///< 0 with `isArray`: extern shared of unknown size
  bool isArray = false, isExtern = false;
  std::vector<uint8_t> init;
  std::vector<Relocation> relocs;
  int line = 0;
};

struct RegDecl {
  std::string name, type;
};

struct Label {
  int scope;
  int target; ///< instruction index
};

/// `.branchtargets` and `.callprototype` behind a label.
struct LabelledList {
  int scope;
  bool isPrototype;
  std::vector<std::string> labels;
  std::vector<Variable> returns, params;
};

struct Function {
  std::string name;
  bool isEntry = false, isDefined = false;
  int line = 0;
  std::vector<Variable> returns, params;
  std::vector<RegDecl> regs;
  std::vector<Variable> vars; ///< .local .shared .param declared in the body
  std::vector<PtxInstr> body;
  std::vector<int> scopeParent{-1};
  std::multimap<std::string, Label> labels;
  std::multimap<std::string, LabelledList> lists;
  /// Variable name per scope -> index in `vars`.
  std::multimap<std::string, std::pair<int, int>> varScopes;
  int maxntid[3] = {0, 0, 0}, reqntid[3] = {0, 0, 0};
  int64_t maxRegs = 0; ///< .maxnreg
  int reqCluster[3] = {0, 0, 0};
};

struct SourceLoc {
  int file, line;
};

struct PtxModule {
  std::string fileName;
  int versionMajor = 0, versionMinor = 0;
  std::string target; ///< "sm_90a"
  std::vector<Variable> vars;
  std::vector<std::unique_ptr<Function>> functions;
  std::map<std::string, int> functionIndex, varIndex;
  std::map<int, std::string> files;
  std::vector<SourceLoc> locs{{0, 0}};
  std::vector<std::string> lines; ///< the text, for messages
  std::vector<std::string> notes; ///< unknown directives, by name
};

/// Parses PTX text; throws PtxError.
std::unique_ptr<PtxModule> parsePtx(const std::string &text,
                                    const std::string &fileName);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_PTX_AST_H
