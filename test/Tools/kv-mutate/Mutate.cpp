//===- Mutate.cpp - Damaged texts from good ones --------------------------===//
//
// See Mutate.h.
//
//===----------------------------------------------------------------------===//
#include "Mutate.h"

#include <cctype>

namespace kvcache {

std::vector<std::string> splitChunks(std::string_view text) {
  std::vector<std::string> chunks;
  constexpr std::string_view mark = "\n// -----";
  while (true) {
    size_t at = text.find(mark);
    chunks.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos)
      return chunks;
    text.remove_prefix(at + mark.size());
  }
}

namespace {
/// splitmix64: small, seeded, the same everywhere.
struct Random {
  uint64_t state;

  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n ? next() % n : 0; }
};

struct Word {
  size_t begin, end;
};
} // namespace

/// Runs of letters, digits, '_' and '.', without comments.
static std::vector<Word> wordsOf(std::string_view text) {
  std::vector<Word> words;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (std::isalnum(static_cast<unsigned char>(text[i]))) {
      size_t begin = i;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) ||
              text[i] == '_' || text[i] == '.'))
        ++i;
      words.push_back({begin, i});
    } else {
      ++i;
    }
  }
  return words;
}

static void changeByte(std::string &text, Random &random) {
  static constexpr std::string_view bytes =
      "<>()[]{}#!%@^:,=-+*?\"'/\\ \n\t\0x019afkqz_.~|&;$\xff";
  size_t at = random.below(text.size());
  char byte = bytes[random.below(bytes.size())];
  switch (random.below(3)) {
  case 0:
    text.erase(at, 1 + random.below(3));
    break;
  case 1:
    text[at] = byte;
    break;
  default:
    text.insert(at, 1, byte);
  }
}

static void changeWord(std::string &text, Random &random) {
  static constexpr std::string_view extremes[] = {"0",
                                                  "-1",
                                                  "1",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "18446744073709551616",
                                                  "2147483648",
                                                  "0x7FF0000000000000",
                                                  "?",
                                                  "none",
                                                  "index",
                                                  "f8E4M3FN",
                                                  "i1"};
  std::vector<Word> words = wordsOf(text);
  if (words.empty())
    return;
  Word word = words[random.below(words.size())];
  Word other = words[random.below(words.size())];
  std::string replacement;
  switch (random.below(4)) {
  case 0: // deleted
    break;
  case 1: // doubled
    replacement = text.substr(word.begin, word.end - word.begin);
    replacement += ", " + replacement;
    break;
  case 2:
    replacement = text.substr(other.begin, other.end - other.begin);
    break;
  default:
    replacement = extremes[random.below(std::size(extremes))];
  }
  text.replace(word.begin, word.end - word.begin, replacement);
}

std::string mutate(std::string_view original, uint64_t seed) {
  std::string text(original);
  Random random{seed};
  for (size_t changes = 1 + random.below(4); changes != 0 && !text.empty();
       --changes) {
    if (random.below(2))
      changeWord(text, random);
    else
      changeByte(text, random);
  }
  return text;
}

} // namespace kvcache
