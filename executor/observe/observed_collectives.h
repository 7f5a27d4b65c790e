// Tells an observer when collectives are issued and when they have been waited for.
#pragma once

#include <memory>
#include <string>

#include "executor/observe/observer.h"
#include "executor/sharding/collectives.h"

namespace vramfit {

/// `inner` itself if there is no observer. `group` names the axis.
std::unique_ptr<Collectives> observed_collectives(std::unique_ptr<Collectives> inner, std::string group,
                                                  TrainObserver* observer);

}  // namespace vramfit
