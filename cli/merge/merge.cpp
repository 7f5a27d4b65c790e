#include "cli/merge/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/result_file.h"
#include "base/numbers/stored_numbers.h"
#include "base/text/suggest.h"
#include "cli/merge/adapted_matrix.h"
#include "model_specs/hub/safetensors.h"
#include "program/files/peft_folder.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;

/// Files beside the weights that loaders read. A model card describes the base alone.
constexpr std::array kCopied{".json", ".txt", ".model", ".jinja", ".py"};

/// Prefixes of a class with a head, which a checkpoint of the bare model lacks: "transformer.h.0.attn.c_attn".
constexpr std::array kClassPrefixes{"model.", "transformer.", "bert."};

struct Adapter {
  const StoredTensor* a = nullptr;
  const StoredTensor* b = nullptr;
  const StoredTensor* magnitudes = nullptr;  // null: the sum is as long as it is
  std::int64_t rank() const { return a->shape[0]; }
  std::int64_t inputs() const { return a->shape[1]; }
  std::int64_t outputs() const { return b->shape[0]; }
};

/// A tensor of the base that has an adapter.
struct Target {
  Adapter adapter;
  MatrixForm form = MatrixForm::outputs_first;
};

[[noreturn]] void fail_tensor(const std::string& path, const StoredTensor& tensor, const std::string& why) {
  throw ModelError(fmt::format("weights {}: tensor {}: {}", printable(path), printable(tensor.name), why));
}

StoredFloat float_of(const std::string& path, const StoredTensor& tensor) {
  const auto type = stored_float(tensor.dtype);
  if (!type) fail_tensor(path, tensor, fmt::format("is stored as {}; expected F32, BF16 or F16", tensor.dtype));
  return *type;
}

std::vector<float> read_numbers(const File& file, const StoredTensor& tensor) {
  const StoredFloat type = float_of(file.path(), tensor);
  std::vector<char> bytes(static_cast<std::size_t>(tensor.bytes.n));
  file.read(tensor.offset, bytes);
  const std::int64_t count = tensor.bytes.n / stored_bytes(type);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  widen_numbers({type, bytes.data(), count}, 0, numbers);
  return numbers;
}

/// Which tensors of the base have adapters.
class Targets {
 public:
  Targets(const std::string& base, const Checkpoint& checkpoint, const PeftFolder& folder)
      : base_(base), folder_(folder) {
    for (const StoredTensor& tensor : checkpoint.tensors) stored_.emplace(tensor.name, &tensor);
    for (const StoredTensor& tensor : folder.tensors) adapters_.emplace(tensor.name, &tensor);
    for (const std::string& module : folder.modules) add(module);
  }

  const Target* find(const StoredTensor& tensor) const {
    const auto found = of_tensor_.find(tensor.name);
    return found == of_tensor_.end() ? nullptr : &found->second;
  }

 private:
  void add(const std::string& module) {
    const std::string name = std::string(kPeftPrefix) + module;
    Adapter adapter{adapters_.at(name + ".lora_A.weight"), adapters_.at(name + ".lora_B.weight")};
    if (folder_.config.lora.has_magnitudes) adapter.magnitudes = adapters_.at(name + ".lora_magnitude_vector");
    const StoredTensor& tensor = tensor_of(module);
    float_of(base_, tensor);
    for (const StoredTensor* part : {adapter.a, adapter.b, adapter.magnitudes}) {
      if (part != nullptr) float_of(folder_.weights, *part);
    }
    if (!of_tensor_.emplace(tensor.name, Target{adapter, form_of(tensor, adapter)}).second) {
      fail_tensor(base_, tensor, "has two adapters");
    }
  }

  const StoredTensor& tensor_of(const std::string& module) const {
    std::vector<std::string> names{module + ".weight"};
    for (const std::string prefix : kClassPrefixes) {
      names.push_back(prefix + names.front());
      if (module.starts_with(prefix)) names.push_back(names.front().substr(prefix.size()));
    }
    for (const std::string& name : names) {
      if (const auto found = stored_.find(name); found != stored_.end()) return *found->second;
    }
    throw ModelError(fmt::format("weights {}: no tensor {}, for which {} has an adapter; is it another model's?",
                                 printable(base_), printable(names.front()), printable(folder_.path)));
  }

  /// The shape says it, and of a square matrix the configuration.
  MatrixForm form_of(const StoredTensor& tensor, const Adapter& adapter) const {
    using Shape = std::vector<std::int64_t>;
    const bool is_plain = tensor.shape == Shape{adapter.outputs(), adapter.inputs()};
    const bool is_swapped = tensor.shape == Shape{adapter.inputs(), adapter.outputs()};
    if (!is_plain && !is_swapped) {
      fail_tensor(base_, tensor,
                  fmt::format("is {}, and its adapter has {} inputs and {} outputs; is it another model's?",
                              tensor.shape, adapter.inputs(), adapter.outputs()));
    }
    if (is_plain && is_swapped) {
      return folder_.config.fan_in_fan_out ? MatrixForm::inputs_first : MatrixForm::outputs_first;
    }
    if (is_swapped != folder_.config.fan_in_fan_out) {
      fail_tensor(base_, tensor,
                  fmt::format("is {}, which contradicts fan_in_fan_out of {}", tensor.shape, kPeftConfigFile));
    }
    return is_swapped ? MatrixForm::inputs_first : MatrixForm::outputs_first;
  }

  const std::string& base_;
  const PeftFolder& folder_;
  std::unordered_map<std::string_view, const StoredTensor*> stored_, adapters_;
  std::unordered_map<std::string, Target> of_tensor_;
};

/// Writes one file of weights.
class FileMerger {
 public:
  FileMerger(const std::string& from, const std::string& to, const PeftFolder& folder, const File& adapters)
      : from_(from, kWeightsFile), to_(to), folder_(folder), adapters_(adapters) {}

  /// What comes before the tensor, as it is, and then the tensor with its adapter.
  void merge(const StoredTensor& tensor, const Target& target) {
    copy(tensor.offset);
    const Adapter& adapter = target.adapter;
    AdapterProduct product(read_numbers(adapters_, *adapter.a), read_numbers(adapters_, *adapter.b), adapter.rank(),
                           adapter_scale(folder_.config.lora), target.form);
    OutputLengths lengths(adapter.outputs(), target.form);
    const bool is_scaled = adapter.magnitudes != nullptr;
    if (is_scaled) {
      for_rows(
          tensor, product, [&](std::int64_t row, char* /*bytes*/) { lengths.count_row(row, numbers_); }, [] {});
      lengths.set(read_numbers(adapters_, *adapter.magnitudes));
    }
    for_rows(
        tensor, product,
        [&](std::int64_t row, char* bytes) {
          if (is_scaled) lengths.scale_row(row, numbers_);
          store_row(tensor, row, bytes);
        },
        [&] {
          to_.write({block_.data(), block_.size()});
        });
    done_ = tensor.offset + tensor.bytes.n;
  }

  void finish() {
    copy(from_.bytes());
    to_.commit();
  }

 private:
  /// use(row, its place in the block) for each row of the tensor, with the sum in numbers_; after each block,
  /// end_block.
  template <typename Use, typename EndBlock>
  void for_rows(const StoredTensor& tensor, AdapterProduct& product, const Use& use, const EndBlock& end_block) {
    const StoredFloat type = float_of(from_.path(), tensor);
    const std::int64_t row_bytes = product.columns() * stored_bytes(type);
    const std::int64_t rows = tensor.shape[0], most = std::max<std::int64_t>(1, kBlockBytes / row_bytes);
    numbers_.resize(static_cast<std::size_t>(product.columns()));
    for (std::int64_t first = 0; first < rows; first += most) {
      block_.resize(static_cast<std::size_t>(std::min(most, rows - first) * row_bytes));
      from_.read(tensor.offset + first * row_bytes, block_);
      for (std::int64_t row = 0; row < std::min(most, rows - first); ++row) {
        char* const bytes = block_.data() + row * row_bytes;
        widen_numbers({type, bytes, product.columns()}, 0, numbers_);
        product.add_row(first + row, numbers_);
        use(first + row, bytes);
      }
      end_block();
    }
  }

  void store_row(const StoredTensor& tensor, std::int64_t row, char* bytes) {
    const StoredFloat type = float_of(from_.path(), tensor);
    narrow_numbers(numbers_, type, bytes);
    widen_numbers({type, bytes, static_cast<std::int64_t>(numbers_.size())}, 0, numbers_);
    if (std::ranges::all_of(numbers_, [](float number) { return std::isfinite(number); })) return;
    fail_tensor(from_.path(), tensor, fmt::format("row {} is not finite in {} with its adapter", row, tensor.dtype));
  }

  void copy(std::int64_t end) {
    while (done_ < end) {
      block_.resize(static_cast<std::size_t>(std::min(kBlockBytes, end - done_)));
      from_.read(done_, block_);
      to_.write({block_.data(), block_.size()});
      done_ += static_cast<std::int64_t>(block_.size());
    }
  }

  File from_;
  ResultFile to_;
  const PeftFolder& folder_;
  const File& adapters_;
  std::int64_t done_ = 0;  // bytes of the file
  std::vector<char> block_;
  std::vector<float> numbers_;  // one row
};

/// `out`.part, which becomes `out` when it is whole.
class NewFolder {
 public:
  explicit NewFolder(std::string out) : out_(std::move(out)) {
    while (out_.size() > 1 && out_.ends_with('/')) out_.pop_back();
    part_ = out_ + ".part";
    std::error_code error;
    if (fs::symlink_status(out_, error).type() != fs::file_type::not_found) {
      throw InputError(fmt::format("-o {}: is there already; name a new folder", printable(out_)));
    }
    if (fs::create_directory(part_, error)) return;
    if (!error) {
      throw InputError(fmt::format("-o {}: {} is there, of a merge that is running or was interrupted; remove it first",
                                   printable(out_), printable(part_)));
    }
    throw FaultError(fmt::format("{}: can't be made: {}", printable(part_), error.message()));
  }
  ~NewFolder() {
    std::error_code error;
    if (!is_whole_) fs::remove_all(part_, error);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  NewFolder(NewFolder&&) = delete;
  NewFolder& operator=(NewFolder&&) = delete;

  std::string path_of(const fs::path& name) const { return (fs::path(part_) / name).string(); }
  void finish() {
    std::error_code error;
    fs::rename(part_, out_, error);
    if (error) throw FaultError(fmt::format("{}: can't be renamed: {}", printable(part_), error.message()));
    is_whole_ = true;
  }

 private:
  std::string out_, part_;
  bool is_whole_ = false;
};

void copy_others(const std::string& base, const NewFolder& out) {
  std::error_code error;
  if (!fs::is_directory(base, error)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(base)) {
    const fs::path name = entry.path().filename();
    const bool is_read = std::ranges::find(kCopied, name.extension().string()) != kCopied.end();
    if (!is_read || name == kPeftConfigFile || !entry.is_regular_file(error)) continue;
    const File from(entry.path().string(), kModelFile);
    ResultFile to(out.path_of(name));
    std::vector<char> block;
    for (std::int64_t done = 0; done < from.bytes(); done += static_cast<std::int64_t>(block.size())) {
      block.resize(static_cast<std::size_t>(std::min(kBlockBytes, from.bytes() - done)));
      from.read(done, block);
      to.write({block.data(), block.size()});
    }
    to.commit();
  }
}

}  // namespace

MergedModel merge_adapters(const std::string& base, const std::string& adapters, const std::string& out) {
  const PeftFolder folder = read_peft_folder(adapters);
  Checkpoint checkpoint = list_tensors(base);
  const Targets targets(base, checkpoint, folder);
  std::ranges::sort(checkpoint.tensors, {}, [](const StoredTensor& t) { return std::pair(t.file, t.offset); });
  const File pairs(folder.weights, kWeightsFile);
  NewFolder made(out);
  MergedModel merged;
  for (std::size_t i = 0; i < checkpoint.files.size(); ++i) {
    const std::string& from = checkpoint.files[i];
    FileMerger file(from, made.path_of(fs::path(from).filename()), folder, pairs);
    for (const StoredTensor& tensor : checkpoint.tensors) {
      if (tensor.file != static_cast<int>(i)) continue;
      ++merged.tensors;
      merged.bytes += tensor.bytes;
      const Target* target = targets.find(tensor);
      if (target == nullptr) continue;
      file.merge(tensor, *target);
      ++merged.matrices;
    }
    file.finish();
  }
  copy_others(base, made);
  made.finish();
  return merged;
}

}  // namespace vramfit
