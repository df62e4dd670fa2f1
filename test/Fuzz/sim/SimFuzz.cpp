//===- SimFuzz.cpp - libFuzzer target: hostile PTX ------------------------===//
//
// Any text must end in an error, a violation or a normal run: never in a crash,
// a hang (few steps are allowed) or an access outside the arguments (build with
// -fsanitize=address,undefined). Every entry is run on arguments that fit its
// parameters; the launch follows from a hash of the text. KVSIM_FUZZ=parse
// stops before the run. Mutations work on lines and tokens, since random bytes
// rarely get past the lexer.
//
//===----------------------------------------------------------------------===//
#include "../../../sim/lib/Exec/Decoder.h"
#include <algorithm>
#include <random>

using namespace kvcache::sim;

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

static bool parseOnly() {
  static const bool only = [] {
    const char *e = std::getenv("KVSIM_FUZZ");
    return e && std::string(e) == "parse";
  }();
  return only;
}

/// Pointers for 8 bytes, small numbers for less, pointers all over a struct.
static Arg argumentFor(const Variable &p, size_t index) {
  if (p.bytes == 8)
    return Arg::pointer(index % 2);
  Arg a;
  a.bytes.assign(size_t(std::clamp<int64_t>(p.bytes, 0, 4096)), 0);
  if (!a.bytes.empty())
    a.bytes[0] = 7;
  for (size_t at = 0; at + 8 <= a.bytes.size(); at += 8)
    a.pointers.push_back({at, at / 8 % 2});
  return a;
}

static void runEntry(const ModuleImpl &m, const std::string &entry,
                     uint64_t seed, uint32_t checks) {
  const Function &f = *m.ptx->functions[m.ptx->functionIndex.at(entry)];
  std::vector<uint8_t> x(256), y(256);
  std::vector<Buffer> buffers{{x.data(), x.size(), true, false, "x"},
                              {y.data(), y.size(), false, false, "y"}};
  std::vector<Arg> args;
  for (const Variable &p : f.params)
    args.push_back(argumentFor(p, args.size()));
  static const int64_t blocks[] = {32, 64, 128, 33};
  Launch l;
  l.entry = entry;
  l.block = {blocks[seed & 3], 1, 1};
  for (int d = 0; d < 3; ++d)
    if (f.reqntid[0])
      l.block[size_t(d)] = std::max(f.reqntid[d], 1);
  l.grid = {int64_t(seed >> 2 & 1) * 2 + 2, 1, 1};
  if (!f.reqCluster[0] && (seed >> 3 & 3) == 3)
    l.cluster = {2, 1, 1};
  l.checks = checks;
  l.maxSteps = 3000;
  l.threads = 1;
  l.sharedBytes = 1024;
  l.mmaModel = MmaModel(seed >> 5 & 3);
  l.flushSubnormals = seed >> 7 & 1;
  l.perturb = uint32_t(seed >> 8 & 1);
  l.counters = seed >> 9 & 1;
  l.countersPerLine = seed >> 10 & 1;
  try {
    runKernel(m, l, buffers, args);
  } catch (const Error &) {
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string text(data, data + size);
  uint64_t seed = std::hash<std::string>()(text);
  try {
    auto m = Module::parse(text, "fuzz.ptx");
    const auto &impl = dynamic_cast<const ModuleImpl &>(*m);
    size_t n = 0;
    for (const std::string &e : m->entries()) {
      if (++n > 8)
        break;
      try {
        if (parseOnly())
          impl.program(e);
        else
          for (uint32_t checks :
               {uint32_t(CheckAll), uint32_t(seed >> 11 & 255)})
            runEntry(impl, e, seed, checks);
      } catch (const PtxError &) {
      }
    }
  } catch (const Error &) {
  }
  return 0;
}

//===----------------------------------------------------------------------===//
// Mutations.
//===----------------------------------------------------------------------===//

static std::vector<std::string> split(const std::string &s, char c) {
  std::vector<std::string> out;
  size_t b = 0;
  for (size_t e; (e = s.find(c, b)) != std::string::npos; b = e + 1)
    out.push_back(s.substr(b, e - b));
  out.push_back(s.substr(b));
  return out;
}

/// Where tokens (names with dots, numbers) of a line begin and end.
static std::vector<std::pair<size_t, size_t>> tokens(const std::string &s) {
  std::vector<std::pair<size_t, size_t>> out;
  auto word = [&](char c) {
    return std::isalnum(uint8_t(c)) || c == '_' || c == '%' || c == ':' ||
           c == '$';
  };
  for (size_t i = 0; i < s.size();) {
    size_t b = i;
    while (i < s.size() && word(s[i]))
      ++i;
    if (i > b)
      out.emplace_back(b, i - b);
    else
      ++i;
  }
  return out;
}

static std::string interesting(std::mt19937 &rng, const std::string &old) {
  static const char *const numbers[] = {"0",
                                        "1",
                                        "-1",
                                        "2",
                                        "3",
                                        "7",
                                        "15",
                                        "16",
                                        "31",
                                        "32",
                                        "33",
                                        "64",
                                        "127",
                                        "128",
                                        "255",
                                        "256",
                                        "1023",
                                        "1024",
                                        "4096",
                                        "65535",
                                        "65536",
                                        "2147483647",
                                        "2147483648",
                                        "-2147483648",
                                        "4294967295",
                                        "4294967296",
                                        "9223372036854775807",
                                        "18446744073709551615",
                                        "0xffffffff",
                                        "0f7f800000",
                                        "0fff800000",
                                        "0f7fffffff",
                                        "0d7ff0000000000000",
                                        "0f00000001",
                                        "1099511627776"};
  static const char *const words[] = {
      "b8",       "b16",      "b32",     "b64",     "b128",      "u8",
      "u16",      "u32",      "u64",     "s8",      "s16",       "s32",
      "s64",      "f16",      "f16x2",   "bf16",    "bf16x2",    "f32",
      "f64",      "e4m3x2",   "e5m2x2",  "tf32",    "pred",      "v2",
      "v4",       "v8",       "global",  "shared",  "local",     "param",
      "const",    "sync",     "aligned", "rn",      "rz",        "rm",
      "rp",       "rni",      "rzi",     "sat",     "satfinite", "ftz",
      "approx",   "full",     "wide",    "hi",      "lo",        "cta",
      "cluster",  "gpu",      "sys",     "acquire", "release",   "relaxed",
      "volatile", "weak",     "acq_rel", "x1",      "x2",        "x4",
      "trans",    "row",      "col",     "m8n8k4",  "m16n8k8",   "m16n8k16",
      "m16n8k32", "m64n8k16", "add",     "min",     "max",       "and",
      "or",       "xor",      "exch",    "cas",     "inc",       "dec",
      "popc",     "bfly",     "up",      "down",    "idx",       "all",
      "any",      "uni",      "ballot",  "%r1",     "%rd1",      "%f1",
      "%p1",      "%h1",      "%tid",    "%ctaid",  "%laneid",   "_"};
  bool number = !old.empty() && std::isdigit(uint8_t(old[0]));
  if (number != (rng() % 8 == 0))
    return numbers[rng() % std::size(numbers)];
  return words[rng() % std::size(words)];
}

/// Any instruction that the decoders know.
static std::string opcode(std::mt19937 &rng) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> v;
    for (auto &[name, decode] : activeTable().byName)
      v.push_back(name);
    std::sort(v.begin(), v.end());
    return v;
  }();
  return names[rng() % names.size()];
}

static void mutateLine(std::mt19937 &rng, std::vector<std::string> &lines) {
  std::string &s = lines[rng() % lines.size()];
  auto t = tokens(s);
  if (t.empty())
    return;
  if (rng() % 10 == 0) { // another instruction on the same operands
    auto [b, k] = t[s.find('@') != std::string::npos && t.size() > 1 ? 1 : 0];
    s.replace(b, k, opcode(rng));
    return;
  }
  auto [at, n] = t[rng() % t.size()];
  const std::string &other = lines[rng() % lines.size()];
  auto u = tokens(other);
  std::string token =
      u.empty() || rng() % 2 ? interesting(rng, s.substr(at, n)) : [&] {
        auto [b, k] = u[rng() % u.size()];
        return other.substr(b, k);
      }();
  switch (rng() % 4) {
  case 0: // one more modifier or operand
    s.insert(at + n, (rng() % 2 ? "." : ", ") + token);
    break;
  case 1:
    s.erase(at && s[at - 1] == '.' ? at - 1 : at,
            at && s[at - 1] == '.' ? n + 1 : n);
    break;
  default:
    s.replace(at, n, token);
  }
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size,
                                          size_t max, unsigned seed) {
  std::mt19937 rng(seed);
  if (rng() % 8 == 0)
    return LLVMFuzzerMutate(data, size, max);
  auto lines = split(std::string(data, data + size), '\n');
  for (unsigned k = 1 + rng() % 3; k; --k) {
    size_t i = rng() % lines.size(), j = rng() % lines.size();
    switch (rng() % 8) {
    case 0:
      lines.insert(lines.begin() + ptrdiff_t(i), lines[j]);
      break;
    case 1:
      if (lines.size() > 1)
        lines.erase(lines.begin() + ptrdiff_t(i));
      break;
    case 2:
      std::swap(lines[i], lines[j]);
      break;
    default:
      mutateLine(rng, lines);
    }
  }
  std::string out;
  for (const std::string &l : lines)
    out += (out.empty() ? "" : "\n") + l;
  size_t n = std::min(out.size(), max);
  std::memcpy(data, out.data(), n);
  return n;
}

/// The front of one text, the back of the other, cut at lines.
extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t na,
                                            const uint8_t *b, size_t nb,
                                            uint8_t *to, size_t max,
                                            unsigned seed) {
  std::mt19937 rng(seed);
  auto x = split(std::string(a, a + na), '\n'),
       y = split(std::string(b, b + nb), '\n');
  size_t at = rng() % x.size(), from = rng() % y.size();
  size_t n = 1 + rng() % 8;
  std::string out;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i == at)
      for (size_t k = from; k < std::min(from + n, y.size()); ++k)
        out += y[k] + "\n";
    out += x[i] + "\n";
  }
  size_t size = std::min(out.size(), max);
  std::memcpy(to, out.data(), size);
  return size;
}
