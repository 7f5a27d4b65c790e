#include <cerrno>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "executor/checkpoint/full_torch.h"
#include "executor/checkpoint/open_folder.h"
#include "executor/checkpoint/safetensors_header.h"
#include "executor/checkpoint/snapshot_torch.h"
#include "program/files/peft_config.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

/// A file that takes its name when it is whole and on the disk.
class NamedWhenWhole {
 public:
  NamedWhenWhole(FileCalls& files, const OpenFolder& folder, std::string name)
      : files_(files),
        folder_(folder),
        name_(std::move(name)),
        aside_(made_room(name_ + ".part")),
        file_(files, folder, aside_) {}
  ~NamedWhenWhole() {
    if (!is_whole_) files_.remove_file(folder_.descriptor(), aside_);
  }
  NamedWhenWhole(const NamedWhenWhole&) = delete;
  NamedWhenWhole& operator=(const NamedWhenWhole&) = delete;
  NamedWhenWhole(NamedWhenWhole&&) = delete;
  NamedWhenWhole& operator=(NamedWhenWhole&&) = delete;

  void append(std::span<const char> bytes) { file_.append(bytes); }
  void finish() {
    file_.finish();
    check_call(files_.rename(folder_.descriptor(), aside_, name_), folder_.path_of(name_), "can't be renamed");
    is_whole_ = true;
    folder_.sync(files_);
  }

 private:
  /// An interrupted run's leftover goes; the directory is locked, so no other run is writing it.
  std::string made_room(std::string aside) {
    const int removed = files_.remove_file(folder_.descriptor(), aside);
    if (removed != ENOENT) check_call(removed, folder_.path_of(aside), "can't be removed");
    return aside;
  }

  FileCalls& files_;
  const OpenFolder& folder_;
  std::string name_, aside_;
  OutputFile file_;
  bool is_whole_ = false;
};

void write_text(FileCalls& files, const OpenFolder& folder, const std::string& name, const std::string& text) {
  NamedWhenWhole file(files, folder, name);
  file.append(text);
  file.finish();
}

std::string header_of(const Graph& graph, const UnitLayout& layout, const std::vector<bool>& written,
                      std::string_view prefix) {
  std::vector<HeaderEntry> entries;
  for (const Unit& unit : layout.units) {
    for (const UnitParameter& p : unit.parameters) {
      const auto index = static_cast<std::size_t>(p.parameter);
      const Parameter& parameter = graph.parameters[index];
      if (written[index])
        entries.push_back({std::string(prefix) + parameter.name, written_dtype(unit, p), parameter.shape});
    }
  }
  return safetensors_header(entries, true);
}

}  // namespace

std::string full_header(const Graph& graph, const UnitLayout& layout) {
  return header_of(graph, layout, std::vector<bool>(graph.parameters.size(), true), "");
}

std::string adapter_header(const Graph& graph, const UnitLayout& layout) {
  return header_of(graph, layout, adapter_parameters(graph), kPeftPrefix);
}

struct FullCheckpointFile::State {
  State(FileCalls& calls, const WrittenFolder& written)
      : files(calls), folder(OpenFolder::make(files, written.directory)) {
    write_text(files, folder, std::string(written.config_name), written.config);
    weights.emplace(files, folder, std::string(written.weights_name));
    weights->append(written.header);
  }
  FileCalls& files;
  OpenFolder folder;
  std::optional<NamedWhenWhole> weights;
};

FullCheckpointFile::FullCheckpointFile(FileCalls& files, const WrittenFolder& folder)
    : state_(std::make_unique<State>(files, folder)) {}
FullCheckpointFile::~FullCheckpointFile() = default;

void FullCheckpointFile::append(const at::Tensor& rows, const at::Tensor& on_host) {
  if (rows.is_cpu()) return state_->weights->append({static_cast<const char*>(rows.const_data_ptr()), rows.nbytes()});
  const std::span<char> copy(static_cast<char*>(on_host.mutable_data_ptr()), rows.nbytes());
  copy_to_host(rows, copy);
  state_->weights->append(copy);
}

void FullCheckpointFile::finish() { state_->weights->finish(); }

FinalFiles::FinalFiles(FileCalls& files, const FinalFolders& folders, const Graph& graph, const UnitLayout& layout)
    : is_adapter_(adapter_parameters(graph)) {
  const auto open = [&](const WrittenFolder& folder) {
    return folder.directory.empty() ? nullptr : std::make_unique<FullCheckpointFile>(files, folder);
  };
  model_ = open({.directory = folders.model,
                 .config_name = "config.json",
                 .weights_name = "model.safetensors",
                 .config = folders.config_json,
                 .header = full_header(graph, layout)});
  adapters_ = open({.directory = folders.adapters,
                    .config_name = kPeftConfigFile,
                    .weights_name = kPeftWeightsFile,
                    .config = folders.adapter_config,
                    .header = adapter_header(graph, layout)});
}

void FinalFiles::append(int parameter, const at::Tensor& rows, const at::Tensor& on_host) {
  if (model_) model_->append(rows, on_host);
  if (adapters_ && is_adapter_[static_cast<std::size_t>(parameter)]) adapters_->append(rows, on_host);
}

void FinalFiles::finish() {
  if (model_) model_->finish();
  if (adapters_) adapters_->finish();
}

}  // namespace vramfit
