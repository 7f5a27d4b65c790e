#include <ATen/ops/empty.h>

#include <optional>
#include <span>

#include "executor/checkpoint/full_torch.h"
#include "executor/checkpoint/safetensors_header.h"
#include "executor/checkpoint/snapshot_torch.h"
#include "executor/meter/meter.h"
#include "executor/tensor_torch.h"

namespace vramfit {
namespace {

/// A file that takes its name when it is whole and on the disk.
class NamedWhenWhole {
 public:
  NamedWhenWhole(FileCalls& files, std::string path)
      : files_(files), path_(std::move(path)), aside_(path_ + ".part"), file_(files, aside_) {}
  void append(std::span<const char> bytes) { file_.append(bytes); }
  void finish() {
    file_.finish();
    check_call(files_.rename(aside_, path_), path_, "can't be renamed");
    check_call(files_.sync_directory(parent_of(path_)), parent_of(path_), "can't be synchronized");
  }

 private:
  FileCalls& files_;
  std::string path_, aside_;
  OutputFile file_;
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

void write_text(FileCalls& files, const std::string& path, const std::string& text) {
  NamedWhenWhole file(files, path);
  file.append(text);
  file.finish();
}

}  // namespace

void save_full(FileCalls& files, const FullCheckpoint& full, const std::vector<UnitState>& units) {
  const LabelScope scope(Category::temporaries, "full checkpoint");
  std::optional<NamedWhenWhole> file;
  if (full.writes) {
    make_directories(files, full.directory);
    write_text(files, full.directory + "/config.json", full.config_json);
    file.emplace(files, full.directory + "/model.safetensors");
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
