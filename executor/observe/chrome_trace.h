// The host's timeline of chosen steps as a file that chrome://tracing and Perfetto open (docs/observability.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/observe/observer.h"
#include "job/run/run_options.h"
#include "model_specs/graph.h"

namespace vramfit {

struct TraceInputs {
  const Graph& graph;
  std::vector<std::string> units{};  // names, in the order of the layout
  std::string device{};              // cpu, cuda or phantom
  int rank = 0;
  /// What is held now: allocated and reserved bytes.
  std::function<std::pair<Bytes, Bytes>()> memory{};
};

/// Keeps spans of instructions and ops, collectives from issue to wait, and memory at the instructions' bounds. On GPUs
/// the times are those of launches: a kernel runs later.
class ChromeTrace final : public TrainObserver {
 public:
  explicit ChromeTrace(TraceInputs inputs);

  void step_begins(std::int64_t step) override;
  void step_ends(const StepResult& result) override;
  void instruction_begins(const Instruction& instruction, Phase phase) override;
  void instruction_ends() override;
  void op_begins(int segment, int op) override;
  void op_ends() override;
  std::int64_t collective_begins(std::string_view what, std::string_view group, Bytes bytes) override;
  void collective_ends(std::int64_t id) override;

  /// The JSON Object Format. What is open at this moment, after a failure, ends now.
  std::string json();

 private:
  enum class Kind : std::uint8_t { step, instruction, op };
  struct Span {
    Kind kind{};
    Instruction instruction{};  // instruction, and op: the one that runs it
    Phase phase{};
    std::int64_t step = 0;
    int op = -1;
    std::int64_t begin = 0, end = -1;  // ns since the trace was made
  };
  struct Flight {
    std::string what{}, group{};
    Bytes bytes{};
    int unit = -1;
    std::int64_t begin = 0, end = -1;
  };
  struct Sample {
    std::int64_t at = 0;
    Bytes allocated{}, reserved{};
  };

  std::int64_t now() const;
  void open(Span span);
  void close();
  void sample();
  std::string text_of(const Span& span) const;
  std::string text_of(const Flight& flight, std::size_t id, bool begins) const;
  std::string text_of(const Sample& sample, const char* what, Bytes bytes) const;

  TraceInputs in_;
  std::chrono::steady_clock::time_point start_;
  double start_unix_ = 0;  // seconds
  std::vector<Span> spans_;
  std::vector<std::size_t> open_;
  std::vector<Flight> flights_;
  std::vector<Sample> samples_;
  std::int64_t step_ = 0;
};

}  // namespace vramfit
