// How the ranks of a job find each other before they agree on anything.
#pragma once

#include <chrono>
#include <memory>

#include "executor/place/failure_watch.h"
#include "executor/place/rank_place.h"

namespace vramfit {

/// This rank's connections to the store and to rank 0. While it exists, a failure of one rank is reported to all.
struct Meeting {
  virtual ~Meeting() = default;
  virtual FailureWatch& watch() = 0;
};

/// Rank 0 opens the store, unless torchrun serves it: on loopback when all ranks are on this machine, else on the one
/// address that MASTER_ADDR stands for. The others come to it. From here on SIGINT, SIGTERM and SIGHUP are told to all
/// before they end this process, and another rank's failure ends it with one line to stderr. Throws FaultError (the
/// port is taken, rank 0 did not answer within `timeout`), InputError.
std::unique_ptr<Meeting> meet(const RankPlace& place, std::chrono::milliseconds timeout);

}  // namespace vramfit
