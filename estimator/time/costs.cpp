#include "estimator/time/costs.h"

#include <algorithm>

#include "base/error.h"
#include "base/sourced_figure.h"
#include "estimator/time/costs_json.h"

namespace vramfit {

namespace {

class Reader {
 public:
  Reader(const JsonValue& document, const std::string& file) : file_(file), origins_(member(document, "origins")) {}

  const JsonValue& member(const JsonValue& object, std::string_view key) const {
    return json_member(object, key, file_);
  }

  double figure(const JsonValue& object, std::string_view key) const {
    return sourced_figure(object, key, origins_, file_);
  }

  double share(const JsonValue& object, std::string_view key) const {
    const double value = figure(object, key);
    if (value > 1) throw InputError(file_ + ": " + std::string(key) + ": is more than 1");
    return value;
  }

 private:
  const std::string& file_;
  const JsonValue& origins_;
};

}  // namespace

Costs parse_costs(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  const Reader reader(document, file);
  const JsonValue& shares = reader.member(document, "shares");
  Costs costs{.products = reader.share(shares, "products"),
              .memory = reader.share(shares, "memory"),
              .link = reader.share(shares, "link"),
              .network = reader.share(shares, "network"),
              .cpu_attention = reader.share(shares, "cpu_attention"),
              .fused_attention = {},
              .fp8_speedup = reader.figure(document, "fp8_speedup"),
              .cpu_converted_bf16 = reader.share(document, "cpu_converted_bf16"),
              .launch_seconds = reader.figure(document, "launch_seconds"),
              .eager_call_seconds = reader.figure(document, "eager_call_seconds"),
              .collective_seconds = reader.figure(document, "collective_seconds")};
  for (const JsonValue& row : reader.member(document, "fused_attention").items) {
    const JsonValue& from = reader.member(row, "from_compute_capability");
    costs.fused_attention.push_back(
        {.from_compute_capability = static_cast<int>(from.integer), .share = reader.share(row, "share")});
  }
  std::ranges::sort(costs.fused_attention, std::greater{}, &Costs::FusedAttention::from_compute_capability);
  if (costs.fused_attention.empty() || costs.fused_attention.back().from_compute_capability != 0) {
    throw InputError(file + ": fused_attention: has no row from compute capability 0 on");
  }
  return costs;
}

const Costs& costs() {
  static const Costs kCosts = parse_costs(kCostsJson, "costs.json");
  return kCosts;
}

}  // namespace vramfit
