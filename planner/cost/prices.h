// What an hour of a GPU costs: as the user says, or as configs/prices.json does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"

namespace vramfit {

struct Price {
  double per_gpu_hour = 0;  // of the user's currency, or US dollars where the catalog says it
  std::string origin;       // "set by --price", or where the catalog has it from
  bool is_dollars = false;  // a price of the catalog
};

class Prices {
 public:
  /// Those of the catalog alone.
  Prices() = default;
  /// `--price`: "2.5/h" for every GPU, or "H100-80GB=2.5/h,RTX4090=0.4/h"; what it doesn't name has no price, so that
  /// no two currencies are compared. Throws InputError.
  explicit Prices(std::string_view text);

  std::optional<Price> of(const Card& card) const;
  /// Throws an InputError where prices are given, each of a GPU that none of these clusters has.
  void require_any_of(const std::vector<Cluster>& clusters) const;

 private:
  bool are_given_ = false;
  std::optional<double> every_;            // GPU
  std::map<std::string, double> by_name_;  // the catalog's name, or a size such as "24GB"
};

/// The dollars per GPU and hour of a catalog of prices, by the card's name. Throws InputError "FILE: ...".
std::map<std::string, Price> parse_prices(std::string_view text, const std::string& file);

}  // namespace vramfit
