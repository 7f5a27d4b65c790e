#include "tests/executor/allocator/trace.h"

#include <algorithm>
#include <array>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vramfit::testing {

namespace {

constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;

class Maker {
 public:
  Maker(std::uint64_t seed, std::int64_t free_bytes) : random_(seed), free_bytes_(free_bytes) {}

  Trace make() {
    Trace trace;
    fix_settings();
    trace.settings = settings();
    if (chance(3)) trace.fraction = 0.02 + static_cast<double>(below(98)) / 100;
    trace.room = room();
    trace.late = chance(2);
    limit_ = trace.room;
    streams_ = 1 + static_cast<int>(below(kTraceStreams));
    for (std::int64_t& size : usual_) size = any_size();
    const std::int64_t count = 20 + below(chance(8) ? 600 : 120);
    for (std::int64_t i = 0; i < count; ++i) trace.ops.push_back(op(trace.late));
    return trace;
  }

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }
  bool chance(int one_in) { return below(one_in) == 0; }

  /// Evenly over the magnitudes from `least` to `most`.
  std::int64_t magnitude(std::int64_t least, std::int64_t most) {
    std::int64_t steps = 0;
    for (std::int64_t n = least; n < most; n *= 2) ++steps;
    const std::int64_t floor = least << below(std::max<std::int64_t>(steps, 1));
    return std::min(most, floor + below(floor));
  }

  std::int64_t room() {
    return chance(5) ? free_bytes_ : std::min(free_bytes_, magnitude(8 * kMiB, free_bytes_) / kMiB / 2 * 2 * kMiB);
  }

  /// The size of segments and the limit on splitting stay, and with a limit expandable segments stay on or off:
  /// LibTorch gives parts of segments to cudaFree when these change.
  std::string settings() {
    std::vector<std::string> keys = fixed_;
    if (!keeps_expandable_) is_expandable_ = chance(2);
    keys.push_back(fmt::format("expandable_segments:{}", is_expandable_ ? "True" : "False"));
    if (chance(6)) keys.push_back(fmt::format("max_non_split_rounding_mb:{}", segment_ + below(200)));
    if (chance(3))
      keys.push_back(fmt::format("garbage_collection_threshold:{}", 0.05 + static_cast<double>(below(90)) / 100));
    if (chance(4)) keys.push_back(roundup());
    std::ranges::shuffle(keys, random_);
    return fmt::format("{}", fmt::join(keys, ","));
  }

  void fix_settings() {
    if (chance(4)) segment_ = 12 + 2 * below(chance(3) ? 200 : 12);
    is_expandable_ = chance(2);
    keeps_expandable_ = chance(2);
    if (!is_expandable_ && keeps_expandable_ && chance(4)) ++segment_;  // an odd one can't be mapped by pages
    fixed_.push_back(fmt::format("large_segment_size_mb:{}", segment_));
    if (chance(3)) {
      fixed_.push_back(fmt::format("max_split_size_mb:{}", segment_ + below(chance(2) ? 20 : 500)));
      keeps_expandable_ = true;
    }
  }

  std::string roundup() {
    if (chance(2)) return fmt::format("roundup_power2_divisions:{}", 1 << below(6));
    std::vector<std::string> items;
    for (std::int64_t from = 1 << below(5); from <= (1 << 17) && items.size() < 4; from <<= 1 + below(4)) {
      items.push_back(fmt::format("{}:{}", from, chance(4) ? 0 : 1 << below(6)));
    }
    if (chance(2)) items.push_back(fmt::format(">:{}", 1 << below(6)));
    return fmt::format("roundup_power2_divisions:[{}]", fmt::join(items, ","));
  }

  std::int64_t any_size() {
    std::int64_t size = 0;
    switch (below(6)) {
      case 0:
        size = 1 + below(4 * kKiB);
        break;
      case 1:
        size = magnitude(512, kMiB + 1);
        break;
      case 2:
        size = kMiB + below(10 * kMiB);
        break;
      case 3:
        size = 512 * (1 + below(8)) + kMiB * below(24);
        break;
      default:
        size = magnitude(kMiB, std::max(2 * kMiB, limit_ / 2));
    }
    // Edges: whole MiB, and a byte to either side.
    if (chance(4)) size = std::max<std::int64_t>(1, size / kMiB * kMiB + below(3) - 1);
    return size;
  }

  Op op(bool late) {
    const std::int64_t kind = below(100);
    const bool has_live = !live_.empty();
    if (has_live && kind < 38 + (live_.size() > 40 ? 15 : 0)) {
      const auto which = live_.begin() + below(static_cast<std::int64_t>(live_.size()));
      const int block = *which;
      live_.erase(which);
      return {.kind = Op::Kind::free, .block = block};
    }
    if (has_live && kind >= 88 && kind < 94 && streams_ > 1) {
      const int block = live_[static_cast<std::size_t>(below(static_cast<std::int64_t>(live_.size())))];
      return {.kind = Op::Kind::record_stream, .block = block, .stream = static_cast<int>(below(streams_))};
    }
    if (late && kind >= 94 && kind < 98) {
      return {.kind = Op::Kind::complete, .stream = static_cast<int>(below(streams_)), .bytes = 1 + below(4)};
    }
    if (kind == 98 && chance(2)) return {.kind = Op::Kind::empty_cache};
    if (kind == 99 && chance(3)) return {.kind = Op::Kind::settings, .text = settings()};
    live_.push_back(next_block_);
    return {.kind = Op::Kind::malloc,
            .block = next_block_++,
            .stream = static_cast<int>(below(streams_)),
            .bytes = chance(2) ? usual_[static_cast<std::size_t>(below(static_cast<std::int64_t>(usual_.size())))]
                               : any_size()};
  }

  std::mt19937_64 random_;
  std::int64_t free_bytes_, limit_ = 0;
  std::int64_t segment_ = 20;  // MiB
  bool is_expandable_ = false, keeps_expandable_ = false;
  std::vector<std::string> fixed_;
  int streams_ = 1, next_block_ = 0;
  std::array<std::int64_t, 8> usual_{};  // training asks for the same sizes again and again
  std::vector<int> live_;
};

}  // namespace

Trace random_trace(std::uint64_t seed, std::int64_t free_bytes) { return Maker(seed, free_bytes).make(); }

std::string to_text(const Trace& trace) {
  std::string text = fmt::format("settings {}\nfraction {}\nroom {}\nevents {}\n", trace.settings, trace.fraction,
                                 trace.room, trace.late ? "late" : "immediate");
  for (const Op& op : trace.ops) {
    switch (op.kind) {
      case Op::Kind::malloc:
        text += fmt::format("b{} = malloc {} on stream {}\n", op.block, op.bytes, op.stream);
        break;
      case Op::Kind::free:
        text += fmt::format("free b{}\n", op.block);
        break;
      case Op::Kind::record_stream:
        text += fmt::format("record b{} on stream {}\n", op.block, op.stream);
        break;
      case Op::Kind::complete:
        text += fmt::format("complete {} events of stream {}\n", op.bytes, op.stream);
        break;
      case Op::Kind::empty_cache:
        text += "empty cache\n";
        break;
      case Op::Kind::settings:
        text += fmt::format("settings {}\n", op.text);
        break;
    }
  }
  return text;
}

}  // namespace vramfit::testing
