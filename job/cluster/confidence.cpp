#include "job/cluster/confidence.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"

namespace vramfit {

namespace {

constexpr std::size_t kMostDecimals = 4;
constexpr Confidence kLeast{5'000};  // what is exceeded more often than not is no upper bound

}  // namespace

Confidence parse_confidence(std::string_view text) {
  const std::string_view decimals = text.starts_with("0.") ? text.substr(2) : std::string_view();
  if (decimals.empty() || decimals.size() > kMostDecimals || !std::ranges::all_of(decimals, is_digit)) {
    throw InputError(
        fmt::format("\"{}\": is not a share such as 0.9, with up to {} decimals", printable(text, 40), kMostDecimals));
  }
  Confidence confidence;
  for (std::size_t i = 0; i < kMostDecimals; ++i) {
    confidence.per_ten_thousand = 10 * confidence.per_ten_thousand + (i < decimals.size() ? decimals[i] - '0' : 0);
  }
  if (confidence < kLeast) {
    throw InputError(fmt::format("{}: at least {}", text, confidence_text(kLeast)));
  }
  return confidence;
}

std::string confidence_text(Confidence confidence) {
  std::string text = fmt::format("{}.{:04}", confidence.per_ten_thousand / kCertain.per_ten_thousand,
                                 confidence.per_ten_thousand % kCertain.per_ten_thousand);
  text.erase(std::max(text.find_last_not_of('0'), text.find('.') + 1) + 1);
  return text;
}

}  // namespace vramfit
