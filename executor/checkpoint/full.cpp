#include <ATen/ops/empty.h>

#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "executor/checkpoint/full_torch.h"
#include "executor/checkpoint/open_folder.h"
#include "executor/checkpoint/safetensors_header.h"
#include "executor/checkpoint/snapshot_torch.h"
#include "executor/meter/meter.h"
#include "executor/tensor_torch.h"

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

std::string header_of(const FullCheckpoint& full, const std::vector<UnitState>& units) {
  std::vector<HeaderEntry> entries;
  for (const UnitState& unit : units) {
    for (const UnitParameter& p : unit.unit().parameters) {
      const Parameter& parameter = full.graph.parameters[static_cast<std::size_t>(p.parameter)];
      entries.push_back({parameter.name, unit.unit().storage, parameter.shape});
    }
  }
  return safetensors_header(entries, true);
}

/// The parameter's rows from all ranks, padded; with one shard the shard itself.
at::Tensor gathered(const FullCheckpoint& full, const UnitState& unit, const UnitParameter& p) {
  const at::Tensor own = UnitState::slice(unit.shard(), p);
  if (full.shard_group.size() == 1) return own;
  at::Tensor whole = at::empty({p.padded_elements}, own.options());
  whole.narrow(0, full.shard_group.rank() * p.shard_elements, p.shard_elements).copy_(own);
  if (const Pending gathering = full.shard_group.all_gather({whole})) gathering->wait();
  return whole;
}

void write_text(FileCalls& files, const OpenFolder& folder, const std::string& name, const std::string& text) {
  NamedWhenWhole file(files, folder, name);
  file.append(text);
  file.finish();
}

}  // namespace

void save_full(FileCalls& files, const FullCheckpoint& full, const std::vector<UnitState>& units) {
  const LabelScope scope(Category::temporaries, "full checkpoint");
  std::optional<OpenFolder> folder;
  std::optional<NamedWhenWhole> file;
  if (full.writes) {
    folder.emplace(OpenFolder::make(files, full.directory));
    write_text(files, *folder, "config.json", full.config_json);
    file.emplace(files, *folder, "model.safetensors");
    file->append(header_of(full, units));
  }
  std::vector<char> host;
  for (const UnitState& unit : units) {
    for (const UnitParameter& p : unit.unit().parameters) {
      const at::Tensor whole = gathered(full, unit, p);
      if (!file) continue;
      const at::Tensor rows = whole.narrow(0, 0, p.rows * p.row_elements);
      if (rows.is_cpu()) {
        file->append({static_cast<const char*>(rows.const_data_ptr()), rows.nbytes()});
        continue;
      }
      host.resize(rows.nbytes());
      copy_to_host(rows, host);
      file->append(host);
    }
  }
  if (file) file->finish();
}

}  // namespace vramfit
