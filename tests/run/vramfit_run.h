// Runs `vramfit run` on a tiny model with random tokens and reads back what it left.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/files/run_record.h"
#include "program/ledger/ledger.h"
#include "program/program.h"
#include "tests/run/cover.h"
#include "tests/support/temporary_directory.h"

namespace vramfit::testing {

struct FinishedRun {
  int exit_code = -1;
  std::vector<std::string> arguments;
  std::string output, errors;
  std::string family;
  std::shared_ptr<TemporaryDirectory> directory;
  RunRecord record() const;          // of run.json
  Ledger events_of(int rank) const;  // what that rank measured
};

/// `vramfit run MODEL --gpus GPUS FLAGS... EXTRA...` on random tokens, with events recorded.
FinishedRun run_on(const std::string& gpus, const CoverJob& job, const std::vector<std::string>& extra);

/// The same on CPU ranks, RANKSxcpu-BUDGET.
FinishedRun run_vramfit(const CoverJob& job, const std::vector<std::string>& extra, const std::string& budget = "4GiB");

/// The program of a rank of the job as the run resolved it.
program::Program program_as_run(const FinishedRun& run, int rank);
/// Its ledger, event by event (nothing abbreviated).
Ledger count_as_run(const FinishedRun& run, int rank, int steps = 2);

/// Runs a program without a shell; output and errors are captured.
FinishedRun run_program(const std::vector<std::string>& arguments);

/// The whole of a file.
std::string read_text(const std::string& path);

/// A file of `count` random 4-byte tokens below `vocabulary`.
void write_tokens(const std::string& path, std::int64_t vocabulary, std::size_t count, std::uint64_t seed);

}  // namespace vramfit::testing
