#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "executor/checkpoint/read_numbers.h"
#include "executor/checkpoint/tensor_names.h"
#include "executor/checkpoint/weights.h"
#include "model_specs/hub/safetensors.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr std::size_t kNamedInErrors = 3;

class SafetensorsWeights : public WeightSource {
 public:
  SafetensorsWeights(const std::string& path, const Graph& graph, std::unique_ptr<WeightSource> initial)
      : path_(path), initial_(std::move(initial)), checkpoint_(list_tensors(path)) {
    const std::vector<bool> is_adapter = adapter_parameters(graph);
    std::unordered_map<std::string_view, const StoredTensor*> stored;
    for (const StoredTensor& tensor : checkpoint_.tensors) stored.emplace(tensor.name, &tensor);
    std::vector<std::string> missing;
    for (const Parameter& parameter : graph.parameters) {
      const std::vector<std::string> names = checkpoint_names(parameter.name, graph);
      const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return stored.contains(n); });
      if (name == names.end()) {
        const auto index = static_cast<std::size_t>(&parameter - graph.parameters.data());
        if (initial_ == nullptr || !is_adapter[index]) missing.push_back(parameter.name);
        continue;
      }
      const StoredTensor& tensor = *stored.at(*name);
      check(tensor, parameter);
      tensor_of_.emplace(parameter.name, &tensor);
    }
    if (!missing.empty()) fail_missing(missing, graph.parameters.size());
    for (const std::string& file : checkpoint_.files) files_.emplace_back(file, kWeightsFile);
  }

  void read_rows(const Parameter& parameter, std::int64_t first_row, std::int64_t rows, at::Tensor& into) override {
    const auto found = tensor_of_.find(parameter.name);
    if (found == tensor_of_.end()) return initial_->read_rows(parameter, first_row, rows, into);
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

  std::string description() const override { return path_; }

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

  [[noreturn]] void fail_missing(std::vector<std::string> missing, std::size_t all) const {
    const std::size_t count = missing.size();
    missing.resize(std::min(count, kNamedInErrors));
    throw ModelError(fmt::format("weights {}: {} of {} tensors are missing: {}{}", printable(path_), count, all,
                                 fmt::join(missing, ", "), count > kNamedInErrors ? ", ..." : ""));
  }

  std::string path_;
  std::unique_ptr<WeightSource> initial_;  // of adapters that the file lacks
  Checkpoint checkpoint_;
  std::unordered_map<std::string, const StoredTensor*> tensor_of_;  // by parameter
  std::vector<File> files_;
};

}  // namespace

std::unique_ptr<WeightSource> safetensors_weights(const std::string& path, const Graph& graph,
                                                  std::unique_ptr<WeightSource> initial) {
  return std::make_unique<SafetensorsWeights>(path, graph, std::move(initial));
}

}  // namespace vramfit
