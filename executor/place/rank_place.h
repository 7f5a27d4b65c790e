// A process's place in the job, as whatever started it says in the environment (docs/launching.md).
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace vramfit {

struct RankPlace {
  int rank = 0, world = 1, local_rank = 0;
  int local_world = 0;   // ranks on this machine; 0: not known
  std::string launcher;  // "torchrun", "Open MPI", "Slurm", "PMI"; "" for a rank that nobody placed
  std::string job;       // tells jobs apart that meet at the same address; "" where the launcher has no name for one
  std::string master_address;
  int master_port = 0;
  // Handed down by `vramfit run`: the ranks meet in a file in a folder that no other user can enter, and at no address.
  std::string store_file;
  bool store_is_hosted = false;  // torchrun's agent serves the store there: rank 0 is a client as well
  bool on_one_node = true;       // all ranks are on this machine
};

/// A variable's value; none when it is unset or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// Of this process.
Variables environment_variables();

/// Reads the first of these that is there: RANK ... (torchrun, `vramfit run`), OMPI_COMM_WORLD_* (Open MPI), PMI_* with
/// MPI_LOCALRANKID (MPICH, Intel MPI), SLURM_* (srun); one rank where there is none. MASTER_ADDR and MASTER_PORT come
/// before what can be derived: loopback when the world is on one machine, the first host of Slurm's node list, a port
/// from SLURM_JOB_ID. Throws InputError that names the variable, its value, and what to do.
RankPlace rank_place(const Variables& variables);

/// 10000 + (16 job + step) mod 20000: below the ports that Linux gives to connections, apart for a job's first 16
/// steps.
int slurm_port(std::int64_t job, std::int64_t step);

/// Whether `address` ("localhost", "127.0.0.1", "::1") stays on this machine.
bool is_loopback(const std::string& address);

}  // namespace vramfit
