// docs/time-model.md describes the simulation.
#include "estimator/time/seconds.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "estimator/time/kernels.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

/// When each is done with what it was given: the host, the streams of kernels, and the stream of each axis.
constexpr std::size_t kHost = 0, kFirstStream = 1, kFirstAxis = kFirstStream + static_cast<std::size_t>(Stream::host),
                      kClocks = kFirstAxis + kAxes;
using Clocks = std::array<double, kClocks>;

std::size_t clock_of(Stream stream) {
  return stream == Stream::host ? kHost : kFirstStream + static_cast<std::size_t>(stream);
}
const std::size_t kCompute = clock_of(Stream::compute);

/// What one pass of a section does to the clocks. All that happens in it is additions and maxima, so pass after pass is
/// a product of matrices whose sums are maxima and whose products are sums.
using Passes = std::array<Clocks, kClocks>;  // [to][from]

Clocks after(const Passes& passes, const Clocks& clocks) {
  Clocks result;
  for (std::size_t to = 0; to < kClocks; ++to) {
    result[to] = kNever;
    for (std::size_t from = 0; from < kClocks; ++from) {
      result[to] = std::max(result[to], passes[to][from] + clocks[from]);
    }
  }
  return result;
}

Passes twice(const Passes& passes) {
  Passes result;
  for (std::size_t from = 0; from < kClocks; ++from) {
    Clocks column;
    for (std::size_t to = 0; to < kClocks; ++to) column[to] = passes[to][from];
    column = after(passes, column);
    for (std::size_t to = 0; to < kClocks; ++to) result[to][from] = column[to];
  }
  return result;
}

/// When the two ends of each transfer between stages have started it. One end is read before the other, so a play of
/// all stages is repeated until these times are the same as before.
class Transfers {
 public:
  void begin_play() {
    has_changed_ = false;
    for (auto& [key, end] : ends_) end.count = 0, end.free = kNever;
  }
  bool has_changed() const { return has_changed_; }

  /// When the next transfer of an end is done, which it starts at `started`.
  double done(const Start& start, int stage, double started, double duration) {
    const bool sends = start.collective == Collective::send;
    const std::pair way = sends ? std::pair(stage, start.peer) : std::pair(start.peer, stage);
    End &mine = ends_[{way, sends}], &other = ends_[{way, !sends}];
    if (mine.started.size() == mine.count) mine.started.push_back(kNever);
    has_changed_ = has_changed_ || mine.started[mine.count] != started;
    mine.started[mine.count] = started;
    const double others = mine.count < other.started.size() ? other.started[mine.count] : kNever;
    mine.free = std::max({mine.free, started, others}) + duration;
    ++mine.count;
    return mine.free;
  }

 private:
  struct End {
    std::vector<double> started;  // by transfer
    std::size_t count = 0;        // of transfers in this play
    double free = kNever;         // when the last one was done
  };
  std::map<std::pair<std::pair<int, int>, bool>, End> ends_;  // by way, from and to, and whether it is the sender's
  bool has_changed_ = false;
};

/// Kernels that one stream is given, one after the other.
struct Launched {
  Kernels kernels;
  std::size_t stream;  // its clock
};
struct Begun {
  const Start* start;
  double duration;
};
/// What instructions do to the clocks.
using Timed = std::variant<Launched, Begun, Record, Wait, HostRead>;

class Simulation {
 public:
  Simulation(const Program& program, const Cluster& cluster, const Efficiency& efficiency, Bytes outside_allocator,
             Transfers& transfers)
      : program_(program),
        timer_(cluster, efficiency, pages_move(program, cluster, outside_allocator)),
        transfers_(transfers),
        is_cpu_(cluster.is_cpu()),
        done_(static_cast<std::size_t>(program.tokens), kNever) {
    for (const Block& block : program.blocks) {
      Kernels kernels;
      for (const Instruction& instruction : block.code.instructions) {
        if (const auto* run = std::get_if<Run>(&instruction)) kernels.then(timer_.kernels_of(*run, block.code));
      }
      blocks_.push_back(kernels);
    }
  }

  StepTime time() {
    clocks_.fill(0);
    computed_ = communicated_ = transferred_ = 0;
    for (const Section& section : merged_sections(program_)) {
      if (!is_in_step(section, kSteadyStep)) continue;
      const double computed = computed_, communicated = communicated_;
      note(section);
      pass();
      if (section.times == 1) continue;
      repeat(section.times - 1);
      computed_ = computed + (computed_ - computed) * static_cast<double>(section.times);
      communicated_ = communicated + (communicated_ - communicated) * static_cast<double>(section.times);
    }
    const double end = std::max(transferred_, *std::ranges::max_element(clocks_));
    return {.compute_seconds = seconds_of_ticks(computed_),
            .communication_seconds = seconds_of_ticks(communicated_),
            .idle_seconds = seconds_of_ticks(end - computed_),
            .step_seconds = seconds_of_ticks(end)};
  }

 private:
  /// Fills in timed_ and is_used_.
  void note(const Section& section) {
    timed_.clear();
    is_used_ = {true, true};
    for (std::size_t i = section.begin; i < section.end; ++i) {
      std::visit([&](const auto& what) { note(what); }, program_.main.instructions[i]);
    }
  }

  void note(const Run& run) { note(timer_.kernels_of(run, program_.main), clock_of(run.stream)); }
  /// What a block runs is on the compute stream.
  void note(const Call& call) { note(blocks_[static_cast<std::size_t>(call.block)], kCompute); }
  void note(const Kernels& kernels, std::size_t stream) {
    is_used_[stream] = true;
    auto* latest = timed_.empty() ? nullptr : std::get_if<Launched>(&timed_.back());
    if (latest != nullptr && latest->stream == stream) return latest->kernels.then(kernels);
    timed_.emplace_back(Launched{kernels, stream});
  }
  void note(const Start& start) {
    is_used_[kFirstAxis + static_cast<std::size_t>(start.axis)] = is_used_[clock_of(start.stream)] = true;
    timed_.emplace_back(Begun{&start, timer_.of(start, program_.groups[static_cast<std::size_t>(start.axis)])});
  }
  void note(const Record& record) { note_on_stream(record); }
  void note(const Wait& wait) { note_on_stream(wait); }
  void note(const HostRead& what) { note_on_stream(what); }
  template <typename What>
  void note_on_stream(const What& what) {
    is_used_[clock_of(what.stream)] = true;
    timed_.emplace_back(what);
  }
  // Memory is handed out by the host alone, and phases are only names.
  void note(const Allocate&) {}
  void note(const Free&) {}
  void note(const Keep&) {}
  void note(const Mark&) {}
  void note(const EmptyCache&) {}

  void pass() {
    for (const Timed& timed : timed_) {
      std::visit([&](const auto& what) { read(what); }, timed);
    }
  }

  void read(const Launched& launched) {
    const Kernels& kernels = launched.kernels;
    if (launched.stream == kHost) return compute_on_host(kernels.compute);
    double& stream = clocks_[launched.stream];
    stream = std::max(stream + kernels.compute, clocks_[kHost] + kernels.launched);
    clocks_[kHost] += kernels.host;
    if (launched.stream == kCompute) computed_ += kernels.compute;
  }

  void compute_on_host(double duration) {
    clocks_[kHost] += duration;
    if (is_cpu_) clocks_[kCompute] = clocks_[kHost];
  }

  /// A transfer runs beside all streams and collectives.
  void transfer(const Start& start, double duration) {
    if (is_repeated_) throw std::invalid_argument("a transfer between stages in a section that is repeated");
    clocks_[kHost] += timer_.launch();
    const double started = std::max(clocks_[clock_of(start.stream)], clocks_[kHost]);
    const double done = transfers_.done(start, program_.stage, started, duration);
    done_[static_cast<std::size_t>(start.token)] = done;
    transferred_ = std::max(transferred_, done);
    communicated_ += duration;
  }

  void read(const Begun& begun) {
    const Start& start = *begun.start;
    const double duration = begun.duration;
    if (start.collective == Collective::send || start.collective == Collective::receive) {
      return transfer(start, duration);
    }
    const auto axis = static_cast<std::size_t>(start.axis);
    clocks_[kHost] += timer_.launch();
    double& stream = clocks_[kFirstAxis + axis];
    stream = std::max({stream, clocks_[clock_of(start.stream)], clocks_[kHost]}) + duration;
    done_[static_cast<std::size_t>(start.token)] = stream;
    communicated_ += duration;
    if (is_cpu_) clocks_[kCompute] = clocks_[kHost];
  }

  void read(const Record& record) { done_[static_cast<std::size_t>(record.token)] = clocks_[clock_of(record.stream)]; }

  void read(const Wait& wait) {
    double& stream = clocks_[clock_of(wait.stream)];
    stream = std::max(stream, done_[static_cast<std::size_t>(wait.token)]);
    if (is_cpu_) clocks_[kHost] = clocks_[kCompute] = std::max(clocks_[kHost], clocks_[kCompute]);
  }

  void read(const HostRead& what) { clocks_[kHost] = std::max(clocks_[kHost], clocks_[clock_of(what.stream)]); }

  /// The clocks after `times` further passes. Tokens of other sections have been waited for in the first pass.
  void repeat(std::int64_t times) {
    const Clocks before = clocks_;
    const double computed = computed_, communicated = communicated_;
    std::ranges::fill(done_, kNever);
    is_repeated_ = true;
    Passes passes;
    for (std::size_t from = 0; from < kClocks; ++from) {
      clocks_.fill(kNever);
      clocks_[from] = 0;
      if (is_used_[from]) pass();
      for (std::size_t to = 0; to < kClocks; ++to) passes[to][from] = clocks_[to];
    }
    clocks_ = before;
    is_repeated_ = false;
    for (; times > 0; times /= 2) {
      if (times % 2 == 1) clocks_ = after(passes, clocks_);
      passes = twice(passes);
    }
    computed_ = computed;
    communicated_ = communicated;
  }

  const Program& program_;
  WorkTimer timer_;
  Transfers& transfers_;
  bool is_cpu_, is_repeated_ = false;
  std::vector<Kernels> blocks_;
  std::vector<Timed> timed_;  // the section under way
  Clocks clocks_{};
  // Those of the host, of the compute stream, and of streams and axes that the section names; the others stand still.
  std::array<bool, kClocks> is_used_{};
  std::vector<double> done_;  // by token
  double computed_ = 0, communicated_ = 0, transferred_ = 0;
};

}  // namespace

StepTime seconds_of(const Program& program, const Cluster& cluster) {
  return seconds_of(program, cluster, efficiency_of(cluster));
}

StepTime seconds_of(const Program& program, const Cluster& cluster, const Efficiency& efficiency) {
  return seconds_of(program, cluster, efficiency, cluster.card.context);
}

StepTime seconds_of(const Program& program, const Cluster& cluster, const Efficiency& efficiency,
                    Bytes outside_allocator) {
  Transfers transfers;
  return Simulation(program, cluster, efficiency, outside_allocator, transfers).time();
}

std::vector<StepTime> seconds_of(std::span<const Program> stages, const Cluster& cluster) {
  return seconds_of(stages, cluster, efficiency_of(cluster));
}

std::vector<StepTime> seconds_of(std::span<const Program> stages, const Cluster& cluster,
                                 const Efficiency& efficiency) {
  Transfers transfers;
  std::vector<Simulation> simulations;
  std::size_t plays = 2;  // each settles at least one more transfer
  for (const Program& program : stages) {
    simulations.emplace_back(program, cluster, efficiency, cluster.card.context, transfers);
    plays += static_cast<std::size_t>(program.tokens);
  }
  for (; plays > 0; --plays) {
    std::vector<StepTime> times;
    transfers.begin_play();
    for (Simulation& simulation : simulations) times.push_back(simulation.time());
    if (!transfers.has_changed()) return times;
  }
  throw std::invalid_argument("the stages of a pipeline wait for each other");
}

}  // namespace vramfit
