//===- Format.cpp - Names and grammar of storage formats ------------------===//
//
// Parsing is by splitting: items at ',', the parts of an encoding at ':'. Parts
// may come in any order, each kind once; printing uses the grammar's order and
// leaves defaults out, so that str() is the one canonical spelling. The labels
// F1, F2, ... are those of docs/spec-formats.md.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Format/Format.h"

#include <algorithm>
#include <array>
#include <cassert>

using namespace kvcache;

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

namespace {
struct ElementInfo {
  std::string_view name;
  unsigned bits;
};
constexpr std::array<ElementInfo, 9> elements = {{{"f32", 32},
                                                  {"f16", 16},
                                                  {"bf16", 16},
                                                  {"e4m3", 8},
                                                  {"e5m2", 8},
                                                  {"i8", 8},
                                                  {"i4", 4},
                                                  {"i2", 2},
                                                  {"i1", 1}}};
constexpr std::array<std::string_view, 5> scaleKinds = {
    "none", "tensor", "head", "token", "channel"};
constexpr std::array<std::string_view, 3> scaleTypes = {"sf16", "sbf16",
                                                        "sf32"};

/// A group larger than this is a typing error; products stay far from overflow.
constexpr int64_t maxNumber = 1 << 20;
} // namespace

unsigned kvcache::bitsOf(Element e) {
  return elements[static_cast<size_t>(e)].bits;
}
bool kvcache::isFloat(Element e) { return e <= Element::BF16; }
bool kvcache::isFp8(Element e) {
  return e == Element::E4M3 || e == Element::E5M2;
}
bool kvcache::isInteger(Element e) { return e >= Element::I8; }
std::string_view kvcache::nameOf(Element e) {
  return elements[static_cast<size_t>(e)].name;
}
std::string_view kvcache::nameOf(ScaleKind k) {
  return scaleKinds[static_cast<size_t>(k)];
}
std::string_view kvcache::nameOf(ScaleType t) {
  return scaleTypes[static_cast<size_t>(t)];
}

//===----------------------------------------------------------------------===//
// Encodings
//===----------------------------------------------------------------------===//

static std::string quoted(std::string_view s) {
  std::string q = "'";
  // A message stays on one line whatever was typed.
  for (char c : s.substr(0, 80))
    q += (c >= ' ' && c <= '~') ? c : '?';
  if (s.size() > 80)
    q += "...";
  return q + "'";
}

static std::vector<std::string_view> split(std::string_view text, char sep) {
  std::vector<std::string_view> parts;
  for (size_t at = 0;;) {
    size_t next = text.find(sep, at);
    parts.push_back(text.substr(at, next - at));
    if (next == std::string_view::npos)
      return parts;
    at = next + 1;
  }
}

/// A decimal number without sign, at most `maxNumber`.
static std::optional<int64_t> parseNumber(std::string_view text) {
  if (text.empty() || text.size() > 8)
    return std::nullopt;
  int64_t n = 0;
  for (char c : text) {
    if (c < '0' || c > '9')
      return std::nullopt;
    n = n * 10 + (c - '0');
  }
  return n <= maxNumber ? std::optional(n) : std::nullopt;
}

static ScaleKind defaultScale(Element e) {
  return isFloat(e) ? ScaleKind::None
         : isFp8(e) ? ScaleKind::Head
                    : ScaleKind::Token;
}
/// Integers are asymmetric unless the scale is static.
static bool defaultAsymmetric(Element e, ScaleKind k) {
  return isInteger(e) && (k != ScaleKind::Tensor || e == Element::I1);
}

std::string Encoding::str() const {
  std::string s(nameOf(element));
  auto add = [&](std::string_view part) { s.append(":").append(part); };
  if (scale != defaultScale(element))
    add(nameOf(scale));
  if (group)
    add("g" + std::to_string(group));
  if (asymmetric != defaultAsymmetric(element, scale))
    add(asymmetric ? "asym" : "sym");
  if (sparse24)
    add("2of4");
  if (hadamard)
    add("hadamard");
  if (center)
    add("center");
  if (scaleType != ScaleType::F16)
    add(nameOf(scaleType));
  return s;
}

namespace {
/// Collects the parts of one encoding, each kind at most once.
class EncodingParser {
public:
  explicit EncodingParser(std::string_view text) : text(text) {}
  Expected<Encoding> run();

private:
  std::optional<FormatError> part(std::string_view p);
  std::optional<FormatError> flag(std::string_view p, bool &value);
  std::optional<FormatError> check();
  template <typename T>
  std::optional<FormatError> once(std::string_view p, std::optional<T> &slot,
                                  T value, std::string_view what);
  FormatError error(std::string message) const {
    return {"in " + quoted(text) + ": " + std::move(message)};
  }

  std::string_view text;
  Encoding e;
  std::optional<ScaleKind> scale;
  std::optional<int64_t> group;
  std::optional<bool> asym;
  std::optional<ScaleType> scaleType;
};
} // namespace

template <typename T>
std::optional<FormatError> EncodingParser::once(std::string_view p,
                                                std::optional<T> &slot, T value,
                                                std::string_view what) {
  if (slot)
    return error(quoted(p) + " is a second " + std::string(what) +
                 "; give one (F3)");
  slot = value;
  return std::nullopt;
}

std::optional<FormatError> EncodingParser::flag(std::string_view p,
                                                bool &value) {
  if (value)
    return error(quoted(p) + " is given twice (F3)");
  value = true;
  return std::nullopt;
}

std::optional<FormatError> EncodingParser::part(std::string_view p) {
  for (size_t k = 1; k < scaleKinds.size(); ++k)
    if (p == scaleKinds[k])
      return once(p, scale, static_cast<ScaleKind>(k), "scale kind");
  for (size_t t = 0; t < scaleTypes.size(); ++t)
    if (p == scaleTypes[t])
      return once(p, scaleType, static_cast<ScaleType>(t), "scale type");
  if (p == "asym" || p == "sym")
    return once(p, asym, p == "asym", "zero mode");
  if (p == "2of4")
    return flag(p, e.sparse24);
  if (p == "hadamard")
    return flag(p, e.hadamard);
  if (p == "center")
    return flag(p, e.center);
  if (p.size() > 1 && p[0] == 'g' && p[1] >= '0' && p[1] <= '9') {
    auto n = parseNumber(p.substr(1));
    if (!n || *n == 0)
      return error("group " + quoted(p) + " is not a number from 1 to " +
                   std::to_string(maxNumber) + " (F4)");
    return once(p, group, *n, "group");
  }
  return error("unknown part " + quoted(p) +
               "; accepted: tensor head token channel, gN, asym sym, 2of4, "
               "hadamard, center, sf16 sbf16 sf32 (F2)");
}

std::optional<FormatError> EncodingParser::check() {
  std::string name(nameOf(e.element));
  if (isFloat(e.element) && (scale || group || asym || scaleType))
    return error("element " + name +
                 " is stored as it is and takes no scale, group, zero mode or "
                 "scale type; leave it out, or use e4m3 e5m2 i8 i4 i2 i1 (F5)");
  e.scale = scale.value_or(defaultScale(e.element));
  if (group && e.scale != ScaleKind::Channel && e.scale != ScaleKind::Token)
    return error("group g" + std::to_string(*group) + " with a " +
                 std::string(nameOf(e.scale)) +
                 " scale; only channel and token scales have groups (F6)");
  e.group = group.value_or(0);
  e.asymmetric = asym.value_or(defaultAsymmetric(e.element, e.scale));
  if (isFp8(e.element) && e.asymmetric)
    return error("element " + name + " has no zero point; write sym (F7)");
  if (e.element == Element::I1 && !e.asymmetric)
    return error("element i1 codes the two levels min and max; write asym "
                 "(F8)");
  if (e.scale == ScaleKind::Tensor && e.asymmetric)
    return error(e.element == Element::I1
                     ? "element i1 needs a zero point, which a tensor scale "
                       "does not have; use channel, token or head (F9)"
                     : "a tensor scale has no zero point; write sym, or use "
                       "channel, token or head (F9)");
  e.scaleType = scaleType.value_or(ScaleType::F16);
  return std::nullopt;
}

Expected<Encoding> EncodingParser::run() {
  auto parts = split(text, ':');
  auto it = std::ranges::find_if(elements,
                                 [&](auto &i) { return i.name == parts[0]; });
  if (it == elements.end())
    return error("unknown element " + quoted(parts[0]) +
                 "; accepted: f32 f16 bf16 e4m3 e5m2 i8 i4 i2 i1 (F1)");
  e.element = static_cast<Element>(it - elements.begin());
  for (size_t i = 1; i < parts.size(); ++i)
    if (auto bad = part(parts[i]))
      return *bad;
  if (auto bad = check())
    return *bad;
  return e;
}

Expected<Encoding> kvcache::parseEncoding(std::string_view text) {
  return EncodingParser(text).run();
}

//===----------------------------------------------------------------------===//
// Formats
//===----------------------------------------------------------------------===//

namespace {
struct Preset {
  std::string_view name;
  Format format;
};
} // namespace

static Encoding preset(std::string_view text) {
  auto e = parseEncoding(text);
  assert(!errorOf(e) && "preset does not parse");
  Encoding r = std::get<Encoding>(e);
  // A preset serves every shape, so its groups are upper bounds.
  r.adaptive = r.group != 0;
  return r;
}

static const std::vector<Preset> &presets() {
  auto make = [](std::string_view name, std::string_view k, std::string_view v,
                 int64_t recent = 0) {
    return Preset{name, Format{preset(k), preset(v), 64, 0, recent}};
  };
  static const std::vector<Preset> all = {
      make("f16", "f16", "f16"),
      make("bf16", "bf16", "bf16"),
      make("fp8", "e4m3:head", "e4m3:head"),
      make("int8", "i8:channel:asym", "i8:token:asym"),
      make("kivi4", "i4:channel:g32:asym", "i4:token:g32:asym", 128),
      make("kivi2", "i2:channel:g32:asym", "i2:token:g32:asym", 128),
      make("calib1", "i1:channel", "i1:channel"),
      make("sparse24", "f16:2of4", "f16:2of4"),
      make("sparse24-fp8", "e4m3:head:2of4", "e4m3:head:2of4"),
      make("sparse24-int4", "i4:channel:g32:asym:2of4",
           "i4:token:g32:asym:2of4"),
  };
  return all;
}

const std::vector<std::string_view> &Format::presetNames() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> n;
    for (const Preset &p : presets())
      n.push_back(p.name);
    return n;
  }();
  return names;
}

static std::string joinedPresets() {
  std::string s;
  for (std::string_view n : Format::presetNames())
    s.append(s.empty() ? "" : " ").append(n);
  return s;
}

/// What must hold between the parts once all are known.
static std::optional<FormatError> checkFormat(const Format &f) {
  if (f.page < 1 || f.page > 256 || (f.page & (f.page - 1)))
    return FormatError{"page=" + std::to_string(f.page) +
                       " is not a power of two from 1 to 256 (F11)"};
  for (const Encoding *e : {&f.key, &f.value})
    if (e->scale == ScaleKind::Channel)
      if (auto g = resolveGroup(*e, f.page, 0); auto *bad = errorOf(g))
        return *bad;
  if (f.value.sparse24 && f.page % 4)
    return FormatError{"values are 2:4 sparse along tokens and need pages of a "
                       "multiple of 4 tokens, got page=" +
                       std::to_string(f.page) + " (F13)"};
  return std::nullopt;
}

static std::optional<FormatError> parseItem(Format &f, std::string_view name,
                                            std::string_view value) {
  if (name == "key" || name == "value") {
    auto e = parseEncoding(value);
    if (auto *bad = errorOf(e))
      return *bad;
    (name == "key" ? f.key : f.value) = std::get<Encoding>(e);
    return std::nullopt;
  }
  auto n = parseNumber(value);
  if (!n)
    return FormatError{std::string(name) + "=" + quoted(value) +
                       " is not a number from 0 to " +
                       std::to_string(maxNumber) + " (F10)"};
  (name == "page" ? f.page : name == "sinks" ? f.sinks : f.recent) = *n;
  return std::nullopt;
}

Expected<Format> Format::parse(std::string_view text) {
  Format f;
  bool fromPreset = false;
  std::vector<std::string_view> seen;
  auto items = split(text, ',');
  for (size_t i = 0; i < items.size(); ++i) {
    size_t eq = items[i].find('=');
    std::string_view name = items[i].substr(0, eq);
    if (eq == std::string_view::npos) {
      auto it = std::ranges::find_if(
          presets(), [&](auto &p) { return p.name == items[i]; });
      if (i != 0 || it == presets().end())
        return FormatError{quoted(items[i]) +
                           (i ? " is not an override; accepted: key= value= "
                                "page= sinks= recent= (F10)"
                              : " is not a preset; accepted: " +
                                    joinedPresets() + ", or key=... (F10)")};
      f = it->format;
      fromPreset = true;
      continue;
    }
    if (name != "key" && name != "value" && name != "page" && name != "sinks" &&
        name != "recent")
      return FormatError{"unknown item " + quoted(name) +
                         "; accepted: key= value= page= sinks= recent= (F10)"};
    if (std::ranges::find(seen, name) != seen.end())
      return FormatError{std::string(name) + "= is given twice (F10)"};
    seen.push_back(name);
    if (auto bad = parseItem(f, name, items[i].substr(eq + 1)))
      return *bad;
  }
  auto has = [&](std::string_view n) {
    return std::ranges::find(seen, n) != seen.end();
  };
  if (!fromPreset && !has("key"))
    return FormatError{"a format names a preset or its key=; got " +
                       quoted(text) + "; presets: " + joinedPresets() +
                       " (F10)"};
  if (!fromPreset && !has("value"))
    f.value = f.key;
  if (auto bad = checkFormat(f))
    return *bad;
  return f;
}

/// The preset `f` prints by: both encodings are its own, or, when an adaptive
/// group is left that only a preset can express, as many as are adaptive.
static const Preset *presetOf(const Format &f) {
  for (const Preset &p : presets())
    if (p.format.key == f.key && p.format.value == f.value)
      return &p;
  for (const Preset &p : presets())
    if ((f.key.adaptive && p.format.key == f.key && !f.value.adaptive) ||
        (f.value.adaptive && p.format.value == f.value && !f.key.adaptive))
      return &p;
  return nullptr;
}

std::string Format::str() const {
  const Preset *p = presetOf(*this);
  Format base;
  std::string s;
  if (p) {
    base = p->format;
    s = p->name;
    if (key != base.key)
      s += ",key=" + key.str();
    if (value != base.value)
      s += ",value=" + value.str();
  } else {
    s = "key=" + key.str();
    if (value != key)
      s += ",value=" + value.str();
  }
  if (page != base.page)
    s += ",page=" + std::to_string(page);
  if (sinks != base.sinks)
    s += ",sinks=" + std::to_string(sinks);
  if (recent != base.recent)
    s += ",recent=" + std::to_string(recent);
  return s;
}
