//===- Chips.h - Minimum chips told by modifiers ----------------*- C++ -*-===//
#ifndef KVCACHE_SIM_EXEC_CHIPS_H
#define KVCACHE_SIM_EXEC_CHIPS_H

#include "../PTX/Ast.h"

namespace kvcache::sim {

/// The least chip that has an instruction, as far as its modifiers and operands
/// tell; 0 if every chip. Decoders add what only they know.
int chipOf(const PtxInstr &in);

/// Why an opcode of the ISA is not decoded; null if it is no such one.
const char *unsupportedOpcode(const std::string &op);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_EXEC_CHIPS_H
