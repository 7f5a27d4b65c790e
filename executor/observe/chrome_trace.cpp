#include "executor/observe/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json/json_writer.h"

namespace vramfit {

namespace {

constexpr int kThread = 1;  // the one that runs the schedule

/// Microseconds with the nanoseconds after the point.
std::string micros(std::int64_t nanoseconds) { return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000); }

std::string json_text(std::string_view text) {
  std::string json = JsonWriter(JsonForm::one_line).text(text).take();
  json.pop_back();  // the newline
  return json;
}

std::string on_one_line(JsonWriter& writer) {
  std::string json = writer.end_object().take();
  json.pop_back();
  return json;
}

std::string metadata(const char* what, int rank, const std::string& name) {
  return fmt::format(R"({{"name": "{}", "ph": "M", "pid": {}, "tid": {}, "args": {{"name": {}}}}})", what, rank,
                     kThread, json_text(name));
}

}  // namespace

ChromeTrace::ChromeTrace(TraceInputs inputs) : in_(std::move(inputs)), start_(std::chrono::steady_clock::now()) {
  start_unix_ = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::int64_t ChromeTrace::now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
}

void ChromeTrace::open(Span span) {
  span.step = step_;
  open_.push_back(spans_.size());
  spans_.push_back(std::move(span));
  spans_.back().begin = now();
}

void ChromeTrace::close() {
  if (open_.empty()) return;
  spans_[open_.back()].end = now();
  open_.pop_back();
}

void ChromeTrace::sample() {
  const auto [allocated, reserved] = in_.memory();
  samples_.push_back({.at = now(), .allocated = allocated, .reserved = reserved});
}

void ChromeTrace::step_begins(std::int64_t step) {
  step_ = step;
  open({.kind = Kind::step});
  sample();
}

void ChromeTrace::step_ends(const StepResult& /*result*/) { close(); }

void ChromeTrace::instruction_begins(const Instruction& instruction, Phase phase) {
  open({.kind = Kind::instruction, .instruction = instruction, .phase = phase});
}

void ChromeTrace::instruction_ends() {
  close();
  sample();
}

void ChromeTrace::op_begins(int segment, int op) {
  const Span& around = spans_[open_.back()];
  Span span{.kind = Kind::op, .instruction = around.instruction, .phase = around.phase, .op = op};
  span.instruction.segment = segment;
  open(std::move(span));
}

void ChromeTrace::op_ends() { close(); }

std::int64_t ChromeTrace::collective_begins(std::string_view what, std::string_view group, Bytes bytes) {
  const int unit = open_.empty() ? -1 : spans_[open_.back()].instruction.unit;
  flights_.push_back({.what = std::string(what), .group = std::string(group), .bytes = bytes, .unit = unit});
  flights_.back().begin = now();
  return static_cast<std::int64_t>(flights_.size());  // from 1: 0 is nobody's
}

void ChromeTrace::collective_ends(std::int64_t id) {
  if (id > 0) flights_[static_cast<std::size_t>(id - 1)].end = now();
}

std::string ChromeTrace::text_of(const Span& span) const {
  const Instruction& i = span.instruction;
  const bool in_segment = i.segment >= 0, in_unit = i.unit >= 0;
  std::string name = fmt::format("step {}", span.step);
  JsonWriter arguments(JsonForm::one_line);
  arguments.begin_object().member("step", span.step);
  if (span.kind != Kind::step) {
    const Segment* segment = in_segment ? &in_.graph.segments[static_cast<std::size_t>(i.segment)] : nullptr;
    const std::string unit = in_unit ? in_.units[static_cast<std::size_t>(i.unit)] : "";
    name = std::string(instruction_name(i.what));
    if (span.kind == Kind::op) {
      name = segment->name + "." + segment->ops[static_cast<std::size_t>(span.op)].name;
      arguments.member("pass", instruction_name(i.what));
    } else if (in_segment || in_unit) {
      name += " " + (segment != nullptr ? segment->name : unit);
    }
    if (segment != nullptr) arguments.member("segment", segment->name);
    if (in_unit) arguments.member("unit", unit);
    arguments.member("phase", phase_name(span.phase));
    const bool of_micro_batch = i.what != Do::mask && i.what != Do::clip && i.what != Do::step;
    if (of_micro_batch) arguments.member("micro_batch", i.micro_batch);
  }
  static constexpr std::array<const char*, 3> kKinds{"step", "instruction", "op"};
  return fmt::format(R"({{"name": {}, "cat": "{}", "ph": "X", "ts": {}, "dur": {}, "pid": {}, "tid": {}, "args": {}}})",
                     json_text(name), kKinds.at(static_cast<std::size_t>(span.kind)), micros(span.begin),
                     micros(span.end - span.begin), in_.rank, kThread, on_one_line(arguments));
}

std::string ChromeTrace::text_of(const Flight& flight, std::size_t id, bool begins) const {
  JsonWriter arguments(JsonForm::one_line);
  arguments.begin_object();
  if (begins) {
    arguments.member("group", flight.group).member("bytes", flight.bytes);
    if (flight.unit >= 0) arguments.member("unit", in_.units[static_cast<std::size_t>(flight.unit)]);
  }
  return fmt::format(
      R"({{"name": {}, "cat": "collective", "ph": "{}", "id": {}, "ts": {}, "pid": {}, "tid": {}, "args": {}}})",
      json_text(flight.what), begins ? "b" : "e", id + 1, micros(begins ? flight.begin : flight.end), in_.rank, kThread,
      on_one_line(arguments));
}

std::string ChromeTrace::text_of(const Sample& sample, const char* what, Bytes bytes) const {
  return fmt::format(R"({{"name": "{} bytes", "cat": "memory", "ph": "C", "ts": {}, "pid": {}, "tid": {}, )"
                     R"("args": {{"bytes": {}}}}})",
                     what, micros(sample.at), in_.rank, kThread, bytes.n);
}

std::string ChromeTrace::json() {
  const std::int64_t end = now();
  while (!open_.empty()) close();
  std::vector<std::pair<std::int64_t, std::string>> events;
  for (const Span& span : spans_) events.emplace_back(span.begin, text_of(span));
  for (std::size_t id = 0; id < flights_.size(); ++id) {
    Flight& flight = flights_[id];
    if (flight.end < 0) flight.end = end;
    events.emplace_back(flight.begin, text_of(flight, id, true));
    events.emplace_back(flight.end, text_of(flight, id, false));
  }
  for (const Sample& sample : samples_) {
    events.emplace_back(sample.at, text_of(sample, "allocated", sample.allocated));
    events.emplace_back(sample.at, text_of(sample, "reserved", sample.reserved));
  }
  std::ranges::stable_sort(events, {}, &std::pair<std::int64_t, std::string>::first);
  const char* clock = in_.device == "cpu" ? "host" : "host: kernels are launched at these times and run later";
  std::string text = fmt::format(
      "{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {{\"clock\": \"{}\", \"unix_seconds_at_0\": "
      "\"{:.6f}\"}},\n\"traceEvents\": [\n",
      clock, start_unix_);
  text += metadata("process_name", in_.rank, fmt::format("rank {} ({})", in_.rank, in_.device)) + ",\n";
  text += metadata("thread_name", in_.rank, "schedule");
  for (const auto& [at, event] : events) text += ",\n" + event;
  return text + "\n]}\n";
}

}  // namespace vramfit
