#include "cli/explain/log_lines.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <vector>

#include "base/files/file.h"
#include "base/text/characters.h"

namespace vramfit {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20, kLongest = std::size_t{1} << 16;

std::size_t digits_from(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end;
}

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// "2026-01-31T10:20:30.123Z " or "2026-01-31 10:20:30,123 ": how many bytes; 0 without one.
std::size_t time_stamp(std::string_view text) {
  std::size_t at = digits_from(text, 0);
  if (at != 4 || at >= text.size() || text[at] != '-') return 0;
  const auto in_stamp = [](char c) {
    return is_digit(c) || std::string_view("-:.,TZ+").find(c) != std::string_view::npos;
  };
  while (at < text.size() && in_stamp(text[at])) ++at;
  if (at + 1 < text.size() && text[at] == ' ' && is_digit(text[at + 1])) {  // the time of day
    ++at;
    while (at < text.size() && in_stamp(text[at])) ++at;
  }
  return at < text.size() && text[at] == ' ' ? at + 1 : 0;
}

struct Prefix {
  std::size_t bytes = 0;
  std::optional<int> rank;
};

/// "[rank3]:" of PyTorch, "[default3]:" of torchrun, "[1,3]<stderr>:" of mpirun.
Prefix in_brackets(std::string_view text) {
  const std::size_t close = text.substr(0, 80).find(']');
  if (!text.starts_with('[') || close == std::string_view::npos) return {};
  std::size_t end = close + 1;
  if (end < text.size() && text[end] == '<') end = text.find('>', end) + 1;
  if (end == 0 || end >= text.size() || text[end] != ':') return {};
  std::string_view name = text.substr(1, close - 1);
  if (const std::size_t comma = name.find(','); comma != std::string_view::npos) name.remove_prefix(comma + 1);
  const auto letters = std::ranges::find_if(name, is_digit) - name.begin();
  return {end + 1, number_in(name.substr(static_cast<std::size_t>(letters)))};
}

/// "3: " of srun --label.
Prefix by_srun(std::string_view text) {
  const std::size_t end = digits_from(text, 0);
  if (end == 0 || end > 6 || !text.substr(end).starts_with(": ")) return {};
  return {end + 2, number_in(text.substr(0, end))};
}

/// "(RayTrainWorker pid=123, ip=10.0.0.1) " of Ray, "worker-0  | " of Docker Compose and others.
Prefix by_scheduler(std::string_view text) {
  if (text.starts_with('(')) {
    const std::size_t close = text.substr(0, 120).find(") ");
    const bool is_ray = close != std::string_view::npos && text.substr(0, close).find("pid=") != std::string_view::npos;
    return is_ray ? Prefix{close + 2, std::nullopt} : Prefix{};
  }
  const std::size_t bar = text.substr(0, 80).find("| ");
  if (bar == std::string_view::npos || bar == 0) return {};
  const std::string_view name = text.substr(0, text.find_first_of(" |"));
  const bool is_word = text.substr(name.size(), bar - name.size()).find_first_not_of(' ') == std::string_view::npos;
  return is_word && !name.empty() && name.find('%') == std::string_view::npos ? Prefix{bar + 2, std::nullopt}
                                                                              : Prefix{};
}

/// Whether what follows a prefix may be a line of a traceback or of an error. A "0: " elsewhere may be anything.
bool may_follow(std::string_view rest) {
  return rest.find("Traceback (most") != std::string_view::npos || rest.find("File \"") != std::string_view::npos ||
         rest.find("emory") != std::string_view::npos || rest.find("ALLOC_FAILED") != std::string_view::npos ||
         rest.find("calloc") != std::string_view::npos || rest.starts_with(' ');
}

/// Colours, and other control characters as spaces.
void add_plain(std::string& line, std::string_view text, bool& in_escape) {
  for (const char c : text) {
    if (in_escape) {
      in_escape = c == '[' || c == ';' || c == '?' || is_digit(c);
    } else if (c == '\x1b') {
      in_escape = true;
    } else if (line.size() < kLongest) {
      line.push_back(static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c);
    }
  }
}

}  // namespace

LogLine split_prefix(std::string_view line) {
  LogLine split{.number = 0, .source = {}, .rank = {}, .text = line};
  split.text.remove_prefix(time_stamp(line));
  const std::string_view whole = split.text;
  Prefix prefix = in_brackets(whole);
  if (prefix.bytes == 0) prefix = by_srun(whole);
  if (prefix.bytes == 0) prefix = by_scheduler(whole);
  const std::string_view rest = whole.substr(std::min(prefix.bytes, whole.size()));
  if (prefix.bytes == 0 || !may_follow(rest)) return split;
  split.source = whole.substr(0, prefix.bytes);
  split.rank = prefix.rank;
  split.text = rest;
  // A launcher may have put its own in front of PyTorch's.
  if (const Prefix inner = in_brackets(rest); inner.bytes > 0 && inner.rank) {
    split.rank = inner.rank;
    split.text.remove_prefix(inner.bytes);
  }
  return split;
}

void for_each_line(const std::string& path, const std::function<void(const LogLine&)>& take) {
  const File file(path, {.name = "", .code = ExitCode::usage});
  std::string chunk, line;
  std::int64_t number = 1;
  bool in_escape = false;
  const auto finish = [&] {
    if (line.empty()) return;
    LogLine split = split_prefix(line);
    split.number = number;
    take(split);
    line.clear();
  };
  for (std::int64_t at = 0; at < file.bytes(); at += static_cast<std::int64_t>(chunk.size())) {
    chunk.resize(static_cast<std::size_t>(std::min<std::int64_t>(kChunk, file.bytes() - at)));
    file.read(at, chunk);
    std::string_view rest = chunk;
    while (true) {
      const std::size_t end = rest.find_first_of("\r\n");
      add_plain(line, rest.substr(0, end), in_escape);
      if (end == std::string_view::npos) break;
      finish();
      in_escape = false;
      if (rest[end] == '\n') ++number;
      rest.remove_prefix(end + 1);
    }
  }
  finish();
}

}  // namespace vramfit
