//===- Arguments.cpp - kv-sim's command line ------------------------------===//
#include "Arguments.h"
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvcache::simtool {

using sim::Arg;
using sim::Error;

const char *const helpText =
    "usage: kv-sim FILE.ptx --entry NAME --grid X,Y,Z --block X,Y,Z [options]\n"
    "Runs a PTX kernel without a GPU and checks what it does.\n"
    "  --shared BYTES       dynamic shared memory\n"
    "  --cluster X,Y,Z      blocks of a cluster\n"
    "  --arg FORM           one per kernel parameter:\n"
    "     ptr:FILE[:out[:uninit]]   device copy of an array (.npy or raw "
    "bytes)\n"
    "     ptr+BYTES:FILE...         an address inside it\n"
    "     u32:V i32:V u64:V i64:V f32:V f64:V (also u8 i8 u16 i16)\n"
    "     bytes:FILE                a by-value struct\n"
    "     struct:FILE:OFF=ptr:F[:out],...  a struct holding device addresses\n"
    "     dstruct:FILE:OFF=ptr:F...  the address of such a struct or table\n"
    "     tmap:FILE[:out];dtype=f16;dims=AxB;strides=S;box=axb;swizzle=128B;\n"
    "          oob=zero|nan[;estrides=..]  a tensor map, innermost first\n"
    "  --check=LIST         all (default), none, or any of bounds,align,init,\n"
    "                       race[=strict|=lockstep],async,barrier,target,\n"
    "                       overflow\n"
    "  --symbol NAME=FILE   first contents of a module's variable\n"
    "  --counters FILE      write counters as JSON; --counters-per-line\n"
    "  --max-steps N        warp instructions in total\n"
    "  --target sm_XX       default: the file's\n"
    "  --mma-model=exact|a100|ada|h100   --flush-subnormals\n"
    "  --perturb=SEED       err in approximate functions within the ISA's "
    "limit\n"
    "  --threads N          host threads\n"
    "  --coverage           print the table of supported instructions\n"
    "  --coverage=FILE      the same of the instructions in FILE, one a line\n";

std::vector<uint8_t> readFile(const std::string &path) {
  std::error_code e;
  std::filesystem::file_status st = std::filesystem::status(path, e);
  if (std::filesystem::is_directory(st) ||
      std::filesystem::is_character_file(st)) // endless, mostly
    throw Error("error: '" + path + "' is not a file");
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw Error("error: cannot read '" + path + "'");
  std::stringstream s;
  s << in.rdbuf();
  std::string t = s.str();
  return {t.begin(), t.end()};
}

void writeFile(const std::string &path, const void *data, size_t bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(static_cast<const char *>(data), std::streamsize(bytes));
  if (!out)
    throw Error("error: cannot write '" + path + "'");
}

/// Bytes before the data of a .npy file; 0 for anything else.
static size_t npyHeader(const std::vector<uint8_t> &b) {
  if (b.size() < 10 || std::memcmp(b.data(), "\x93NUMPY", 6) != 0)
    return 0;
  size_t n = b[6] >= 2 && b.size() >= 12
                 ? 12 + (b[8] | size_t(b[9]) << 8 | size_t(b[10]) << 16 |
                         size_t(b[11]) << 24)
                 : 10 + (b[8] | size_t(b[9]) << 8);
  return n <= b.size() ? n : 0;
}

static std::vector<std::string> split(const std::string &s, char c) {
  std::vector<std::string> out;
  size_t b = 0;
  for (;;) {
    size_t e = s.find(c, b);
    out.push_back(s.substr(b, e - b));
    if (e == std::string::npos)
      return out;
    b = e + 1;
  }
}

/// FILE[:out[:uninit]]; the same file twice is one allocation.
static size_t addFile(CommandLine &cl, const std::string &spec) {
  std::vector<std::string> parts = split(spec, ':');
  bool out = false, uninit = false;
  while (parts.size() > 1 &&
         (parts.back() == "out" || parts.back() == "uninit")) {
    (parts.back() == "out" ? out : uninit) = true;
    parts.pop_back();
  }
  std::string path = parts[0];
  for (size_t i = 1; i < parts.size(); ++i)
    path += ":" + parts[i];
  auto [it, isNew] = cl.fileIndex.emplace(path, cl.files.size());
  if (isNew) {
    FileBuffer f;
    f.path = path;
    f.bytes = readFile(path);
    f.dataOffset = npyHeader(f.bytes);
    std::string header(f.bytes.begin(),
                       f.bytes.begin() + ptrdiff_t(f.dataOffset));
    if (header.find("'fortran_order': True") != std::string::npos)
      throw Error("error: '" + path +
                  "' is in Fortran order, expected C order: save "
                  "np.ascontiguousarray(array)");
    cl.files.push_back(std::move(f));
  }
  cl.files[it->second].out |= out;
  cl.files[it->second].uninit |= uninit;
  return it->second;
}

static uint64_t unsignedValue(const std::string &s, int bits) {
  char *end = nullptr;
  errno = 0;
  bool neg = !s.empty() && s[0] == '-';
  uint64_t v = std::strtoull(s.c_str(), &end, 0);
  if (s.empty() || *end || errno)
    throw Error("error: expected an integer, got '" + s + "'");
  if (bits < 64) {
    int64_t x = int64_t(v);
    bool fits = neg ? x >= -(int64_t(1) << (bits - 1)) : v >> bits == 0;
    if (!fits)
      throw Error("error: '" + s + "' does not fit " + std::to_string(bits) +
                  " bits");
  }
  return v;
}

static double floatValue(const std::string &s) {
  char *end = nullptr;
  double v = std::strtod(s.c_str(), &end);
  if (s.empty() || *end)
    throw Error("error: expected a number, got '" + s + "'");
  return v;
}

static std::vector<uint64_t> numbers(const std::string &s) {
  std::vector<uint64_t> out;
  if (s.empty())
    return out;
  for (const std::string &p : split(s, 'x'))
    out.push_back(unsignedValue(p, 64));
  return out;
}

static Arg tensorMap(CommandLine &cl, const std::string &spec) {
  std::vector<std::string> parts = split(spec, ';');
  size_t buffer = addFile(cl, parts[0]);
  sim::TensorMapDesc d;
  auto narrow = [](const std::vector<uint64_t> &v) {
    for (uint64_t x : v)
      if (x >> 32)
        throw Error("error: " + std::to_string(x) +
                    " is too large for a box or element stride");
    return std::vector<uint32_t>(v.begin(), v.end());
  };
  for (size_t i = 1; i < parts.size(); ++i) {
    size_t e = parts[i].find('=');
    std::string key = parts[i].substr(0, e),
                value = e == std::string::npos ? "" : parts[i].substr(e + 1);
    if (key == "dtype")
      d.dtype = value;
    else if (key == "dims")
      d.dims = numbers(value);
    else if (key == "strides")
      d.strides = numbers(value);
    else if (key == "box")
      d.box = narrow(numbers(value));
    else if (key == "estrides")
      d.elementStrides = narrow(numbers(value));
    else if (key == "swizzle")
      d.swizzle = value;
    else if (key == "oob")
      d.oobFill = value;
    else if (key == "interleave")
      d.interleave = value;
    else
      throw Error("error: unknown key '" + key + "' of a tensor map");
  }
  return sim::tensorMapArg(d, buffer);
}

static Arg parseArg(CommandLine &cl, const std::string &s);

/// FILE:OFF=ptr:F[:out],OFF=... where a tensor map may stand for a pointer.
static Arg structArg(CommandLine &cl, const std::string &rest) {
  size_t colon = rest.find(':');
  Arg a;
  a.bytes = readFile(rest.substr(0, colon));
  if (size_t h = npyHeader(a.bytes))
    a.bytes.erase(a.bytes.begin(), a.bytes.begin() + std::ptrdiff_t(h));
  if (colon == std::string::npos)
    return a;
  for (const std::string &field : split(rest.substr(colon + 1), ',')) {
    size_t e = field.find('=');
    if (e == std::string::npos)
      throw Error("error: expected OFF=ptr:FILE in a struct, got '" + field +
                  "'");
    size_t off = unsignedValue(field.substr(0, e), 32);
    Arg f = parseArg(cl, field.substr(e + 1));
    if (off + f.bytes.size() > a.bytes.size())
      throw Error("error: field at " + std::to_string(off) +
                  " is outside the struct of " +
                  std::to_string(a.bytes.size()) + " bytes");
    std::copy(f.bytes.begin(), f.bytes.end(),
              a.bytes.begin() + std::ptrdiff_t(off));
    for (Arg::Pointer p : f.pointers) {
      p.offset += off;
      a.pointers.push_back(p);
    }
  }
  return a;
}

/// A struct or a table of addresses that lies in device memory.
static Arg deviceStruct(CommandLine &cl, const std::string &rest) {
  Arg s = structArg(cl, rest);
  FileBuffer f;
  f.path = rest.substr(0, rest.find(':'));
  f.bytes = std::move(s.bytes);
  f.pointers = std::move(s.pointers);
  cl.files.push_back(std::move(f));
  return Arg::pointer(cl.files.size() - 1);
}

static Arg parseArg(CommandLine &cl, const std::string &s) {
  size_t colon = s.find(':');
  std::string kind = s.substr(0, colon),
              rest = colon == std::string::npos ? "" : s.substr(colon + 1);
  if (kind == "ptr") {
    if (rest == "null" || rest == "0")
      return Arg::value(uint64_t(0));
    return Arg::pointer(addFile(cl, rest));
  }
  if (kind.rfind("ptr+", 0) == 0)
    return Arg::pointer(addFile(cl, rest),
                        int64_t(unsignedValue(kind.substr(4), 63)));
  if (kind == "dstruct")
    return deviceStruct(cl, rest);
  if (kind == "f32")
    return Arg::value(float(floatValue(rest)));
  if (kind == "f64")
    return Arg::value(floatValue(rest));
  if (kind == "bytes" || kind == "struct")
    return structArg(cl, rest);
  if (kind == "tmap")
    return tensorMap(cl, rest);
  if (kind.size() >= 2 &&
      (kind[0] == 'u' || kind[0] == 'i' || kind[0] == 's' || kind[0] == 'b')) {
    int bits = std::atoi(kind.c_str() + 1);
    if (bits == 8 || bits == 16 || bits == 32 || bits == 64) {
      uint64_t v = unsignedValue(rest, bits);
      Arg a;
      a.bytes.resize(size_t(bits / 8));
      std::memcpy(a.bytes.data(), &v, a.bytes.size());
      return a;
    }
  }
  throw Error("error: unknown argument form '" + s +
              "', expected ptr:, u32:, i32:, u64:, i64:, f32:, f64:, bytes:, "
              "struct:, dstruct: or tmap:");
}

static sim::Dim3 parseDims(const std::string &s) {
  sim::Dim3 d{1, 1, 1};
  std::vector<std::string> p = split(s, ',');
  if (p.size() > 3)
    throw Error("error: expected X,Y,Z, got '" + s + "'");
  for (size_t i = 0; i < p.size(); ++i)
    d[i] = int64_t(unsignedValue(p[i], 32));
  return d;
}

static uint32_t parseChecks(const std::string &s) {
  static const std::map<std::string, uint32_t> names = {
      {"bounds", sim::CheckBounds},
      {"align", sim::CheckAlign},
      {"init", sim::CheckInit},
      {"race", sim::CheckRace},
      {"async", sim::CheckAsync},
      {"barrier", sim::CheckBarrier},
      {"target", sim::CheckTarget},
      {"overflow", sim::CheckOverflow},
      {"all", sim::CheckAll},
      {"none", sim::CheckNone},
      {"race=strict", sim::CheckRace | sim::CheckRaceStrict},
      {"race=lockstep", sim::CheckRace | sim::CheckRaceLockstep}};
  uint32_t r = 0;
  for (const std::string &n : split(s, ',')) {
    auto it = names.find(n);
    if (it == names.end())
      throw Error("error: unknown check '" + n +
                  "', expected all, none, bounds, align, init, race, async, "
                  "barrier, target or overflow");
    r |= it->second;
  }
  return r;
}

static sim::MmaModel parseModel(const std::string &s) {
  if (auto model = sim::parseMmaModel(s))
    return *model;
  throw Error("error: unknown mma model '" + s +
              "', expected exact, a100, ada or h100");
}

static std::pair<std::string, std::vector<uint8_t>>
parseSymbol(const std::string &s) {
  size_t e = s.find('=');
  if (e == std::string::npos || e == 0)
    throw Error("error: expected NAME=FILE after --symbol, got '" + s + "'");
  std::vector<uint8_t> bytes = readFile(s.substr(e + 1));
  bytes.erase(bytes.begin(), bytes.begin() + std::ptrdiff_t(npyHeader(bytes)));
  return {s.substr(0, e), std::move(bytes)};
}

CommandLine parseCommandLine(int argc, char **argv) {
  CommandLine cl;
  bool grid = false, block = false;
  for (int i = 1; i < argc; ++i) {
    std::string a = argv[i], value;
    bool hasValue = false;
    size_t eq = a.find('=');
    if (a.rfind("--", 0) == 0 && eq != std::string::npos) {
      value = a.substr(eq + 1);
      a = a.substr(0, eq);
      hasValue = true;
    }
    auto need = [&] {
      if (!hasValue) {
        if (i + 1 >= argc)
          throw Error("error: '" + a + "' needs a value");
        value = argv[++i];
      }
      return value;
    };
    if (a == "--help" || a == "-h")
      cl.help = true;
    else if (a == "--coverage")
      cl.coverage = true, cl.formsFile = hasValue ? value : "";
    else if (a == "--entry")
      cl.launch.entry = need();
    else if (a == "--grid")
      cl.launch.grid = parseDims(need()), grid = true;
    else if (a == "--block")
      cl.launch.block = parseDims(need()), block = true;
    else if (a == "--cluster")
      cl.launch.cluster = parseDims(need());
    else if (a == "--shared")
      cl.launch.sharedBytes = int64_t(unsignedValue(need(), 32));
    else if (a == "--arg")
      cl.args.push_back(parseArg(cl, need()));
    else if (a == "--check")
      cl.launch.checks = parseChecks(need());
    else if (a == "--counters")
      cl.countersFile = need(), cl.launch.counters = true;
    else if (a == "--counters-per-line")
      cl.launch.counters = cl.launch.countersPerLine = true;
    else if (a == "--max-steps")
      cl.launch.maxSteps = unsignedValue(need(), 64);
    else if (a == "--target")
      cl.launch.target = need();
    else if (a == "--symbol")
      cl.launch.symbols.push_back(parseSymbol(need()));
    else if (a == "--mma-model")
      cl.launch.mmaModel = parseModel(need());
    else if (a == "--flush-subnormals")
      cl.launch.flushSubnormals = true;
    else if (a == "--perturb")
      cl.launch.perturb = uint32_t(unsignedValue(need(), 32));
    else if (a == "--threads")
      cl.launch.threads = int(unsignedValue(need(), 16));
    else if (a.rfind("--", 0) == 0)
      throw Error("error: unknown option '" + a + "'; see --help");
    else if (cl.file.empty())
      cl.file = a;
    else
      throw Error("error: more than one file: '" + cl.file + "' and '" + a +
                  "'");
  }
  if (cl.help || cl.coverage)
    return cl;
  if (cl.file.empty())
    throw Error("error: no PTX file given; see --help");
  if (cl.launch.entry.empty())
    throw Error("error: --entry NAME is needed");
  if (!grid || !block)
    throw Error("error: --grid X,Y,Z and --block X,Y,Z are needed");
  return cl;
}

} // namespace kvcache::simtool
