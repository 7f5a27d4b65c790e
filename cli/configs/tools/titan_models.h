// torchtitan's models and flavors by their names on the hub (torchtitan 0.2, models/*/__init__.py).
#pragma once

#include <string_view>

namespace vramfit {

struct TitanModel {
  std::string_view name, flavor, model;
};

/// Null for a model that torchtitan has no flavor of.
const TitanModel* titan_model(std::string_view model);
const TitanModel* titan_flavor(std::string_view name, std::string_view flavor);

}  // namespace vramfit
