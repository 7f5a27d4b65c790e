// Parses parts of values that users type. Messages say what is wrong with the value; the caller adds which flag it was.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vramfit {

/// Throws InputError: unknown value "X"; did you mean ...
[[noreturn]] void unknown_value(std::string_view value, const std::vector<std::string>& known);

/// A decimal integer within [least, most]; throws InputError.
std::int64_t whole_number(std::string_view text, std::int64_t least, std::int64_t most);

/// A number within [least, most]; throws InputError.
double real_number(std::string_view text, double least, double most);

/// The elements of a list; "" is one empty element.
std::vector<std::string> split_list(std::string_view text, char separator = ',');

/// Splits "KEY=VALUE" at the first '='; throws InputError.
std::pair<std::string, std::string> key_and_value(const std::string& part);

}  // namespace vramfit
