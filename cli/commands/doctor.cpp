#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/text/suggest.h"
#include "base/text/units.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/executor_program.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/rehearse/processes/python_check.h"

namespace vramfit {
namespace {

std::string line(std::string_view name, std::string_view value) { return fmt::format("{:<18}{}\n", name, value); }

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no other thread runs
  return value == nullptr ? "" : printable(value);
}

std::string host_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || size <= 0) return "unknown";
  return format_gib(static_cast<std::int64_t>(pages) * Bytes{size});
}

std::string gpus() {
  std::error_code error;
  int count = 0;
  while (std::filesystem::exists(fmt::format("/dev/nvidia{}", count), error)) ++count;
  return count == 0 ? "none seen: CPU ranks run here (--gpus 2xcpu-4GiB)" : fmt::format("{} NVIDIA", count);
}

std::string executor() {
  const std::string path = find_executor();
  return path.empty() ? "vramfit-train is missing: estimate and plan work, run does not; " + how_to_get_executor()
                      : path;
}

/// What the executor says of the machine's precisions; nothing without one.
std::string precisions() {
  const std::string path = find_executor();
  if (path.empty() || path.find('\'') != std::string::npos) return "";
  FILE* const pipe = ::popen(fmt::format("'{}' --support 2>/dev/null", path).c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
  ::pclose(pipe);
  return text;
}

std::string report() {
  std::string text = line("version", version_text());
  text += line("cores", fmt::to_string(std::thread::hardware_concurrency()));
  text += line("host memory", host_memory());
  text += line("GPUs", gpus());
  text += line("executor", executor());
  text += precisions();
  text += line("HF_HOME", variable("HF_HOME").empty() ? "not set: ~/.cache/huggingface" : variable("HF_HOME"));
  text += line("HF_TOKEN", variable("HF_TOKEN").empty() ? "not set: gated models need it, or a catalog name" : "set");
  text += line("HF_HUB_OFFLINE", variable("HF_HUB_OFFLINE").empty() ? "not set" : variable("HF_HUB_OFFLINE"));
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (!variable(name).empty()) text += line("allocator", fmt::format("{}={}", name, variable(name)));
  }
  return text;
}

/// Of one interpreter's torch.
std::string python_report(const PythonCheck& check) {
  std::string text =
      line("python", fmt::format("{}{}{}", printable(check.python), check.version.empty() ? "" : ", ", check.version));
  if (!check.torch.empty()) {
    text += line("torch", fmt::format("{}, {}", check.torch, check.cuda.empty() ? "no CUDA" : "CUDA " + check.cuda));
  }
  text +=
      line("rehearse", check.why_not.empty() ? fmt::format("works: a matrix product ran on a simulated {}", check.card)
                                             : "does not work: " + check.why_not);
  for (const std::string& library : check.stand_ins) text += line("stand-in", library);
  return text;
}

int run_doctor(const std::string& python) {
  if (python.empty()) {
    write_file("-", report());
    return static_cast<int>(ExitCode::done);
  }
  const PythonCheck check = check_python(python);
  write_file("-", python_report(check));
  return static_cast<int>(check.why_not.empty() ? ExitCode::done : ExitCode::failed);
}

}  // namespace

void add_doctor(CLI::App& command, int& exit_code) {
  const auto python = std::make_shared<std::string>();
  command
      .add_option(
          "--python", *python,
          "Test whether this interpreter's torch can be rehearsed, and name the stand-in libraries that it loads")
      ->type_name("PATH")
      ->group(kCommonFlags);
  command.callback([python, &exit_code] { exit_code = run_doctor(*python); });
}

}  // namespace vramfit
