// Runs many jobs as vramfit-train would, one after the other. Every rank is a fork of this process, so LibTorch is
// loaded once and not once a rank and job. A line of input is a job, its fields separated by tabs: RANKS, a file for
// what the ranks say, the arguments of vramfit-train. The answer is a line with the exit code of the first rank that
// failed, or 0.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/run/run.h"
#include "job/run/run_flags.h"

namespace {

struct Job {
  int ranks = 1;
  std::string said;
  std::vector<std::string> arguments;
};

Job read_job(const std::string& line) {
  std::istringstream fields(line);
  Job job;
  std::string field;
  std::getline(fields, field, '\t');
  job.ranks = std::stoi(field);
  std::getline(fields, job.said, '\t');
  while (std::getline(fields, field, '\t')) job.arguments.push_back(field);
  return job;
}

void set(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }

/// The whole life of a rank; its output goes to the job's file.
int rank_main(const Job& job, int rank, const std::string& store) {
  const int file = open(job.said.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0) return 1;
  set("RANK", rank);
  set("LOCAL_RANK", rank);
  set("WORLD_SIZE", job.ranks);
  setenv("VRAMFIT_STORE_FILE", store.c_str(), 1);
  try {
    vramfit::run_rank(vramfit::parse_run_flags(job.arguments));
    return 0;
  } catch (const vramfit::Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return static_cast<int>(error.code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

/// Waits for all; the first rank that fails takes the others with it.
int wait_for(std::vector<pid_t> ranks) {
  int result = 0;
  while (!ranks.empty()) {
    int status = 0;
    const pid_t ended = wait(&status);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) return 1;
    std::erase(ranks, ended);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 || result != 0) continue;
    result = code;
    for (const pid_t other : ranks) kill(other, SIGKILL);
  }
  return result;
}

int run(const Job& job) {
  const std::string store = job.said + ".store";  // where the ranks meet
  unlink(store.c_str());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(rank_main(job, rank, store));
    if (child < 0) return 1;
    ranks.push_back(child);
  }
  const int result = wait_for(ranks);
  unlink(store.c_str());
  return result;
}

}  // namespace

int main() try {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << run(read_job(line)) << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_jobs: %s\n", error.what());
  return 1;
}
