// Layouts, programs and refusals of jobs that are one line of text (tests/support/job_line.h).
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "program/make_program.h"
#include "program/runtimes/runtimes.h"
#include "program/stages/units_layout.h"
#include "tests/support/job_line.h"

namespace vramfit::testing {

inline ResolvedJob job_of(const std::string& line) { return resolved(parse_job_line(line)); }

inline UnitLayout layout_of(const std::string& line) {
  const ResolvedJob job = job_of(line);
  return lay_out_units(job.graph, job.job);
}

inline const Unit& unit_called(const UnitLayout& layout, const std::string& name) {
  const auto unit = std::ranges::find(layout.units, name, &Unit::name);
  REQUIRE(unit != layout.units.end());
  return *unit;
}

inline program::Program program_of(const ResolvedJob& job, const RunEffects& run) {
  return program::make_program(
      {.graph = job.graph, .job = job.job, .device = job.cluster.card.device, .coords = {}, .run = run});
}
inline program::Program program_of(const ResolvedJob& job) { return program_of(job, {.clip = job.clip}); }

/// All that is allocated under labels that end so.
inline Bytes bytes_called(const program::Program& program, std::string_view ending) {
  Bytes sum;
  for (const program::Buffer& buffer : program.main.buffers) {
    if (buffer.label >= 0 && program.labels[static_cast<std::size_t>(buffer.label)].ends_with(ending))
      sum += buffer.bytes;
  }
  return sum;
}

/// Why rules or layout refuse the job; "" where they don't.
inline std::string refusal_of(const std::string& line) {
  try {
    const ResolvedJob job = job_of(line);
    runtime_row(job.job.runtime).require_rules(job.job, job.cluster);
    lay_out_units(job.graph, job.job);
    return "";
  } catch (const InputError& error) {
    return error.what();
  } catch (const NotModelled& error) {
    return error.what();
  }
}

inline bool names(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace vramfit::testing
