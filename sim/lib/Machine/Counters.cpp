//===- Counters.cpp - Totals of a run as JSON -----------------------------===//
//
// Executors count per decoded instruction and worker; here the counts are
// summed by class, by opcode and, on request, by line.
//
//===----------------------------------------------------------------------===//
#include "Counters.h"
#include "../Exec/Decoder.h"
#include <map>

namespace kvcache::sim {

static const char *className(OpClass c) {
  static const char *const names[] = {
      "int",     "float",   "double",  "half",  "convert", "move",
      "compare", "control", "load",    "store", "atomic",  "warp",
      "barrier", "mma",     "special", "async", "other"};
  return names[size_t(c)];
}

static void add(InstrStats &a, const InstrStats &b) {
  a.warps += b.warps;
  a.threads += b.threads;
  a.bytes += b.bytes;
  a.sectors += b.sectors;
  a.conflicts += b.conflicts;
  a.requests += b.requests;
  a.sharedBytes += b.sharedBytes;
  a.sharedRequests += b.sharedRequests;
  a.otherBytes += b.otherBytes;
  a.storesGlobal |= b.storesGlobal;
  a.flops += b.flops;
  a.divergent += b.divergent;
}

static std::string number(const char *name, uint64_t v) {
  return std::string("\"") + name + "\": " + std::to_string(v);
}

static std::string row(const InstrStats &s) {
  return "{" + number("warp", s.warps) + ", " + number("thread", s.threads) +
         "}";
}

static std::string escaped(const std::string &s) {
  std::string r;
  for (char c : s) {
    if (c == '"' || c == '\\')
      r += '\\';
    if (uint8_t(c) >= 32)
      r += c;
  }
  return r;
}

std::string countersJson(const Grid &g) {
  std::map<std::string, InstrStats> classes;
  std::map<int, std::pair<InstrStats, std::string>> lines;
  InstrStats total, load, store, atomic, async, mma;
  const PtxModule &p = *g.module->ptx;
  int registers = 0;
  for (auto &code : *g.codes) {
    registers = std::max(registers, code->declaredRegs);
    for (const Instr &I : code->instrs) {
      InstrStats s;
      for (auto &w : g.stats)
        add(s, w->instr[I.id]);
      if (!s.warps)
        continue;
      add(total, s);
      add(classes[className(I.cls)], s);
      const InstrStats all = s;
      if (I.cls == OpClass::Async) {
        // What a copy moves in shared memory is a row of its own.
        InstrStats inShared;
        std::swap(inShared.sharedBytes, s.sharedBytes);
        std::swap(inShared.sharedRequests, s.sharedRequests);
        std::swap(inShared.conflicts, s.conflicts);
        add(async, inShared);
        add(s.storesGlobal ? store : load, s);
      } else {
        add(I.cls == OpClass::Store    ? store
            : I.cls == OpClass::Atomic ? atomic
                                       : load,
            s);
      }
      if (I.cls == OpClass::Mma)
        add(mma, s);
      auto &line = lines[I.line];
      add(line.first, all);
      if (I.line > 0 && size_t(I.line) <= p.lines.size())
        line.second = p.lines[I.line - 1];
    }
  }
  std::string out =
      "{\n  \"warp_instructions\": " + std::to_string(total.warps) +
      ",\n  \"thread_instructions\": " + std::to_string(total.threads) +
      ",\n  \"classes\": {";
  bool first = true;
  for (auto &[name, s] : classes) {
    out += std::string(first ? "" : ",") + "\n    \"" + name + "\": " + row(s);
    first = false;
  }
  auto global = [](const char *name, const InstrStats &s) {
    return std::string("  \"") + name + "\": {" +
           number("requests", s.requests) + ", " + number("bytes", s.bytes) +
           ", " + number("sectors", s.sectors) + "},\n";
  };
  auto shared = [](const char *name, const InstrStats &s) {
    return std::string("  \"") + name + "\": {" +
           number("requests", s.sharedRequests) + ", " +
           number("bytes", s.sharedBytes) + ", " +
           number("bank_conflicts", s.conflicts) + "},\n";
  };
  out += "\n  },\n" + global("global_load", load) +
         global("global_store", store) + global("global_atomic", atomic) +
         shared("shared_load", load) + shared("shared_store", store) +
         shared("shared_atomic", atomic) + shared("shared_async", async);
  out += "  \"mma\": {" + number("instructions", mma.warps) + ", " +
         number("flops", mma.flops) + "},\n  " +
         number("divergent_branches", total.divergent) + ",\n  " +
         number("registers_declared", uint64_t(registers)) + ",\n  " +
         number("shared_bytes", uint64_t(g.sharedTotal));
  if (g.launch.countersPerLine) {
    out += ",\n  \"lines\": [";
    first = true;
    for (auto &[n, l] : lines) {
      out += std::string(first ? "" : ",") + "\n    {" +
             number("line", uint64_t(n)) + ", " +
             number("warp", l.first.warps) + ", " +
             number("thread", l.first.threads) + ", " +
             number("bytes", l.first.bytes + l.first.sharedBytes) + ", " +
             number("sectors", l.first.sectors) + ", " +
             number("bank_conflicts", l.first.conflicts) + ", \"text\": \"" +
             escaped(l.second) + "\"}";
      first = false;
    }
    out += "\n  ]";
  }
  return out + "\n}\n";
}

} // namespace kvcache::sim
