// Reads jobs from standard input, one a line, and prints the hash of each job's ledger: "HASH EVENTS", or "refused:
// WHY". A line is MODEL NODESxCARDS DEVICE [FIELD=VALUE ...]; MODEL is a file under tests/models without ".json", or a
// name of the catalog; DEVICE is cuda:CAPABILITY:SMS or cpu:THREADS:BF16, written out so that the answer depends on no
// machine and no catalog of cards. Besides a job's fields: clip=off, and micro_batches=all (none of them left out as
// alike).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/mix_bits.h"
#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"
#include "job/job_fields.h"
#include "job/loss_options.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "model_specs/config.h"
#include "program/check.h"
#include "program/count.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/peaks.h"

namespace vramfit {
namespace {

/// FNV-1a: any change of any byte changes it, which is all that is asked of it.
class Hash {
 public:
  void add(std::string_view text) { state_ = fnv1a("\xff", fnv1a(text, state_)); }  // "ab", "c" is not "a", "bc"
  void add(std::int64_t number) { add(fmt::to_string(number)); }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = fnv1a("");
};

std::uint64_t hash_of(const Ledger& ledger) {
  Hash hash;
  for (const Event& event : ledger.events) {
    hash.add(ledger.labels[static_cast<std::size_t>(event.label)]);
    hash.add(event.bytes);
    hash.add(event.id);
    hash.add(category_name(event.category));
    hash.add(phase_name(event.phase));
    hash.add(event.step);
    hash.add(static_cast<std::int64_t>(event.stream));
  }
  return hash.value();
}

ModelSpec model(const std::string& name) {
  const std::string path = std::string(VRAMFIT_SOURCE_DIR) + "/tests/models/" + name + ".json";
  if (std::filesystem::exists(path)) return parse_config(read_file(path, kModelFile, 1 << 20), path);
  const CatalogEntry* entry = find_in_catalog(name);
  if (entry == nullptr) throw InputError("no model " + name);
  return catalog_spec(*entry);
}

Device device(const std::string& text) {
  int first = 0, second = 0;
  char colon = 0;
  std::istringstream numbers(text.substr(text.find(':') + 1));
  numbers >> first >> colon >> second;
  if (text.starts_with("cpu:")) {
    return {.kind = DeviceKind::cpu, .name = "cpu", .threads = first, .onednn_bf16 = second != 0};
  }
  return {.kind = DeviceKind::cuda, .name = "card", .compute_capability = first, .sm_count = second};
}

Cluster cluster(const std::string& shape, const std::string& device_text) {
  Cluster cluster;
  char times = 0;
  std::istringstream(shape) >> cluster.nodes >> times >> cluster.cards_per_node;
  cluster.card.device = device(device_text);
  cluster.card.memory = 100000 * kGiB;
  cluster.card.bf16 = cluster.is_cpu() || cluster.card.device.compute_capability >= 80;
  return cluster;
}

constexpr Bytes kGranule{512};

/// What the events of a ledger add up to, one by one.
FoldedPeaks summed_peaks(const Ledger& ledger) {
  FoldedPeaks peaks;
  std::int64_t requested = 0, rounded = 0;
  std::array<std::int64_t, kCategories> categories{};
  for (const Event& event : ledger.events) {
    const bool is_load = event.step == 0;
    auto phase = std::ranges::find_if(
        peaks.phases, [&](const FoldedPhase& p) { return p.phase == event.phase && p.is_load == is_load; });
    if (phase == peaks.phases.end()) {
      peaks.phases.push_back(
          {.phase = event.phase, .is_load = is_load, .requested = {requested}, .rounded = {rounded}});
      phase = peaks.phases.end() - 1;
    }
    phase->requested = std::max(phase->requested, Bytes{requested});
    phase->rounded = std::max(phase->rounded, Bytes{rounded});
    requested += event.bytes;
    rounded += (event.bytes < 0 ? -1 : 1) * round_up(std::abs(event.bytes), kGranule.n);
    categories[static_cast<std::size_t>(event.category)] += event.bytes;
    phase->requested = std::max(phase->requested, Bytes{requested});
    phase->rounded = std::max(phase->rounded, Bytes{rounded});
    peaks.requested = std::max(peaks.requested, Bytes{requested});
    if (rounded <= peaks.rounded.n) continue;
    peaks.rounded = Bytes{rounded};
    for (std::size_t c = 0; c < kCategories; ++c) peaks.categories[c] = Bytes{categories[c]};
  }
  return peaks;
}

std::string folded_difference(const FoldedPeaks& folded, const Ledger& ledger) {
  const FoldedPeaks summed = summed_peaks(ledger);
  if (folded.requested != summed.requested || folded.rounded != summed.rounded) {
    return fmt::format("{} and {} bytes, events add up to {} and {}", folded.requested.n, folded.rounded.n,
                       summed.requested.n, summed.rounded.n);
  }
  if (folded.categories != summed.categories) return "categories at the peak";
  if (folded.phases.size() != summed.phases.size()) return "phases";
  for (std::size_t p = 0; p < folded.phases.size(); ++p) {
    const FoldedPhase &a = folded.phases[p], &b = summed.phases[p];
    if (a.phase != b.phase || a.is_load != b.is_load || a.requested != b.requested || a.rounded != b.rounded) {
      return fmt::format("{}: {} and {} bytes, events add up to {} and {}", phase_name(a.phase), a.requested.n,
                         a.rounded.n, b.requested.n, b.rounded.n);
    }
  }
  return "";
}

std::string answer(const std::string& line) {
  std::istringstream words(line);
  std::string name, shape, device_text, word;
  words >> name >> shape >> device_text;
  const ModelSpec spec = model(name);
  const Cluster on = cluster(shape, device_text);
  Job job = unresolved_job();
  CountOptions options;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    const std::string field = word.substr(0, equals), value = word.substr(equals + 1);
    if (field == "clip") {
      options.clip = value != "off";
    } else if (field == "micro_batches") {
      options.abbreviate = value != "all";
    } else {
      set_job_field(job, job_field_named(field), value, field);
    }
  }
  std::vector<std::string> notes;
  job = resolve_job(job, spec, on, notes);
  require_rules(job, on);
  const Graph graph = build_graph(spec, loss_options(job));
  const Ledger ledger = count(graph, job, on.card.device, {}, options);
  const program::Program program =
      program::make_program({.graph = graph, .job = job, .device = on.card.device, .coords = {}, .clip = options.clip});
  if (const auto fault = program::fault_of(program)) return "unsound: " + *fault;
  if (const std::string difference = folded_difference(folded_peaks(program, kGranule), ledger); !difference.empty()) {
    return "folded peaks differ: " + difference;
  }
  return fmt::format("{:016x} {}", hash_of(ledger), ledger.events.size());
}

}  // namespace
}  // namespace vramfit

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      fmt::print("{}\n", vramfit::answer(line));
    } catch (const std::exception& error) {
      fmt::print("refused: {}\n", error.what());
    }
  }
}
