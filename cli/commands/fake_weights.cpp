#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/fake_weights/checkpoint.h"
#include "cli/flags/help.h"
#include "cli/flags/model.h"

namespace vramfit {
namespace {

struct FakeWeightsFlags {
  std::string model, folder, dtype = "bf16";
  bool tokenizer = false;
};

Dtype weights_dtype(const std::string& name) {
  try {
    const Dtype dtype = parse_dtype(name);
    if (dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16) return dtype;
    throw InputError("expected bf16, fp16 or fp32");
  } catch (const InputError& error) {
    throw InputError(fmt::format("--dtype {}: {}", printable(name), error.what()));
  }
}

int write_fake_weights(const FakeWeightsFlags& flags) {
  if (flags.folder.empty()) throw InputError("DIR: missing; the folder to write");
  const Dtype dtype = weights_dtype(flags.dtype);
  const ModelSpec spec = read_model(flags.model);
  const WeightsHeader header = write_checkpoint(spec, dtype, flags.folder, flags.tokenizer);
  write_file("-",
             fmt::format("{}: {} tensors of zeros, {}, which take no space on disk{}\n", printable(flags.folder),
                         header.tensors, format_gib(header.data), flags.tokenizer ? "; a tokenizer of bytes" : ""));
  return 0;
}

}  // namespace

void add_fake_weights(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<FakeWeightsFlags>();
  command.add_option("MODEL", flags->model, "A catalog name, hub id, directory or config.json");
  command.add_option("DIR", flags->folder, "The folder to write, new or empty");
  command.add_option("--dtype", flags->dtype, "Dtype of the weights: bf16, fp16 or fp32. Default: bf16")
      ->type_name("DTYPE")
      ->group(kOutputFlags);
  command
      .add_flag("--tokenizer", flags->tokenizer,
                "Also write a tokenizer, whose tokens are bytes, for scripts that need one")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = write_fake_weights(*flags); });
}

}  // namespace vramfit
