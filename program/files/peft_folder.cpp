#include "program/files/peft_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "job/fields/job_fields.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr FileRole kAdapterFile{"adapters", ExitCode::model};
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kMagnitudes = ".lora_magnitude_vector";

struct Pair {
  const StoredTensor* a = nullptr;
  const StoredTensor* b = nullptr;
  const StoredTensor* magnitudes = nullptr;
};

[[noreturn]] void fail_tensor(const PeftFolder& folder, const StoredTensor& tensor, const std::string& why) {
  fail_file(kAdapterFile, folder.weights, fmt::format("tensor {}: {}", printable(tensor.name), why));
}

std::string why_unknown(std::string_view name) {
  if (name.find("lora_embedding_") != std::string_view::npos) return "adapters of embeddings are not supported";
  return fmt::format("only {}MODULE{} and {} are read", kPeftPrefix, kA, kB);
}

std::map<std::string, Pair> pairs_of(const PeftFolder& folder) {
  std::map<std::string, Pair> pairs;
  for (const StoredTensor& tensor : folder.tensors) {
    const std::string_view name = tensor.name;
    if (name.starts_with(kPeftPrefix) && name.ends_with(kMagnitudes) && tensor.shape.size() == 1) {
      const std::size_t length = name.size() - kPeftPrefix.size() - kMagnitudes.size();
      pairs[std::string(name.substr(kPeftPrefix.size(), length))].magnitudes = &tensor;
      continue;
    }
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (!name.starts_with(kPeftPrefix) || is_a == is_b || name.size() <= kPeftPrefix.size() + kA.size()) {
      fail_tensor(folder, tensor, why_unknown(name));
    }
    const std::string_view module = name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - kA.size());
    if (tensor.shape.size() != 2)
      fail_tensor(folder, tensor, fmt::format("has {} dimensions, not 2", tensor.shape.size()));
    const std::int64_t rank = tensor.shape[is_a ? 0 : 1];
    if (rank != folder.config.lora.rank) {
      fail_tensor(folder, tensor,
                  fmt::format("has rank {}, and {} says {}", rank, kPeftConfigFile, folder.config.lora.rank));
    }
    Pair& pair = pairs[std::string(module)];
    (is_a ? pair.a : pair.b) = &tensor;
  }
  return pairs;
}

/// As many as B has rows where the configuration says use_dora, and else none.
void require_magnitudes(const PeftFolder& folder, const Pair& pair) {
  const bool are_expected = folder.config.lora.has_magnitudes;
  if (pair.magnitudes == nullptr && are_expected) {
    fail_tensor(folder, *pair.a,
                fmt::format("there is no {} for it, and {} says use_dora", kMagnitudes, kPeftConfigFile));
  }
  if (pair.magnitudes == nullptr) return;
  if (!are_expected) {
    fail_tensor(folder, *pair.magnitudes, fmt::format("{} doesn't say use_dora", kPeftConfigFile));
  }
  if (pair.magnitudes->shape[0] != pair.b->shape[0]) {
    fail_tensor(folder, *pair.magnitudes,
                fmt::format("is {} long, and its adapter has {} outputs", pair.magnitudes->shape[0], pair.b->shape[0]));
  }
}

std::vector<std::string> adapted_modules(const PeftFolder& folder) {
  std::vector<std::string> modules;
  for (const auto& [module, pair] : pairs_of(folder)) {
    const StoredTensor* one = pair.a != nullptr ? pair.a : pair.b != nullptr ? pair.b : pair.magnitudes;
    if (pair.a == nullptr || pair.b == nullptr) {
      fail_tensor(folder, *one, fmt::format("there is no lora_{} for it", pair.a == nullptr ? 'A' : 'B'));
    }
    require_magnitudes(folder, pair);
    modules.push_back(module);
  }
  if (modules.empty()) fail_file(kAdapterFile, folder.weights, "holds no adapters");
  return modules;
}

/// As PEFT matches names in target_modules (peft/tuners/tuners_utils.py, check_target_module_exists).
bool ends_in(std::string_view module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

bool is_set(const std::vector<std::string>& fixed, std::string_view field) {
  return std::ranges::find(fixed, field) != fixed.end();
}

std::string weights_path(const std::string& folder) {
  const std::filesystem::path path = folder;
  std::error_code error;
  for (const char* pickled : {"adapter_model.bin", "adapter_model.pt"}) {
    if (std::filesystem::exists(path / kPeftWeightsFile, error) || !std::filesystem::exists(path / pickled, error))
      continue;
    refuse_pickle((path / pickled).string());
  }
  return (path / kPeftWeightsFile).string();
}

void require_same(const PeftFolder& folder, const Job& job, std::string_view field, std::string_view key,
                  const Job& folders) {
  const JobField& row = job_field_named(field);
  const auto text = [&](const Job& of) { return row.get(of).empty() ? std::string("off") : row.get(of); };
  if (text(job) == text(folders)) return;
  throw InputError(fmt::format("{} {}: the adapters in {} have {} {}; leave the flag out, or start without them",
                               flag_of(row), text(job), printable(folder.path), key, text(folders)));
}

}  // namespace

PeftFolder read_peft_folder(const std::string& path) {
  PeftFolder folder;
  folder.path = path;
  const std::string config = (std::filesystem::path(path) / kPeftConfigFile).string();
  folder.config = peft_config_from_json(read_file(config, kAdapterFile, kLongestPeftConfig), printable(config));
  folder.weights = weights_path(path);
  folder.tensors = list_tensors(folder.weights).tensors;
  folder.modules = adapted_modules(folder);
  return folder;
}

std::vector<std::string> job_targets(const PeftFolder& folder) {
  const PeftConfig& config = folder.config;
  if (config.all_linear) return {};
  if (config.targets.empty()) return folder.modules;
  // Names that mean no module of this model are allowed by PEFT, and need no adapter.
  std::vector<std::string> targets;
  std::ranges::copy_if(config.targets, std::back_inserter(targets), [&](const std::string& target) {
    return std::ranges::any_of(folder.modules, [&](const std::string& module) { return ends_in(module, target); });
  });
  return targets.empty() ? folder.modules : targets;
}

void check_adapters(const PeftFolder& folder, const Job& job) {
  if (job.method == Method::full) {
    throw InputError("--adapters with --method full: there are no adapters; use --method lora");
  }
  Job folders = job;
  const Lora& lora = folder.config.lora;
  folders.lora.rank = lora.rank;
  folders.lora.alpha = lora.alpha;
  folders.lora.rank_stabilized = lora.rank_stabilized;
  folders.lora.has_magnitudes = lora.has_magnitudes;
  require_same(folder, job, "lora_rank", "r", folders);
  require_same(folder, job, "lora_alpha", "lora_alpha", folders);
  require_same(folder, job, "rslora", "use_rslora", folders);
  require_same(folder, job, "dora", "use_dora", folders);
}

void take_adapters(const PeftFolder& folder, Job& job, std::vector<std::string>& fixed) {
  const Lora& lora = folder.config.lora;
  const auto take = [&](const char* field, const auto& set) {
    if (is_set(fixed, field)) return;
    set();
    fixed.emplace_back(field);
  };
  take("method", [&] { job.method = Method::lora; });
  take("lora_rank", [&] { job.lora.rank = lora.rank; });
  take("lora_alpha", [&] { job.lora.alpha = lora.alpha; });
  take("lora_dropout", [&] { job.lora.dropout = lora.dropout; });
  take("rslora", [&] { job.lora.rank_stabilized = lora.rank_stabilized; });
  take("dora", [&] { job.lora.has_magnitudes = lora.has_magnitudes; });
  take("lora_targets", [&] { job.lora.targets = job_targets(folder); });
  check_adapters(folder, job);
}

}  // namespace vramfit
