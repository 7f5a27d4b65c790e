#include "tests/support/mutate.h"

#include <array>
#include <cstddef>
#include <string_view>

namespace vramfit::testing {
namespace {

constexpr std::array<std::string_view, 20> kNasty{"0",
                                                  "-1",
                                                  "1",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "1e308",
                                                  "1e-320",
                                                  "3.5",
                                                  "null",
                                                  "true",
                                                  "\"\"",
                                                  "\"x\"",
                                                  "[]",
                                                  "{}",
                                                  "[[[[[[]]]]]]",
                                                  R"("\u0000")",
                                                  "NaN",
                                                  "1073741824",
                                                  "4096",
                                                  "\"\xFF\""};

std::size_t below(std::size_t bound, std::mt19937_64& random) { return static_cast<std::size_t>(random() % bound); }

// The value after a randomly chosen colon: [begin, end). Empty when there is none.
std::pair<std::size_t, std::size_t> random_value(const std::string& text, std::mt19937_64& random) {
  const std::size_t colon = text.find(':', below(text.size(), random));
  if (colon == std::string::npos) return {0, 0};
  const std::size_t end = text.find_first_of(",}\n", colon + 1);
  return {colon + 1, end == std::string::npos ? text.size() : end};
}

void change_once(std::string& text, std::mt19937_64& random) {
  const std::size_t at = below(text.size(), random);
  const std::size_t length = 1 + below(24, random);
  switch (below(6, random)) {
    case 0:
      text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(below(text.size(), random), length));
      break;
    default: {  // half of all changes keep the text well-formed
      const auto [begin, end] = random_value(text, random);
      if (begin != end) text.replace(begin, end - begin, kNasty[below(kNasty.size(), random)]);
    }
  }
}

}  // namespace

std::string mutate(const std::string& text, std::mt19937_64& random) {
  std::string changed = text;
  for (std::size_t changes = 1 + below(4, random); changes > 0 && !changed.empty(); --changes) {
    change_once(changed, random);
  }
  return changed;
}

}  // namespace vramfit::testing
