#include "tests/executor/allocator/compare.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/executor/allocator/driver_tap.h"

namespace vramfit::testing {

namespace {

/// Addresses and answers to event queries are those that the real allocator got.
class TappedCard : public ListedCard {
 public:
  TappedCard(const RealAllocator& real, Bytes room) : ListedCard({real.total()}, room), real_(real) {}

  bool event_complete(int stream, std::int64_t number) override {
    const auto& answers = driver_tap().answers;
    const auto answer = answers.find({real_.handle(stream), number});
    if (answer == answers.end()) throw std::runtime_error("the replay asks for an event that LibTorch did not ask for");
    return answer->second;
  }

 private:
  const RealAllocator& real_;
};

std::string text(const AllocatorStats& s) {
  return fmt::format(
      "requested {}/{} allocated {}/{} active {}/{} reserved {}/{} (current/peak), retries {}, out of memory {}, "
      "device "
      "allocations {}, frees {}, synchronizations {}",
      s.requested.current, s.requested.peak, s.allocated.current, s.allocated.peak, s.active.current, s.active.peak,
      s.reserved.current, s.reserved.peak, s.alloc_retries, s.ooms, s.device_allocs, s.device_frees,
      s.sync_all_streams);
}

std::string text(const BlockView& b) {
  if (!b.active) return fmt::format(" {}(free)", b.size);
  return fmt::format(" {}{}<{}>", b.size, b.allocated ? "" : "(waiting)", b.requested);
}

std::string text(const std::vector<SegmentView>& segments) {
  std::string lines;
  for (const SegmentView& s : segments) {
    lines += fmt::format("  {:#x} {} stream {}{}{}:", s.address, s.size, s.stream, s.is_large ? " large" : " small",
                         s.is_expandable ? " expandable" : "");
    for (const BlockView& b : s.blocks) lines += text(b);
    lines += "\n";
  }
  return lines;
}

struct Live {
  std::optional<std::int64_t> address;  // until freed
  int block = -1;
};

class Run {
 public:
  Run(RealAllocator& real, const Trace& trace)
      : real_(real), trace_(trace), room_(prepare()), card_(real, {room_}), replay_(settings_, card_) {
    replay_.set_memory_fraction(trace.fraction);
    for (const Op& op : trace.ops) {
      if (op.kind == Op::Kind::malloc && op.block >= static_cast<int>(live_.size())) {
        live_.resize(static_cast<std::size_t>(op.block) + 1);
      }
    }
  }
  Run(const Run&) = delete;
  Run(Run&&) = delete;
  Run& operator=(const Run&) = delete;
  Run& operator=(Run&&) = delete;

  ~Run() {
    for (const Live& live : live_) {
      if (live.address) real_.free(*live.address);
    }
    driver_tap().complete.reset();
    real_.drain();
  }

  std::optional<Difference> go() {
    for (std::size_t i = 0; i < trace_.ops.size(); ++i) {
      if (std::string what = step(i); !what.empty()) return Difference{i, std::move(what)};
    }
    return std::nullopt;
  }

  const AllocatorStats& stats() const { return replay_.stats(); }

 private:
  std::int64_t prepare() {
    driver_tap().reset();
    if (trace_.late) driver_tap().complete.emplace();
    settings_ = parse_allocator_settings(trace_.replayed_settings.empty() ? trace_.settings : trace_.replayed_settings);
    real_.set_settings(trace_.settings);
    real_.set_fraction(trace_.fraction);
    real_.reset_stats();
    real_.leave(trace_.room);
    const std::int64_t room = real_.free_bytes();
    driver_tap().clear();
    return room;
  }

  std::string step(std::size_t i) {
    driver_tap().clear();
    std::string what;
    try {
      what = apply(trace_.ops[i]);
    } catch (const std::exception& error) {
      return error.what();
    }
    if (what.empty() && card_.left() > 0)
      what = fmt::format("LibTorch asked the card for {} blocks more", card_.left());
    if (!what.empty()) return what;
    if (const AllocatorStats real = real_.stats(); !(real == replay_.stats())) {
      return fmt::format("LibTorch {}\nreplay   {}", text(real), text(replay_.stats()));
    }
    if (i % 8 != 7 && i + 1 < trace_.ops.size()) return {};
    const std::vector<SegmentView> real = real_.segments(), replayed = replay_.segments();
    return real == replayed ? std::string{} : fmt::format("LibTorch:\n{}replay:\n{}", text(real), text(replayed));
  }

  /// LibTorch first; then the replay, with the addresses that LibTorch got.
  std::string apply(const Op& op) {
    switch (op.kind) {
      case Op::Kind::malloc:
        return malloc(op);
      case Op::Kind::free:
        if (Live& live = live_[static_cast<std::size_t>(op.block)]; live.address) {
          real_.free(*std::exchange(live.address, std::nullopt));
          replay_.free(live.block);
        }
        return {};
      case Op::Kind::record_stream:
        if (const Live& live = live_[static_cast<std::size_t>(op.block)]; live.address) {
          real_.record_stream(*live.address, op.stream);
          replay_.record_stream(live.block, op.stream);
        }
        return {};
      case Op::Kind::complete:
        if (driver_tap().complete) (*driver_tap().complete)[real_.handle(op.stream)] += op.bytes;
        return {};
      case Op::Kind::empty_cache:
        real_.empty_cache();
        replay_.empty_cache();
        return {};
      case Op::Kind::settings:
        real_.set_settings(op.text);
        replay_.set_settings(parse_allocator_settings(op.text));
        return {};
    }
    return {};
  }

  std::string malloc(const Op& op) {
    Live& live = live_[static_cast<std::size_t>(op.block)];
    live.address = real_.malloc(op.bytes, op.stream);
    const std::int64_t address = live.address.value_or(-1);
    for (const std::int64_t given : driver_tap().addresses) card_.add(given);
    live.block = replay_.malloc(op.bytes, op.stream);
    const std::int64_t replayed = live.block < 0 ? -1 : replay_.address(live.block);
    if (address == replayed) return {};
    return fmt::format("LibTorch gives {:#x}, the replay {:#x} (-1: out of memory)", address, replayed);
  }

  RealAllocator& real_;
  const Trace& trace_;
  AllocatorSettings settings_;
  std::int64_t room_;
  TappedCard card_;
  CachingAllocator replay_;
  std::vector<Live> live_;
};

/// Tries the trace without each run of `length` ops.
bool drop_ops(RealAllocator& real, Trace& trace, std::size_t length) {
  bool dropped = false;
  Coverage ignored;
  for (std::size_t start = 0; start < trace.ops.size();) {
    Trace smaller = trace;
    const auto first = smaller.ops.begin() + static_cast<std::ptrdiff_t>(start);
    smaller.ops.erase(first, first + static_cast<std::ptrdiff_t>(std::min(length, smaller.ops.size() - start)));
    if (first_difference(real, smaller, ignored)) {
      trace = std::move(smaller);
      dropped = true;
    } else {
      start += length;
    }
  }
  return dropped;
}

/// Tries the trace without each of its settings.
void drop_settings(RealAllocator& real, Trace& trace) {
  Coverage ignored;
  for (std::size_t start = 0; start < trace.settings.size();) {
    const bool is_list = trace.settings.find('[', start) < trace.settings.find(',', start);
    const std::size_t comma = trace.settings.find(',', is_list ? trace.settings.find(']', start) : start);
    const std::size_t end = comma == std::string::npos ? trace.settings.size() : comma + 1;
    Trace smaller = trace;
    smaller.settings.erase(start, end - start);
    // What stays unset would be left as it was by LibTorch.
    const bool sticky =
        trace.settings.compare(start, 10, "expandable") == 0 || trace.settings.compare(start, 5, "large") == 0;
    if (!sticky && first_difference(real, smaller, ignored)) {
      trace = std::move(smaller);
    } else {
      start = end;
    }
  }
}

}  // namespace

std::optional<Difference> first_difference(RealAllocator& real, const Trace& trace, Coverage& coverage) {
  Run run(real, trace);
  std::optional<Difference> difference = run.go();
  ++coverage.traces;
  coverage.ops += static_cast<std::int64_t>(trace.ops.size());
  coverage.ooms += run.stats().ooms;
  coverage.retries += run.stats().alloc_retries;
  coverage.frees_to_card += run.stats().device_frees;
  coverage.waits += run.stats().active.peak > run.stats().allocated.peak ? 1 : 0;
  return difference;
}

Trace shrink(RealAllocator& real, Trace trace) {
  Coverage ignored;
  if (const auto difference = first_difference(real, trace, ignored)) trace.ops.resize(difference->op + 1);
  for (std::size_t length = std::max<std::size_t>(trace.ops.size() / 2, 1); length > 0; length /= 2) {
    while (drop_ops(real, trace, length) && length == 1) {
    }
  }
  drop_settings(real, trace);
  for (Trace smaller = trace; smaller.late || smaller.fraction < 1;) {
    (smaller.late ? smaller.late : (smaller.fraction = 1, smaller.late)) = false;
    if (first_difference(real, smaller, ignored)) trace = smaller;
  }
  return trace;
}

}  // namespace vramfit::testing
