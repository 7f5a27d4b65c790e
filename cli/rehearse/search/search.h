// Which values of a command's parameters fit: `rehearse --search 'bs=1..64' -- CMD --bs {bs}`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

/// A parameter: whole numbers first..last, of which the largest that fits is looked for, or values, each of which is
/// tried.
struct SearchAxis {
  std::string name;
  bool is_range = false;
  std::int64_t first = 0, last = 0;
  std::vector<std::string> values;
};

/// "bs=1..64", "seq=2048,4096" or "seq in 2048,4096". Throws InputError.
SearchAxis parse_search_axis(std::string_view text);

/// All of a search. Throws InputError also if a name comes twice, is nowhere in `command` as {name}, if there are two
/// ranges, or more than 1000 combinations of values.
std::vector<SearchAxis> parse_search(const std::vector<std::string>& texts, const std::vector<std::string>& command);

/// Names and values, in the order of the axes.
using SearchPoint = std::vector<std::pair<std::string, std::string>>;

/// `words` with each {name} replaced.
std::vector<std::string> with_values(const std::vector<std::string>& words, const SearchPoint& point);

/// "bs=4 seq=2048".
std::string point_text(const SearchPoint& point);

/// Of one rehearsal.
struct RehearsalTrial {
  SearchPoint point;
  std::string verdict, why;
  Bytes total;        // of the fullest GPU
  int exit_code = 0;  // 0: fits; 6: does not; else the command could not be rehearsed with these values
  bool is_interrupted = false;
  bool is_cached = false;
  int processes = 1;             // that used a GPU
  std::int64_t assumptions = 0;  // that sizes or branches follow from; bits: assumptions.h
  /// Neither an answer about memory nor the user's wish.
  bool is_failure() const;
};

/// The trials of one combination of listed values, in ascending order of the range's.
struct SearchRow {
  SearchPoint values;
  std::vector<RehearsalTrial> trials;
  std::optional<std::int64_t> largest;   // of the range; without a range 1 if it fits
  const RehearsalTrial* failed() const;  // the one that ended the row early
  /// Two trials that ran, the second of a larger value and needing less: what is beyond `largest` may fit too.
  std::optional<std::pair<std::size_t, std::size_t>> falling() const;
};

struct SearchResult {
  std::vector<SearchAxis> axes;
  std::vector<SearchRow> rows;
  const SearchAxis* range() const;
  /// 0: each row has a value that fits, or at least one; 6: none has; else that of the first trial that failed.
  int exit_code() const;
};

/// vramfit/rehearsal-search@1.
std::string search_to_json(const SearchResult& result, const std::string& gpus, Bytes capacity);
/// A table of all trials, and what follows from it.
std::string search_text(const SearchResult& result, const std::string& gpus, Bytes capacity);

}  // namespace vramfit
