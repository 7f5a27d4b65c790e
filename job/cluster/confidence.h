// How sure an upper bound is to be: --confidence.
#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace vramfit {

/// A share of cases in ten-thousandths, so that ranks among cases are exact. 0: not asked for.
struct Confidence {
  int per_ten_thousand = 0;
  constexpr bool is_asked() const { return per_ten_thousand > 0; }
  constexpr auto operator<=>(const Confidence&) const = default;
};
inline constexpr Confidence kCertain{10'000};

/// Reads "0.9": at least 0.5, below 1, up to four decimals. Throws InputError.
Confidence parse_confidence(std::string_view text);

/// "0.9", "0.975".
std::string confidence_text(Confidence confidence);

}  // namespace vramfit
