#include "executor/place/rank_place.h"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <random>

#include "base/error.h"
#include "tests/support/mutate.h"

namespace vramfit {

namespace {

using Set = std::map<std::string, std::string>;

RankPlace place_of(const Set& set) {
  return rank_place([&](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Set& set) {
  try {
    place_of(set);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Set with(Set set, const Set& changes) {
  for (const auto& [name, value] : changes) set[name] = value;
  return set;
}

/// Rank 3 of 2 nodes x 2, as each launcher says it.
Set torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"}};
}
Set open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"},   {"MASTER_PORT", "29500"}};
}
Set hydra() {
  return {{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},           {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
}
Set slurm() {
  return {{"SLURM_PROCID", "3"},         {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_LOCALID", "1"},        {"SLURM_NODEID", "1"}, {"SLURM_STEP_NODELIST", "node[01-02]"},
          {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "2"}};
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("without a launcher's variables a process is the only rank") {
  const RankPlace place = place_of({{"SLURM_JOB_ID", "7"}, {"MASTER_ADDR", "10.0.0.1"}});
  CHECK(place.world == 1);
  CHECK(place.rank == 0);
  CHECK(place.on_one_node);
}

TEST_CASE("ranks that `vramfit run` started meet in its file, whatever addresses the environment names") {
  Set set = torchrun();
  set["VRAMFIT_STORE_FILE"] = "/tmp/somewhere/store";
  const RankPlace place = place_of(set);
  CHECK(place.store_file == "/tmp/somewhere/store");
  CHECK(place.on_one_node);
  CHECK(place.master_port == 0);
}

TEST_CASE("torchrun, Open MPI, MPICH and Slurm place rank 3 of 2 nodes x 2 alike") {
  for (const Set& set : {torchrun(), open_mpi(), hydra(), slurm()}) {
    const RankPlace place = place_of(set);
    CAPTURE(place.launcher);
    CHECK(place.rank == 3);
    CHECK(place.world == 4);
    CHECK(place.local_rank == 1);
    CHECK_FALSE(place.on_one_node);
    CHECK_FALSE(place.store_is_hosted);
  }
  CHECK(place_of(slurm()).master_address == "node01");
  CHECK(place_of(slurm()).master_port == 10082);
  CHECK(place_of(torchrun()).master_address == "10.0.0.1");
  CHECK(place_of(torchrun()).local_world == 2);
}

TEST_CASE("torchrun's place comes before the launcher's that started torchrun; MPI's before Slurm's") {
  CHECK(place_of(with(slurm(), torchrun())).launcher == "torchrun");
  CHECK(place_of(with(open_mpi(), torchrun())).launcher == "torchrun");
  CHECK(place_of(with(slurm(), open_mpi())).launcher == "Open MPI");
  CHECK(place_of(with(slurm(), hydra())).launcher == "PMI");
  CHECK(place_of(with(slurm(), {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).launcher == "Slurm");  // srun --mpi=pmi2
}

TEST_CASE("when all ranks are on one machine the store stays on loopback, whatever its name") {
  for (Set set : {torchrun(), open_mpi(), hydra()}) {
    for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
      if (set.contains(name)) set.at(name) = std::string("4");
    }
    CHECK(place_of(set).on_one_node);
    CHECK(place_of(set).master_address == "127.0.0.1");
    set.erase("MASTER_ADDR");
    CHECK(place_of(set).master_address == "127.0.0.1");
  }
  CHECK(place_of(with(slurm(), {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_NODEID", "0"}})).master_address == "127.0.0.1");
  CHECK(place_of(with(torchrun(), {{"MASTER_ADDR", "localhost"}})).master_address == "127.0.0.1");
}

TEST_CASE("a store that torchrun's agent serves is not served again, and each restart has keys of its own") {
  const Set agent = with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                      {"TORCHELASTIC_RUN_ID", "x"},
                                      {"TORCHELASTIC_RESTART_COUNT", "0"},
                                      {"LOCAL_WORLD_SIZE", "4"}});
  const RankPlace first = place_of(agent), second = place_of(with(agent, {{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  CHECK(first.store_is_hosted);
  CHECK(first.master_address == "10.0.0.1");
  CHECK(first.job != second.job);
}

TEST_CASE("Slurm's master is the first host of the step, and MASTER_ADDR and MASTER_PORT come before it") {
  CHECK(place_of(with(slurm(), {{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", "gpu[8-9]"}})).master_address ==
        "gpu8");
  CHECK(place_of(with(slurm(), {{"MASTER_ADDR", "10.9.9.9"}})).master_address == "10.9.9.9");
  CHECK(place_of(with(slurm(), {{"MASTER_PORT", "7"}})).master_port == 7);
  // mpirun in a Slurm job: of the job's nodes, not of the daemons' step.
  Set mpi = with(open_mpi(), {{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_NODELIST", "b"}, {"SLURM_JOB_NODELIST", "a,b"}});
  mpi.erase("MASTER_ADDR");
  mpi.erase("MASTER_PORT");
  CHECK(place_of(mpi).master_address == "a");
  CHECK(place_of(mpi).master_port == 10080);
}

TEST_CASE("a port that follows from a job's number is never privileged nor one that Linux gives to connections") {
  for (const std::int64_t job : {0LL, 1LL, 1249LL, 1250LL, 4294967295LL}) {
    for (const std::int64_t step : {0LL, 15LL, 4294967290LL}) {
      CHECK(slurm_port(job, step) >= 10000);
      CHECK(slurm_port(job, step) < 30000);
    }
  }
}

TEST_CASE("what is missing, no number, out of range or contradictory is named with its value") {
  const auto missing = [](Set set, const char* name) {
    set.erase(name);
    const std::string text = refusal(set);
    return holds(text, name) && holds(text, "not set") && holds(text, "docs/launching.md");
  };
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    CAPTURE(name);
    CHECK(missing(torchrun(), name));
  }
  CHECK(missing(open_mpi(), "OMPI_COMM_WORLD_LOCAL_RANK"));
  CHECK(missing(open_mpi(), "MASTER_PORT"));
  CHECK(missing(hydra(), "MASTER_ADDR"));
  Set no_list = slurm();
  no_list.erase("SLURM_STEP_NODELIST");
  CHECK(holds(refusal(no_list), "MASTER_ADDR is not set"));
  for (const char* value : {"x", "-1", "4", "1.0", " 1", "0x1", "99999999999999999999", "1\n2", "\x1b[2J"}) {
    const std::string text = refusal(with(torchrun(), {{"RANK", value}}));
    CAPTURE(value);
    CHECK(holds(text, "environment: RANK="));
    CHECK(holds(text, "from 0 to 3"));
    CHECK_FALSE(holds(text, "\n"));
    CHECK_FALSE(holds(text, "\x1b"));
  }
  CHECK(holds(refusal(with(torchrun(), {{"WORLD_SIZE", "0"}})), "WORLD_SIZE=0"));
  CHECK(holds(refusal(with(torchrun(), {{"WORLD_SIZE", "70000"}})), "from 1 to 65536"));
  CHECK(holds(refusal(with(torchrun(), {{"LOCAL_RANK", "2"}})), "contradicts LOCAL_WORLD_SIZE=2"));
  CHECK(holds(refusal(with(torchrun(), {{"LOCAL_WORLD_SIZE", "5"}})), "contradicts WORLD_SIZE=4"));
  CHECK(holds(refusal(with(torchrun(), {{"RANK", "0"}})), "contradicts RANK=0"));
  CHECK(holds(refusal(with(torchrun(), {{"MASTER_PORT", "0"}})), "from 1 to 65535"));
  CHECK(holds(refusal(with(torchrun(), {{"MASTER_ADDR", "a;b"}})), "MASTER_ADDR=a;b"));
  CHECK(holds(refusal(with(torchrun(), {{"MASTER_ADDR", "host:29500"}})), "without port"));
  CHECK(holds(refusal(with(slurm(), {{"SLURM_STEP_NODELIST", "n[1-"}})), "or set MASTER_ADDR"));
  CHECK(holds(refusal(with(slurm(), {{"SLURM_STEP_NUM_NODES", "9"}})), "contradicts 4 tasks"));
  CHECK(holds(refusal(with(slurm(), {{"SLURM_NODEID", "2"}})), "SLURM_NODEID=2"));
}

TEST_CASE("an IPv6 master is taken, with a zone too") {
  for (const char* address : {"fd00::2", "fe80::1%eth0"}) {
    CHECK(place_of(with(torchrun(), {{"MASTER_ADDR", address}})).master_address == address);
  }
  CHECK(holds(refusal(with(torchrun(), {{"MASTER_ADDR", "fd00::2::1"}})), "MASTER_ADDR"));
}

TEST_CASE("whatever a launcher's variables hold, they give a place within the world or one line of refusal") {
  std::mt19937_64 random(10);
  const std::array sets{torchrun(), open_mpi(), hydra(), slurm(), with(slurm(), torchrun())};
  int refused = 0;
  for (std::size_t i = 0; i < 5000; ++i) {
    Set set = sets.at(i % sets.size());
    auto victim = set.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(random() % set.size()));
    victim->second = random() % 8 == 0 ? "" : testing::mutate(victim->second, random);
    CAPTURE(victim->first);
    CAPTURE(victim->second);
    try {
      const RankPlace place = place_of(set);
      CHECK(place.rank >= 0);
      CHECK(place.rank < place.world);
      CHECK(place.local_rank < place.world);
      CHECK((place.world == 1 || place.master_port > 0));
    } catch (const InputError& error) {
      ++refused;
      const std::string text = error.what();
      CHECK(holds(text, "environment: "));
      CHECK_FALSE(holds(text, "\n"));
    }
  }
  CHECK(refused > 1000);
}

}  // namespace vramfit
