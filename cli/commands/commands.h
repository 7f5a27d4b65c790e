// What each command adds to the command line. One file per command.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace vramfit {

void add_estimate(CLI::App& command, int& exit_code);
void add_plan(CLI::App& command, int& exit_code);
void add_run(CLI::App& command, int& exit_code);
void add_rehearse(CLI::App& command, int& exit_code);
void add_calibrate(CLI::App& command, int& exit_code);
void add_compare(CLI::App& command, int& exit_code);
void add_fake_weights(CLI::App& command, int& exit_code);
void add_explain(CLI::App& command, int& exit_code);
void add_export(CLI::App& command, int& exit_code);
void add_import(CLI::App& command, int& exit_code);
void add_merge(CLI::App& command, int& exit_code);
void add_models(CLI::App& command, int& exit_code);
void add_gpus(CLI::App& command, int& exit_code);
void add_program(CLI::App& command, int& exit_code);
void add_doctor(CLI::App& command, int& exit_code);
void add_completion(CLI::App& command, int& exit_code);
void add_version(CLI::App& command, int& exit_code);
void add_help(CLI::App& command, int& exit_code);

}  // namespace vramfit
