#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "executor/checkpoint/read_numbers.h"
#include "executor/checkpoint/tensor_names.h"
#include "executor/checkpoint/weights.h"
#include "model_specs/hub/safetensors.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr std::size_t kNamedInErrors = 3;

/// A file, or several, and what is looked for in it.
struct Stored {
  std::string path;
  Checkpoint checkpoint;
  std::function<std::vector<std::string>(const std::string&)> names;  // that a parameter may have there
  std::vector<bool> needed;                                           // by parameter
  std::string description;
};

class SafetensorsWeights : public WeightSource {
 public:
  SafetensorsWeights(Stored stored_weights, const Graph& graph, std::unique_ptr<WeightSource> rest)
      : path_(std::move(stored_weights.path)),
        description_(std::move(stored_weights.description)),
        rest_(std::move(rest)),
        checkpoint_(std::move(stored_weights.checkpoint)) {
    std::unordered_map<std::string_view, const StoredTensor*> stored;
    for (const StoredTensor& tensor : checkpoint_.tensors) stored.emplace(tensor.name, &tensor);
    std::vector<std::string> missing;
    for (const Parameter& parameter : graph.parameters) {
      const std::vector<std::string> names = stored_weights.names(parameter.name);
      const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return stored.contains(n); });
      if (name == names.end()) {
        const auto index = static_cast<std::size_t>(&parameter - graph.parameters.data());
        if (stored_weights.needed[index]) missing.push_back(parameter.name);
        continue;
      }
      const StoredTensor& tensor = *stored.at(*name);
      check(tensor, parameter);
      tensor_of_.emplace(parameter.name, &tensor);
    }
    if (!missing.empty()) fail_missing(missing, std::ranges::count(stored_weights.needed, true));
    for (const std::string& file : checkpoint_.files) files_.emplace_back(file, kWeightsFile);
  }

  void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) override {
    const auto found = tensor_of_.find(parameter.name);
    if (found == tensor_of_.end()) return rest_->read_rows(parameter, first_row, rows, into);
    const StoredTensor& tensor = *found->second;
    const File& file = files_[static_cast<std::size_t>(tensor.file)];
    const StoredFloat type = *stored_float(tensor.dtype);
    const std::int64_t width = stored_bytes(type), row_elements = row_element_count(parameter);
    const std::int64_t first = checked_mul(first_row, row_elements), count = checked_mul(rows, row_elements);
    const std::int64_t stored = tensor.bytes.n / width;
    if (first < 0 || first > stored || count > stored - first) {
      throw FaultError(fmt::format("weights {}: {} has no rows {} to {}", printable(path_), parameter.name, first_row,
                                   checked_add(first_row, rows)));
    }
    read_numbers(file, {.type = type, .begin = tensor.offset + first * width, .count = count}, into, 0);
  }

  bool lacks(const Parameter& parameter) const override {
    return rest_ != nullptr && !tensor_of_.contains(parameter.name) && rest_->lacks(parameter);
  }

  std::string description() const override { return description_; }

 private:
  void check(const StoredTensor& tensor, const Parameter& parameter) const {
    if (tensor.shape != parameter.shape) {
      throw ModelError(fmt::format("weights {}: tensor {} is {}, the model needs {}; is it another model's checkpoint?",
                                   printable(path_), printable(tensor.name), tensor.shape, parameter.shape));
    }
    if (!stored_float(tensor.dtype)) {
      throw ModelError(fmt::format("weights {}: tensor {} is stored as {}; expected F32, BF16 or F16", printable(path_),
                                   printable(tensor.name), tensor.dtype));
    }
  }

  [[noreturn]] void fail_missing(std::vector<std::string> missing, std::ptrdiff_t all) const {
    const std::size_t count = missing.size();
    missing.resize(std::min(count, kNamedInErrors));
    throw ModelError(fmt::format("weights {}: {} of {} tensors are missing: {}{}", printable(path_), count, all,
                                 fmt::join(missing, ", "), count > kNamedInErrors ? ", ..." : ""));
  }

  std::string path_, description_;
  std::unique_ptr<WeightSource> rest_;  // of what the file need not have, and lacks
  Checkpoint checkpoint_;
  std::unordered_map<std::string, const StoredTensor*> tensor_of_;  // by parameter
  std::vector<File> files_;
};

}  // namespace

std::unique_ptr<WeightSource> safetensors_weights(const std::string& path, const Graph& graph,
                                                  std::unique_ptr<WeightSource> initial) {
  std::vector<bool> needed(graph.parameters.size(), true);
  if (initial != nullptr) {
    needed = adapter_parameters(graph);
    needed.flip();
  }
  const auto names = [&](const std::string& name) { return checkpoint_names(name, graph); };
  return std::make_unique<SafetensorsWeights>(Stored{path, list_tensors(path), names, std::move(needed), path}, graph,
                                              std::move(initial));
}

std::unique_ptr<WeightSource> peft_weights(const PeftFolder& folder, const Graph& graph,
                                           std::unique_ptr<WeightSource> base) {
  std::vector<bool> needed = adapter_parameters(graph);
  std::set<std::string> adapters;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i]) adapters.insert(std::string(kPeftPrefix) + graph.parameters[i].name);
  }
  for (const StoredTensor& tensor : folder.tensors) {
    if (adapters.contains(tensor.name)) continue;
    throw ModelError(
        fmt::format("weights {}: the job has no adapter {}; leave --lora-targets out, and the folder says "
                    "which modules have one",
                    printable(folder.weights), printable(tensor.name)));
  }
  const auto names = [](const std::string& name) { return std::vector{std::string(kPeftPrefix) + name}; };
  Stored stored{.path = folder.weights,
                .checkpoint = {.files = {folder.weights}, .tensors = folder.tensors},
                .names = names,
                .needed = std::move(needed),
                .description = fmt::format("{}, adapters {}", base->description(), folder.path)};
  return std::make_unique<SafetensorsWeights>(std::move(stored), graph, std::move(base));
}

}  // namespace vramfit
