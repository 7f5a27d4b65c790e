#include "job/allocator/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMostMiB = std::numeric_limits<std::int64_t>::max() >> 20;
constexpr std::int64_t kSmallestLargeSegmentMiB = 11;  // above the 10 MiB at which a request gets its own segment
constexpr std::int64_t kMostRegisterThreads = 128;
constexpr int kFirstInterval = 20;  // log2 of 1 MiB

struct Pair {
  std::string key, value;
};

[[noreturn]] void refuse(const Pair& pair, std::string_view wanted) {
  throw InputError(
      fmt::format("allocator setting {}: {} is not {}", printable(pair.key), printable(pair.value), wanted));
}

/// Commas inside [] belong to the value. The first '=' or ':' ends the key.
std::vector<Pair> split_settings(std::string_view text) {
  std::vector<Pair> pairs;
  std::string part;
  const auto finish = [&] {
    const std::size_t mark = part.find_first_of(":=");
    if (mark == std::string::npos || mark == 0 || mark + 1 == part.size()) {
      throw InputError(fmt::format("allocator setting \"{}\": expected KEY:VALUE", printable(part)));
    }
    pairs.push_back({part.substr(0, mark), part.substr(mark + 1)});
    part.clear();
  };
  bool in_list = false;
  for (const char c : text) {
    if (c == ' ' || c == '\t') continue;
    if (c == '[' || c == ']') in_list = c == '[';
    if (c == ',' && !in_list) {
      finish();
    } else {
      part += c;
    }
  }
  if (!part.empty()) finish();
  return pairs;
}

std::int64_t whole(const Pair& pair, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    refuse(pair, fmt::format("a whole number from {} to {}", least, most));
  }
  return value;
}

bool truth(const Pair& pair) {
  if (pair.value != "True" && pair.value != "False") refuse(pair, "True or False");
  return pair.value == "True";
}

double fraction(const Pair& pair, bool ends_included) {
  char* end = nullptr;
  const double value = std::strtod(pair.value.c_str(), &end);
  const bool inside = ends_included ? value >= 0 && value <= 1 : value > 0 && value < 1;
  if (*end != '\0' || !std::isfinite(value) || !inside) {
    refuse(pair, ends_included ? "a number from 0 to 1" : "a number between 0 and 1");
  }
  return value;
}

std::int64_t power_of_two(const Pair& pair, std::string_view text, std::int64_t most) {
  const std::int64_t value = whole(pair, text, 1, most);
  if (!std::has_single_bit(static_cast<std::uint64_t>(value))) refuse(pair, "made of powers of two");
  return value;
}

/// "4" for all sizes, or "[256:1,512:2,>:4]": sizes from a power of two (in MiB) on, the first also for all below it.
void read_roundup(const Pair& pair, AllocatorSettings& settings) {
  auto& divisions = settings.roundup_divisions;
  std::string_view text = pair.value;
  if (!text.starts_with('[')) {
    divisions.fill(power_of_two(pair, text, kMostMiB));
    return;
  }
  if (!text.ends_with(']') || text.size() < 3) refuse(pair, "a list such as [256:1,512:2,>:4]");
  text = text.substr(1, text.size() - 2);
  bool is_first = true;
  std::size_t last = 0;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text = item.size() == text.size() ? std::string_view{} : text.substr(item.size() + 1);
    const std::size_t colon = item.find(':');
    if (colon == std::string_view::npos) refuse(pair, "a list such as [256:1,512:2,>:4]");
    const std::string_view from = item.substr(0, colon), parts = item.substr(colon + 1);
    const std::int64_t value = parts == "0" ? 0 : power_of_two(pair, parts, kMostMiB);
    if (from == ">") {
      std::fill(divisions.begin() + static_cast<std::ptrdiff_t>(std::min(last + 1, divisions.size())), divisions.end(),
                value);
      continue;
    }
    const auto log = std::bit_width(static_cast<std::uint64_t>(power_of_two(pair, from, kMostMiB))) - 1;
    last = std::min(static_cast<std::size_t>(log), divisions.size() - 1);
    if (is_first) std::fill_n(divisions.begin(), last, value);
    is_first = false;
    divisions[last] = value;
  }
}

Bytes mebibytes(const Pair& pair, std::int64_t least) { return whole(pair, pair.value, least, kMostMiB) * kMiB; }

/// max_split_size_mb and max_non_split_rounding_mb must not be below the large segment, wherever that stands in the
/// text.
void read_large_segment(const std::vector<Pair>& pairs, AllocatorSettings& settings) {
  for (const Pair& pair : pairs) {
    if (pair.key == "large_segment_size_mb") settings.large_segment = mebibytes(pair, kSmallestLargeSegmentMiB);
  }
  settings.max_non_split_rounding = settings.large_segment;
}

struct Key {
  std::string_view name;
  void (*read)(const Pair&, AllocatorSettings&);
};

std::int64_t least_mebibytes(const AllocatorSettings& settings) { return settings.large_segment.n / kMiB.n; }

constexpr std::array kKeys{
    Key{"large_segment_size_mb", [](const Pair&, AllocatorSettings&) {}},  // read first
    Key{"max_split_size_mb",
        [](const Pair& pair, AllocatorSettings& s) { s.max_split = mebibytes(pair, least_mebibytes(s)); }},
    Key{"max_non_split_rounding_mb",
        [](const Pair& pair, AllocatorSettings& s) { s.max_non_split_rounding = mebibytes(pair, least_mebibytes(s)); }},
    Key{"garbage_collection_threshold",
        [](const Pair& pair, AllocatorSettings& s) { s.garbage_collection_threshold = fraction(pair, false); }},
    Key{"roundup_power2_divisions", read_roundup},
    Key{"expandable_segments", [](const Pair& pair, AllocatorSettings& s) { s.expandable_segments = truth(pair); }},
    Key{"per_process_memory_fraction",
        [](const Pair& pair, AllocatorSettings& s) { s.memory_fraction = fraction(pair, true); }},
    Key{"backend",
        [](const Pair& pair, AllocatorSettings& s) {
          if (pair.value != "native" && pair.value != "cudaMallocAsync") refuse(pair, "native or cudaMallocAsync");
          s.malloc_async = pair.value == "cudaMallocAsync";
        }},
    Key{"release_lock_on_cudamalloc", [](const Pair& pair, AllocatorSettings&) { truth(pair); }},
    Key{"release_lock_on_hipmalloc", [](const Pair& pair, AllocatorSettings&) { truth(pair); }},
    Key{"graph_capture_record_stream_reuse", [](const Pair& pair, AllocatorSettings&) { truth(pair); }},
    Key{"pinned_use_background_threads", [](const Pair& pair, AllocatorSettings&) { truth(pair); }},
    Key{"pinned_use_cuda_host_register", [](const Pair& pair, AllocatorSettings&) { truth(pair); }},
    Key{"pinned_use_hip_host_register", [](const Pair& pair, AllocatorSettings&) { truth(pair); }},
    Key{"pinned_num_register_threads",
        [](const Pair& pair, AllocatorSettings&) { power_of_two(pair, pair.value, kMostRegisterThreads); }},
    Key{"pinned_reserve_segment_size_mb", [](const Pair& pair, AllocatorSettings&) { mebibytes(pair, 1); }},
};

}  // namespace

AllocatorSettings parse_allocator_settings(std::string_view text) {
  const std::vector<Pair> pairs = split_settings(text);
  AllocatorSettings settings;
  read_large_segment(pairs, settings);
  for (const Pair& pair : pairs) {
    const auto* const row = std::ranges::find(kKeys, pair.key, &Key::name);
    if (row == kKeys.end()) {
      std::vector<std::string> names(kKeys.size());
      std::ranges::transform(kKeys, names.begin(), [](const Key& key) { return std::string(key.name); });
      throw InputError(
          fmt::format("allocator setting {}: unknown{}", printable(pair.key), did_you_mean(pair.key, names)));
    }
    row->read(pair, settings);
  }
  // The driver maps memory in pages of 2 MiB and refuses a handle that isn't a number of them.
  if (settings.expandable_segments && settings.large_segment.n % (2 * kMiB).n != 0) {
    throw InputError("allocator setting large_segment_size_mb: must be even with expandable_segments:True");
  }
  return settings;
}

AllocatorSettings allocator_settings(std::string_view allocator) {
  if (allocator == "native" || is_arena(allocator)) return {};
  if (!names_expandable_segments(allocator)) return parse_allocator_settings(allocator);
  AllocatorSettings settings;
  settings.expandable_segments = true;
  return settings;
}

std::int64_t rounded_request(const AllocatorSettings& settings, std::int64_t bytes) {
  if (bytes < kMinBlock) return kMinBlock;
  const auto size = static_cast<std::uint64_t>(bytes);
  const int interval = std::clamp(static_cast<int>(std::bit_width(size)) - 1 - kFirstInterval, 0,
                                  static_cast<int>(kRoundupIntervals) - 1);
  const std::int64_t divisions = settings.roundup_divisions[static_cast<std::size_t>(interval)];
  if (divisions <= 1 || bytes <= kMinBlock * divisions) return rounded_to_blocks(bytes);
  if (std::has_single_bit(size)) return bytes;
  const auto step = static_cast<std::int64_t>(std::bit_floor(size)) / divisions;
  return (bytes + step - 1) / step * step;
}

}  // namespace vramfit
