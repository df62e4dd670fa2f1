//===- Manifest.cpp - manifest.json of a kernel package -------------------===//

#include "Manifest.h"
#include "Kernel.h"

#include <nlohmann/json.hpp>

#include <algorithm>

using namespace kvcache::rt;
using Json = nlohmann::json;

static constexpr size_t manifestBound = 1 << 20;

uint64_t kvcache::rt::hashBytes(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : bytes)
    hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

template <typename... Args>
static Error bad(const Args &...args) {
  return makeError(KV_PACKAGE_ERROR, "manifest: ", args...);
}

// What a value looks like in a message: short whatever the file holds.
static std::string show(const Json &value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

static Error getInteger(const Json &object, const char *name, int64_t &out) {
  auto it = object.find(name);
  if (it == object.end())
    return bad("'", name, "' is missing, expected an integer");
  bool fits =
      it->is_number_integer() &&
      (!it->is_number_unsigned() || it->get<uint64_t>() <= uint64_t(INT64_MAX));
  if (!fits)
    return bad("'", name, "' is ", show(*it), ", expected an integer");
  out = it->get<int64_t>();
  return {};
}

static Error getString(const Json &object, const char *name, std::string &out) {
  auto it = object.find(name);
  if (it == object.end())
    return bad("'", name, "' is missing, expected a string");
  if (!it->is_string())
    return bad("'", name, "' is ", show(*it), ", expected a string");
  out = it->get<std::string>();
  return {};
}

static Error getHash(const Json &object, const char *name, uint64_t &out) {
  std::string text;
  if (Error e = getString(object, name, text))
    return e;
  if (text.size() != 16 ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return bad("'", name, "' is ", show(text),
               ", expected 16 lower-case hexadecimal digits");
  out = std::strtoull(text.c_str(), nullptr, 16);
  return {};
}

static Error parseVersions(const Json &root) {
  int64_t version, abi;
  if (Error e = getInteger(root, "kvcache_package", version))
    return e;
  if (version != 1)
    return bad("'kvcache_package' is version ", version, ", expected 1");
  if (Error e = getInteger(root, "abi", abi))
    return e;
  if (abi != KVCACHE_ABI_VERSION)
    return bad("the kernels follow ABI ", abi, ", this runtime ",
               KVCACHE_ABI_VERSION, ": compile the package again");
  return {};
}

static Error parseInfo(const Json &root, KvKernelInfo &info) {
  struct Field {
    const char *name;
    int64_t KvKernelInfo::*member;
  };
  const Field fields[] = {
      {"q_heads", &KvKernelInfo::q_heads},
      {"kv_heads", &KvKernelInfo::kv_heads},
      {"head_dim", &KvKernelInfo::head_dim},
      {"value_dim", &KvKernelInfo::value_dim},
      {"page_tokens", &KvKernelInfo::page_tokens},
      {"sink_pages", &KvKernelInfo::sink_pages},
      {"recent_tokens", &KvKernelInfo::recent_tokens},
      {"sealed_record_bytes", &KvKernelInfo::sealed_record_bytes},
      {"open_record_bytes", &KvKernelInfo::open_record_bytes},
      {"q_pack", &KvKernelInfo::q_pack},
      {"split_tokens", &KvKernelInfo::split_tokens},
      {"causal", &KvKernelInfo::causal},
      {"window_left", &KvKernelInfo::window_left},
      {"window_right", &KvKernelInfo::window_right},
      {"alibi", &KvKernelInfo::alibi},
      {"static_k_scale", &KvKernelInfo::static_k_scale},
      {"static_v_scale", &KvKernelInfo::static_v_scale},
  };
  for (const Field &f : fields)
    if (Error e = getInteger(root, f.name, info.*f.member))
      return e;
  std::string dtype;
  if (Error e = getString(root, "dtype", dtype))
    return e;
  const char *names[] = {"f32", "f16", "bf16"};
  auto *found = std::ranges::find(names, dtype);
  if (found == std::end(names))
    return bad("'dtype' is ", show(dtype), ", expected f32, f16 or bf16");
  info.dtype = found - names;
  if (Error e = getHash(root, "image_hash", info.image_hash))
    return e;
  if (Error e = checkKernelInfo(info))
    return bad(e.message);
  return {};
}

static Error parseEntries(const Json &root, Manifest &m) {
  auto it = root.find("entries");
  if (it == root.end() || !it->is_object())
    return bad("'entries' is missing or not an object");
  for (int i = 0; i < 6; ++i) {
    if (Error e = getString(*it, entryNames[i], m.entries[i]))
      return e;
    const std::string &name = m.entries[i];
    bool symbol = !name.empty() && name.size() < 1024 &&
                  std::ranges::all_of(
                      name,
                      [](unsigned char c) {
                        return std::isalnum(c) || c == '_' || c == '.';
                      });
    if (!symbol)
      return bad("entry '", entryNames[i], "' is ", show(name),
                 ", expected a symbol of letters, digits, '_' and '.'");
  }
  return {};
}

static Error parseCode(const Json &root, Manifest &m) {
  auto it = root.find("code");
  if (it == root.end() || !it->is_array() || it->empty() || it->size() > 16)
    return bad("'code' is missing or not a list of 1 to 16 objects");
  for (const Json &item : *it) {
    if (!item.is_object())
      return bad("'code' holds ", show(item), ", expected an object");
    CodeObject c;
    if (Error e = getString(item, "tier", c.tier))
      return e;
    if (c.tier != "avx512" && c.tier != "avx2" && c.tier != "v2")
      return bad("tier ", show(c.tier), ", expected avx512, avx2 or v2");
    if (Error e = getString(item, "file", c.file))
      return e;
    bool plain =
        !c.file.empty() && c.file.size() < 256 && c.file[0] != '.' &&
        c.file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain)
      return bad("file ", show(c.file),
                 ", expected the name of a file beside the manifest");
    if (Error e = getInteger(item, "bytes", c.bytes))
      return e;
    if (Error e = getHash(item, "hash", c.hash))
      return e;
    m.code.push_back(std::move(c));
  }
  return {};
}

Error kvcache::rt::parseManifest(std::string_view text, Manifest &manifest) {
  if (text.size() > manifestBound)
    return bad("has ", text.size(), " bytes, expected at most ", manifestBound);
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded())
    return bad("is not JSON");
  if (!root.is_object())
    return bad("is ", show(root), ", expected an object");
  Manifest m;
  if (Error e = parseVersions(root))
    return e;
  if (Error e = getString(root, "target", m.target))
    return e;
  if (m.target != "x86-64")
    return bad("is for target ", show(m.target), ", this runtime loads x86-64");
  if (Error e = getString(root, "spec", m.spec))
    return e;
  if (Error e = getString(root, "format", m.format))
    return e;
  if (Error e = parseInfo(root, m.info))
    return e;
  if (Error e = parseEntries(root, m))
    return e;
  if (Error e = parseCode(root, m))
    return e;
  manifest = std::move(m);
  return {};
}
