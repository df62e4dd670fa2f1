//===- Npy.cpp - Strict reading and writing of .npy files -----------------===//
//
// A file is the magic "\x93NUMPY", two version bytes, the header's length (u16
// in version 1, u32 later), the header
//   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
// padded with spaces and ended by a newline, then the elements. The parser
// walks the header once; every size is checked for overflow before it is used.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Support/Npy.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

using namespace kvcache;

/// Arrays above this many bytes are refused: no header may make us allocate
/// what the file cannot hold (zero-sized axes beside huge ones).
static constexpr int64_t kMaxBytes = int64_t{1} << 46;
static constexpr size_t kMaxRank = 64; // NumPy's own limit

std::string NpyType::str() const {
  static constexpr std::string_view names[] = {"bool", "int", "uint", "float",
                                               "void"};
  std::string name(names[kind]);
  if (kind == Bool)
    return name;
  return name + std::to_string(kind == Void ? bytes : bytes * 8);
}

int64_t NpyArray::elements() const {
  int64_t n = 1;
  for (int64_t d : shape)
    n *= d;
  return n;
}

std::string NpyArray::str() const {
  std::string text = type.str() + " [";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

namespace {
/// Walks the header text. A failed step records the first error.
class HeaderParser {
public:
  explicit HeaderParser(std::string_view text) : text(text) {}

  bool parse();

  std::string descr;
  bool fortran = false;
  std::vector<int64_t> shape;
  std::string error;

private:
  bool fail(std::string what) {
    if (error.empty())
      error = "header byte " + std::to_string(pos) + ": " + std::move(what);
    return false;
  }
  void space() {
    while (pos < text.size() && (text[pos] == ' ' || text[pos] == '\n'))
      ++pos;
  }
  bool eat(char c) {
    space();
    if (pos >= text.size() || text[pos] != c)
      return false;
    ++pos;
    return true;
  }
  bool expect(char c) {
    return eat(c) || fail(std::string("expected '") + c + "'");
  }
  bool quoted(std::string &out);
  bool boolean(bool &out);
  bool size(int64_t &out);
  bool tuple();
  bool entry(unsigned &seen);

  std::string_view text;
  size_t pos = 0;
};
} // namespace

bool HeaderParser::quoted(std::string &out) {
  space();
  if (pos >= text.size() || (text[pos] != '\'' && text[pos] != '"'))
    return fail("expected a quoted string");
  char quote = text[pos++];
  size_t end = text.find(quote, pos);
  if (end == std::string_view::npos)
    return fail("unterminated string");
  out = text.substr(pos, end - pos);
  pos = end + 1;
  return true;
}

bool HeaderParser::boolean(bool &out) {
  space();
  for (bool value : {true, false}) {
    std::string_view word = value ? "True" : "False";
    if (text.substr(pos, word.size()) == word) {
      pos += word.size();
      out = value;
      return true;
    }
  }
  return fail("expected True or False");
}

bool HeaderParser::size(int64_t &out) {
  space();
  size_t start = pos;
  out = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    if (out > (INT64_MAX - 9) / 10)
      return fail("a dimension does not fit 64 bits");
    out = out * 10 + (text[pos++] - '0');
  }
  if (pos == start)
    return fail("expected a non-negative dimension");
  if (pos < text.size() && text[pos] == 'L') // Python 2 wrote longs so
    ++pos;
  return true;
}

bool HeaderParser::tuple() {
  if (!expect('('))
    return false;
  bool comma = true;
  while (!eat(')')) {
    int64_t d;
    if (!comma)
      return fail("expected ',' or ')'");
    if (!size(d))
      return false;
    if (shape.size() == kMaxRank)
      return fail("more than 64 dimensions");
    shape.push_back(d);
    comma = eat(',');
  }
  if (shape.size() == 1 && !comma)
    return fail("a tuple of one needs a comma");
  return true;
}

bool HeaderParser::entry(unsigned &seen) {
  std::string key;
  if (!quoted(key) || !expect(':'))
    return false;
  unsigned bit = key == "descr"           ? 1
                 : key == "fortran_order" ? 2
                 : key == "shape"         ? 4
                                          : 0;
  if (!bit)
    return fail("unknown key '" + key +
                "', expected descr, fortran_order or shape");
  if (seen & bit)
    return fail("key '" + key + "' appears twice");
  seen |= bit;
  if (bit == 1) {
    space();
    if (pos < text.size() && text[pos] == '[')
      return fail("structured dtypes are not accepted");
    return quoted(descr);
  }
  return bit == 2 ? boolean(fortran) : tuple();
}

bool HeaderParser::parse() {
  if (!expect('{'))
    return false;
  unsigned seen = 0;
  bool comma = true;
  while (!eat('}')) {
    if (!comma)
      return fail("expected ',' or '}'");
    if (!entry(seen))
      return false;
    comma = eat(',');
  }
  if (seen != 7)
    return fail("descr, fortran_order and shape must all be given");
  space();
  return pos == text.size() || fail("unexpected text after the dict");
}

/// "<f4" -> float32. Byte order '|' and '=' are as NumPy writes them on x86.
static bool parseDescr(const std::string &descr, NpyType &type,
                       std::string &error) {
  auto refuse = [&](std::string_view why) {
    error = "dtype '" + descr + "' is not accepted: " + std::string(why);
    return false;
  };
  if (descr.size() < 3 || descr.size() > 4)
    return refuse("expected a plain numeric dtype such as '<f4'");
  if (descr[0] == '>')
    return refuse("big-endian, expected little-endian ('<')");
  if (descr[0] != '<' && descr[0] != '|' && descr[0] != '=')
    return refuse("expected a byte order, one of '<', '|', '='");
  unsigned bytes = 0;
  for (char c : descr.substr(2)) {
    if (c < '0' || c > '9')
      return refuse("expected a size in bytes");
    bytes = bytes * 10 + (c - '0');
  }
  auto oneOf = [&](std::initializer_list<unsigned> sizes) {
    for (unsigned s : sizes)
      if (s == bytes)
        return true;
    return false;
  };
  type.bytes = bytes;
  switch (descr[1]) {
  case 'b':
    type.kind = NpyType::Bool;
    return oneOf({1}) || refuse("booleans have one byte");
  case 'i':
  case 'u':
    type.kind = descr[1] == 'i' ? NpyType::Int : NpyType::UInt;
    return oneOf({1, 2, 4, 8}) || refuse("integers have 1, 2, 4 or 8 bytes");
  case 'f':
    type.kind = NpyType::Float;
    return oneOf({2, 4, 8}) || refuse("floats have 2, 4 or 8 bytes");
  case 'V':
    type.kind = NpyType::Void;
    return oneOf({1, 2}) ||
           refuse("raw bytes are bfloat16 ('<V2') or 8-bit ('|V1')");
  }
  return refuse("expected bool, integer or float");
}

/// Rearranges column-major `data` into row-major order.
static void transpose(NpyArray &a) {
  size_t rank = a.shape.size();
  unsigned bytes = a.type.bytes;
  std::vector<std::byte> out(a.data.size());
  std::vector<int64_t> stride(rank, 1), index(rank, 0);
  for (size_t i = 1; i < rank; ++i)
    stride[i] = stride[i - 1] * a.shape[i - 1];
  for (int64_t n = 0, e = a.elements(), from = 0; n < e; ++n) {
    std::memcpy(&out[n * bytes], &a.data[from * bytes], bytes);
    for (size_t i = rank; i-- > 0;) {
      from += stride[i];
      if (++index[i] < a.shape[i])
        break;
      from -= stride[i] * a.shape[i];
      index[i] = 0;
    }
  }
  a.data = std::move(out);
}

/// Finds the header: its text and where the elements start.
static std::string splitHeader(std::span<const std::byte> file,
                               std::string_view &header, size_t &start) {
  if (file.size() < 10 || std::memcmp(file.data(), "\x93NUMPY", 6) != 0)
    return "not a .npy file (expected it to start with \\x93NUMPY)";
  unsigned major = static_cast<unsigned>(file[6]);
  if (major < 1 || major > 3)
    return "version " + std::to_string(major) +
           " is not known, expected 1, 2 or 3";
  size_t prefix = major == 1 ? 10 : 12;
  if (file.size() < prefix)
    return "the file ends inside its header";
  size_t length = 0;
  for (size_t i = prefix; i-- > 8;)
    length = length << 8 | static_cast<size_t>(file[i]);
  if (length > file.size() - prefix)
    return "the file ends inside its header: " + std::to_string(length) +
           " bytes announced, " + std::to_string(file.size() - prefix) +
           " left";
  header = {reinterpret_cast<const char *>(file.data()) + prefix, length};
  start = prefix + length;
  return "";
}

std::variant<NpyArray, NpyError>
kvcache::parseNpy(std::span<const std::byte> file) {
  std::string_view text;
  size_t start = 0;
  if (std::string error = splitHeader(file, text, start); !error.empty())
    return NpyError{error};
  HeaderParser header(text);
  if (!header.parse())
    return NpyError{header.error};
  NpyArray array;
  std::string error;
  if (!parseDescr(header.descr, array.type, error))
    return NpyError{error};
  array.shape = header.shape;
  // The product without its zeros bounds every partial product and stride.
  int64_t size = array.type.bytes;
  bool empty = false;
  for (int64_t d : array.shape) {
    empty |= d == 0;
    if (d > 0 && size > kMaxBytes / d)
      return NpyError{"an array " + array.str() + " is too large"};
    size *= d > 0 ? d : 1;
  }
  size = empty ? 0 : size;
  if (static_cast<uint64_t>(size) != file.size() - start)
    return NpyError{array.str() + " needs " + std::to_string(size) +
                    " bytes of data, the file holds " +
                    std::to_string(file.size() - start)};
  array.data.assign(file.begin() + start, file.end());
  if (header.fortran && array.shape.size() > 1 && size)
    transpose(array);
  return array;
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE *)>;

std::variant<NpyArray, NpyError> kvcache::readNpy(const std::string &path) {
  File file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file)
    return NpyError{path + ": " + std::strerror(errno)};
  std::vector<std::byte> bytes;
  std::byte buffer[1 << 16];
  while (size_t n = std::fread(buffer, 1, sizeof(buffer), file.get()))
    bytes.insert(bytes.end(), buffer, buffer + n);
  if (std::ferror(file.get()))
    return NpyError{path + ": " + std::strerror(errno)};
  auto result = parseNpy(bytes);
  if (auto *error = std::get_if<NpyError>(&result))
    error->message = path + ": " + error->message;
  return result;
}

std::vector<std::byte> kvcache::formatNpy(const NpyArray &array) {
  static constexpr char codes[] = {'b', 'i', 'u', 'f', 'V'};
  std::string header = "{'descr': '";
  header += array.type.bytes == 1 ? '|' : '<';
  header += codes[array.type.kind];
  header += std::to_string(array.type.bytes) +
            "', 'fortran_order': False, 'shape': (";
  for (int64_t d : array.shape)
    header += std::to_string(d) + ", ";
  if (array.shape.size() > 1)
    header.resize(header.size() - 2);
  else if (array.shape.size() == 1)
    header.pop_back();
  header += "), }";
  // Rank is at most 64, so the header fits version 1's 16-bit length.
  while ((header.size() + 11) % 64)
    header += ' ';
  header += '\n';
  size_t length = header.size();
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(length & 255);
  file += static_cast<char>(length >> 8);
  file += header;
  std::vector<std::byte> bytes(file.size() + array.data.size());
  std::memcpy(bytes.data(), file.data(), file.size());
  if (!array.data.empty())
    std::memcpy(bytes.data() + file.size(), array.data.data(),
                array.data.size());
  return bytes;
}

std::string kvcache::writeNpy(const std::string &path, const NpyArray &array) {
  std::vector<std::byte> bytes = formatNpy(array);
  File file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file)
    return path + ": " + std::strerror(errno);
  bool ok =
      std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  ok &= std::fclose(file.release()) == 0;
  if (ok)
    return "";
  std::string error = path + ": " + std::strerror(errno);
  std::remove(path.c_str());
  return error;
}
