#include "estimator/bound/residuals.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/json/json_value.h"
#include "estimator/bound/residuals_json.h"
#include "job/fields/job_field_names.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;  // a TiB; no card has it
constexpr std::size_t kMostCases = 100'000;
constexpr std::int64_t kMostTimes = 16;  // that reserved memory may be of its prediction

constexpr std::array<std::string_view, kResidualKinds> kNames{"reserved", "rehearsed", "outside"};

Runtime read_runtime(JsonObject& entry) {
  const std::string name = entry.text("runtime");
  const auto* const known =
      std::ranges::find(kRuntimes, name, [](const auto& row) { return std::string_view(row.name); });
  if (known == kRuntimes.end()) entry.fail("runtime", "is not a runtime");
  return known->value;
}

std::string read_words(JsonObject& entry, std::string_view key) {
  std::string words = entry.text(key);
  if (words.empty()) entry.fail(key, "is empty");
  return words;
}

}  // namespace

std::string_view residual_kind_name(ResidualKind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

std::vector<Residual> read_residuals(std::string_view text, ResidualKind kind, const std::string& file) {
  const JsonValue value = parse_json(text, file);
  JsonObject document(value, file);
  document.skip("about");
  if (document.text("kind") != residual_kind_name(kind)) {
    document.fail("kind", fmt::format("is not {}", residual_kind_name(kind)));
  }
  std::vector<Residual> residuals;
  std::vector<JsonObject> entries = document.objects("cases");
  document.finish();
  if (entries.size() > kMostCases) document.fail("cases", "are too many");
  for (JsonObject& entry : entries) {
    residuals.push_back({.runtime = read_runtime(entry),
                         .is_qlora = entry.has("qlora") && entry.boolean("qlora"),
                         .name = read_words(entry, "case"),
                         .predicted = {entry.integer("predicted_bytes", 1, kMostBytes)},
                         .observed = {entry.integer("observed_bytes", 1, kMostBytes)}});
    const Residual& residual = residuals.back();
    if (kind != ResidualKind::outside && residual.observed.n / kMostTimes > residual.predicted.n) {
      entry.fail("observed_bytes", "is many times predicted_bytes");
    }
    read_words(entry, "source");
    entry.skip("of");  // for scripts/residuals and readers
    entry.finish();
  }
  std::vector<std::string_view> names;
  for (const Residual& residual : residuals) names.push_back(residual.name);
  std::ranges::sort(names);
  if (std::ranges::adjacent_find(names) != names.end()) document.fail("cases", "name a case twice");
  return residuals;
}

const std::vector<Residual>& recorded_residuals(ResidualKind kind) {
  static const std::array<std::vector<Residual>, kResidualKinds> all = [] {
    std::array<std::vector<Residual>, kResidualKinds> read;
    for (std::size_t i = 0; i < kResidualKinds; ++i) {
      read[i] =
          read_residuals(kResidualFiles[i], static_cast<ResidualKind>(i), fmt::format("residuals/{}.json", kNames[i]));
    }
    return read;
  }();
  return all.at(static_cast<std::size_t>(kind));
}

}  // namespace vramfit
