//===- Instr.h - Decoded instructions ---------------------------*- C++ -*-===//
//
// What the decoders make of PTX text, once, before a run: a function pointer
// per instruction and operands that are byte offsets into a warp's register
// frame (or, negative, into the function's constant pool). A register is a
// slot of 32 lanes: a 32-bit mask for predicates, else `sz` bytes per lane,
// lane-major, 64-byte aligned.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_MACHINE_INSTR_H
#define KVCACHE_SIM_MACHINE_INSTR_H

#include "../PTX/Ast.h"
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace kvcache::sim {

struct Ctx;
struct Instr;
struct Code;
struct BranchRegion;

/// What the warp does after an instruction.
enum class Act : uint8_t {
  Next,  ///< continue behind it
  Jump,  ///< the split's pc was set
  Wait,  ///< the split is parked at this instruction (state says for what)
  Yield, ///< continue behind it, but let other warps run first
  Gone,  ///< all lanes of the split left (exit, or merged elsewhere)
};

using ExecFn = Act (*)(Ctx &, const Instr &, uint32_t mask);
/// Propagates initialisation shadow; runs before the instruction, only if a
/// source or the destination has undefined bits.
using ShadowFn = void (*)(Ctx &, const Instr &, uint32_t mask);

struct Opnd {
  int32_t off = 0;  ///< register frame offset, or ~offset into constants
  uint8_t sz = 0;   ///< bytes per lane; 0: predicate
  bool neg = false; ///< negated predicate
};

enum class MemSpace : uint8_t {
  Generic,
  Global,
  Shared,  ///< of this block
  Cluster, ///< shared::cluster
  Local,
  Const,
  KParam, ///< kernel parameters
  FParam, ///< parameters of device functions, in the frame
};

/// Instruction classes of the counters.
enum class OpClass : uint8_t {
  Int,
  Float,
  Double,
  Half,
  Convert,
  Move,
  Compare,
  Control,
  Load,
  Store,
  Atomic,
  WarpOp,
  Barrier,
  Mma,
  Special,
  Async,
  Other,
  Count
};

struct Instr {
  ExecFn fn = nullptr;
  ShadowFn shadow = nullptr; ///< null: the instruction does it itself
  const Opnd *o = nullptr;   ///< destinations, then sources
  uint8_t nd = 0, ns = 0;
  bool leader = false; ///< starts a basic block
  bool always = false; ///< executes even with an empty mask (branches)
  bool predNeg = false;
  bool matters = false; ///< an undefined guard is a fault, not a taint
  bool branch = false;  ///< `bra`, with its target in `target`
  int32_t pred = -1;    ///< guard register offset
  OpClass cls = OpClass::Other;
  MemSpace space = MemSpace::Generic;
  uint8_t elem = 0, vec = 1; ///< memory: bytes per element, elements per lane
  bool aligned = false;      ///< needs the whole warp
  bool wgmma = false;        ///< touches registers asynchronously, or orders it
  uint32_t target = 0;       ///< branch target
  uint32_t id = 0;           ///< over the whole module
  int32_t line = 0;
  int32_t loc = 0;
  uint32_t a = 0, b = 0, d = 0; ///< family specific
  int64_t imm = 0;
  /// The overflow check: finds lanes that wrap; how marks travel (Wraps.h).
  ExecFn overflow = nullptr;
  uint8_t wrapKind = 0;
  const void *ext = nullptr; ///< family specific, owned by the Code
};

/// A function ready to run.
struct Code {
  const Function *fn = nullptr;
  std::string name;
  std::vector<Instr> instrs;
  std::vector<std::unique_ptr<Opnd[]>> operands;
  std::vector<std::shared_ptr<void>> extras;
  std::vector<uint8_t> constants; ///< 64-byte aligned by its user
  std::unique_ptr<uint8_t[]> constStorage;
  const uint8_t *consts = nullptr;
  int32_t frameBytes = 64;
  int32_t localBytes = 0, paramBytes = 0;
  bool calls = false;
  struct SpecialReg {
    int kind, axis, bytes;
    int32_t off;
  };
  std::vector<SpecialReg> specials; ///< filled when a frame is made
  struct ParamSlot {
    int32_t offset, bytes;
  };
  std::vector<ParamSlot> params, returns; ///< in the frame's parameter space
  int declaredRegs = 0;
  /// Regions behind branches on undefined predicates, found when needed.
  struct Regions {
    std::mutex mutex;
    std::map<uint32_t, std::shared_ptr<BranchRegion>> byPc;
  };
  std::shared_ptr<Regions> regions = std::make_shared<Regions>();
};

} // namespace kvcache::sim

#endif // KVCACHE_SIM_MACHINE_INSTR_H
