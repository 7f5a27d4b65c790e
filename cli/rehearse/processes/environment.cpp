#include "cli/rehearse/processes/environment.h"

#include <unistd.h>

#include <fmt/format.h>

#include "cli/rehearse/processes/phantom_library.h"

namespace vramfit {
namespace {

std::string in_front(const std::string& path, const char* variable) {
  const std::string rest = environment_value(variable);
  return rest.empty() ? path : path + ":" + rest;
}

}  // namespace

EnvironmentChanges phantom_environment(const std::string& library, const std::string& session) {
  EnvironmentChanges changes{{"LD_AUDIT", in_front(audit_library(library), "LD_AUDIT")},
                             {"VRAMFIT_PHANTOM", session},
                             {"VRAMFIT_PHANTOM_LIB", library},  // where the audit library looks for stand-ins
                             {"PYTHONPATH", in_front(library + "/python", "PYTHONPATH")}};
  // Triton links its launchers against the driver at run time; this tells it where one is.
  if (::access((library + "/libcuda.so.1").c_str(), R_OK) == 0) changes.emplace_back("TRITON_LIBCUDA_PATH", library);
  return changes;
}

EnvironmentChanges rank_environment(const Cluster& cluster, std::int64_t rank, int port) {
  const std::int64_t local = cluster.cards_per_node;
  EnvironmentChanges changes{{"RANK", fmt::to_string(rank)},
                             {"LOCAL_RANK", fmt::to_string(rank % local)},
                             {"GROUP_RANK", fmt::to_string(rank / local)},
                             {"WORLD_SIZE", fmt::to_string(cluster.cards())},
                             {"LOCAL_WORLD_SIZE", fmt::to_string(local)},
                             {"GROUP_WORLD_SIZE", fmt::to_string(cluster.nodes)},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", fmt::to_string(port)},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},  // PyTorch 2.4 asks for it with the next
                             // Rank 0 also joins the existing store instead of opening one.
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  std::string all;  // for launchers.py, whatever a script or a launcher makes of the variables
  for (const auto& [name, value] : changes) all += fmt::format("{}{}={}", all.empty() ? "" : " ", name, value);
  changes.emplace_back("VRAMFIT_REHEARSAL_RANK", all);
  return changes;
}

}  // namespace vramfit
