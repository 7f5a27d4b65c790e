#include "base/text/suggest.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text/characters.h"

namespace vramfit {
namespace {

// A longer name is not treated as a misspelling; the limit keeps hostile input cheap.
constexpr std::size_t kLongestName = 128;
constexpr std::size_t kListedNames = 12;
constexpr std::size_t kShortName = 5;  // muon is no misspelt lion

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Llama-3.2-7B is no misspelt Llama-3.2-3B: another number is another thing.
bool same_digits(std::string_view a, std::string_view b) {
  const auto digits = [&](std::string_view text) {
    std::string found;
    std::ranges::copy_if(text, std::back_inserter(found), is_digit);
    return found;
  };
  return digits(a) == digits(b);
}

// Length of a UTF-8 sequence by its first byte, or 0 if none starts so.
std::size_t utf8_length_by_first(unsigned char first) {
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

// Length of the UTF-8 sequence that starts at text[at], or 0 if it is broken there.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t length = utf8_length_by_first(first);
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return 0;
  }
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  const unsigned char second = byte(at + 1);
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : length;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  if (a.size() > kLongestName || b.size() > kLongestName) return kLongestName;
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (same ? 0U : 1U)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& known) {
  std::string best;
  const std::size_t most = wrong.size() < kShortName ? 1 : std::max<std::size_t>(2, wrong.size() / 3);
  std::size_t best_distance = most + 1;
  for (const std::string& name : known) {
    if (!same_digits(wrong, name)) continue;
    const std::size_t distance = edit_distance(wrong, name);
    if (distance < best_distance && distance < name.size()) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view wrong, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(wrong, known);
  std::string text = nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
  if (!known.empty() && known.size() <= kListedNames) text += fmt::format(" (known: {})", fmt::join(known, ", "));
  return text;
}

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool plain = c >= 0x20 && c < 0x7F;
    std::size_t length = plain ? 1 : (c < 0x80 ? 0 : utf8_length(text, i));
    // C1 controls (U+0080 to U+009F) act on terminals like escapes.
    if (length == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0) length = 0;
    if (out.size() + std::max<std::size_t>(length, 1) > most) return out + "...";
    out += length == 0 ? "?" : std::string(text.substr(i, length));
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string replace_broken_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = static_cast<unsigned char>(text[i]) < 0x80 ? 1 : utf8_length(text, i);
    out += length == 0 ? "?" : text.substr(i, length);
    i += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace vramfit
