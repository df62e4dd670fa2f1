//===- Options.cpp - Flags of kv-compile ----------------------------------===//
//
// Read by hand: LLVM's own command line would add several hundred flags of the
// shared libraries to ours.
//
//===----------------------------------------------------------------------===//
#include "Options.h"

#include <charconv>
#include <cstdlib>
#include <map>

using namespace kvcache;
using namespace kvcache::compile;

std::string compile::usage() {
  return R"(usage: kv-compile FILE.mlir -o OUT --target=TARGET [options]
       kv-compile --q-heads=N --kv-heads=N --head-dim=N --format=FORMAT
                  -o OUT --target=TARGET [options]

Compiles attention over a key/value cache.

  -o OUT               where to write (-: stdout); a folder for --emit=package
  --target=TARGET      )" +
         targetList() + R"(
  --emit=KIND          ptx, cubin (GPU); obj (x86-64); llvm, package
                       (default: ptx for GPUs, obj for x86-64)
  --report             print a JSON report to stdout
  --schedule=KEY=V,... override fields of the schedule
  --cpu=TIER           x86-64 tier: v2, avx2, avx512 (default: the host's best)

Without FILE.mlir:
  --q-heads=N --kv-heads=N --head-dim=N [--value-dim=N]
  --format=FORMAT      "kivi4", "key=i8:channel,value=i4:token:g32,page=64", ...
  --dtype=f16|bf16|f32 dtype of the model (default f16)
  --causal[=false]     the default: true
  --window=N           a query sees itself and N-1 older tokens
  --softcap=X          c * tanh(x / c)
  --scale=X            default 1/sqrt(head_dim)
  --alibi              slopes come as an argument
)";
}

static constexpr const char *kSpecFlags[] = {
    "q-heads", "kv-heads", "head-dim", "value-dim", "format", "dtype",
    "causal",  "window",   "softcap",  "scale",     "alibi"};

namespace {
/// What the flags said, before it is judged.
struct Flags {
  std::map<std::string, std::string> values;
  std::string input, output;
  bool has(const char *name) const { return values.count(name) != 0; }
  std::string get(const char *name, const char *otherwise = "") const {
    auto it = values.find(name);
    return it == values.end() ? otherwise : it->second;
  }
};
} // namespace

static bool isKnown(const std::string &name) {
  for (const char *known :
       {"target", "emit", "report", "schedule", "cpu", "help"})
    if (name == known)
      return true;
  for (const char *known : kSpecFlags)
    if (name == known)
      return true;
  return false;
}

/// Flags that may stand alone.
static bool isSwitch(const std::string &name) {
  return name == "report" || name == "causal" || name == "alibi" ||
         name == "help";
}

static std::optional<FormatError> readLong(int argc, char **argv, int &i,
                                           Flags &flags) {
  std::string argument = argv[i];
  size_t equals = argument.find('=');
  std::string name =
      argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  if (!isKnown(name))
    return FormatError{"unknown flag '--" + name + "'; see --help"};
  if (flags.has(name.c_str()))
    return FormatError{"flag '--" + name + "' is given twice"};
  if (equals != std::string::npos)
    flags.values[name] = argument.substr(equals + 1);
  else if (isSwitch(name))
    flags.values[name] = "true";
  else if (i + 1 < argc)
    flags.values[name] = argv[++i];
  else
    return FormatError{"expected a value after '--" + name + "'"};
  return std::nullopt;
}

static std::optional<FormatError> readFlag(int argc, char **argv, int &i,
                                           Flags &flags) {
  std::string argument = argv[i];
  if (argument.rfind("--", 0) == 0)
    return readLong(argc, argv, i, flags);
  if (argument == "-h") {
    flags.values["help"] = "true";
  } else if (argument == "-o") {
    if (++i == argc)
      return FormatError{"expected a path after '-o'"};
    flags.output = argv[i];
  } else if (argument.size() > 1 && argument[0] == '-') {
    return FormatError{"unknown flag '" + argument + "'; see --help"};
  } else if (!flags.input.empty()) {
    return FormatError{"expected one input file, got '" + flags.input +
                       "' and '" + argument + "'"};
  } else {
    flags.input = argument;
  }
  return std::nullopt;
}

static Expected<int64_t> readInteger(const Flags &flags, const char *name) {
  std::string text = flags.get(name);
  int64_t value = 0;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    return FormatError{std::string("expected an integer for '--") + name +
                       "', got '" + text + "'"};
  return value;
}

static Expected<double> readNumber(const Flags &flags, const char *name) {
  std::string text = flags.get(name);
  char *end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end)
    return FormatError{std::string("expected a number for '--") + name +
                       "', got '" + text + "'"};
  return value;
}

static Expected<bool> readSwitch(const Flags &flags, const char *name,
                                 bool otherwise) {
  std::string text = flags.get(name, otherwise ? "true" : "false");
  if (text == "true" || text == "1")
    return true;
  if (text == "false" || text == "0")
    return false;
  return FormatError{std::string("expected true or false for '--") + name +
                     "', got '" + text + "'"};
}

/// Stores what was read in `target`.
template <typename T, typename U>
static std::optional<FormatError> assign(Expected<T> read, U &target) {
  if (auto *bad = std::get_if<FormatError>(&read))
    return *bad;
  target = std::get<T>(read);
  return std::nullopt;
}

#define KVCACHE_TRY(X)                                                         \
  if (auto bad = (X))                                                          \
  return bad

static std::optional<FormatError> readDims(const Flags &flags,
                                           KernelSpec &spec) {
  for (const char *name : {"q-heads", "kv-heads", "head-dim", "format"})
    if (!flags.has(name))
      return FormatError{std::string("expected FILE.mlir or '--") + name + "'"};
  KVCACHE_TRY(assign(readInteger(flags, "q-heads"), spec.qHeads));
  KVCACHE_TRY(assign(readInteger(flags, "kv-heads"), spec.kvHeads));
  KVCACHE_TRY(assign(readInteger(flags, "head-dim"), spec.headDim));
  spec.valueDim = spec.headDim;
  if (flags.has("value-dim")) {
    KVCACHE_TRY(assign(readInteger(flags, "value-dim"), spec.valueDim));
    // 0 would mean the head dim further on.
    if (spec.valueDim < 1)
      return FormatError{"expected a value dim of at least 1, got " +
                         std::to_string(spec.valueDim)};
  }
  std::string dtype = flags.get("dtype", "f16");
  for (Element element : {Element::F16, Element::BF16, Element::F32})
    if (nameOf(element) == dtype) {
      spec.dtype = element;
      return std::nullopt;
    }
  return FormatError{"unknown dtype '" + dtype +
                     "', expected one of: f16, bf16, f32"};
}

static std::optional<FormatError> readSpec(const Flags &flags,
                                           KernelSpec &spec) {
  KVCACHE_TRY(readDims(flags, spec));
  KVCACHE_TRY(assign(readSwitch(flags, "causal", true), spec.causal));
  KVCACHE_TRY(assign(readSwitch(flags, "alibi", false), spec.alibi));
  if (flags.has("window")) {
    int64_t window = 0;
    KVCACHE_TRY(assign(readInteger(flags, "window"), window));
    if (window < 1)
      return FormatError{"expected a window of at least 1 token, got " +
                         std::to_string(window)};
    spec.windowLeft = window - 1;
  }
  if (flags.has("softcap"))
    KVCACHE_TRY(assign(readNumber(flags, "softcap"), spec.softcap));
  if (flags.has("scale"))
    KVCACHE_TRY(assign(readNumber(flags, "scale"), spec.scale));
  KVCACHE_TRY(assign(Format::parse(flags.get("format")), spec.format));
  return spec.verify();
}

static std::optional<FormatError> readEmit(const Flags &flags,
                                           Options &options) {
  bool gpu = options.target->isGpu;
  std::string emit = flags.get("emit", gpu ? "ptx" : "obj");
  const std::pair<const char *, Emit> kinds[] = {{"ptx", Emit::PTX},
                                                 {"cubin", Emit::Cubin},
                                                 {"obj", Emit::Object},
                                                 {"llvm", Emit::LLVM},
                                                 {"package", Emit::Package}};
  for (auto [name, kind] : kinds) {
    if (emit != name)
      continue;
    options.emit = kind;
    bool gpuOnly = kind == Emit::PTX || kind == Emit::Cubin;
    if ((gpuOnly && !gpu) || (kind == Emit::Object && gpu))
      return FormatError{
          "target '" + std::string(options.target->name) + "' cannot emit '" +
          emit + "', expected one of: " +
          (gpu ? "ptx, cubin, llvm, package" : "obj, llvm, package")};
    return std::nullopt;
  }
  return FormatError{"unknown kind '" + emit +
                     "' of --emit, expected one of: ptx, cubin, obj, llvm, "
                     "package"};
}

static std::optional<FormatError> readTier(const Flags &flags,
                                           Options &options) {
  if (!flags.has("cpu"))
    return std::nullopt;
  if (options.target->isGpu)
    return FormatError{"'--cpu' is for target x86-64, got target '" +
                       std::string(options.target->name) + "'"};
  options.tier = parseCpuTier(flags.get("cpu"));
  if (!options.tier)
    return FormatError{"unknown cpu '" + flags.get("cpu") +
                       "', expected one of: v2, avx2, avx512"};
  return std::nullopt;
}

static std::optional<FormatError> readAll(const Flags &flags,
                                          Options &options) {
  if (!flags.has("target"))
    return FormatError{"expected '--target', one of: " + targetList()};
  KVCACHE_TRY(assign(findTarget(flags.get("target")), options.target));
  KVCACHE_TRY(readEmit(flags, options));
  KVCACHE_TRY(assign(readSwitch(flags, "report", false), options.report));
  KVCACHE_TRY(readTier(flags, options));
  options.input = flags.input;
  options.output = flags.output;
  options.schedule = flags.get("schedule");
  if (options.output.empty() && !options.report)
    return FormatError{"expected '-o OUT' or '--report'"};
  if (options.output == "-" && options.report)
    return FormatError{"'-o -' and '--report' both write to the standard "
                       "output; give '-o' a file"};
  if (options.input.empty())
    return readSpec(flags, options.spec);
  for (const char *name : kSpecFlags)
    if (flags.has(name))
      return FormatError{std::string("'--") + name +
                         "' cannot be given with an input file ('" +
                         flags.input + "')"};
  return std::nullopt;
}

Expected<Options> compile::parseOptions(int argc, char **argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i)
    if (auto bad = readFlag(argc, argv, i, flags))
      return *bad;
  Options options;
  if (flags.has("help")) {
    options.help = true;
    return options;
  }
  if (auto bad = readAll(flags, options))
    return *bad;
  return options;
}
