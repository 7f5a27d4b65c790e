#include "executor/place/rank_place.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/place/node_list.h"

namespace vramfit {

namespace {

constexpr int kMostRanks = 65536;
constexpr std::int64_t kMostSlurmIds = 0xffffffff;  // uint32_t in slurm.h
constexpr std::string_view kSetThem =
    "; start the ranks with torchrun --no-python, srun or mpirun, or set all of it (docs/launching.md)";

/// What a launcher calls a process's place.
struct Launcher {
  const char *name, *rank, *world, *local_rank, *local_world;
};
constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher kPmi{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Launcher kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};
constexpr Launcher kSlurmStep{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};

/// With or without the interface of a link-local one ("fe80::1%eth0").
bool is_ipv6(const std::string& address) {
  in6_addr six{};
  const std::size_t zone = address.find('%');
  const bool named = zone == std::string::npos || is_host_name(std::string_view(address).substr(zone + 1));
  return named && inet_pton(AF_INET6, address.substr(0, zone).c_str(), &six) == 1;
}

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  RankPlace read() {
    const Launcher* launcher = choose();
    RankPlace place;
    if (launcher == nullptr) return place;
    read_numbers(*launcher, place);
    if (place.world == 1) return place;
    if (launcher == &kTorchrun) read_torchrun(place);
    read_master(place);
    return place;
  }

 private:
  std::optional<std::string> value(const char* name) const { return variables_(name); }
  bool has(const char* name) const { return value(name).has_value(); }

  const Launcher* choose() const {
    if (has("RANK") || has("WORLD_SIZE")) return &kTorchrun;
    if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")) return &kOpenMpi;
    const bool pmi = has("PMI_RANK") || has("PMI_SIZE");
    // Hydra (MPICH, Intel MPI) sets MPI_LOCALRANKID. Without it, in Slurm, PMI is srun's, and Slurm's own say more.
    if (pmi && has("MPI_LOCALRANKID")) return &kPmi;
    if (has("SLURM_PROCID") && has("SLURM_STEP_NUM_TASKS")) return &kSlurmStep;
    if (has("SLURM_PROCID") && has("SLURM_NTASKS")) return &kSlurm;
    return pmi ? &kPmi : nullptr;
  }

  [[noreturn]] void fail(const char* name, const std::string& what) const {
    throw InputError(
        fmt::format("environment: {}={}: {}{}", name, printable(value(name).value_or(""), 40), what, kSetThem));
  }

  std::int64_t number(const char* name, std::int64_t least, std::int64_t most) const {
    const std::string text = *value(name);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
      fail(name, fmt::format("must be an integer from {} to {}", least, most));
    }
    return number;
  }

  int required(const Launcher& launcher, const char* name, int least, int most) const {
    if (!has(name)) {
      throw InputError(
          fmt::format("environment: {} is not set, other variables of {} are{}", name, launcher.name, kSetThem));
    }
    return static_cast<int>(number(name, least, most));
  }

  void read_numbers(const Launcher& launcher, RankPlace& place) {
    place.launcher = launcher.name;
    place.world = required(launcher, launcher.world, 1, kMostRanks);
    place.rank = required(launcher, launcher.rank, 0, place.world - 1);
    if (place.world > 1 || has(launcher.local_rank)) {
      place.local_rank = required(launcher, launcher.local_rank, 0, place.world - 1);
    }
    if (place.local_rank > place.rank && place.world > 1) {
      fail(launcher.local_rank,
           fmt::format("contradicts {}={}: a rank's number on its machine is never larger than its "
                       "number among all",
                       launcher.rank, place.rank));
    }
    if (launcher.local_world != nullptr && has(launcher.local_world)) {
      place.local_world = static_cast<int>(number(launcher.local_world, 1, kMostRanks));
      if (place.local_world > place.world) {
        fail(launcher.local_world, fmt::format("contradicts {}={}", launcher.world, place.world));
      }
      if (place.local_rank >= place.local_world) {
        fail(launcher.local_rank, fmt::format("contradicts {}={}", launcher.local_world, place.local_world));
      }
    }
    if (place.launcher == kSlurm.name) read_slurm_nodes(place);
  }

  void read_slurm_nodes(RankPlace& place) {
    for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
      if (!has(name)) continue;
      const auto nodes = static_cast<int>(number(name, 1, kMostRanks));
      if (nodes > place.world) fail(name, fmt::format("contradicts {} tasks: a node has at least one", place.world));
      if (has("SLURM_NODEID")) number("SLURM_NODEID", 0, nodes - 1);
      if (nodes == 1) place.local_world = place.world;
      break;
    }
    if (!has("SLURM_JOB_ID")) return;
    place.job = fmt::format("slurm {}", number("SLURM_JOB_ID", 0, kMostSlurmIds));
    if (has("SLURM_STEP_ID")) place.job += fmt::format(".{}", number("SLURM_STEP_ID", 0, kMostSlurmIds));
  }

  void read_torchrun(RankPlace& place) {
    place.store_file = value("VRAMFIT_STORE_FILE").value_or("");
    place.store_is_hosted = value("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (!has("TORCHELASTIC_RUN_ID")) return;
    place.job = "torchrun " + *value("TORCHELASTIC_RUN_ID");
    // A restart finds the store of the attempt before it.
    if (has("TORCHELASTIC_RESTART_COUNT")) {
      place.job += fmt::format(" {}", number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30));
    }
  }

  void read_master(RankPlace& place) const {
    place.on_one_node = place.world == place.local_world || !place.store_file.empty();
    if (!place.store_file.empty()) return;
    if (has("MASTER_ADDR")) {
      place.master_address = *value("MASTER_ADDR");
      if (!is_host_name(place.master_address) && !is_ipv6(place.master_address)) {
        fail("MASTER_ADDR", "must be a host's name or address, without port");
      }
      place.on_one_node = place.on_one_node || is_loopback(place.master_address);
    } else if (!place.on_one_node) {
      place.master_address = first_host(place);
    }
    // Whatever its name there: nobody outside has to reach it. A store that torchrun serves is where it says.
    if (place.on_one_node && !place.store_is_hosted) place.master_address = "127.0.0.1";
    place.master_port = master_port(place);
  }

  int master_port(const RankPlace& place) const {
    if (has("MASTER_PORT")) return static_cast<int>(number("MASTER_PORT", 1, 65535));
    if (place.launcher != kTorchrun.name && has("SLURM_JOB_ID")) {
      const bool step = place.launcher == kSlurm.name && has("SLURM_STEP_ID");
      return slurm_port(number("SLURM_JOB_ID", 0, kMostSlurmIds), step ? number("SLURM_STEP_ID", 0, kMostSlurmIds) : 0);
    }
    throw InputError(
        fmt::format("environment: MASTER_PORT is not set; set it to the same free port for all ranks{}", kSetThem));
  }

  /// Rank 0 is on the first host of the list. SLURM_LAUNCH_NODE_IPADDR is not asked: it is where srun was typed, in an
  /// interactive job a login node. Of mpirun's daemons SLURM_STEP_NODELIST lacks the first node.
  std::string first_host(const RankPlace& place) const {
    const bool step = place.launcher == kSlurm.name;
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      if (place.launcher == kTorchrun.name || !has(name) ||
          (!step && name == std::string_view("SLURM_STEP_NODELIST"))) {
        continue;
      }
      try {
        return expand_node_list(*value(name)).front();
      } catch (const InputError& error) {
        throw InputError(fmt::format("environment: {}: {}; or set MASTER_ADDR", name, error.what()));
      }
    }
    throw InputError(
        fmt::format("environment: MASTER_ADDR is not set; set it for all ranks to an address of rank 0's "
                    "machine{}",
                    kSetThem));
  }

  const Variables& variables_;
};

}  // namespace

Variables environment_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): read once, before any thread
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  };
}

RankPlace rank_place(const Variables& variables) { return Reader(variables).read(); }

int slurm_port(std::int64_t job, std::int64_t step) { return static_cast<int>(10000 + (16 * job + step) % 20000); }

bool is_loopback(const std::string& address) {
  in_addr four{};
  const bool is_four = inet_pton(AF_INET, address.c_str(), &four) == 1;
  return address == "localhost" || address == "::1" || (is_four && address.starts_with("127."));
}

}  // namespace vramfit
