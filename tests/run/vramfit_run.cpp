#include "tests/run/vramfit_run.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>

#include "estimator/rank_estimate.h"
#include "model_specs/config.h"
#include "program/ledger/event_lines.h"
#include "program/make_program.h"
#include "program/readers/bytes.h"
#include "program/stages/adapters.h"
#include "tests/run/forks.h"
#include "tests/support/paths.h"

namespace vramfit::testing {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

FinishedRun run_program(const std::vector<std::string>& arguments) {
  FinishedRun run;
  run.arguments = arguments;
  run.directory = std::make_shared<TemporaryDirectory>();
  const std::string out = run.directory->path().string() + "/stdout", err = run.directory->path().string() + "/stderr";
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  const int failed = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + arguments[0]);
  int status = 0;
  waitpid(child, &status, 0);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.output = read_text(out);
  run.errors = read_text(err);
  return run;
}

void write_tokens(const std::string& path, std::int64_t vocabulary, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::ofstream file(path, std::ios::binary);
  for (std::size_t i = 0; i < count; ++i) {
    const auto token = static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(vocabulary));
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
}

FinishedRun run_vramfit(const CoverJob& job, const std::vector<std::string>& extra, const std::string& budget) {
  return run_on(std::to_string(job.ranks) + "xcpu-" + budget, job, extra);
}

FinishedRun run_on(const std::string& gpus, const CoverJob& job, const std::vector<std::string>& extra) {
  const auto directory = std::make_shared<TemporaryDirectory>();
  const std::string data = directory->path().string() + "/tokens.bin";
  write_tokens(data, parse_config(read_text(model_path(job.family)), job.family).vocab_size, 20000, 1);
  static const TrainForks forks(TrainForks::Cards::none);
  std::vector<std::string> arguments{forks.vramfit(),
                                     "run",
                                     model_path(job.family),
                                     "--gpus",
                                     gpus,
                                     "--data",
                                     data,
                                     "--token-bytes",
                                     "4",
                                     "--events",
                                     directory->path().string() + "/events",
                                     "-o",
                                     directory->path().string() + "/run.json"};
  arguments.insert(arguments.end(), job.flags.begin(), job.flags.end());
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  FinishedRun run = run_program(arguments);
  run.directory = directory;
  run.family = job.family;
  return run;
}

RunRecord FinishedRun::record() const {
  const std::string file = directory->path().string() + "/run.json";
  return run_from_json(read_text(file), file);
}

Ledger FinishedRun::events_of(int rank) const {
  const std::string path = directory->path().string() + "/events/rank" + std::to_string(rank) + ".jsonl";
  if (!std::filesystem::exists(path)) throw std::runtime_error(path + ": missing");
  return ledger_from_lines(read_text(path), path, std::numeric_limits<std::int32_t>::max());
}

program::Program program_as_run(const FinishedRun& run, int rank) {
  const RunRecord record = run.record();
  const ModelSpec spec = parse_config(read_text(model_path(run.family)), run.family);
  const Coords coords{rank / record.job.mesh.shard, rank % record.job.mesh.shard};
  const Graph graph = training_graph(spec, record.job);
  return program::make_program({.graph = graph,
                                .job = record.job,
                                .device = record.cluster.card.device,
                                .coords = coords,
                                .run = record.effects.value()});
}

Ledger count_as_run(const FinishedRun& run, int rank, int steps) {
  return ledger_of(program_as_run(run, rank), {.steps = steps, .abbreviate = false});
}

}  // namespace vramfit::testing
