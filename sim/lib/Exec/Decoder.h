//===- Decoder.h - From PTX text to decoded instructions --------*- C++ -*-===//
//
// The services that the decoders of each opcode family use: consuming
// modifiers, turning operands into slots, interning constants, resolving
// symbols. A family registers decode functions by opcode name in a Table; the
// families are compiled once per CPU tier, this file once.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_EXEC_DECODER_H
#define KVCACHE_SIM_EXEC_DECODER_H

#include "../Machine/Machine.h"
#include <functional>
#include <initializer_list>
#include <map>
#include <unordered_map>

namespace kvcache::sim {

class Decoder;
using DecodeFn = void (*)(Decoder &, Instr &);

/// The decoders of one CPU tier.
struct Table {
  std::unordered_map<std::string, DecodeFn> byName;
  void add(const char *name, DecodeFn fn) { byName[name] = fn; }
};

/// Addresses shared by all functions reachable from one entry.
struct Layout {
  std::map<std::string, int64_t> shared;           ///< module-level variables
  std::map<const Variable *, int64_t> sharedLocal; ///< of functions
  int64_t sharedBytes = 0;
  std::map<std::string, uint64_t> globals; ///< and constants
};

/// A module prepared for launches; see Module.cpp.
struct ModuleImpl : Module {
  std::unique_ptr<PtxModule> ptx;
  std::map<std::string, uint64_t> globalAddress;
  uint64_t globalEnd = kGlobalBase;

  struct Program {
    Layout layout;
    std::vector<std::unique_ptr<Code>> codes;
    std::map<std::string, Code *> byName;
    uint32_t instrCount = 0;
    int64_t localBytes = 0;
    bool asyncOps = false;     ///< has asynchronous copies or wgmma
    bool dynamicStack = false; ///< uses alloca
  };
  mutable std::mutex mutex;
  mutable std::map<std::string, std::shared_ptr<Program>> programs;

  std::shared_ptr<Program> program(const std::string &entry) const;
  std::vector<std::string> entries() const override;
  std::string target() const override { return ptx->target; }
  const std::vector<std::string> &notes() const override { return ptx->notes; }
};

const Table &activeTable();

class Decoder {
public:
  Decoder(const ModuleImpl &module, ModuleImpl::Program &program, Code &code);
  void run();

  const PtxInstr *in = nullptr;
  const Function &fn;
  Code &code;
  const ModuleImpl &module;
  ModuleImpl::Program &program;

  [[noreturn]] void error(const std::string &message) const;

  // Modifiers, each consumed once, in any order.
  bool take(const char *mod);
  /// The first of `mods` that is present, else `otherwise`.
  std::string oneOf(std::initializer_list<const char *> mods,
                    const char *otherwise = "");
  /// The next modifier that names a type; an error if there is none.
  std::string type();
  std::string typeOr(const char *otherwise);
  /// The next modifier not yet consumed, without consuming it; "" at the end.
  std::string peekMod() const;
  void takeRest(); ///< accepts cache hints and the like
  void cacheHints();
  /// Refuses unconsumed modifiers by name.
  void done();

  // Operands.
  size_t count() const { return in->ops.size(); }
  const Operand &op(size_t i) const;
  void needOps(size_t lo, size_t hi) const;
  /// A destination of exactly `bytes` (0: predicate); sinks get scratch.
  Opnd dst(const Operand &o, int bytes);
  Opnd dstAny(const Operand &o, int sinkBytes = 8); ///< any register
  /// A source read as `type`; literals are converted to it.
  Opnd src(const Operand &o, const std::string &type);
  Opnd srcAny(const Operand &o, const std::string &type);
  Opnd pred(const Operand &o);
  Opnd constant(uint64_t bits, int bytes);
  Opnd zero(int bytes) { return constant(0, bytes); }
  int regBytes(const Operand &o) const; ///< -1 if no register
  std::string regType(const Operand &o) const;
  /// The value of a literal operand; an error for anything else.
  int64_t literal(const Operand &o) const;
  bool isLiteral(const Operand &o) const { return o.kind == Operand::Imm; }
  Opnd scratch(int bytes);
  /// The condition code register (carry), a predicate of the frame.
  Opnd carry() {
    if (!cc.off)
      cc = scratch(0);
    return cc;
  }
  /// [reg + imm] or [symbol + imm]: the base register and the byte offset. The
  /// space is refined from the symbol for parameters.
  Opnd address(const Operand &o, MemSpace &space, int64_t &offset);

  /// Stores operands into the instruction.
  void finish(Instr &I, std::initializer_list<Opnd> dsts,
              std::initializer_list<Opnd> srcs);
  void finish(Instr &I, const std::vector<Opnd> &dsts,
              const std::vector<Opnd> &srcs);
  template <class T>
  T *extra(T value) {
    auto p = std::make_shared<T>(std::move(value));
    T *raw = p.get();
    code.extras.push_back(p);
    return raw;
  }
  /// Inserts an instruction before the one being decoded.
  void prepend(Instr I);
  /// A state space named by a modifier, consumed; Generic if none.
  MemSpace space();
  uint32_t label(const Operand &o) const;
  uint32_t label(const std::string &name, int scope) const;
  const LabelledList *list(const Operand &o) const;
  /// Symbol value and where it lives; false if unknown.
  bool symbol(const Operand &o, MemSpace &space, int64_t &value) const;
  /// Lists of branch targets, PTX indices until the function is decoded.
  std::vector<std::vector<uint32_t> *> targetTables;
  int sm() const { return smVersion; }
  /// Minimum chip of the instruction, for the target check.
  void needSm(Instr &I, int sm, bool archSpecific = false);

private:
  void layoutRegisters();
  void decodeOne(const PtxInstr &p);
  void checkParts(const Operand &o, bool video) const;
  Opnd literalOpnd(const Operand &o, const std::string &type, int bytes);
  Opnd special(const Operand &o, int bytes);

  std::vector<int32_t> regOff;
  std::vector<uint8_t> used;
  std::map<std::pair<uint64_t, int>, int32_t> constIndex;
  std::map<std::string, int32_t> specialOff;
  std::map<std::string, int32_t> localOff, paramOff;
  std::map<const Variable *, int32_t> varOff;
  std::vector<uint32_t> startOf; ///< PTX instruction -> decoded index
  struct Fix {
    uint32_t instr, ptxTarget;
  };
  std::vector<Fix> fixes;
  int smVersion = 80;
  Opnd cc;
  friend struct ModuleImpl;
};

/// Shadow propagation for the common cases (Shadow.cpp).
void shadowAny(Ctx &, const Instr &, uint32_t);  ///< any bit taints all
void shadowCopy(Ctx &, const Instr &, uint32_t); ///< bit for bit (mov)
void shadowAnd(Ctx &, const Instr &, uint32_t);
void shadowOr(Ctx &, const Instr &, uint32_t);
void shadowXor(Ctx &, const Instr &, uint32_t);
void shadowShift(Ctx &, const Instr &, uint32_t); ///< a: 0 shl 1 shr.u 2 shr.s
void shadowSelect(Ctx &, const Instr &, uint32_t);
void shadowPrmt(Ctx &, const Instr &, uint32_t);
void shadowZext(Ctx &, const Instr &,
                uint32_t); ///< integer cvt; a: sign, imm: bits
void shadowPack(Ctx &, const Instr &, uint32_t);   ///< mov with vectors
void shadowHalves(Ctx &, const Instr &, uint32_t); ///< x2 arithmetic
void shadowAdd(Ctx &, const Instr &,
               uint32_t); ///< taints from the lowest bit up
void shadowNone(Ctx &, const Instr &, uint32_t); ///< result is defined

/// 32 lanes of shadow of an operand.
template <class T>
const T *shadowIn(Ctx &c, const Opnd &o);
bool isTainted(Ctx &c, const Opnd &o, uint32_t mask);
/// Lanes of `mask` with any undefined bit.
uint32_t taintedLanes(Ctx &c, const Opnd &o, uint32_t mask);
void setShadow(Ctx &c, const Opnd &o, uint32_t mask, const void *lanes);
void setUndefined(Ctx &c, const Opnd &o, uint32_t mask);
void setDefined(Ctx &c, const Opnd &o, uint32_t mask);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_EXEC_DECODER_H
