#include "cli/recipes/exact_cache.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/private_cache.h"
#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/launch/environment.h"
#include "cli/rehearse/search/trial_cache.h"
#include "model_specs/hub/options.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::array kVerdicts{RehearsalVerdict::fits, RehearsalVerdict::at_risk, RehearsalVerdict::does_not_fit};

/// How the names of variables begin that PyTorch and the libraries of recipes read.
constexpr std::array<std::string_view, 16> kRead{
    "PYTORCH",      "TORCH", "PYTHON",     "CUDA", "CUBLAS", "CUDNN",     "NCCL", "GLOO",
    "TRANSFORMERS", "HF_",   "ACCELERATE", "FSDP", "BNB_",   "DEEPSPEED", "DS_",  "VRAMFIT_PHANTOM"};

std::string digest_of(const ExactAnswer& answer) {
  return key_of({std::string(verdict_name(answer.verdict)), answer.text, answer.json});
}

ExactAnswer read_answer(const std::string& path) {
  const JsonValue value = parse_json(read_file(path), path);
  JsonObject object(value, path);
  ExactAnswer answer;
  const std::string verdict = object.text("verdict");
  const auto* const known =
      std::ranges::find_if(kVerdicts, [&](RehearsalVerdict each) { return verdict_name(each) == verdict; });
  if (known == kVerdicts.end()) object.fail("verdict", "is none of an answer's");
  answer.verdict = *known;
  answer.text = object.text("text");
  answer.json = object.text("json");
  if (object.text("digest") != digest_of(answer)) object.fail("digest", "is not that of what the file holds");
  object.finish();
  return answer;
}

std::string identity_of(const fs::path& file) {
  return fmt::format("{} {}", file.filename().string(), stamp_of(file.string()));
}

/// Of this program and of the stand-ins in `folder`, whatever the version says: names, sizes and times.
std::vector<std::string> program_identity(const std::string& folder) {
  std::vector<std::string> files{identity_of("/proc/self/exe")};
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    files.push_back(identity_of(entry->path()));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::optional<ExactAnswer> ExactCache::find(const std::string& key) {
  if (folder_.empty()) return std::nullopt;
  const fs::path path = path_of(key);
  if (const std::string why = why_not_trusted(folder_, path); !why.empty()) {
    note(why);
    return std::nullopt;
  }
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  try {
    return read_answer(path.string());
  } catch (const InputError& why) {
    notes_.push_back(fmt::format("a kept answer isn't used: {}", why.what()));
    return std::nullopt;
  }
}

void ExactCache::put(const std::string& key, const ExactAnswer& answer) {
  if (folder_.empty() || std::ranges::find(kVerdicts, answer.verdict) == kVerdicts.end()) return;
  JsonWriter writer;
  writer.begin_object().member("verdict", verdict_name(answer.verdict)).member("digest", digest_of(answer));
  writer.member("text", answer.text).member("json", answer.json).end_object();
  note(keep_private(folder_, path_of(key), writer.take()));
}

void ExactCache::note(const std::string& why) {
  const std::string text = not_used_as_cache(folder_, why);
  if (!text.empty() && std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(text);
}

fs::path exact_cache_folder() {
  const fs::path own = own_cache(process_environment);
  return own.empty() ? own : own / "exact";
}

std::string exact_key(const RehearsalRequest& request, const RecipeRun& run, const std::string& model) {
  std::vector<std::string> parts = run.identity({});
  std::vector<std::string> variables = environment_with(request.environment);
  std::erase_if(variables, [](const std::string& variable) {
    return std::ranges::none_of(kRead, [&](std::string_view begin) { return variable.starts_with(begin); });
  });
  std::ranges::sort(variables);
  parts.insert(parts.end(), variables.begin(), variables.end());
  const std::vector<std::string> program = program_identity(request.library);
  parts.insert(parts.end(), program.begin(), program.end());
  parts.insert(parts.end(), {model, version_text(), contents_of(parts.front()),
                             session_to_json(request.cluster, request.played_rank, request.settings)});
  return key_of(parts);
}

}  // namespace vramfit
