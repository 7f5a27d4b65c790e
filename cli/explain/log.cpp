#include "cli/explain/log.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/explain/log_lines.h"

namespace vramfit {
namespace {

// Together they bound what is kept, at some 80 MB for a log made to need much.
constexpr std::size_t kMostFailures = 64, kMostSources = 1024, kMostFrames = 128, kMostContinued = 10;
constexpr std::size_t kLongestName = 300, kLongestMessage = 8192;
constexpr std::string_view kNoSource;

struct OwnedFrame {
  std::string file, function;
  std::int64_t line = 0;
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

std::optional<std::int64_t> line_number(std::string_view text, std::string_view& rest) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return std::nullopt;
  rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return value;
}

OwnedFrame frame_of(std::string_view file, std::string_view function, std::int64_t line) {
  const std::size_t cut = file.size() - std::min(file.size(), kLongestName);  // the end says most
  return {
      .file = std::string(file.substr(cut)), .function = std::string(function.substr(0, kLongestName)), .line = line};
}

/// `File "train.py", line 41, in main`.
std::optional<OwnedFrame> python_frame(std::string_view text) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = ", in ";
  const std::size_t begin = text.find(kFile);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view after = text.substr(begin + kFile.size());
  const std::size_t end = after.find(kLine);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view rest;
  const auto line = line_number(after.substr(end + kLine.size()), rest);
  if (!line) return std::nullopt;
  return frame_of(after.substr(0, end), rest.starts_with(kIn) ? trimmed(rest.substr(kIn.size())) : "", *line);
}

/// "│ /data/train.py:41 in main │", as rich draws tracebacks.
std::optional<OwnedFrame> rich_frame(std::string_view text) {
  constexpr std::string_view kBar = "│", kIn = " in ";
  text = trimmed(text);
  if (!text.starts_with(kBar)) return std::nullopt;
  text.remove_prefix(kBar.size());
  if (text.ends_with(kBar)) text.remove_suffix(kBar.size());
  text = trimmed(text);
  const std::size_t in = text.find(kIn);
  const std::size_t colon = text.substr(0, in).rfind(':');
  if (in == std::string_view::npos || colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view rest;
  const auto line = line_number(text.substr(colon + 1), rest);
  if (!line || !rest.starts_with(kIn)) return std::nullopt;
  return frame_of(text.substr(0, colon), trimmed(rest.substr(kIn.size())), *line);
}

/// What one writer of the log is in the middle of.
struct Writer {
  std::deque<OwnedFrame> frames;  // of the last traceback, outermost first
  std::string message;            // begun, and not whole yet
  std::size_t continued = 0;      // lines that it goes on for
  std::int64_t line = 0;
  std::optional<int> rank;
};

CodeSite site_of(const std::deque<OwnedFrame>& owned) {
  std::vector<ReadFrame> frames;
  frames.reserve(owned.size());
  for (const OwnedFrame& frame : owned) {
    frames.push_back(read_frame({.file = frame.file, .function = frame.function, .line = frame.line}));
  }
  return site_of(frames);
}

class LogReader {
 public:
  void take(const LogLine& line) {
    Writer& writer = writer_of(line.source);
    if (line.rank) writer.rank = line.rank;
    if (goes_on(writer, line)) return;
    if (line.text.find("Traceback (most recent call last)") != std::string_view::npos) {
      writer.frames.clear();
      return;
    }
    std::optional<OwnedFrame> frame = python_frame(line.text);
    if (!frame) frame = rich_frame(line.text);
    if (frame) {
      // What calls from the outermost ones on is more telling than a recursion's middle.
      if (writer.frames.size() >= kMostFrames) writer.frames.erase(writer.frames.begin() + kMostFrames / 2);
      writer.frames.push_back(std::move(*frame));
      return;
    }
    begin(writer, line);
  }

  MemoryLog finish() {
    for (auto& [source, writer] : writers_) end(writer);
    std::ranges::stable_sort(log_.failures, {}, &LoggedFailure::line);
    return std::move(log_);
  }

 private:
  Writer& writer_of(std::string_view source) {
    const auto known = writers_.find(std::string(source));
    if (known != writers_.end()) return known->second;
    return writers_[writers_.size() < kMostSources ? std::string(source) : std::string(kNoSource)];
  }

  void begin(Writer& writer, const LogLine& line) {
    const std::size_t at = find_memory_message(line.text);
    if (at == std::string_view::npos) return;
    writer.message = line.text.substr(at, kLongestMessage);
    writer.line = line.number;
    writer.continued = 0;
    if (is_whole_message(writer.message)) end(writer);
  }

  /// Whether the line belongs to a message that began above it.
  bool goes_on(Writer& writer, const LogLine& line) {
    if (writer.message.empty()) return false;
    const bool is_another = find_memory_message(line.text) != std::string_view::npos || python_frame(line.text) ||
                            line.text.find("Traceback (most") != std::string_view::npos;
    if (is_another || ++writer.continued > kMostContinued) {
      end(writer);
      return false;
    }
    writer.message += ' ';
    writer.message += trimmed(line.text).substr(0, kLongestMessage);
    if (is_whole_message(writer.message)) end(writer);
    return true;
  }

  void end(Writer& writer) {
    if (writer.message.empty()) return;
    LoggedFailure failure{.line = writer.line,
                          .rank = writer.rank,
                          .message = read_memory_message(writer.message),
                          .site = site_of(writer.frames)};
    writer.message.clear();
    writer.frames.clear();
    if (is_mention(failure) || is_repeated(failure)) return;
    if (log_.failures.size() >= kMostFailures) {
      ++log_.more;
    } else {
      log_.failures.push_back(std::move(failure));
    }
  }

  /// Launchers and libraries say again what a rank said.
  bool is_repeated(const LoggedFailure& failure) const {
    return std::ranges::any_of(log_.failures, [&](const LoggedFailure& each) {
      return each.message.text == failure.message.text && (!failure.rank || each.rank == failure.rank);
    });
  }

  /// "CUDA out of memory." without figures, in a sentence about a failure that is listed with them.
  bool is_mention(const LoggedFailure& failure) const {
    return failure.message.by == RefusedBy::caching_allocator && !failure.message.asked && !log_.failures.empty();
  }

  std::unordered_map<std::string, Writer> writers_;
  MemoryLog log_;
};

}  // namespace

MemoryLog read_memory_log(const std::string& path) {
  LogReader reader;
  for_each_line(path, [&](const LogLine& line) { reader.take(line); });
  MemoryLog log = reader.finish();
  if (log.failures.empty()) {
    throw InputError(fmt::format(
        "{}: has no out-of-memory message of PyTorch (\"CUDA out of memory. Tried to allocate ...\"), and is no memory "
        "snapshot; give the log that the job left, standard error included",
        printable(path)));
  }
  return log;
}

}  // namespace vramfit
