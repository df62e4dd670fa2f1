//===- Package.cpp - Loading a kernel package -----------------------------===//

#include "Package.h"
#include "CpuTier.h"
#include "Manifest.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

using namespace kvcache::rt;

template <typename... Args>
static Error bad(const std::string &path, const Args &...args) {
  return makeError(KV_PACKAGE_ERROR, "kernel package '", path, "': ", args...);
}

static bool readFile(const std::string &path, std::string &bytes) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return false;
  bytes.assign(std::istreambuf_iterator<char>(in), {});
  return !in.bad();
}

static std::string tiersOf(const Manifest &m) {
  std::string list;
  for (const CodeObject &c : m.code)
    list += (list.empty() ? "" : ", ") + c.tier;
  return list;
}

// The wanted tier, or the best one that the package holds and this machine
// runs.
static Error chooseTier(const std::string &path, const Manifest &m,
                        std::string wanted, const CodeObject *&chosen) {
  if (wanted.empty())
    if (const char *text = std::getenv("KVCACHE_CPU"))
      wanted = text;
  for (std::string_view tier : cpuTiers) {
    if (!wanted.empty() && tier != wanted)
      continue;
    for (const CodeObject &c : m.code)
      if (c.tier == tier && (hostRunsTier(tier) || !wanted.empty()))
        chosen = &c;
    if (chosen)
      break;
  }
  if (!chosen)
    return bad(path,
               wanted.empty() ? "no tier that this machine runs"
                              : "no tier '" + wanted + "'",
               "; it holds ", tiersOf(m));
  if (!hostRunsTier(chosen->tier))
    return makeError(KV_DEVICE_ERROR, "tier '", chosen->tier,
                     "' needs instructions that this machine lacks; its best "
                     "tier is ",
                     hostTier().empty() ? "none" : hostTier());
  return {};
}

Error kvcache::rt::loadPackage(const std::string &path, const std::string &tier,
                               uint64_t expectedImageHash, KvKernel *&kernel) {
  std::string text, code;
  if (!readFile(path + "/manifest.json", text))
    return bad(path, "cannot read manifest.json");
  Manifest m;
  if (Error e = parseManifest(text, m))
    return bad(path, e.message);
  if (expectedImageHash && m.info.image_hash != expectedImageHash) {
    std::ostringstream os;
    os << std::hex << "page image " << m.info.image_hash << ", expected "
       << expectedImageHash;
    return bad(path, os.str(), ": it was compiled by another version");
  }
  const CodeObject *chosen = nullptr;
  if (Error e = chooseTier(path, m, tier, chosen))
    return e;
  std::string file = path + "/" + chosen->file;
  if (!readFile(file, code))
    return bad(path, "cannot read ", chosen->file);
  if (int64_t(code.size()) != chosen->bytes || hashBytes(code) != chosen->hash)
    return bad(path, chosen->file, " has ", code.size(),
               " bytes and is not what the manifest describes (", chosen->bytes,
               " bytes): the package is damaged");
  // A path without a slash would be searched for elsewhere.
  std::string where = file[0] == '/' ? file : "./" + file;
  void *handle = dlopen(where.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return bad(path, "cannot load ", chosen->file, ": ", dlerror());
  void *symbols[6];
  for (int i = 0; i < 6; ++i) {
    symbols[i] = dlsym(handle, m.entries[i].c_str());
    if (symbols[i])
      continue;
    dlclose(handle);
    return bad(path, chosen->file, " has no entry point '", m.entries[i],
               "' for ", entryNames[i]);
  }
  KvKernelEntries entries;
  entries.attend = reinterpret_cast<KvAttendFn>(symbols[0]);
  entries.merge = reinterpret_cast<KvAttendFn>(symbols[1]);
  entries.append = reinterpret_cast<KvAppendFn>(symbols[2]);
  entries.seal = reinterpret_cast<KvSealFn>(symbols[3]);
  entries.unseal = reinterpret_cast<KvSealFn>(symbols[4]);
  entries.read = reinterpret_cast<KvReadFn>(symbols[5]);
  auto close = [](void *handle) { dlclose(handle); };
  if (Error e = makeKernel(m.info, entries, close, handle, kernel)) {
    dlclose(handle);
    return e;
  }
  kernel->tier = chosen->tier;
  return {};
}
