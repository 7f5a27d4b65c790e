#include "job/fields/zero_text.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/field_text.h"

namespace vramfit {

namespace {

struct SizeRow {
  std::string_view name;
  std::int64_t Zero3Sizes::*size;
  bool may_be_auto;  // transformers 5.23, integrations/deepspeed.py: trainer_config_finalize
};
constexpr std::array kSizes{
    SizeRow{"prefetch_bucket_size", &Zero3Sizes::prefetch_bucket_size, true},
    SizeRow{"param_persistence_threshold", &Zero3Sizes::param_persistence_threshold, true},
    SizeRow{"max_live_parameters", &Zero3Sizes::max_live_parameters, false},
    SizeRow{"max_reuse_distance", &Zero3Sizes::max_reuse_distance, false},
    SizeRow{"sub_group_size", &Zero3Sizes::sub_group_size, false},
};

const SizeRow& row_of(std::string_view name) {
  const auto row = std::ranges::find(kSizes, name, &SizeRow::name);
  if (row != kSizes.end()) return *row;
  std::vector<std::string> known;
  for (const SizeRow& size : kSizes) known.emplace_back(size.name);
  unknown_value(name, known);
}

}  // namespace

std::string get_overlap(const Job& job) { return overlaps_reductions(job) ? "on" : "off"; }

void set_overlap(Job& job, std::string_view value) {
  if (value != "on" && value != "off") unknown_value(value, {"on", "off"});
  job.overlap_comm = value == "on";
}

bool may_be_auto(std::string_view name) { return row_of(name).may_be_auto; }

void set_zero3_size(Zero3Sizes& sizes, std::string_view name, std::string_view value) {
  const SizeRow& row = row_of(name);
  if (value == "auto" && !row.may_be_auto) {
    throw InputError(fmt::format("{}=auto: the Trainer doesn't fill it in; give a number", row.name));
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  sizes.*row.size = value == "auto" ? kByHiddenSize : std::min(whole_number(value, 0, kMost), kMostZero3Size);
}

std::vector<std::string_view> zero3_size_names() {
  std::vector<std::string_view> names;
  for (const SizeRow& row : kSizes) names.push_back(row.name);
  return names;
}

std::string get_zero3_sizes(const Job& job) {
  const Zero3Sizes usual;
  const Zero3Sizes filled_in{.prefetch_bucket_size = kByHiddenSize, .param_persistence_threshold = kByHiddenSize};
  if (job.zero3_sizes == filled_in) return "auto";
  std::string text;
  for (const SizeRow& row : kSizes) {
    const std::int64_t size = job.zero3_sizes.*row.size;
    if (size == usual.*row.size) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", row.name,
                        size == kByHiddenSize ? "auto" : fmt::to_string(size));
  }
  return text;
}

void set_zero3_sizes(Job& job, std::string_view value) {
  Zero3Sizes sizes;
  if (value == "auto") value = "prefetch_bucket_size=auto,param_persistence_threshold=auto";
  if (value != "default") {
    std::vector<std::string> seen;
    for (const std::string& assignment : split_list(value)) {
      const auto [name, size] = key_and_value(assignment);
      set_zero3_size(sizes, name, size);
      if (std::ranges::find(seen, name) != seen.end()) throw InputError(fmt::format("{}: is there twice", name));
      seen.emplace_back(name);
    }
  }
  job.zero3_sizes = sizes;
}

}  // namespace vramfit
