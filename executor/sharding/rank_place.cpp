#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>

#include "executor/sharding/process_groups.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {

namespace {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, before any thread
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

int number(const char* name, int least, int most) {
  const std::string text = environment(name).value();
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw InputError(
        fmt::format("environment: {}={}: must be an integer from {} to {}", name, printable(text, 40), least, most));
  }
  return value;
}

constexpr int kMostRanks = 65536;

}  // namespace

RankPlace rank_place_from_environment() {
  RankPlace place;
  const bool torchrun = environment("RANK").has_value() || environment("WORLD_SIZE").has_value();
  const bool slurm = !torchrun && environment("SLURM_PROCID").has_value() && environment("SLURM_NTASKS").has_value();
  if (!torchrun && !slurm) return place;
  const auto require = [](const char* name) {
    if (!environment(name)) throw InputError(fmt::format("environment: {} is not set, other rank variables are", name));
  };
  const char* rank = slurm ? "SLURM_PROCID" : "RANK";
  const char* world = slurm ? "SLURM_NTASKS" : "WORLD_SIZE";
  const char* local = slurm ? "SLURM_LOCALID" : "LOCAL_RANK";
  require(rank);
  require(world);
  place.world = number(world, 1, kMostRanks);
  place.rank = number(rank, 0, place.world - 1);
  if (environment(local)) place.local_rank = number(local, 0, place.world - 1);
  if (place.world == 1) return place;
  require("MASTER_ADDR");
  require("MASTER_PORT");
  place.master_address = *environment("MASTER_ADDR");
  place.master_port = number("MASTER_PORT", 1, 65535);
  if (place.rank == 0 && environment("VRAMFIT_LISTEN_FD")) {
    place.listen_descriptor = number("VRAMFIT_LISTEN_FD", 3, 1 << 20);
  }
  return place;
}

}  // namespace vramfit
