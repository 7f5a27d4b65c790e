#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "program/readers/check.h"
#include "program/readers/expand.h"

namespace vramfit::program {

namespace {

bool is_transfer(const Start& start) {
  return start.collective == Collective::send || start.collective == Collective::receive;
}

/// A start with what another class must share: how often its section runs, and the type that is summed.
struct Started {
  Start start;
  std::int64_t times = 1;
  Dtype dtype = Dtype::u8;

  bool is_like(const Started& other) const {
    return start.collective == other.start.collective && start.bytes == other.start.bytes &&
           start.part == other.start.part && times == other.times && dtype == other.dtype;
  }
};

/// What a class starts and waits for, from load to the end of all steps that differ.
class Listing {
 public:
  using Step = std::variant<Start, Record, Wait>;

  explicit Listing(const Program& program) : stage(program.stage) {
    for (const Section& section : program.sections) {
      times_ = section.times;
      read_section(program, section, *this);
    }
  }

  void read(const Start& start, const Place& place) {
    steps.emplace_back(start);
    const Access& first = place.code.accesses[start.accesses.first];
    starts.push_back({start, times_, place.buffer(first.buffer).dtype});
  }
  void read(const Record& record, const Place& /*place*/) { steps.emplace_back(record); }
  void read(const Wait& wait, const Place& /*place*/) { steps.emplace_back(wait); }

  std::vector<Started> on(Axis axis) const {
    std::vector<Started> list;
    std::ranges::copy_if(starts, std::back_inserter(list),
                         [&](const Started& each) { return each.start.axis == axis && !is_transfer(each.start); });
    return list;
  }

  /// What it sends to another stage, or receives from there.
  std::vector<Started> transfers(Collective collective, int peer) const {
    std::vector<Started> list;
    std::ranges::copy_if(starts, std::back_inserter(list), [&](const Started& each) {
      return each.start.collective == collective && each.start.peer == peer;
    });
    return list;
  }

  int stage;
  std::vector<Step> steps;
  std::vector<Started> starts;

 private:
  std::int64_t times_ = 1;
};

using MaybeFault = std::optional<std::string>;

MaybeFault fault_on(Axis axis, const Listing& first, const Listing& other) {
  const std::vector<Started> a = first.on(axis), b = other.on(axis);
  const auto [mine, theirs] = std::ranges::mismatch(a, b, &Started::is_like);
  if (mine == a.end() && theirs == b.end()) return std::nullopt;
  const auto described = [](const std::vector<Started>& list, auto position) {
    if (position == list.end()) return std::string("nothing more");
    return fmt::format("{} of {} bytes", collective_name(position->start.collective), position->start.bytes.n);
  };
  return fmt::format("axis {}: as number {} some ranks start {}, others {}", axis_name(axis), mine - a.begin() + 1,
                     described(a, mine), described(b, theirs));
}

MaybeFault transfer_fault(const Listing& from, const Listing& to) {
  const std::vector<Started> sent = from.transfers(Collective::send, to.stage);
  const std::vector<Started> received = to.transfers(Collective::receive, from.stage);
  const auto [send, receive] = std::ranges::mismatch(
      sent, received, [](const Started& a, const Started& b) { return a.start.bytes == b.start.bytes; });
  if (send == sent.end() && receive == received.end()) return std::nullopt;
  const auto bytes = [](const std::vector<Started>& list, auto position) {
    return position == list.end() ? std::string("nothing") : fmt::format("{} bytes", position->start.bytes.n);
  };
  return fmt::format("stage {} sends {} to stage {} as number {}, which receives {}", from.stage, bytes(sent, send),
                     to.stage, send - sent.begin() + 1, bytes(received, receive));
}

/// Plays the streams of all stages at once. A transfer is done once both ends have started it, the k-th send with the
/// k-th receive; whatever is behind a wait on its stream starts after that.
class Progress {
 public:
  explicit Progress(const std::vector<Listing>& stages) : stages_(stages) {
    for (const Listing& stage : stages) {
      left_.push_back(stage.steps);
      done_.emplace_back();
    }
  }

  MaybeFault fault() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) goes_on = advance(s) || goes_on;
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (!left_[s].empty()) return fmt::format("stage {} waits for what never comes", stages_[s].stage);
    }
    return std::nullopt;
  }

 private:
  /// By token: whose how manieth transfer it is; other collectives and records are done when they begin.
  struct Done {
    bool is_transfer = false;
    std::pair<int, int> way;  // from, to
    std::size_t number = 0;
  };

  bool advance(std::size_t s) {
    std::array<bool, kStreams> blocked{};
    std::vector<Listing::Step> left;
    for (const Listing::Step& step : left_[s]) {
      const Stream stream = std::visit([](const auto& what) { return what.stream; }, step);
      bool& is_blocked = blocked[static_cast<std::size_t>(stream)];
      if (!is_blocked) is_blocked = !std::visit([&](const auto& what) { return begins(s, what); }, step);
      if (is_blocked) left.push_back(step);
    }
    const bool went_on = left.size() < left_[s].size();
    left_[s] = std::move(left);
    return went_on;
  }

  bool begins(std::size_t s, const Start& start) {
    Done& done = done_[s][start.token];
    if (!is_transfer(start)) return true;
    const bool sends = start.collective == Collective::send;
    const int stage = stages_[s].stage;
    done = {true, sends ? std::pair(stage, start.peer) : std::pair(start.peer, stage), 0};
    done.number = ++(sends ? sent_ : received_)[done.way];
    return true;
  }
  bool begins(std::size_t s, const Record& record) {
    done_[s][record.token];
    return true;
  }
  bool begins(std::size_t s, const Wait& wait) {
    const auto found = done_[s].find(wait.token);
    if (found == done_[s].end()) return false;
    const Done& done = found->second;
    return !done.is_transfer || std::min(sent_[done.way], received_[done.way]) >= done.number;
  }

  const std::vector<Listing>& stages_;
  std::vector<std::vector<Listing::Step>> left_;                // by stage
  std::vector<std::map<int, Done>> done_;                       // by stage and token
  std::map<std::pair<int, int>, std::size_t> sent_, received_;  // by way
};

}  // namespace

std::optional<std::string> fault_between(std::span<const Program> classes) {
  std::vector<Listing> stages;  // one class of each: others of it start the same
  for (const Program& program : classes) {
    Listing listing(program);
    const auto known = std::ranges::find(stages, listing.stage, &Listing::stage);
    if (known == stages.end()) {
      stages.push_back(std::move(listing));
      continue;
    }
    for (int axis = 0; axis < kAxes; ++axis) {
      if (MaybeFault fault = fault_on(static_cast<Axis>(axis), *known, listing)) return fault;
    }
  }
  for (const Listing& from : stages) {
    for (const Listing& to : stages) {
      if (MaybeFault fault = transfer_fault(from, to)) return fault;
    }
  }
  return stages.size() > 1 ? Progress(stages).fault() : std::nullopt;
}

}  // namespace vramfit::program
