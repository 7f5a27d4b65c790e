#include "cli/format/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

namespace vramfit {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read before any thread starts
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(variable(name));
    if (value.empty()) continue;
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

std::string_view escape(Style style) {
  switch (style) {
    case Style::plain:
      return "";
    case Style::bold:
      return "\x1b[1m";
    case Style::dim:
      return "\x1b[2m";
    case Style::good:
      return "\x1b[1;32m";
    case Style::warning:
      return "\x1b[1;33m";
    case Style::bad:
      return "\x1b[1;31m";
  }
  return "";
}

}  // namespace

Terminal detect_terminal() {
  return {.color = ::isatty(STDOUT_FILENO) == 1 && variable("NO_COLOR").empty() && variable("TERM") != "dumb",
          .utf8 = utf8_locale()};
}

int terminal_width() {
  constexpr int kUsual = 80, kLeast = 40;
  int width = 0;
  const std::string_view wanted = variable("COLUMNS");
  std::from_chars(wanted.data(), wanted.data() + wanted.size(), width);
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize size{};
    if (width <= 0 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0) width = size.ws_col;
  }
  return width <= 0 ? kUsual : std::max(width, kLeast);
}

std::string styled(const Terminal& terminal, Style style, std::string_view text) {
  if (!terminal.color || style == Style::plain) return std::string(text);
  return fmt::format("{}{}\x1b[0m", escape(style), text);
}

std::string bar(const Terminal& terminal, double share, int cells) {
  static constexpr std::array<std::string_view, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = std::clamp(share, 0.0, 1.0) * cells;
  std::string out;
  if (!terminal.utf8) {
    out.assign(static_cast<std::size_t>(std::lround(filled)), '#');
    return out;
  }
  const int whole = static_cast<int>(filled);
  for (int i = 0; i < whole; ++i) out += "█";
  out += kEighths[static_cast<std::size_t>((filled - whole) * 8)];
  return out;
}

std::string padded_bar(const Terminal& terminal, double share, int cells) {
  std::string text = bar(terminal, share, cells);
  const auto begins_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  const auto drawn = static_cast<int>(std::ranges::count_if(text, begins_character));
  text.append(static_cast<std::size_t>(std::max(0, cells - drawn)), ' ');
  return text;
}

std::string gib(Bytes bytes) { return fmt::format("{:.1f}", gib_of(bytes)); }

std::string short_count(std::int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000'000) return fmt::format("{:.2f} T", value / 1e12);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f} M", value / 1e6);
  return fmt::to_string(count);
}

}  // namespace vramfit
