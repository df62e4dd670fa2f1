//===- Run.cpp - runKernel: from a launch to a grid -----------------------===//
#include "../Exec/Decoder.h"
#include "Counters.h"
#include <algorithm>
#include <cstdlib>
#include <sys/mman.h>

namespace kvcache::sim {

[[noreturn]] static void fail(const std::string &text) {
  throw Error("error: " + text);
}

static std::string dims(const Dim3 &d) {
  return std::to_string(d[0]) + "," + std::to_string(d[1]) + "," +
         std::to_string(d[2]);
}

/// Shared memory that a block may have, in bytes.
static int64_t sharedLimit(int sm) {
  switch (sm) {
  case 70:
  case 72:
    return 96 * 1024;
  case 75:
    return 64 * 1024;
  case 80:
  case 87:
    return 163 * 1024;
  case 86:
  case 89:
  case 120:
  case 121:
    return 99 * 1024;
  default:
    return 227 * 1024;
  }
}

namespace {
/// What a multiprocessor holds, and how many a chip of the target has (those of
/// A100, A10, Orin, L40S, H100, B200, RTX PRO 6000).
struct Chip {
  int processors, threads, blocks;
  int64_t shared;
};
} // namespace

static Chip chipOf(int sm) {
  switch (sm) {
  case 75:
    return {40, 1024, 16, 64 * 1024};
  case 86:
    return {72, 1536, 16, 100 * 1024};
  case 87:
    return {16, 1536, 16, 164 * 1024};
  case 89:
    return {142, 1536, 24, 100 * 1024};
  case 90:
    return {132, 2048, 32, 228 * 1024};
  case 100:
  case 101:
  case 103:
    return {148, 2048, 32, 228 * 1024};
  case 120:
  case 121:
    return {188, 1536, 24, 100 * 1024};
  default:
    return {108, 2048, 32, 164 * 1024};
  }
}

/// Blocks that are on the chip at the same time. Registers count where the
/// kernel declares their number; what an assembler would use is not known.
static int64_t residentBlocks(const Grid &g, const Function &f) {
  Chip chip = chipOf(g.smVersion);
  int64_t warps = g.warpsPerBlock;
  int64_t n = std::min<int64_t>(chip.blocks, chip.threads / 32 / warps);
  n = std::min(n, chip.shared / (g.sharedTotal + 1024));
  if (f.maxRegs > 0)
    n = std::min(n, 65536 / (warps * 32 * ((f.maxRegs + 7) / 8 * 8)));
  return std::max<int64_t>(n, 1) * chip.processors;
}

static void setShape(Grid &g, const Function &f) {
  Launch &l = g.launch;
  static const int64_t gridMax[3] = {2147483647, 65535, 65535};
  for (int d = 0; d < 3; ++d) {
    if (l.grid[d] < 1 || l.grid[d] > gridMax[d])
      fail("grid " + dims(l.grid) + " is out of range");
    if (l.block[d] < 1 || l.block[d] > 1024)
      fail("block " + dims(l.block) + " is out of range");
  }
  g.threadsPerBlock = l.block[0] * l.block[1] * l.block[2];
  if (g.threadsPerBlock > 1024 || l.block[2] > 64)
    fail("block " + dims(l.block) + " has more than 1024 threads");
  if (f.reqntid[0])
    for (int d = 0; d < 3; ++d)
      if (l.block[d] != std::max(f.reqntid[d], 1))
        fail("block " + dims(l.block) + " differs from .reqntid " +
             std::to_string(f.reqntid[0]) + "," + std::to_string(f.reqntid[1]) +
             "," + std::to_string(f.reqntid[2]));
  if (f.maxntid[0] && g.threadsPerBlock > int64_t(f.maxntid[0]) *
                                              std::max(f.maxntid[1], 1) *
                                              std::max(f.maxntid[2], 1))
    fail("block " + dims(l.block) + " has more threads than .maxntid allows");
  g.warpsPerBlock = (g.threadsPerBlock + 31) / 32;
  g.blocks = l.grid[0] * l.grid[1] * l.grid[2];
  for (int d = 0; d < 3; ++d) {
    int64_t c = l.cluster[d];
    if (c <= 0)
      c = f.reqCluster[0] ? std::max(f.reqCluster[d], 1) : 1;
    else if (f.reqCluster[0] && c != std::max(f.reqCluster[d], 1))
      fail("cluster " + dims(l.cluster) + " differs from .reqnctapercluster");
    if (l.grid[d] % c)
      fail("grid " + dims(l.grid) + " is not a multiple of the cluster");
    g.clusterDim[d] = c;
  }
  g.clusterSize = g.clusterDim[0] * g.clusterDim[1] * g.clusterDim[2];
  if (g.clusterSize > 16)
    fail("a cluster has at most 16 blocks, got " +
         std::to_string(g.clusterSize));
}

static void setParams(Grid &g, const Function &f, const std::vector<Arg> &args,
                      const std::vector<uint64_t> &addresses) {
  if (args.size() != f.params.size())
    fail("kernel '" + f.name + "' has " + std::to_string(f.params.size()) +
         " parameters, got " + std::to_string(args.size()));
  size_t at = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    const Variable &p = f.params[i];
    size_t align = size_t(std::max<int64_t>(p.align, 1));
    at = (at + align - 1) / align * align;
    if (int64_t(args[i].bytes.size()) != p.bytes)
      fail("parameter " + std::to_string(i) + " ('" + p.name + "') has " +
           std::to_string(p.bytes) + " bytes (." + p.type + "), got " +
           std::to_string(args[i].bytes.size()));
    g.params.resize(at + size_t(p.bytes), 0);
    std::copy(args[i].bytes.begin(), args[i].bytes.end(),
              g.params.begin() + at);
    for (const Arg::Pointer &x : args[i].pointers) {
      if (args[i].bytes.size() < 8 || x.offset > args[i].bytes.size() - 8 ||
          x.buffer >= addresses.size())
        fail("parameter " + std::to_string(i) + ": pointer is out of range");
      uint64_t a = addresses[x.buffer] + uint64_t(x.addend);
      std::memcpy(g.params.data() + at + x.offset, &a, 8);
    }
    at += size_t(p.bytes);
  }
  g.kparam.base = 0;
  g.kparam.size = g.params.size();
  g.kparam.host = g.params.data();
  g.kparam.readOnly = true;
  g.kparam.name = "kernel parameters";
}

void Unmap::operator()(uint8_t *p) const { munmap(p, bytes); }

/// Storage of the module's own variables, with their initialisers.
static void addModuleVariable(Grid &g, const ModuleImpl &m,
                              const std::string &name, const Variable &v) {
  auto r = std::make_unique<Region>();
  r->base = m.globalAddress.at(name);
  r->size = uint64_t(v.bytes);
  // Zero pages until they are used: a file may declare much.
  size_t size = size_t(v.bytes) + 64;
  void *pages = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED)
    fail("no memory for variable '" + name + "' of " + std::to_string(v.bytes) +
         " bytes");
  Pages mem(static_cast<uint8_t *>(pages), Unmap{size});
  std::copy(v.init.begin(), v.init.end(), mem.get());
  for (const Relocation &x : v.relocs) {
    uint64_t a;
    auto it = m.globalAddress.find(x.symbol);
    auto fi = m.ptx->functionIndex.find(x.symbol);
    if (it != m.globalAddress.end())
      a = it->second;
    else if (fi != m.ptx->functionIndex.end())
      a = kCodeBase + uint64_t(fi->second) * 16;
    else
      fail("unknown name '" + x.symbol + "' in the initialiser of '" + name +
           "'");
    a += uint64_t(x.addend);
    std::memcpy(mem.get() + x.offset, &a, size_t(std::min(x.size, 8)));
  }
  for (const auto &[symbol, bytes] : g.launch.symbols)
    if (symbol == name) {
      if (int64_t(bytes.size()) > v.bytes)
        fail("variable '" + name + "' has " + std::to_string(v.bytes) +
             " bytes, got " + std::to_string(bytes.size()));
      std::copy(bytes.begin(), bytes.end(), mem.get());
    }
  r->host = mem.get();
  r->readOnly = v.space == Space::Const;
  r->name = "'" + name + "'";
  g.variables.push_back(std::move(mem));
  g.globals.push_back(std::move(r));
}

static void setTarget(Grid &g, const ModuleImpl &m) {
  std::string t = g.launch.target.empty() ? m.ptx->target : g.launch.target;
  if (t.rfind("sm_", 0) != 0 || t.size() < 5)
    fail("unknown target '" + t + "', expected sm_80, sm_90a, ...");
  g.smVersion = std::atoi(t.c_str() + 3);
  g.archSpecific = t.back() == 'a' || t.back() == 'f';
  if (g.smVersion < 50 || g.smVersion > 130)
    fail("unknown target '" + t + "', expected sm_80, sm_90a, ...");
  int file = std::atoi(m.ptx->target.c_str() + 3);
  if (g.smVersion < file)
    fail("target '" + t + "' cannot run a file for " + m.ptx->target);
}

/// Instructions that the target lacks: found before the run.
static bool checkTarget(Grid &g, Result &result) {
  if (!(g.launch.checks & CheckTarget))
    return true;
  for (auto &c : *g.codes)
    for (const Instr &I : c->instrs) {
      int need = int(I.d & 0xffff);
      bool arch = I.d & 0x10000;
      bool bad = arch ? g.smVersion / 10 != need / 10 || !g.archSpecific
                      : g.smVersion < need;
      if (!need || !bad)
        continue;
      Violation v;
      v.kind = "target";
      v.line = I.line;
      v.message = "target: this instruction needs sm_" + std::to_string(need) +
                  (arch ? "a" : "") + ", the target is sm_" +
                  std::to_string(g.smVersion) + (g.archSpecific ? "a" : "") +
                  "; block (0,0,0) thread (0,0,0)";
      result.violation = v;
      return false;
    }
  return true;
}

Result runKernel(const Module &module, const Launch &launch,
                 std::vector<Buffer> &buffers, const std::vector<Arg> &args) {
  const auto &m = dynamic_cast<const ModuleImpl &>(module);
  auto it = m.ptx->functionIndex.find(launch.entry);
  const Function *f = it == m.ptx->functionIndex.end()
                          ? nullptr
                          : m.ptx->functions[it->second].get();
  if (!f || !f->isEntry || !f->isDefined) {
    std::string names;
    for (const std::string &n : m.entries())
      names += (names.empty() ? "" : ", ") + n;
    fail("no entry '" + launch.entry + "' in " + m.ptx->fileName + "; it has " +
         (names.empty() ? "none" : names));
  }
  std::shared_ptr<ModuleImpl::Program> program;
  try {
    program = m.program(launch.entry);
  } catch (const PtxError &e) {
    throw Error(m.ptx->fileName + ":" + std::to_string(e.line) +
                ": error: " + e.what());
  }
  Result result;
  Grid g;
  g.module = &m;
  g.launch = launch;
  g.fileName = m.ptx->fileName;
  g.codes = &program->codes;
  g.entry = program->byName.at(launch.entry);
  g.instrCount = program->instrCount;
  g.localBytes = program->localBytes;
  // What asynchronous operations touch is tracked as all accesses are.
  g.reportRaces = launch.checks & CheckRace;
  if ((launch.checks & CheckAsync) && program->asyncOps)
    g.launch.checks |= CheckRace;
  setTarget(g, m);
  setShape(g, *f);
  if (launch.sharedBytes < 0)
    fail("shared bytes are negative");
  g.sharedStatic = program->layout.sharedBytes;
  g.sharedTotal = g.sharedStatic + launch.sharedBytes;
  if (g.sharedTotal > sharedLimit(g.smVersion))
    fail("a block of sm_" + std::to_string(g.smVersion) + " has at most " +
         std::to_string(sharedLimit(g.smVersion)) +
         " bytes of shared memory, the launch needs " +
         std::to_string(g.sharedTotal));
  g.residentBlocks = residentBlocks(g, *f);
  std::vector<uint64_t> addresses;
  uint64_t at = (m.globalEnd + 0xffffff) & ~uint64_t(0xffffff);
  for (Buffer &b : buffers) {
    auto r = std::make_unique<Region>();
    r->base = at;
    r->size = b.bytes;
    r->host = static_cast<uint8_t *>(b.data);
    r->readOnly = b.readOnly;
    r->name = b.name.empty() ? "buffer " + std::to_string(addresses.size())
                             : "'" + b.name + "'";
    if (!b.initialised && (launch.checks & CheckInit)) {
      auto undef = std::make_unique<uint8_t[]>(b.bytes + 1);
      std::memset(undef.get(), 0xff, b.bytes);
      r->undef = undef.get();
      g.storage.push_back(std::move(undef));
    }
    addresses.push_back(at);
    at = (at + b.bytes + 65536 + 255) & ~uint64_t(255);
    g.globals.push_back(std::move(r));
  }
  for (Buffer &b : buffers)
    for (const BufferPointer &x : b.pointers) {
      if (b.bytes < 8 || x.offset > b.bytes - 8 || x.buffer >= addresses.size())
        fail("a pointer in a buffer is out of range");
      uint64_t a = addresses[x.buffer] + uint64_t(x.addend);
      std::memcpy(static_cast<uint8_t *>(b.data) + x.offset, &a, 8);
    }
  for (const auto &[symbol, bytes] : launch.symbols)
    if (!m.globalAddress.count(symbol))
      fail("no variable '" + symbol + "' in " + m.ptx->fileName);
  // The workspace of cooperative launches: a size and a barrier's counter.
  auto space = std::make_unique<uint8_t[]>(256);
  std::memset(space.get(), 0, 256);
  auto region = std::make_unique<Region>();
  region->base = kGlobalBase - 65536;
  region->size = 256;
  region->host = space.get();
  region->name = "the grid's workspace";
  g.storage.push_back(std::move(space));
  g.globals.push_back(std::move(region));
  for (const Variable &v : m.ptx->vars)
    if (v.space == Space::Global || v.space == Space::Const)
      addModuleVariable(g, m, v.name, v);
  for (auto &fn : m.ptx->functions)
    for (const Variable &v : fn->vars)
      if (v.space == Space::Global || v.space == Space::Const)
        addModuleVariable(g, m, fn->name + "::" + v.name, v);
  std::sort(g.globals.begin(), g.globals.end(),
            [](auto &a, auto &b) { return a->base < b->base; });
  setParams(g, *f, args, addresses);
  if (!checkTarget(g, result))
    return result;
  g.run(result);
  for (auto &s : g.stats) {
    result.warpInstructions += s->steps;
    result.threadInstructions += s->threads;
  }
  result.notes = g.notes;
  if (launch.counters)
    result.counters = countersJson(g);
  return result;
}

} // namespace kvcache::sim
