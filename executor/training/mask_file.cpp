// Masks that a file holds, read shard by shard.
#include <algorithm>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/checkpoint/mask_digest.h"
#include "executor/checkpoint/read_blocks.h"
#include "executor/checkpoint/tensor_names.h"
#include "executor/training/gradient_mask_torch.h"
#include "executor/training/tensor_torch.h"
#include "model_specs/hub/safetensors.h"

namespace vramfit {

namespace {

class MaskFile {
 public:
  MaskFile(const std::string& path, const Graph& graph, const UnitLayout& layout)
      : path_(path), graph_(graph), stored_(list_tensors(path)) {
    std::map<std::string_view, const StoredTensor*> by_name;
    for (const StoredTensor& tensor : stored_.tensors) by_name.emplace(tensor.name, &tensor);
    for (const Unit& unit : layout.units) {
      for (const UnitParameter& p : unit.parameters) {
        const Parameter& parameter = graph.parameters[static_cast<std::size_t>(p.parameter)];
        const std::vector<std::string> names = checkpoint_names(parameter.name, graph);
        const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return by_name.contains(n); });
        if (name == names.end()) continue;
        check(*by_name.at(*name), parameter, p.trainable);
        of_parameter_.emplace(p.parameter, by_name.at(*name));
        by_name.erase(*name);
      }
    }
    if (!by_name.empty()) fail_unknown(by_name.begin()->first);
    for (const std::string& file : stored_.files) files_.emplace_back(file, kMaskFile);
  }

  bool holds(int parameter) const { return of_parameter_.contains(parameter); }

  /// Elements `first` and up of a parameter's mask into all of `into`, bytes on any device; each is 0 or 1.
  void read(int parameter, std::int64_t first, const at::Tensor& into) const {
    const StoredTensor& tensor = *of_parameter_.at(parameter);
    const auto take = [&](std::int64_t done, std::span<char> block) {
      const auto count = static_cast<std::int64_t>(block.size());
      check_bytes(tensor, first + done, block);
      into.narrow(0, done, count).copy_(tensor_over(block.data(), count, at::kByte));
    };
    read_blocks(files_[static_cast<std::size_t>(tensor.file)], tensor.offset + first, into.numel(), take);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ModelError(fmt::format("--gradient-mask file:{}: {}", printable(path_), what));
  }

  /// Bytes of the elements `first` and up.
  void check_bytes(const StoredTensor& tensor, std::int64_t first, std::span<const char> bytes) const {
    const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](char c) { return c != 0 && c != 1; });
    if (wrong == bytes.end()) return;
    fail(fmt::format("tensor {} has {} at element {}; a mask has only 0 and 1", printable(tensor.name),
                     static_cast<int>(static_cast<unsigned char>(*wrong)), first + (wrong - bytes.begin())));
  }

  void check(const StoredTensor& tensor, const Parameter& parameter, bool trainable) const {
    if (!trainable) fail(fmt::format("{} is frozen; leave out its mask or --freeze", printable(tensor.name)));
    if (tensor.dtype != "BOOL" && tensor.dtype != "U8") {
      fail(fmt::format("tensor {} is stored as {}; masks must be BOOL or U8", printable(tensor.name), tensor.dtype));
    }
    if (tensor.shape != parameter.shape) {
      fail(fmt::format("tensor {} is {}, the parameter {}", printable(tensor.name), tensor.shape, parameter.shape));
    }
  }

  [[noreturn]] void fail_unknown(std::string_view name) const {
    std::vector<std::string> names;
    for (const Parameter& parameter : graph_.parameters) names.push_back(parameter.name);
    fail(fmt::format("tensor {} is not a parameter of the model{}", printable(name), did_you_mean(name, names)));
  }

  std::string path_;
  const Graph& graph_;
  Checkpoint stored_;
  std::unordered_map<int, const StoredTensor*> of_parameter_;
  std::vector<File> files_;
};

}  // namespace

void GradientMasks::load(std::vector<at::Tensor> masks) {
  masks_ = std::move(masks);
  const MaskFile file(std::get<GradientMaskFile>(in_.job.gradient_mask).path, in_.graph, in_.layout);
  for (std::size_t u = 0; u < masks_.size(); ++u) {
    if (masks_[u].defined()) masks_[u].fill_(1);
    for (const UnitParameter& p : in_.layout.units[u].parameters) {
      if (!in_.has_values || !file.holds(p.parameter)) continue;
      const std::int64_t first = in_.shard_rank * p.shard_elements;
      const std::int64_t count = std::clamp<std::int64_t>(p.rows * p.row_elements - first, 0, p.shard_elements);
      if (count > 0) file.read(p.parameter, first, UnitState::slice(masks_[u], p).narrow(0, 0, count));
    }
  }
}

}  // namespace vramfit
