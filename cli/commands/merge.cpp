#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/flags/help.h"
#include "cli/merge/merge.h"

namespace vramfit {
namespace {

struct MergeFlags {
  std::string base, adapters, out;
};

void require_there(const char* what, const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) || error) return;  // what else is wrong is found where it is read
  throw InputError(fmt::format("{} {}: no such file or folder", what, printable(path)));
}

int merge(const MergeFlags& flags) {
  if (flags.base.empty()) throw InputError("BASE: missing; the model's folder, .safetensors file or index.json");
  if (flags.adapters.empty()) throw InputError("ADAPTERS: missing; the folder that holds adapter_config.json");
  if (flags.out.empty()) throw InputError("-o: missing; the folder to write");
  require_there("BASE", flags.base);
  require_there("ADAPTERS", flags.adapters);
  const MergedModel merged = merge_adapters(flags.base, flags.adapters, flags.out);
  write_file("-", fmt::format("{}: {} of {} tensors merged with their adapters, {}\n", printable(flags.out),
                              merged.matrices, merged.tensors, format_gib(merged.bytes)));
  return 0;
}

}  // namespace

void add_merge(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<MergeFlags>();
  command.add_option("BASE", flags->base, "The model: a folder, .safetensors file or model.safetensors.index.json");
  command.add_option("ADAPTERS", flags->adapters, "Folder of LoRA adapters, as PEFT or run --save-adapters writes it");
  command.add_option("-o,--output", flags->out, "The folder to write; it must not exist")
      ->type_name("DIR")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = merge(*flags); });
}

}  // namespace vramfit
